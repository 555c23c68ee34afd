"""Sampling weights over tasks, and a stateless schedule with these weights.

The schedule computes the task of draw n, and its index among the draws of that task, for any n.
The position of a run in its data is therefore one integer, every host computes the same order, and
skipping ahead is free.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

_MIN_BLOCK, _MAX_BLOCK = 1 << 10, 1 << 20
# Minimum draws per block of the rarest task, if the largest block allows it. This bounds the error
# of rounding its share to whole draws.
_DRAWS_OF_RAREST = 16
# Bits of rounded weights, which do not depend on the machine.
_BITS = 33
# Rounds of scrambling in `shuffled`, and the fewest bits of its numbers. With fewer bits,
# some permutations of small ranges are more frequent.
_ROUNDS, _LEAST_BITS = 5, 6
_KEYS = [np.uint64(0x9E3779B97F4A7C15 * n % (1 << 64)) for n in range(1, 2 * _ROUNDS + 1)]


def temperature_weights(counts: Sequence[float] | np.ndarray, alpha: float) -> np.ndarray:
    """Returns the sampling probabilities p_j = m_j^alpha / sum_k m_k^alpha (XLM-E, Sec. 4.1).

    Args:
      counts: m_j, the size of each task; all positive.
      alpha: exponent; 1 samples in proportion to size, 0 uniformly.

    Returns:
      float64[tasks], with sum 1.

    Raises:
      ValueError: there is no task, a size is not positive and finite, or alpha is negative.
    """
    counts = np.asarray(counts, np.float64)
    if counts.ndim != 1 or not len(counts):
        raise ValueError("counts is empty; a mixture needs at least one task")
    if not np.all(np.isfinite(counts) & (counts > 0)):
        bad = int(np.flatnonzero(~(np.isfinite(counts) & (counts > 0)))[0])
        raise ValueError(f"counts[{bad}] is {counts[bad]}: an empty task cannot be sampled")
    if not (np.isfinite(alpha) and alpha >= 0):
        raise ValueError(f"alpha={alpha} must be 0 or more (XLM-E uses 0.7)")
    # Computed with logarithms, so that powers of large counts do not overflow.
    logits = alpha * np.log(counts)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def rounded(weights: np.ndarray) -> np.ndarray:
    """Rounds weights, so that the last digits do not decide how often a task is drawn.

    Args:
      weights: float64[tasks].

    Returns:
      float64[tasks], with sum 1.
    """
    mantissas, exponents = np.frexp(weights)
    weights = np.ldexp(np.rint(np.ldexp(mantissas, _BITS)), exponents - _BITS)
    return weights / weights.sum()


def stable_seed(*parts: str | int) -> int:
    """Returns a 64-bit seed from names and numbers, equal in every process and version."""
    text = json.dumps(parts, ensure_ascii=False).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def permutation(size: int, *parts: str | int) -> np.ndarray:
    """Returns a permutation of `size` numbers that depends only on `parts`.

    The permutation sorts raw output of the bit generator, which is the same in all versions of
    NumPy, unlike the output of `Generator.permutation`. So a run can be resumed with another
    version.

    Returns:
      int64[size].
    """
    return np.argsort(np.random.PCG64(stable_seed(*parts)).random_raw(size), kind="stable")


def shuffled(indices: np.ndarray, sizes: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Applies pseudorandom permutations to indices, without storing the permutations.

    A number of b bits is scrambled by invertible steps on b bits (add, multiply by an odd number,
    xor the upper half into the lower), repeatedly until it is within its range: less than two times
    on average, except for the smallest ranges.

    Args:
      indices: int[N], each from 0 to its size - 1.
      sizes: int[N], sizes of the ranges, at most 2**48.
      seeds: uint64[N], each selects a permutation of its range.

    Returns:
      int64[N]; for a fixed size and seed, a permutation of the indices.
    """
    sizes = np.asarray(sizes, np.uint64)
    values = np.asarray(indices, np.uint64)
    bits = np.maximum(np.frexp((sizes - np.uint64(1)).astype(np.float64))[1], _LEAST_BITS).astype(
        np.uint64
    )
    mask, half = (np.uint64(1) << bits) - np.uint64(1), (bits + np.uint64(1)) >> np.uint64(1)
    seeds = np.asarray(seeds, np.uint64)
    keys = [_scrambled(seeds + key) for key in _KEYS]
    result, todo = np.empty(len(values), np.int64), np.arange(len(values))
    while len(todo):
        for n in range(0, 2 * _ROUNDS, 2):
            values = (values + keys[n][todo]) * (keys[n + 1][todo] | np.uint64(1)) & mask[todo]
            values ^= values >> half[todo]
        done = values < sizes[todo]
        result[todo[done]] = values[done]
        todo, values = todo[~done], values[~done]
    return result


