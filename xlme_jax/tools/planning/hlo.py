"""Parses HLO text: the instructions of a compiled program, and how often each runs."""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterator

_TYPE_BITS = {"pred": 8, "token": 0, "opaque": 0}
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")
_INSTRUCTION = re.compile(
    r"^\s+(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>.+?) (?P<opcode>[a-z][a-z0-9\-]*)\("
)
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) .*\{\s*$")
_CALLED = re.compile(
    r"(?:calls|body|branch_computations|true_computation|false_computation)=(\{[^}]*\}|%[\w.\-]+)"
)
_APPLIED = re.compile(r"to_apply=(%[\w.\-]+)")
_TRIPS = re.compile(r'"?known_trip_count"?:\s*\{\s*"?n"?:\s*"?(\d+)')


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of HLO.

    Attributes:
      name: name without the percent sign.
      type: result type, as printed.
      opcode: "fusion", "all-gather-start", ...
      operands: names of the instructions that it reads.
      text: the whole line.
      root: whether it is the root (the result) of its computation.
    """

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    text: str
    root: bool

    @property
    def what(self) -> str:
        """`op_name` of the model operation that the instruction belongs to; may be empty."""
        match = re.search(r'op_name="([^"]*)"', self.text)
        return match[1] if match else ""

    @functools.cached_property
    def continues(self) -> bool:
        """Whether the instruction continues or ends the transfer of an earlier collective.

        TPU programs fuse a collective into the products that run meanwhile, and repeat it in each
        of these fusions: in `async-collective-start`, in those that carry it on, even inside loops,
        and in `async-collective-done`. Only the instruction in the start has negative flags.
        """
        return (
            re.search(r'async_collective_fusion_config":\{"flag_start":"\d', self.text) is not None
        )


Computation = dict[str, Instruction]


def array_types(text: str) -> Iterator[tuple[int, tuple[int, ...], str]]:
    """Yields bits of an element, dimensions and layout of the arrays in a printed type.

    Args:
      text: the type, such as "(bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, s32[])".
    """
    for element, dims, layout in _ARRAY.findall(text):
        bits = _TYPE_BITS.get(element)
        if bits is None:
            digits = re.search(r"\d+", element)  # bf16, s32, f8e4m3fn
            bits = int(digits[0]) if digits else 32
        yield bits, tuple(int(size) for size in dims.split(",") if size), layout


@functools.lru_cache(maxsize=100_000)
def type_bytes(text: str) -> int:
    """Returns the bytes of the arrays in a printed type, without padding."""
    return sum(math.prod(dims) * bits for bits, dims, _ in array_types(text)) // 8


def split_tuple(text: str) -> list[str]:
    """Returns the printed types of a tuple's elements, which may be tuples.

    The type of an array is returned as a single element.
    """
    if not text.startswith("("):
        return [text]
    parts = []
    depth = 0
    start = 1
    for index, character in enumerate(text):
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(character, 0)
        if (character == "," and depth == 1) or depth == 0:
            parts.append(re.sub(r"^\s*(/\*.*?\*/)?", "", text[start:index]))
            start = index + 1
        if depth == 0:
            break
    return parts


class Program:
    """A parsed module.

    Args:
      text: `compiled.as_text()`.

    Attributes:
      computations: {name: computation}, a computation being {name: instruction} in order.
      entry: name of the computation that runs first.
      unknown_loops: number of loops with an unknown trip count, which count as one iteration.
      times: {name of a computation: its executions per step}.
    """

    def __init__(self, text: str):
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        self.unknown_loops = 0
        self._parse(text)
        self.times = self._count()

    def _parse(self, text: str) -> None:
        """Sets `computations` and `entry`."""
        computation: Computation = {}
        for line in text.splitlines():
            if line and not line[0].isspace():
                if header := _COMPUTATION.match(line):
                    computation = self.computations.setdefault(header["name"], {})
                    if header["entry"]:
                        self.entry = header["name"]
            elif match := _INSTRUCTION.match(line):
                computation[match["name"]] = Instruction(
                    name=match["name"],
                    type=match["type"],
                    opcode=match["opcode"],
                    operands=_operands(line, match.end()),
                    text=line,
                    root=match["root"] is not None,
                )

    def _count(self) -> collections.Counter[str]:
        """Returns how often each computation runs per step; counts the unknown loops."""
        times: collections.Counter[str] = collections.Counter()

        def visit(name: str, count: int) -> None:
            times[name] += count
            for instruction in self.computations.get(name, {}).values():
                trips: int | None = 1
                if instruction.opcode == "while" and (trips := self.trips(instruction)) is None:
                    self.unknown_loops += 1
                for called in self.called(instruction):
                    visit(called, count * (trips or 1))

        visit(self.entry, 1)
        return times

    def called(self, instruction: Instruction) -> list[str]:
        """Returns the names of the computations that an instruction runs."""
        if instruction.opcode.endswith(("-done", "-update")):
            return []  # Already counted at the matching "-start".
        groups = _CALLED.findall(instruction.text)
        if instruction.opcode == "call":
            groups = _APPLIED.findall(instruction.text)
        return [name for group in groups for name in re.findall(r"%([\w.\-]+)", group)]

    def trips(self, loop: Instruction) -> int | None:
        """Returns the trip count of a `while`; None if it is unknown.

        The count is the compiler's if the loop has it, else computed from the loop's condition.
        """
        if stated := _TRIPS.search(loop.text):
            return int(stated[1])
        condition, body = (
            self.computations.get(match[1], {}) if match else {}
            for match in (
                re.search(rf"{part}=%?([\w.\-]+)", loop.text) for part in ("condition", "body")
            )
        )
        compared = find_root(condition)
        if compared is None or compared.opcode != "compare" or "direction=LT" not in compared.text:
            return None
        bounds = [_constant(name, condition) for name in compared.operands]
        counters = [_element(name, condition) for name in compared.operands]
        if bounds[1] is None or counters[0] is None:
            return None
        return -(-bounds[1] // _step(body, counters[0]))

    def instructions(self) -> Iterator[tuple[Instruction, Computation, int]]:
        """Yields every instruction with its computation and its executions per step."""
        for name, count in self.times.items():
            for instruction in self.computations.get(name, {}).values():
                yield instruction, self.computations[name], count


def find_root(computation: Computation) -> Instruction | None:
    """Returns the instruction whose result a computation returns; None without instructions."""
    return next((instruction for instruction in computation.values() if instruction.root), None)


def _constant(name: str, computation: Computation) -> int | None:
    """Returns the value of an integer constant; None if the instruction is none."""
    match = (
        re.search(r" constant\((\d+)\)", computation[name].text) if name in computation else None
    )
    return int(match[1]) if match else None


def _element(name: str, computation: Computation) -> int | None:
    """Returns the index of the element of the loop state that an instruction reads, or None."""
    match = re.search(r"index=(\d+)", computation[name].text) if name in computation else None
    return int(match[1]) if match and computation[name].opcode == "get-tuple-element" else None


def _step(body: Computation, counter: int) -> int:
    """Returns the increment of a loop counter; 1 if the body is not a simple addition."""
    root = find_root(body)
    if root is None or counter >= len(root.operands):
        return 1
    raised = body.get(root.operands[counter])
    if raised is None or raised.opcode != "add":
        return 1
    return next((n for n in (_constant(name, body) for name in raised.operands) if n), 1)


def operand_type(name: str, computation: Computation) -> str:
    """Returns the printed type of an operand; "" if the computation does not define the operand."""
    return computation[name].type if name in computation else ""


def _operands(line: str, start: int) -> tuple[str, ...]:
    """Returns the names of operands in a line of HLO.

    Args:
      line: the line.
      start: index just behind the parenthesis that opens the list of operands.
    """
    depth = 1
    end = start
    while depth and end < len(line):
        depth += {"(": 1, ")": -1}.get(line[end], 0)
        end += 1
    return tuple(re.findall(r"%([\w.\-]+)", line[start:end]))
