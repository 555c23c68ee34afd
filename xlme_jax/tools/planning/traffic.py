"""Counts the bytes that a compiled program reads from and writes to HBM.

The operands and results of every instruction that runs count once per execution, with the padding
of TPU layouts. Exceptions:

- an array that a fusion only slices or gathers from counts as the slices;
- an array that dynamic-update-slice or scatter updates in place counts as the written part. (The
  compiler inserts a copy, which is counted, where it cannot update in place);
- an array in on-chip memory, `S(1)` in the layouts of TPUs, does not count: a prefetch is one read
  of HBM, and reading the prefetched array is none;
- a collective that is fused with products counts once, although each of these products lists it;
- tuples, bitcasts, loops and calls do not count, because they move no data themselves.

XLA's own `cost_analysis` counts the body of a loop once and returns nothing for GPUs. The sum is an
upper bound where a cache serves repeated reads, and a lower bound where an operand of a matrix
product is read again for each tile.
"""

import collections
import dataclasses
import functools
import math
import re

from xlme_jax.tools.planning.hlo import (
    Computation,
    Instruction,
    Program,
    array_types,
    find_root,
    operand_type,
    split_tuple,
    type_bytes,
)

# Instructions without traffic of their own.
_FREE = frozenset(
    (
        *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional"),
        *("call", "after-all", "partition-id", "replica-id", "opt-barrier", "add-dependency"),
    )
)
_SLICES = frozenset(("dynamic-slice", "slice", "gather"))
_IN_PLACE = frozenset(("dynamic-update-slice", "scatter"))
# If only a slice of the result is read, only a slice of the operands is.
_ELEMENTWISE = frozenset(
    (
        *("bitcast", "copy", "transpose", "reshape", "convert", "reduce-precision", "negate"),
        *("add", "subtract", "multiply", "divide", "maximum", "minimum", "select", "compare"),
        *("and", "or", "xor", "not", "sqrt", "rsqrt", "exponential", "tanh"),
    )
)


@dataclasses.dataclass(frozen=True)
class Transfer:
    """The traffic of one instruction.

    Attributes:
      instruction: the instruction.
      moved: bytes read and written per execution.
      times: executions per step.
    """

    instruction: Instruction
    moved: int
    times: int

    @property
    def total(self) -> int:
        """Bytes read and written per step."""
        return self.moved * self.times


def find_transfers(program: Program) -> list[Transfer]:
    """Returns the instructions that read or write HBM, the largest total first."""
    fused = {
        name
        for computation in program.computations.values()
        for instruction in computation.values()
        if instruction.opcode == "fusion"
        for name in program.called(instruction)
    }
    counter = _Counter(program)
    transfers = [
        Transfer(instruction, moved, times)
        for name, times in program.times.items()
        if name not in fused
        for instruction in program.computations.get(name, {}).values()
        if (moved := counter.moved(instruction, program.computations[name]))
    ]
    return sorted(transfers, key=lambda transfer: -transfer.total)


@functools.lru_cache(maxsize=100_000)
def hbm_size(text: str) -> int:
    """Returns the bytes in HBM of the arrays of a printed type, with the padding of their tiles."""
    total = 0
    for bits, dims, layout in array_types(text):
        if not re.search(r"S\([1-9]", layout):
            total += math.prod(_padded(dims, layout)) * bits
    return total // 8


