"""Seconds of communication that the schedule of a compiled program does not hide.

A compiled program lists its instructions in the order in which a device starts them. Communication
between a `-start` and its `-done` runs while the device executes the instructions between them; a
collective without these stops the device. This module walks the list with two clocks:

- the device's: an instruction takes the larger of its products at EFFICIENCY of the peak and its
  HBM traffic at STREAMING of the bandwidth. A `-done` waits for its transfer;
- the links': transfers run one after the other in the order of their starts, even those over
  different links.

TPUs also fuse a collective into products, which carry it on step by step (`Instruction.continues`):
it runs during these products alone.

The bodies of loops are walked once, with idle links at the start and at the end of an iteration;
their transfers delay those around the loop. A step is estimated as the larger of all products and
all traffic, which is less than the sum, over instructions, of the larger of the two. Instructions
are shortened by the ratio of these times, so that nothing hides behind time that the step does not
take.
"""

import collections
import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence

from xlme_jax.tools.planning.collectives import Collective, bandwidth
from xlme_jax.tools.planning.hlo import Computation, Instruction, Program
from xlme_jax.tools.planning.machines import Topology
from xlme_jax.tools.planning.product_flops import instruction_flops
from xlme_jax.tools.planning.traffic import Transfer

_BODIES = ("while", "conditional", "call")


@dataclasses.dataclass(frozen=True)
class Span:
    """Seconds of one execution of a computation.

    Attributes:
      busy: seconds for which the device computes.
      sent: seconds for which the links transfer.
      exposed: seconds for which the device waits for links.
      carried: {chain of a fused collective: seconds of the products that carry it on}.
    """

    busy: float = 0.0
    sent: float = 0.0
    exposed: float = 0.0
    carried: Mapping[str, float] = dataclasses.field(default_factory=dict)


def exposed_seconds(
    program: Program,
    topology: Topology,
    collectives: Sequence[Collective],
    transfers: Sequence[Transfer],
    busy: float,
) -> float:
    """Returns the seconds per step that a device waits for links.

    Args:
      program: the compiled program; its instructions are in the order of the schedule.
      topology: the accelerators.
      collectives: the collectives of the program.
      transfers: the instructions of the program with HBM traffic.
      busy: estimated seconds per step without communication.
    """
    links = {c.name: c.sent / bandwidth(topology, c) for c in collectives}
    moved = {transfer.instruction.name: transfer.moved for transfer in transfers}
    whole = _Walk(program, topology, links, moved).span(program.entry)
    ratio = min(busy / whole.busy, 1.0) if whole.busy else 1.0
    return _Walk(program, topology, links, moved, ratio).span(program.entry).exposed


class _Clocks:
    """The time of a device and of its links, from the start of a computation.

    Attributes:
      now: the device's time.
      free: time at which the links will have finished all transfers that were started.
      busy: seconds for which the device computed.
      sent: seconds for which the links transfer.
      ends: {name of a start: time at which its transfer ends}.
      left: {chain of a fused collective: seconds that its transfer still needs}.
      carried: `Span.carried` so far.
    """

    def __init__(self) -> None:
        self.now = self.free = self.busy = self.sent = 0.0
        self.ends: dict[str, float] = {}
        self.left: dict[str, float] = {}
        self.carried: dict[str, float] = collections.defaultdict(float)

    def compute(self, seconds: float) -> None:
        """Runs an instruction that needs no links."""
        self.now, self.busy = self.now + seconds, self.busy + seconds

    def start(self, name: str, link: float) -> None:
        """Queues a transfer that needs the links for `link` seconds."""
        self.free = max(self.now, self.free) + link
        self.sent = self.sent + link
        self.ends[name] = self.free

    def wait(self, name: str) -> None:
        """Waits for the end of a transfer; does nothing if none has this name."""
        self.now = max(self.now, self.ends.get(name, 0.0))

    def carry(self, chain: str, seconds: float) -> None:
        """Runs a product that carries on a fused collective."""
        start = max(self.now, self.free)
        self.compute(seconds)
        self.carried[chain] += seconds
        seconds_sent = min(self.left.get(chain, 0.0), max(self.now - start, 0.0))
        if seconds_sent:
            self.left[chain] -= seconds_sent
            self.free = start + seconds_sent

    def finish(self, chain: str) -> None:
        """Waits until a fused collective has finished its transfer."""
        if remaining := self.left.pop(chain, 0.0):
            self.now = self.free = max(self.now, self.free) + remaining

    def run(self, body: Span) -> None:
        """Runs a loop or call, whose transfers delay the transfers that are under way."""
        for name, end in self.ends.items():
            self.ends[name] = end + body.sent if end > self.now else end
        self.free += body.sent if self.free > self.now else 0.0
        # Seconds for which the links have other transfers; only then fused collectives have them.
        occupied = body.sent + max(self.free - self.now, 0.0)
        for chain, seconds in body.carried.items():
            self.carried[chain] += seconds
            seconds_sent = min(self.left.get(chain, 0.0), max(seconds - occupied, 0.0))
            if seconds_sent:
                self.left[chain] -= seconds_sent
                occupied += seconds_sent
        self.now += body.busy + body.exposed
        self.busy, self.sent = self.busy + body.busy, self.sent + body.sent


