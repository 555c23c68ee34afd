"""Chooses and replaces tokens on the device: the corruption of masked language modelling.

Tokens are drawn here. `objectives.masked_lm.MaskingConfig` has the shares to draw and says which
tokens may be masked; `objectives.masked_lm.MaskedBatch.draw` joins both.
"""

import jax
import jax.numpy as jnp


def row_keys(rng: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns one key per row of the global batch.

    A row draws the same random numbers whichever micro-batch, device or process holds it, which is
    what makes gradient accumulation and resharding exact.

    Args:
      rng: key of the step and stream.
      rows: int32[B], index of each row in the global batch.

    Returns:
      keys[B].
    """
    return jax.vmap(lambda row: jax.random.fold_in(rng, row))(rows)


def num_masked(maskable: jax.Array, rate: float) -> jax.Array:
    """Returns the number of tokens to mask in each row: `rate` of the maskable, at least one.

    Args:
      maskable: bool[B, L], the tokens that may be masked (`MaskingConfig.maskable`).
      rate: share of the maskable tokens, in (0, 1).

    Returns:
      int32[B]; 0 in rows without maskable tokens.
    """
    # A table made on the host: float32 on the device would round some products differently.
    counts = [0, *(max_masked(available, rate) for available in range(1, maskable.shape[1] + 1))]
    return jnp.asarray(counts, jnp.int32)[maskable.sum(axis=1)]


def max_masked(length: int, rate: float) -> int:
    """Returns how many of `length` maskable tokens to mask, at least one.

    It is also the largest number of masked tokens in a row of `length` tokens.
    """
    return max(1, round(length * rate))


def choose_masked(keys: jax.Array, maskable: jax.Array, rate: float) -> tuple[jax.Array, jax.Array]:
    """Draws the masked positions of each row, uniformly and without replacement (XLM-E Sec. 3.1).

    Args:
      keys: keys[B], a random key per row.
      maskable: bool[B, L], the tokens to choose from (`MaskingConfig.maskable`).
      rate: share of the maskable tokens to mask.

    Returns:
      positions: int32[B, M] with M = `max_masked(L, rate)`.
      is_masked: bool[B, M], False in slots that a row with fewer maskable tokens does not use.
    """
    length = maskable.shape[1]
    # The highest of independent random scores are a sample without replacement.
    scores = jax.vmap(lambda key: jax.random.uniform(key, (length,)))(keys)
    _, positions = jax.lax.top_k(jnp.where(maskable, scores, -1.0), max_masked(length, rate))
    slots = jnp.arange(positions.shape[1])
    return positions, slots[None, :] < num_masked(maskable, rate)[:, None]


def replace(
    tokens: jax.Array, positions: jax.Array, is_masked: jax.Array, values: jax.Array
) -> jax.Array:
    """Returns `tokens` [B, L] with `values` [B, M] at `positions` [B, M] where `is_masked` [B, M].

    The arguments stay as they are.
    """
    rows = jnp.arange(tokens.shape[0])[:, None]
    # Positions of one row are distinct, so unused slots may write back the current token.
    current = jnp.take_along_axis(tokens, positions, axis=1)
    return tokens.at[rows, positions].set(
        jnp.where(is_masked, values, current), unique_indices=True, mode="promise_in_bounds"
    )


def corrupt(
    keys: jax.Array,
    originals: jax.Array,
    mask_id: int,
    random_ids: tuple[int, int],
    mask_split: tuple[float, float, float],
) -> jax.Array:
    """Returns the tokens that the model reads at the masked positions.

    Args:
      keys: keys[B], a random key per row.
      originals: int32[B, M], the tokens to predict.
      mask_id: id of `<mask>`.
      random_ids: (low, high); random tokens are drawn from [low, high), without special tokens.
      mask_split: shares of the masked tokens that become `<mask>`, that become a random token, and
        that stay as they are. (1, 0, 0) is XLM-E's split, (.85, 0, .15) ELECTRA's,
        (.8, .1, .1) the split of BERT and fairseq.

    Returns:
      int32[B, M].
    """
    masked, random, _ = mask_split
    if masked == 1.0:
        return jnp.full_like(originals, mask_id)
    count = originals.shape[1]
    u = jax.vmap(lambda key: jax.random.uniform(key, (2, count)))(keys)
    low, high = random_ids
    random_tokens = low + jnp.floor(u[:, 1] * (high - low)).astype(originals.dtype)
    corrupted = jnp.where(u[:, 0] < masked + random, random_tokens, originals)
    return jnp.where(u[:, 0] < masked, mask_id, corrupted)
