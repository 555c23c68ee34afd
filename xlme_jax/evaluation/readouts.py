"""Readouts: how embeddings are compared when a text looks for its translation.

Encoders give every language a direction of its own, which hides from a plain cosine that
translations lie beside each other: candidates of the query's language are all nearer or all
farther. A figure of retrieval therefore means little without the name of its readout.

  raw: cosine.
  centred: cosine after each language's mean over *training text* was subtracted (Libovický et al.
    2020, "On the Language Neutrality of Pre-trained Multilingual Representations", Sec. 3).
  centred_transductive: the same with the means of the very candidates, which needs no training
    text, but sees the test set.
  csls: 2 cos(x, y) - r(x) - r(y), with r the mean cosine of a text with its 10 nearest neighbours
    on the other side (Conneau et al. 2018, "Word Translation Without Parallel Data", Eq. 4).
  centred_csls: CSLS on the cosines of `centred`.
  procrustes: a diagnostic, not a way to retrieve: cosine after an orthogonal map that was fitted on
    training pairs. It tells "aligned up to a rotation" from "not aligned".
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

READOUTS = ("raw", "centred", "centred_transductive", "csls", "centred_csls", "procrustes")
RAW = READOUTS[0]
NEIGHBOURS = 10
DESCRIPTIONS = {
    "raw": "cosine",
    "centred": "cosine, each language's mean over training text subtracted",
    "centred_transductive": "cosine, each language's mean over these very texts subtracted",
    "csls": f"CSLS, k = {NEIGHBOURS}",
    "centred_csls": f"CSLS, k = {NEIGHBOURS}, each language's mean over training text subtracted",
    "procrustes": "cosine after centring and an orthogonal map fitted on training pairs",
}

_NEEDS_CENTRES = ("centred", "centred_csls", "procrustes")
# Similarities copied at once to find neighbours, 4 bytes each.
_BLOCK = 1 << 22

# "forward", "backward" and "found", as `search` returns them.
Found = Mapping[str, np.ndarray]
# Mean embeddings of the source and the target language at each layer, [K, D] each.
Centres = tuple[np.ndarray, np.ndarray]


def check(readouts: Sequence[str], setting: str) -> None:
    """ValueError, naming the setting, if a readout is not known."""
    unknown = [name for name in readouts if name not in READOUTS]
    if unknown or not readouts:
        raise ValueError(f"{setting} is {tuple(readouts)!r}; allowed: {', '.join(READOUTS)}")


def available(readouts: Sequence[str], centres: bool, rotation: bool) -> tuple[str, ...]:
    """Returns those of the readouts that can be computed with what there is."""
    return tuple(
        name
        for name in readouts
        if (centres or name not in _NEEDS_CENTRES) and (rotation or name != "procrustes")
    )


def search(
    source: np.ndarray,
    target: np.ndarray,
    centres: Centres | None = None,
    rotation: np.ndarray | None = None,
    readouts: Sequence[str] = READOUTS,
) -> dict[str, Found]:
    """Searches every source among all targets, and every target among all sources.

    Args:
      source: [K, N, D]: embeddings of N texts at K layers.
      target: [K, N, D]; text i translates text i of `source`.
      centres: means of the two languages; None leaves out what needs them.
      rotation: [K, D, D], as `orthogonal_map` returns it; None leaves "procrustes" out.
      readouts: what is wanted.

    Returns:
      readout -> "forward", float32[K, N]: 1 for each source whose best target is its translation,
      else 0. Where k candidates tie for the best and the translation is one of them it counts 1/k,
      so that an encoder that maps everything to one point gets chance, 1/N. Embeddings that are not
      finite find nothing. "backward", float32[K, N]: the same for each target. "found",
      int32[K, N]: the best source of each target.
    """
    count = source.shape[1]
    names = available(readouts, centres is not None, rotation is not None)
    # Few shapes: each is compiled.
    padded = [_padded(side) for side in (source, target)]
    found = _search(*padded, centres, rotation, np.int32(count), names)
    return {
        name: {way: np.asarray(values)[:, :count] for way, values in ways.items()}
        for name, ways in found.items()
    }


def accuracies(found: Found) -> dict[str, np.ndarray]:
    """Returns accuracy@1 of "forward", "backward" and their "mean" at each layer, float64[K]."""
    ways = {way: found[way].mean(axis=1, dtype=np.float64) for way in ("forward", "backward")}
    return ways | {"mean": (ways["forward"] + ways["backward"]) / 2}


def orthogonal_map(source: np.ndarray, target: np.ndarray, centres: Centres) -> np.ndarray:
    """Fits the rotation that takes sources to targets (orthogonal Procrustes problem).

    Args:
      source: [K, P, D]: embeddings of P training texts at K layers.
      target: [K, P, D]: of their translations.
      centres: [K, D] each, subtracted; what is left is scaled to length 1, as for a cosine.

    Returns:
      float32[K, D, D]: the orthogonal R with the least |x R - y|: U V' of the singular value
      decomposition x'y = U S V' (Schönemann 1966). NaN for a layer that is not finite.
    """
    maps = []
    for layer in range(len(source)):
        x, y = (_unit(side[layer] - mean[layer]) for side, mean in zip((source, target), centres))
        product = x.T @ y
        if np.isfinite(product).all():
            left, _, right = np.linalg.svd(product)
            maps.append(left @ right)
        else:
            maps.append(np.full_like(product, np.nan))
    return np.stack(maps).astype(np.float32)


def _unit(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)


def normalised(embeddings: jax.Array) -> jax.Array:
    """Scales rows to length 1; rows of zeros stay."""
    embeddings = embeddings.astype(jnp.float32)
    norms = jnp.linalg.norm(embeddings, axis=-1, keepdims=True)
    return embeddings / jnp.maximum(norms, 1e-12)


def _padded(side: np.ndarray) -> np.ndarray:
    """[K, N, D] with rows of zeros up to a multiple of 64, or of a quarter of a power of two."""
    count = side.shape[1]
    step = max(64, 1 << max(count.bit_length() - 3, 0))
    return np.pad(side, ((0, 0), (0, -count % step), (0, 0)))


@functools.partial(jax.jit, static_argnames=("readouts",))
def _search(
    source: jax.Array,
    target: jax.Array,
    centres: tuple[jax.Array, jax.Array] | None,
    rotation: jax.Array | None,
    count: jax.Array,
    readouts: tuple[str, ...],
) -> dict[str, dict[str, jax.Array]]:
    """As `search`, of whose rows only the first `count` are texts."""
    real = jnp.arange(source.shape[1]) < count

    def of_layer(layer: Any) -> dict[str, dict[str, jax.Array]]:
        source, target, centres, rotation = layer
        found = {}
        for space, plain, local in (
            ("raw", "raw", "csls"),
            ("centred", "centred", "centred_csls"),
            ("transductive", "centred_transductive", None),
            ("rotated", "procrustes", None),
        ):
            if not {plain, local} & set(readouts):
                continue
            # One [N, N] at a time.
            one, other = _in_space(space, source, target, centres, rotation, real)
            similarity = jnp.matmul(one, other.T, precision=jax.lax.Precision.HIGHEST)
            similarity = jnp.where(real[:, None] & real[None], similarity, -jnp.inf)
            if plain in readouts:
                found[plain] = _best(similarity)
            if local in readouts:
                own, others = _neighbourhoods(similarity, real, count)
                found[local] = _best(2 * similarity - own[:, None] - others[None])
        return found

    return jax.lax.map(of_layer, (source, target, centres, rotation))


def _in_space(
    space: str, source: jax.Array, target: jax.Array, centres: Any, rotation: Any, real: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Unit vectors [N, D] whose products are the similarities of a readout."""
    if space == "raw":
        return normalised(source), normalised(target)
    if space == "transductive":
        weight = real[:, None] / real.sum()
        centres = tuple((side * weight).sum(axis=0) for side in (source, target))
    one, other = normalised(source - centres[0]), normalised(target - centres[1])
    if space == "rotated":
        one = normalised(jnp.matmul(one, rotation, precision=jax.lax.Precision.HIGHEST))
    return one, other


