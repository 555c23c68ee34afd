"""Sampling weights over tasks, and a schedule that realises them without any state.

The schedule answers "which task is draw n, and its index among the draws of that task?" for any n
by itself. So the position of a run in its data is one integer, every host computes the same order,
and skipping ahead costs nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

_MIN_BLOCK, _MAX_BLOCK = 1 << 10, 1 << 20
# The rarest task gets at least so many draws in a block, where the largest block allows it, which
# bounds the error of rounding its share to whole draws.
_DRAWS_OF_RAREST = 16
# Of `shuffled`. In fewer bits, some permutations of a few numbers come more often than others.
_ROUNDS, _LEAST_BITS = 5, 6
_KEYS = [np.uint64(0x9E3779B97F4A7C15 * n % (1 << 64)) for n in range(1, 2 * _ROUNDS + 1)]


def temperature_weights(counts: Sequence[float] | np.ndarray, alpha: float) -> np.ndarray:
    """Sampling probabilities p_j = m_j^alpha / sum_k m_k^alpha (XLM-E, Sec. 4.1).

    Args:
      counts: m_j, the size of each task; all positive.
      alpha: 1 samples in proportion to size, 0 samples every task alike.

    Returns:
      float64[tasks], adding up to one.
    """
    counts = np.asarray(counts, np.float64)
    if counts.ndim != 1 or not len(counts):
        raise ValueError("counts is empty: a mixture needs at least one task")
    if not np.all(np.isfinite(counts) & (counts > 0)):
        bad = int(np.flatnonzero(~(np.isfinite(counts) & (counts > 0)))[0])
        raise ValueError(f"counts[{bad}] is {counts[bad]}: an empty task cannot be sampled")
    if not (np.isfinite(alpha) and alpha >= 0):
        raise ValueError(f"alpha={alpha} must be a number of at least 0 (the paper's is 0.7)")
    # Through logarithms, so that no power of a large count overflows.
    logits = alpha * np.log(counts)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def stable_seed(*parts: str | int) -> int:
    """A 64-bit seed from names and numbers, the same in every process and version."""
    text = json.dumps(parts, ensure_ascii=False).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def permutation(size: int, *parts: str | int) -> np.ndarray:
    """A permutation of `size` numbers that depends on `parts` alone.

    It sorts raw output of the bit generator, which NumPy guarantees never to change, unlike
    `Generator.permutation`: a run resumes alike under another NumPy.

    Returns:
      int64[size].
    """
    return np.argsort(np.random.PCG64(stable_seed(*parts)).random_raw(size), kind="stable")


def shuffled(indices: np.ndarray, sizes: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Where numbers come in a shuffle of their range: many ranges at once, nothing stored.

    A number of b bits is scrambled by steps that each can be undone in b bits (add, multiply by an
    odd number, fold the upper half onto the lower), and again until it lies in its range: less than
    two times on average, but for the smallest ranges.

    Args:
      indices: int[N], each from 0 to its size - 1.
      sizes: int[N], sizes of the ranges, at most 2**48.
      seeds: uint64[N], each determines one permutation of a range.

    Returns:
      int64[N]; for one size and seed, a permutation of the indices.
    """
    sizes = np.asarray(sizes, np.uint64)
    values = np.asarray(indices, np.uint64)
    bits = np.maximum(np.frexp((sizes - np.uint64(1)).astype(np.float64))[1], _LEAST_BITS).astype(
        np.uint64
    )
    mask, half = (np.uint64(1) << bits) - np.uint64(1), (bits + np.uint64(1)) >> np.uint64(1)
    seeds = np.asarray(seeds, np.uint64)
    keys = [_scrambled(seeds + key) for key in _KEYS]
    result, left = np.empty(len(values), np.int64), np.arange(len(values))
    while len(left):
        for n in range(0, 2 * _ROUNDS, 2):
            values = (values + keys[n][left]) * (keys[n + 1][left] | np.uint64(1)) & mask[left]
            values ^= values >> half[left]
        done = values < sizes[left]
        result[left[done]] = values[done]
        left, values = left[~done], values[~done]
    return result


