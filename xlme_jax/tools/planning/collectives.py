"""Collective communication of a compiled program."""

import collections
import dataclasses
import re

import numpy as np

from xlme_jax.tools.planning.hlo import (
    Computation,
    Instruction,
    Program,
    find_root,
    operand_type,
    type_bytes,
)
from xlme_jax.tools.planning.machines import GPUS_A_NODE, Topology

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective instruction.

    Attributes:
      kind: one of `KINDS`.
      group: indices in the mesh of the devices of the first group.
      sent: bytes that each device sends per execution with the ring algorithm: (n - 1) / n of the
        whole array for all-gather, reduce-scatter and all-to-all, 2 (n - 1) / n for all-reduce, and
        the whole array for collective-permute.
      times: executions per step.
      what: `op_name` of the model operation that the instruction belongs to.
      types: result type, as printed in the HLO.
      name: name of the instruction.
    """

    kind: str
    group: tuple[int, ...]
    sent: float
    times: int
    what: str
    types: str
    name: str = ""

    @property
    def total(self) -> float:
        """Bytes that each device sends per step."""
        return self.sent * self.times


def find_collectives(program: Program, devices: int) -> list[Collective]:
    """Returns the collectives of a program that send data, the largest total first.

    Args:
      program: the compiled program.
      devices: number of devices that the program was compiled for.
    """
    collectives = []
    for instruction, computation, times in program.instructions():
        kind = instruction.opcode.removesuffix("-start")
        if kind not in KINDS or instruction.continues:
            continue
        if _is_scattered(instruction, computation):
            kind = "reduce-scatter"
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
            collectives.append(
                Collective(
                    kind,
                    group,
                    float(sent),
                    times,
                    what=instruction.what,
                    types=instruction.type,
                    name=instruction.name,
                )
            )
    return sorted(collectives, key=lambda collective: -collective.total)


def by_kind(collectives: list[Collective]) -> dict[str, float]:
    """Returns {kind: bytes that each device sends per step} for the kinds that occur."""
    totals: dict[str, float] = collections.defaultdict(float)
    for collective in collectives:
        totals[collective.kind] += collective.total
    return {kind: totals[kind] for kind in KINDS if kind in totals}


def bandwidth(topology: Topology, collective: Collective) -> float:
    """Returns the bytes per second that each device can send to the others of its group."""
    machine, group = topology.machine, collective.group
    if machine.platform != "cuda":
        dims = sorted(topology.dims, reverse=True)
        spanned, reach = 0, 1
        while reach < len(group) and spanned < len(dims):
            reach *= dims[spanned]
            spanned += 1
        # A permutation shifts along a ring in one of its two directions.
        used = 0.5 if collective.kind == "collective-permute" else 1.0
        return machine.link_bandwidth * used * max(spanned, 1) / len(dims)
    nodes = {device // GPUS_A_NODE for device in group}
    if len(nodes) == 1:
        return machine.link_bandwidth
    # In a ring over nodes, a node sends through the network cards of its GPUs in the group.
    return min(machine.link_bandwidth, machine.network_bandwidth * len(group) / len(nodes))


def _is_scattered(instruction: Instruction, computation: Computation) -> bool:
    """Returns whether an instruction is an all-reduce of which its fusion keeps only a slice.

    TPU programs express a reduce-scatter by such a fusion.
    """
    root = find_root(computation)
    return (
        instruction.opcode == "all-reduce"
        and root is not None
        and root.opcode == "dynamic-slice"
        and root.operands[0] == instruction.name
    )


def _group(text: str, devices: int) -> tuple[int, ...]:
    """Returns the first device group of a collective, in any of XLA's notations.

    Args:
      text: the instruction as HLO text; without groups, the group is all devices.
      devices: number of devices.
    """
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

    Args:
      mesh: the axes of the mesh and their sizes.
      axes: the axes that the group spans.
      devices: number of devices.
    """
    spanned = {
        name: (int(parts_before or 1), int(size or 0))
        for name, parts_before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", axes)
    }
    shape: list[int] = []
    index: list[slice | int] = []
    for name, size in re.findall(r"'([^']+)'=(\d+)", mesh):
        # An axis that is not listed has its whole size before a part of 1; 0 is the whole axis.
        parts_before, part = spanned.get(name, (int(size), 1))
        part = part or int(size) // parts_before
        shape += [parts_before, part, int(size) // parts_before // part]
        index += [0, slice(None), 0]
    return tuple(np.arange(devices).reshape(shape)[tuple(index)].ravel().tolist())


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