class _Walk:
    """Walks the computations of a program.

    Args:
      program: the compiled program.
      topology: the accelerators.
      links: {name of a collective's instruction: seconds for which it needs the links}.
      moved: {name of an instruction: bytes that it reads from and writes to HBM}.
      ratio: factor by which the seconds of instructions are multiplied.
    """

    def __init__(
        self,
        program: Program,
        topology: Topology,
        links: Mapping[str, float],
        moved: Mapping[str, int],
        ratio: float = 1.0,
    ):
        self._program = program
        self._machine = topology.machine
        self._links, self._moved, self._ratio = links, moved, ratio
        self.span = functools.cache(self._span)

    def _span(self, name: str) -> Span:
        """Returns the seconds of one execution of a computation."""
        clocks = _Clocks()
        computation = self._program.computations.get(name, {})
        awaited = {
            operand
            for instruction in computation.values()
            if instruction.opcode.endswith("-done")
            for operand in instruction.operands
        }
        for instruction in computation.values():
            chain = self._chain(instruction)
            if instruction.opcode in _BODIES:
                clocks.run(self._body(instruction))
            elif chain and instruction.name.startswith("async-collective-start"):
                clocks.left[chain] = self._link(instruction)
                clocks.sent += clocks.left[chain]
            elif chain and instruction.name.startswith("async-collective-done"):
                clocks.finish(chain)
            elif chain:
                clocks.carry(chain, self._seconds(instruction, computation))
            elif link := self._link(instruction):
                clocks.start(instruction.name, link)
                if instruction.name not in awaited:
                    clocks.wait(instruction.name)
            elif instruction.opcode.endswith("-done"):
                for operand in instruction.operands:
                    clocks.wait(operand)
            else:
                clocks.compute(self._seconds(instruction, computation))
        for chain in list(clocks.left):
            clocks.finish(chain)
        end = max(clocks.now, clocks.free)
        return Span(clocks.busy, clocks.sent, end - clocks.busy, clocks.carried)

    def _body(self, instruction: Instruction) -> Span:
        """Returns the seconds of a loop with all iterations, of a call, or of a conditional.

        A conditional has the largest value of each field among its branches.
        """
        spans = [self.span(name) for name in self._program.called(instruction)] or [Span()]
        turns = 1
        if instruction.opcode == "while":
            turns = self._program.trips(instruction) or 1
        carried: dict[str, float] = {}
        if len(spans) == 1:
            carried = {chain: turns * seconds for chain, seconds in spans[0].carried.items()}
        return Span(
            busy=turns * max(span.busy for span in spans),
            sent=turns * max(span.sent for span in spans),
            exposed=turns * max(span.exposed for span in spans),
            carried=carried,
        )

    def _chain(self, instruction: Instruction) -> str:
        """Returns the chain of a collective that is fused with products; "" without one."""
        if instruction.opcode != "fusion":
            return ""
        for name in self._program.called(instruction):
            for inner in self._program.computations.get(name, {}).values():
                if "async_collective_fusion_config" in inner.text:
                    match = re.search(r'chain_id="([^"]*)"', inner.text)
                    return match[1] if match else ""
        return ""

    def _link(self, instruction: Instruction) -> float:
        """Returns the seconds for which an instruction needs the links."""
        link = self._links.get(instruction.name, 0.0)
        if instruction.opcode == "fusion" or instruction.opcode.endswith("-start"):
            link += sum(self.span(name).sent for name in self._program.called(instruction))
        return link

    def _seconds(self, instruction: Instruction, inside: Computation) -> float:
        """Returns the seconds of an instruction's products or HBM traffic, without links."""
        flops = instruction_flops(self._program, instruction, inside)
        moved = self._moved.get(instruction.name, 0)
        return max(self._machine.seconds(flops, moved)) * self._ratio
