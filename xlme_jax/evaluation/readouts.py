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

from collections.abc import Mapping, Sequence

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
# (readout, "trained" or "untrained") -> {layer: accuracy}.
ReadoutLines = Mapping[tuple[str, str], Mapping[int, float]]


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
    names = available(readouts, centres is not None, rotation is not None)
    layers = []
    for layer in range(len(source)):
        means = None if centres is None else (centres[0][layer], centres[1][layer])
        turn = None if rotation is None else rotation[layer]
        layers.append(_search(source[layer], target[layer], means, turn, names))
    return {
        name: {way: np.stack([layer[name][way] for layer in layers]) for way in layers[0][name]}
        for name in names
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


# What is compared, and the readouts of it: plain, and by local scaling.
_SPACES = {
    "raw": ("raw", "csls"),
    "centred": ("centred", "centred_csls"),
    "transductive": ("centred_transductive", None),
    "rotated": ("procrustes", None),
}


def _search(
    source: np.ndarray,
    target: np.ndarray,
    centres: Centres | None,
    rotation: np.ndarray | None,
    wanted: Sequence[str],
) -> dict[str, Found]:
    """As `search`, of one layer."""
    count = len(source)
    found: dict[str, Found] = {}
    for space, (plain, local) in _SPACES.items():
        if not {plain, local} & set(wanted):
            continue
        sides = (source, target)
        means = (source.mean(axis=0), target.mean(axis=0)) if space == "transductive" else centres
        if space != "raw":
            assert means is not None
            sides = (source - means[0], target - means[1])
        if space == "rotated":
            sides = (sides[0] @ rotation, sides[1])
        # One space at a time, of few sizes, since each size is compiled.
        padded = [np.pad(side, ((0, _padded(count) - count), (0, 0))) for side in sides]
        scores = _cosines(*padded, np.int32(count))
        for name in (plain, local):
            if name is not None and name in wanted:
                if name == local:
                    scores = _csls(scores, np.int32(count))
                best = jax.device_get(_best(scores))
                found[name] = {way: values[:count] for way, values in best.items()}
    return found


def _padded(count: int) -> int:
    """64 at least, and two sizes to a doubling."""
    step = max(64, 1 << max((count - 1).bit_length() - 2, 0))
    return -(-count // step) * step


@jax.jit
def _cosines(source: jax.Array, target: jax.Array, count: jax.Array) -> jax.Array:
    """Cosines [N, N] of rows [N, D], of which the first `count` are texts; -inf for the others."""
    real = jnp.arange(len(source)) < count
    source, target = normalised(source), normalised(target)
    similarity = jnp.matmul(source, target.T, precision=jax.lax.Precision.HIGHEST)
    return jnp.where(real[:, None] & real[None], similarity, -jnp.inf)


@jax.jit
def _csls(similarity: jax.Array, count: jax.Array) -> jax.Array:
    """CSLS scores from the cosines that `_cosines` returns."""
    real = jnp.arange(len(similarity)) < count
    own, others = _neighbourhoods(similarity, real, count)
    return 2 * similarity - own[:, None] - others[None]


# A program of its own: within the one that makes the scores, the compiler may compute the diagonal
# and the maximum with different roundings, and no translation would equal the best score.
@jax.jit
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