def coins(numbers: np.ndarray, probability: float, *parts: str | int) -> np.ndarray:
    """Coins that fall heads with a probability, each told by a number: nothing stored.

    Args:
      numbers: int[N], from 0.
      probability: of heads.
      *parts: names and numbers that determine, with each number, how its coin falls.

    Returns:
      bool[N].
    """
    states = np.asarray(numbers, np.uint64) * _KEYS[0] + np.uint64(stable_seed(*parts))
    return (_scrambled(states) >> np.uint64(11)) * 2.0**-53 < probability


def _scrambled(values: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele et al., 2014): uint64 to uint64, one to one."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def block_counts(weights: np.ndarray, block: int) -> np.ndarray:
    """Draws of each task in a block: its share, rounded so that they add up, at least one.

    Args:
      weights: float[tasks], adding up to one.
      block: draws in a block, at least as many as tasks.

    Returns:
      int64[tasks], adding up to `block`.
    """
    # One draw each, the rest by largest remainder: a share of one draw or more loses nothing.
    beyond = np.maximum(weights * block - 1, 0)
    rest = block - len(weights)
    shares = beyond / beyond.sum() * rest if beyond.sum() > 0 else np.zeros(len(weights))
    counts = np.floor(shares).astype(np.int64)
    missing = rest - int(counts.sum())
    counts[np.argsort(counts - shares, kind="stable")[:missing]] += 1
    return counts + 1


class MixtureSchedule:
    """An endless, random-access sequence of tasks with given shares.

    Draws come in blocks; each block holds every task a fixed number of times, in an order of its
    own.

    Args:
      weights: float[tasks], share of each task; positive, adding up to one.
      seed: names and numbers that determine the order.
      block: draws in a block; by default a power of two that suits the rarest task, 2**20 at most
        (a task with a share of less than one draw in that is drawn once).

    Attributes:
      block: draws in a block.
      counts: int64[tasks], draws of each task in every block.
    """

    def __init__(
        self,
        weights: Sequence[float] | np.ndarray,
        seed: Sequence[str | int],
        block: int | None = None,
    ):
        weights = np.asarray(weights, np.float64)
        if not (len(weights) and np.all(weights > 0) and np.isclose(weights.sum(), 1)):
            raise ValueError("weights must be positive and add up to one")
        if block is None:
            wanted = min(_DRAWS_OF_RAREST / float(weights.min()), _MAX_BLOCK)
            block = max(_MIN_BLOCK, 1 << int(np.ceil(np.log2(wanted))))
        if block < len(weights):
            raise ValueError(f"{len(weights)} tasks do not fit a block of {block} draws")
        self.block = block
        self.counts = block_counts(weights, block)
        self._seed = tuple(seed)
        self._tasks = np.repeat(np.arange(len(weights), dtype=np.int32), self.counts)
        starts = np.cumsum(self.counts) - self.counts
        self._ranks = (np.arange(block) - np.repeat(starts, self.counts)).astype(np.int32)
        self._blocks: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def lookup(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Looks up draws by their number.

        Args:
          draws: int[N], numbers of draws from 0.

        Returns:
          int32[N] task of each draw, and int64[N] how many draws of that task came before it.
        """
        draws = np.asarray(draws, np.int64)
        blocks, places = np.divmod(draws, self.block)
        tasks = np.empty(draws.shape, np.int32)
        ranks = np.empty(draws.shape, np.int64)
        for number in np.unique(blocks):
            here = blocks == number
            block_tasks, block_ranks = self._block(int(number))
            tasks[here] = block_tasks[places[here]]
            ranks[here] = number * self.counts[tasks[here]] + block_ranks[places[here]]
        return tasks, ranks

    def _block(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """int32[block] task at each place of a block, and its rank among the block's own."""
        if number not in self._blocks:
            tasks = self._tasks[permutation(self.block, *self._seed, number)]
            ranks = np.empty(self.block, np.int32)
            # The stable sort lists each task's places in order of appearance.
            ranks[np.argsort(tasks, kind="stable")] = self._ranks
            if len(self._blocks) >= 2:  # the current block and the one that a batch may reach into
                del self._blocks[next(iter(self._blocks))]
            self._blocks[number] = tasks, ranks
        return self._blocks[number]
