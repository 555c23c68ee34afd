"""Collective communication of a compiled program."""

import collections
import dataclasses
import re

import numpy as np

from xlme_jax.planning.hlo import Program, operand_type, type_bytes

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective instruction.

    Attributes:
      kind: one of `KINDS`.
      group: indices in the mesh of the devices of the first group.
      sent: bytes that each device sends per execution with the ring algorithm: (n - 1) / n of the
        whole array for all-gather, reduce-scatter and all-to-all, twice that for all-reduce.
      times: executions per step.
      what: `op_name` of the model operation that it belongs to.
      types: result type, as printed in the HLO.
    """

    kind: str
    group: tuple[int, ...]
    sent: float
    times: int
    what: str
    types: str

    @property
    def total(self) -> float:
        """Bytes that each device sends per step."""
        return self.sent * self.times


def find_collectives(program: Program, devices: int) -> list[Collective]:
    """Returns the collectives of a program that send data, the largest total first.

    Args:
      program: the compiled program.
      devices: number of devices it was compiled for.
    """
    found = []
    for instruction, computation, times in program.instructions():
        kind = instruction.opcode.removesuffix("-start")
        if kind not in KINDS:
            continue
        operands = sum(type_bytes(operand_type(name, computation)) for name in instruction.operands)
        group = _group(instruction.text, devices)
        size = len(group)
        share = (size - 1) / size
        sent = {
            "all-gather": operands * (size - 1),
            "all-reduce": 2 * operands * share,
            "reduce-scatter": operands * share,
            "all-to-all": operands * share,
            "collective-permute": operands,
        }[kind]
        if sent:
            what, types = instruction.what, instruction.type
            found.append(Collective(kind, group, float(sent), times, what, types))
    return sorted(found, key=lambda collective: -collective.total)


def by_kind(collectives: list[Collective]) -> dict[str, float]:
    """Returns {kind: bytes that each device sends per step} for the kinds that occur."""
    totals: dict[str, float] = collections.defaultdict(float)
    for collective in collectives:
        totals[collective.kind] += collective.total
    return {kind: totals[kind] for kind in KINDS if kind in totals}


def _group(text: str, devices: int) -> tuple[int, ...]:
    """Returns the first device group of a collective, in any of XLA's notations."""
    if pairs := re.search(r"source_target_pairs=\{\{(\d+),(\d+)\}", text):
        return int(pairs[1]), int(pairs[2])
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
        return tuple(map(int, listed[1].split(",")))
    iota = re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if iota:
        ids = np.arange(int(iota[1]) * int(iota[2])).reshape(_numbers(iota[3]))
        ids = ids.transpose(_numbers(iota[4])) if iota[4] else ids
        return tuple(ids.reshape(int(iota[1]), int(iota[2]))[0].tolist())
    if mesh := re.search(r"replica_groups=(?:\w+)?mesh\[([^\]]*)\][^{]*\{([^}]*)\}", text):
        return _mesh_group(mesh[1], mesh[2], devices)
    return tuple(range(devices))


def _mesh_group(mesh: str, axes: str, devices: int) -> tuple[int, ...]:
    """Returns the first group in XLA's mesh notation, `mesh['a'=8,'b'=4] {'a':(2)4,'b'}`.

    The group spans the listed axes. 'a':(2)4 is a sub-axis: a is split into 2 x 4 x the rest, and
    the group spans the 4.
    """
    wanted = {
        name: (int(before or 1), int(size or 0))
        for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", axes)
    }
    shape: list[int] = []
    index: list[slice | int] = []
    for name, size in re.findall(r"'([^']+)'=(\d+)", mesh):
        before, part = wanted.get(name, (int(size), 1))
        part = part or int(size) // before
        shape += [before, part, int(size) // before // part]
        index += [0, slice(None), 0]
    return tuple(np.arange(devices).reshape(shape)[tuple(index)].ravel().tolist())


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
