"""The implementations of attention of a device, and the rows on which they are compared.

Rows are like rows of training: each row of the first half is one text, the other rows have four
texts and padding, as packed rows do. Kernels skip blocks of other texts, so texts change the time.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlme_jax.ops import dropout
from xlme_jax.ops.attention import attention
from xlme_jax.ops.attention_kernel import flash_attention
from xlme_jax.ops.implementations import Heads, Implementation, Platform
from xlme_jax.tools.tuning.choosing import GRADIENT, Candidate

# Most scores of a case: the reference, plain XLA in float32, holds a few copies of them.
_MOST_SCORES = 2**28
_DIFFERENTIATED = ("q", "k", "v", "distance_bias", "gate")
_TEXTS = 4  # Of a packed row.


def candidate(implementation: Implementation, dropout_rate: float) -> Candidate:
    """Returns a function that computes output and gradients with an implementation."""

    def run(**arrays: Any) -> jax.Array:
        return attention(**arrays, dropout_rate=dropout_rate, implementation=implementation)

    return with_gradients(run)


def interpreted(platform: Platform, dropout_rate: float, block: int) -> Candidate:
    """Returns a function that computes with the kernel of a platform in interpret mode.

    It is slow, and runs on machines without the platform.

    Args:
      platform: platform of the kernel.
      dropout_rate: probability of dropping a weight.
      block: queries and keys of a block of the kernel.
    """

    def run(dropout_seeds: Any = None, **arrays: Any) -> jax.Array:
        seeds = None
        if dropout_seeds is not None:
            seeds = dropout.fold_in(dropout_seeds[:, None], jnp.arange(arrays["q"].shape[2]))
        return flash_attention(
            **arrays,
            seeds=seeds,
            dropout_rate=dropout_rate,
            platform=platform,
            interpret=True,
            block=block,
        )

    return with_gradients(run)


def with_gradients(run: Callable[..., jax.Array]) -> Candidate:
    """Returns a compiled function that computes the output of `run`, and gradients.

    The function takes the arrays that `arguments` returns, and differentiates the sum of the
    outputs times "weights" with respect to the arrays in `_DIFFERENTIATED`.
    """

    def output_and_gradients(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Returns "output" and the gradient of each differentiated array."""
        differentiated = {name: arrays[name] for name in _DIFFERENTIATED if name in arrays}
        constants = {n: x for n, x in arrays.items() if n not in differentiated and n != "weights"}

        def total(differentiated: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
            output = run(**differentiated, **constants)
            products = output.astype(jnp.float32) * arrays["weights"].astype(jnp.float32)
            return products.sum(), output

        (_, output), gradients = jax.value_and_grad(total, has_aux=True)(differentiated)
        return {"output": output} | {GRADIENT + n: x for n, x in gradients.items()}

    return jax.jit(output_and_gradients)


def reference(dropout_rate: float) -> Candidate:
    """Returns a function that computes output and gradients with plain XLA in float32."""
    run = candidate("xla", dropout_rate)

    def exact(arrays: dict[str, jax.Array]) -> Any:
        return run(
            {
                name: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x
                for name, x in arrays.items()
            }
        )

    return exact


def arguments(heads: Heads, rows: int, length: int, has_dropout: bool) -> dict[str, jax.Array]:
    """Returns random arguments of a candidate.

    Args:
      heads: the attention.
      rows: number of rows, B; fewer are used if their scores would take too much memory.
      length: tokens of a row, L.
      has_dropout: whether to drop weights.

    Returns:
      "q", "k", "v" and "weights" [B, L, N, H] for N heads of width H; "segment_ids" int32[B, L];
      with a bias "distance_bias" float32[N, 2 L], with a gated one "gate" [B, L, N] too; and with
      dropout "dropout_seeds".
    """
    rows = max(1, min(rows, _MOST_SCORES // (heads.count * length**2)))
    shape = rows, length, heads.count, heads.width
    q, k, v, weights = jax.random.normal(jax.random.key(0), (4, *shape), jnp.dtype(heads.dtype))
    bias, gate = jax.random.split(jax.random.key(1))
    arrays = {"q": q, "k": k, "v": v, "weights": weights}
    arrays["segment_ids"] = jnp.asarray(_segments(rows, length))
    if heads.bias != "none":
        arrays["distance_bias"] = 0.5 * jax.random.normal(bias, (heads.count, 2 * length))
    if heads.bias == "gated":
        arrays["gate"] = 1 + jax.random.uniform(gate, shape[:3])
    if has_dropout:
        arrays["dropout_seeds"] = dropout.seeds(jax.random.key(2), jnp.arange(rows))
    return arrays


def _segments(rows: int, length: int) -> np.ndarray:
    """Returns segment ids, int32[rows, length].

    Each row of the first half has one text, the other rows have `_TEXTS` texts and padding.
    """
    rng = np.random.default_rng(0)
    ids = np.ones((rows, length), np.int32)
    for row in ids[rows // 2 :]:
        ends = 1 + np.sort(rng.choice(length, min(_TEXTS, length), replace=False))
        row[:] = 1 + (np.arange(length)[:, None] >= ends).sum(axis=1)
        row[ends[-1] :] = 0
    return ids