def _padded(dims: tuple[int, ...], layout: str) -> list[int]:
    """Returns the dimensions of an array from major to minor, padded to whole tiles.

    Args:
      dims: dimensions.
      layout: printed layout, such as {1,0:T(8,128)(2,1)}: minor-to-major order and tiles. Without
        tiles, `dims` are returned unchanged.
    """
    match = re.match(r"\{([\d,]*)(?::.*?T\(([\d,]+)\))?", layout)
    if match is None or not match[2] or not dims:
        return list(dims)
    physical = [dims[int(axis)] for axis in reversed(match[1].split(","))]
    tile = [int(size) for size in match[2].split(",")]
    physical = [1] * (len(tile) - len(physical)) + physical
    first = len(physical) - len(tile)
    tiled = [-(-size // part) * part for size, part in zip(physical[first:], tile)]
    return physical[:first] + tiled


class _Counter:
    """Counts the traffic of instructions of a program, and inside its fusions."""

    def __init__(self, program: Program):
        self._program = program
        self._users: dict[str, dict[str, list[tuple[Instruction, int]]]] = {}
        # Cached, because many paths lead through the same values.
        self._elements_read = functools.cache(self._find_elements_read)

    def moved(self, instruction: Instruction, computation: Computation) -> int:
        """Returns the bytes that one execution of an instruction reads and writes."""
        opcode = instruction.opcode
        if opcode in _FREE or opcode.endswith(("-done", "-update")):
            return 0
        types = [operand_type(name, computation) for name in instruction.operands]
        sizes = [hbm_size(operand) for operand in types]
        if opcode.endswith("-start"):
            return self._started(instruction, sizes)
        if opcode == "fusion":
            return self._fusion(instruction, sizes)
        result = hbm_size(instruction.type)
        if opcode in _SLICES:
            read = sizes[0] and type_bytes(instruction.type)
            return min(read, sizes[0]) + sum(sizes[1:]) + result
        if opcode == "dynamic-update-slice":
            return sizes[1] + (result and type_bytes(types[1]))
        if opcode == "scatter":
            arrays = len(sizes) // 2
            touched = sum(map(type_bytes, types[arrays + 1 :])) if result else 0
            return sum(sizes[arrays:]) + 2 * touched
        if opcode == "custom-call":
            return sum(sizes) + _custom_result(instruction)
        return result + sum(sizes)

    def _started(self, instruction: Instruction, sizes: list[int]) -> int:
        """Returns the bytes that an asynchronous instruction moves between its start and its end.

        Args:
          instruction: the `-start`, whose type has operands and results.
          sizes: bytes in HBM of its operands.
        """
        if self._program.called(instruction):
            return 0  # Counted inside the computation that it calls.
        parts = split_tuple(instruction.type)
        kind = instruction.opcode.removesuffix("-start")
        if kind == "copy":  # (destination, source, context)
            return sizes[0] + hbm_size(parts[0])
        if kind in _SLICES:
            return (sizes[0] and type_bytes(parts[1])) + hbm_size(parts[1])
        if kind == "all-reduce":
            return sum(sizes) + hbm_size(instruction.type)
        return sum(sizes) + (hbm_size(parts[1]) if len(parts) > 1 else 0)

    def _fusion(self, instruction: Instruction, sizes: list[int]) -> int:
        """Returns the bytes that a fusion moves; `sizes` are bytes in HBM of its operands."""
        called = self._program.called(instruction)
        inner = self._program.computations.get(called[0], {}) if called else {}
        root = find_root(inner)
        results = split_tuple(instruction.type)
        if root is None:
            return sum(sizes) + hbm_size(instruction.type)
        read = sum(
            min(size, self._read(called[0], index)) for index, size in enumerate(sizes) if size
        )
        roots = [inner[name] for name in root.operands] if root.opcode == "tuple" else [root]
        if len(roots) != len(results):
            return int(read) + hbm_size(instruction.type)
        written = sum(
            min(size, self._written(called[0], value))
            for value, size in zip(roots, map(hbm_size, results))
            if size
        )
        return int(read + written)

    def _read(self, called: str, index: int) -> float:
        """Returns the bytes that a computation reads of a parameter; infinity for all of it."""
        for instruction in self._program.computations[called].values():
            if instruction.opcode == "parameter" and f"parameter({index})" in instruction.text:
                return self._elements_read(called, instruction) * _bits(instruction.type) / 8
        return math.inf

    def _find_elements_read(self, called: str, value: Instruction) -> float:
        """Returns how many elements of a value a computation reads; infinity for all of them."""
        if value.root:
            return 0 if value.opcode == "parameter" else math.inf
        total = 0.0
        for user, position in self._users_of(called)[value.name]:
            if user.continues:
                continue
            if user.opcode in _SLICES and position == 0:
                total += _elements(user.type)
            elif user.opcode == "fusion":
                nested = self._program.called(user)[0]
                total += self._read(nested, position) * 8 / _bits(value.type)
            elif user.opcode in _IN_PLACE and position == 0:
                total += 0 if self._is_updated_in_place(called, user) else math.inf
            elif user.opcode == "tuple" and user.root:
                total += 0 if value.opcode == "parameter" else math.inf
            elif user.opcode in _ELEMENTWISE:
                total += self._elements_read(called, user)
            else:
                return math.inf
        return total

    def _is_updated_in_place(self, called: str, value: Instruction) -> bool:
        """Returns whether an updated array is a result, and nothing else reads it."""
        return value.root or all(
            (user.opcode == "tuple" and user.root)
            or (
                (user.opcode == "bitcast" or (user.opcode in _IN_PLACE and position == 0))
                and self._is_updated_in_place(called, user)
            )
            for user, position in self._users_of(called)[value.name]
        )

    def _written(self, called: str, value: Instruction) -> float:
        """Returns the bytes that a computation writes of a result; infinity for all of it."""
        computation = self._program.computations[called]
        if value.continues:
            return 0
        if value.opcode == "bitcast":
            source = computation.get(value.operands[0])
            return self._written(called, source) if source else math.inf
        if value.opcode in _IN_PLACE:
            arrays = len(value.operands) // 2  # Of a scatter: arrays, indices, updates.
            updates = (
                value.operands[arrays + 1 :] if value.opcode == "scatter" else [value.operands[1]]
            )
            size = sum(type_bytes(operand_type(name, computation)) for name in updates)
            operand = computation.get(value.operands[0])
            if operand is not None and operand.opcode in _IN_PLACE:
                size += int(min(self._written(called, operand), type_bytes(operand.type)))
            return size * (2 if value.opcode == "scatter" else 1)  # A scatter reads and adds.
        if value.opcode == "fusion":
            nested = self._program.called(value)[0]
            root = find_root(self._program.computations[nested])
            if root is None or root.opcode == "tuple":
                return math.inf
            return self._written(nested, root)
        return 0 if value.opcode == "parameter" else math.inf

    def _users_of(self, called: str) -> dict[str, list[tuple[Instruction, int]]]:
        """Returns {value: (instruction that reads it, position among its operands)}."""
        if called not in self._users:
            users = collections.defaultdict(list)
            for instruction in self._program.computations[called].values():
                for position, operand in enumerate(instruction.operands):
                    users[operand].append((instruction, position))
            self._users[called] = users
        return self._users[called]


def _elements(text: str) -> int:
    """Returns the number of elements of the arrays of a printed type."""
    return sum(math.prod(dims) for _, dims, _ in array_types(text))


def _bits(text: str) -> int:
    """Returns the bits of an element of the first array of a printed type."""
    return next(array_types(text))[0]


def _custom_result(instruction: Instruction) -> int:
    """Returns the bytes that a custom call writes: its results, but not a library's workspace."""
    if '"AllocateBuffer"' in instruction.text:
        return 0
    parts = split_tuple(instruction.type)
    if re.search(r'custom_call_target="__cu', instruction.text) and len(parts) > 1:
        parts = [part for part in parts if not part.startswith("s8[")]
    return sum(map(hbm_size, parts))