def _best(score: jax.Array) -> dict[str, jax.Array]:
    """Whether each row's and each column's largest entry lies on the diagonal."""
    gold = jnp.diagonal(score)

    def right(axis: int) -> jax.Array:
        best = score.max(axis)
        ties = (score == jnp.expand_dims(best, axis)).sum(axis)
        return (gold == best) / jnp.maximum(ties, 1)

    return {"forward": right(1), "backward": right(0), "found": score.argmax(0)}


def _neighbourhoods(
    similarity: jax.Array, real: jax.Array, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Of each source and each target the mean cosine with its nearest neighbours, [N] each."""
    size = similarity.shape[0]
    most = min(NEIGHBOURS, size)
    counted = jnp.arange(most) < count
    at_once = max(_BLOCK // size, 1)

    def mean(axis: int) -> jax.Array:
        def of_text(index: jax.Array) -> jax.Array:
            values = jax.lax.dynamic_index_in_dim(similarity, index, axis, keepdims=False)
            nearest, _ = jax.lax.top_k(values, most)
            return jnp.where(counted, nearest, 0).sum() / counted.sum()

        # Not of the padding, where it is infinite.
        return jnp.where(real, jax.lax.map(of_text, jnp.arange(size), batch_size=at_once), 0)

    return mean(0), mean(1)