def coins(numbers: np.ndarray, probability: float | np.ndarray, *parts: str | int) -> np.ndarray:
    """Returns pseudorandom Bernoulli draws, bool[N], computed from their numbers.

    Args:
      numbers: int[N], 0 or more, number of each draw.
      probability: probability of True, one for all draws or float[N], one for each.
      *parts: names and numbers that seed the draws.
    """
    states = np.asarray(numbers, np.uint64) * _KEYS[0] + np.uint64(stable_seed(*parts))
    return (_scrambled(states) >> np.uint64(11)) * 2.0**-53 < probability


def _scrambled(values: np.ndarray) -> np.ndarray:
    """Applies the finalizer of SplitMix64 (Steele et al., 2014), a bijection of uint64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def block_counts(weights: np.ndarray, block: int) -> np.ndarray:
    """Returns the number of draws of each task per block: its rounded share, at least one.

    Args:
      weights: float[tasks], with sum 1.
      block: draws per block, at least the number of tasks.

    Returns:
      int64[tasks], with sum `block`.
    """
    # Each task gets one draw; the rest is divided by largest remainder. So
    # shares of at least one draw are not reduced.
    beyond = np.maximum(weights * block - 1, 0)
    unassigned = block - len(weights)
    shares = beyond / beyond.sum() * unassigned if beyond.sum() > 0 else np.zeros(len(weights))
    counts = np.floor(shares).astype(np.int64)
    missing = unassigned - int(counts.sum())
    counts[np.argsort(counts - shares, kind="stable")[:missing]] += 1
    return counts + 1


class MixtureSchedule:
    """An endless, random-access sequence of tasks with given shares.

    Draws are divided into blocks; each block contains each task a fixed number of times, in a
    different random order.

    Args:
      weights: float[tasks], share of each task; positive, with sum 1.
      seed: names and numbers that seed the order.
      block: draws per block; by default a power of two chosen for the rarest task, at most 2**20
        (a task with a share below one draw per block is drawn once).

    Attributes:
      block: draws per block.
      counts: int64[tasks], draws of each task per block.
    """

    def __init__(
        self,
        weights: Sequence[float] | np.ndarray,
        seed: Sequence[str | int],
        block: int | None = None,
    ):
        weights = np.asarray(weights, np.float64)
        if not (len(weights) and np.all(weights > 0) and np.isclose(weights.sum(), 1)):
            raise ValueError("weights must be positive with sum 1")
        if block is None:
            draws = min(_DRAWS_OF_RAREST / float(weights.min()), _MAX_BLOCK)
            block = max(_MIN_BLOCK, 1 << int(np.ceil(np.log2(draws))))
        if block < len(weights):
            raise ValueError(f"{len(weights)} tasks do not fit in a block of {block} draws")
        self.block = block
        self.counts = block_counts(weights, block)
        self._seed = tuple(seed)
        self._tasks = np.repeat(np.arange(len(weights), dtype=np.int32), self.counts)
        starts = np.cumsum(self.counts) - self.counts
        self._ranks = (np.arange(block) - np.repeat(starts, self.counts)).astype(np.int32)
        self._blocks: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def lookup(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the task of each draw and its rank among the draws of the task.

        Args:
          draws: int[N], draw numbers, 0 or more.

        Returns:
          `(tasks, ranks)`: int32[N], task numbers; and int64[N], how many earlier draws each task
          has had.
        """
        draws = np.asarray(draws, np.int64)
        blocks, offsets = np.divmod(draws, self.block)
        tasks = np.empty(draws.shape, np.int32)
        ranks = np.empty(draws.shape, np.int64)
        for number in np.unique(blocks):
            in_block = blocks == number
            block_tasks, block_ranks = self._block(int(number))
            tasks[in_block] = block_tasks[offsets[in_block]]
            ranks[in_block] = number * self.counts[tasks[in_block]] + block_ranks[offsets[in_block]]
        return tasks, ranks

    def drawn(self, draws: int) -> np.ndarray:
        """Returns how often each task is among the first `draws` draws, int64[tasks]."""
        blocks, offset = divmod(draws, self.block)
        last = np.bincount(self._block(blocks)[0][:offset], minlength=len(self.counts))
        return blocks * self.counts + last

    def _block(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the task of each draw of a block, and the draw's rank among those of the task.

        Both are int32[block].
        """
        if number not in self._blocks:
            tasks = self._tasks[permutation(self.block, *self._seed, number)]
            ranks = np.empty(self.block, np.int32)
            # The stable sort lists each task's positions in order.
            ranks[np.argsort(tasks, kind="stable")] = self._ranks
            # Two blocks stay: the current one and the next one, which a batch may span.
            if len(self._blocks) >= 2:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[number] = tasks, ranks
        return self._blocks[number]
