"""Counter-based dropout: a hash of an element's position decides whether the element is kept.

`jax.random.bernoulli` runs twenty rounds of threefry per pair of elements, cannot be called in
every kernel language, and draws different masks when a batch is split. Here an element's mask is
plain uint32 arithmetic on its row's seed and its position in the row: a dozen instructions, with
the same bits on CPUs, GPUs and TPUs, inside or outside of kernels, for any micro-batches and
devices.

The hash is `lowbias32` of Chris Wellons's hash-prospector (a bijection found by a search for low
avalanche bias; public domain, https://github.com/skeeto/hash-prospector). Its input is the
element's counter XOR the first word of a 64-bit key; the second word is mixed in half-way. With a
32-bit key, two of some ten thousand masks would often be permuted copies of each other.
"""

import functools
import math

import jax
import jax.numpy as jnp

from xlme_jax.ops.masking import row_keys

# The two words of a 64-bit key of the hash.
Words = tuple[jax.Array, jax.Array]

_MULTIPLIERS = (0x7FEB352D, 0x846CA68B)
_GOLDEN = 0x9E3779B9


def seeds(rng: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns one seed per row of the global batch.

    Args:
      rng: key of the step and stream.
      rows: int32[B], index of each row in the global batch, so that a row drops the same elements
        whichever micro-batch, device or process holds it.

    Returns:
      uint32[B].
    """
    return jax.vmap(lambda key: jax.random.bits(key, (), jnp.uint32))(row_keys(rng, rows))


def fold_in(seeds: jax.Array, data: int | jax.Array) -> jax.Array:
    """Derives the seeds of a part of the model, such as a layer or a head, from `seeds`.

    Args:
      seeds: uint32[...].
      data: number of the part; an array broadcasts with `seeds`.

    Returns:
      uint32[...], of the broadcast shape.
    """
    return mix(seeds + mix(jnp.asarray(data, jnp.uint32) * _u32(_GOLDEN) + _u32(1)))


def words(seeds: jax.Array) -> Words:
    """Derives the two key words of `keep`, each uint32[...], from seeds uint32[...]."""
    return mix(seeds ^ _u32(0x243F6A88)), mix(seeds ^ _u32(0x85A308D3))


def keep(key: Words, counters: jax.Array, rate: float) -> jax.Array:
    """Returns whether the elements with these counters are kept.

    Args:
      key: two uint32[...] of `words`, which broadcast with `counters`.
      counters: uint32[...], the number of each element under this key.
      rate: probability of dropping, in [0, 1); exact to 2^-32.

    Returns:
      bool[...].
    """
    return mix(counters ^ key[0], key[1]) >= _u32(round(rate * 2**32))


def keep_mask(seeds: jax.Array, shape: tuple[int, ...], rate: float) -> jax.Array:
    """Returns which elements to keep, bool[B..., *shape], for seeds uint32[B...].

    The counter of an element is its index in the flattened `shape`.
    """
    lead = (1,) * seeds.ndim
    counters = jnp.zeros(lead + (1,) * len(shape), jnp.uint32)
    for axis in range(len(shape)):
        positions = jax.lax.broadcasted_iota(jnp.uint32, lead + shape, len(lead) + axis)
        counters = counters + positions * _u32(math.prod(shape[axis + 1 :]) % 2**32)
    first, second = (w.reshape(seeds.shape + (1,) * len(shape)) for w in words(seeds))
    return keep((first, second), counters, rate)


def dropout(x: jax.Array, rate: float, seeds: jax.Array | None, salt: int = 0) -> jax.Array:
    """Zeroes elements with probability `rate` and scales the others up to the same mean.

    Args:
      x: [B, ...].
      rate: probability of dropping, in [0, 1).
      seeds: uint32[B]; None turns dropout off.
      salt: number of this use of the seeds; each salt gives a different mask.

    Returns:
      An array of x's shape and type. The backward pass recomputes the mask instead of keeping it.
    """
    if rate == 0.0 or seeds is None:
        return x
    return _dropout(x, fold_in(seeds, salt), rate)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _dropout(x: jax.Array, seeds: jax.Array, rate: float) -> jax.Array:
    mask = keep_mask(seeds, x.shape[1:], rate)
    return jnp.where(mask, x * jnp.asarray(1.0 / (1.0 - rate), x.dtype), jnp.zeros((), x.dtype))


def _forward(x: jax.Array, seeds: jax.Array, rate: float) -> tuple[jax.Array, jax.Array]:
    return _dropout(x, seeds, rate), seeds


def _backward(rate: float, seeds: jax.Array, gradient: jax.Array) -> tuple[jax.Array, None]:
    return _dropout(gradient, seeds, rate), None


_dropout.defvjp(_forward, _backward)


def mix(x: jax.Array, key: jax.Array | None = None) -> jax.Array:
    """Returns the hash of `x`, uint32[...]; `key` is the word that is mixed in half-way."""
    x = (x ^ (x >> _u32(16))) * _u32(_MULTIPLIERS[0])
    x = x ^ (x >> _u32(15))
    x = (x if key is None else x ^ key) * _u32(_MULTIPLIERS[1])
    return x ^ (x >> _u32(16))


def _u32(value: int) -> jax.Array:
    return jnp.uint32(value)
