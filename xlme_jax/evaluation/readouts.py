"""Readouts: how embeddings are compared when a text looks for its translation.

Embeddings of each language share a common direction, which hides the similarity of translations
from a plain cosine. Retrieval accuracy therefore means little without the name of its readout.

  raw: cosine.
  centred: cosine after each language's mean over *training text* was subtracted (Libovický et al.
    2020, "On the Language Neutrality of Pre-trained Multilingual Representations", Sec. 3).
  centred_transductive: cosine after each language's mean over the *candidates* was subtracted; it
    needs no training text, but uses the test set.
  csls: 2 cos(x, y) - r(x) - r(y), with r the mean cosine of a text with its 10 nearest neighbours
    on the other side (Conneau et al. 2018, "Word Translation Without Parallel Data", Eq. 4).
  centred_csls: CSLS on the cosines of `centred`.
  procrustes: a diagnostic, not a retrieval method: cosine after an orthogonal map fitted on
    training pairs. It tells "aligned up to a rotation" from "not aligned".
"""

import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

_log = logging.getLogger(__name__)

READOUTS = ("raw", "centred", "centred_transductive", "csls", "centred_csls", "procrustes")
RAW, RETRIEVAL = READOUTS[0], READOUTS[:-1]  # The last one is a diagnostic.
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

# How the nearest of a text's nearest neighbours is chosen; see `Margins`.
Margin = Literal["ratio", "distance", "absolute"]

# What `search` returns for a readout: {"forward", "backward", "found", ...: array}.
Found = Mapping[str, np.ndarray]
# Mean embeddings of the source and the target language at each layer, [K, D] each.
Centres = tuple[np.ndarray, np.ndarray]
# (readout, "trained" or "untrained") -> {layer: accuracy}.
ReadoutLines = Mapping[tuple[str, str], Mapping[int, float]]


@dataclasses.dataclass(frozen=True)
class Margins:
    """Settings of a search by margin, as in LASER's xsim (Artetxe and Schwenk 2019, Eq. 1 to 3).

    A text chooses among its nearest neighbours on the other side. The score of two texts is their
    cosine, divided by the mean cosine of both with their neighbours ("ratio"), less this mean
    ("distance"), or the cosine itself ("absolute").

    Attributes:
      margin: the score.
      neighbours: k, the number of neighbours; fewer if there are fewer texts.
    """

    margin: Margin = "ratio"
    neighbours: int = 4


def check(readouts: Sequence[str], setting: str) -> None:
    """Raises ValueError, naming the setting, if a readout is unknown."""
    unknown = [name for name in readouts if name not in READOUTS]
    if unknown or not readouts:
        allowed = ", ".join(map(repr, READOUTS))
        raise ValueError(f"{setting} = {tuple(readouts)!r}: expected some of {allowed}.")


def available(readouts: Sequence[str], centres: bool, rotation: bool) -> tuple[str, ...]:
    """Returns those of `readouts` that can be computed, in their order.

    Args:
      readouts: names of readouts.
      centres: whether there are means of both languages over training text.
      rotation: whether there is a map fitted on training pairs ("procrustes").
    """
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
    margins: Margins | None = None,
) -> dict[str, Found]:
    """Searches every source among all targets, and every target among all sources.

    Args:
      source: [K, N, D], embeddings of N texts at K layers.
      target: [K, N, D]; text i is the translation of text i of `source`.
      centres: means of the two languages; None skips the readouts that need them.
      rotation: [K, D, D] from `orthogonal_map`; None skips "procrustes".
      readouts: names of readouts.
      margins: settings of a second search, by margin, for the readouts without CSLS.

    Returns:
      {readout: {key: array}}, without the readouts that were skipped. The keys are:

      - "forward", float32[K, N]: 1 for each source whose best target is its translation, else 0. If
        k targets tie for the best and the translation is one of them, the source counts 1/k, so
        that an encoder that maps all texts to one point gets chance, 1/N. A source counts 0 if its
        embedding or that of its translation is not finite. Such texts are not found by others, and
        a warning counts them.
      - "backward", float32[K, N]: the same figure for each target among all sources.
      - "forward_f1", float32[K, N]: share of each text in `results.f1s`, sources among targets.
      - "backward_f1", float32[K, N]: the same, targets among sources.
      - "found", int32[K, N]: index of the best source of each target; the first one if several tie.
      - "forward_margin", int32[K, N]: index of the target that each source finds by margin; the
        nearest one by cosine if several tie. -1 if a compared score is not finite. Only with
        `margins`, for readouts without CSLS.
      - "backward_margin", int32[K, N]: index of the source that each target finds by margin, by the
        same rules.
    """
    names = available(readouts, centres is not None, rotation is not None)
    warn_if_not_finite(source.swapaxes(0, 1), target.swapaxes(0, 1))
    layers = []
    for layer in range(len(source)):
        means = None if centres is None else (centres[0][layer], centres[1][layer])
        of_layer = None if rotation is None else rotation[layer]
        layers.append(_search(source[layer], target[layer], means, of_layer, names, margins))
    return {
        name: {key: np.stack([layer[name][key] for layer in layers]) for key in layers[0][name]}
        for name in names
    }


def warn_if_not_finite(source: np.ndarray, target: np.ndarray) -> None:
    """Logs how many embeddings of each side, [N, ...] and [M, ...], are not finite."""
    counts = [n for side in (source, target) for n in ((~_is_finite(side)).sum(), len(side))]
    if counts[0] or counts[2]:
        _log.warning(
            "retrieval: %d of %d sources and %d of %d targets have embeddings that are not finite; "
            "they count as not found",
            *counts,
        )


def mean_of_finite(embeddings: np.ndarray, dtype: type | None = None) -> np.ndarray:
    """Returns the mean [...] of the finite ones of N embeddings [N, ...], of all if none are."""
    is_finite = _is_finite(embeddings)
    chosen = embeddings[is_finite] if 0 < is_finite.sum() < len(is_finite) else embeddings
    return chosen.mean(axis=0, dtype=dtype)


def _is_finite(embeddings: np.ndarray) -> np.ndarray:
    """Returns which of N embeddings [N, ...] are finite, bool[N]."""
    return np.isfinite(embeddings).all(axis=tuple(range(1, embeddings.ndim)))


def accuracies(retrieved: Found) -> dict[str, np.ndarray]:
    """Returns {"forward", "backward", "mean": accuracy@1 at each layer, float64[K]}.

    Args:
      retrieved: what `search` returns for a readout.
    """
    directions = ("forward", "backward")
    forward, backward = (retrieved[name].mean(axis=1, dtype=np.float64) for name in directions)
    return {"forward": forward, "backward": backward, "mean": (forward + backward) / 2}


def orthogonal_map(source: np.ndarray, target: np.ndarray, centres: Centres) -> np.ndarray:
    """Fits the rotation from sources to targets (orthogonal Procrustes problem).

    Args:
      source: [K, P, D], embeddings of P training texts at K layers.
      target: [K, P, D], embeddings of the translations of these texts.
      centres: means of the two languages, [K, D] each; subtracted before embeddings are scaled to
        length 1.

    Returns:
      float32[K, D, D]: the orthogonal R with the least |x R - y|: U V' of the singular value
      decomposition x'y = U S V' (Schönemann 1966). Pairs that are not finite are left out; NaN at
      layers where all are.
    """
    maps = []
    for layer in range(len(source)):
        sides = [side[layer] - mean[layer] for side, mean in zip((source, target), centres)]
        is_finite = _is_finite(sides[0]) & _is_finite(sides[1])
        x, y = (unit_rows(side[is_finite]) for side in sides)
        product = x.T @ y
        if is_finite.any():
            left, _, right = np.linalg.svd(product)
            maps.append(left @ right)
        else:
            maps.append(np.full_like(product, np.nan))
    return np.stack(maps).astype(np.float32)


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Returns rows scaled to length 1, in float64; rows of zeros stay zeros."""
    rows = rows.astype(np.float64)
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)


def normalised(embeddings: jax.Array) -> jax.Array:
    """Returns rows [..., D] scaled to length 1, in float32; rows of zeros stay zeros."""
    embeddings = embeddings.astype(jnp.float32)
    norms = jnp.linalg.norm(embeddings, axis=-1, keepdims=True)
    return embeddings / jnp.maximum(norms, 1e-12)


# {compared embeddings: (readout by their cosine, readout by CSLS)}.
_SPACES = {
    "raw": ("raw", "csls"),
    "centred": ("centred", "centred_csls"),
    "transductive": ("centred_transductive", None),
    "rotated": ("procrustes", None),
}


def scores(source: np.ndarray, target: np.ndarray, readout: str = RAW) -> np.ndarray:
    """Returns the score of every source with every target, by which `search` ranks candidates.

    Args:
      source: [N, D] embeddings.
      target: [M, D] embeddings.
      readout: "raw" or "csls".

    Returns:
      float32[N, M], cosines or CSLS scores; -inf where an embedding is not finite.
    """
    sizes = np.array([len(source), len(target)], np.int32)
    similarity = _cosines(*map(_pad, (source, target)), sizes)
    if readout == "csls":
        similarity = _csls(similarity, sizes)
    return np.asarray(similarity)[: sizes[0], : sizes[1]]


def _search(
    source: np.ndarray,
    target: np.ndarray,
    centres: Centres | None,
    rotation: np.ndarray | None,
    names: Sequence[str],
    margins: Margins | None,
) -> dict[str, Found]:
    """Runs `search` at one layer: its arrays are [N] instead of [K, N].

    Its arguments lack the axis of layers too: embeddings are [N, D], means [D] each, a rotation is
    [D, D]. None of these is missing that a readout in `names` needs.
    """
    count = len(source)
    sizes = np.array([count, count], np.int32)
    by_readout: dict[str, Found] = {}
    for space, (plain, local) in _SPACES.items():
        if not {plain, local} & set(names):
            continue
        sources, targets = _in_space(space, source, target, centres, rotation)
        # One space at a time, in few sizes, because each size is compiled.
        scores = _cosines(_pad(sources), _pad(targets), sizes)
        if plain in names:
            hits = _best(scores)
            if margins is not None:
                neighbours = min(margins.neighbours, count)
                hits |= _nearest_by_margin(scores, margins.margin, neighbours)
            by_readout[plain] = _first_rows(hits, count)
        if local is not None and local in names:
            scores = _csls(scores, sizes)  # Frees the cosines, which are as large.
            by_readout[local] = _first_rows(_best(scores), count)
    return by_readout


def _in_space(
    space: str,
    source: np.ndarray,
    target: np.ndarray,
    centres: Centres | None,
    rotation: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the embeddings [N, D] of both sides as a space of `_SPACES` compares them.

    `centres`, [D] each, and `rotation`, [D, D], are not read if the space does not need them.
    """
    if space == "raw":
        return source, target
    if space == "transductive":
        centres = (mean_of_finite(source), mean_of_finite(target))
    assert centres is not None
    source, target = source - centres[0], target - centres[1]
    return (source @ rotation if space == "rotated" else source), target


def _first_rows(arrays: Mapping[str, jax.Array], count: int) -> Found:
    """Fetches arrays [padded N] from the device and returns them without padding, [count] each."""
    return {name: values[:count] for name, values in jax.device_get(arrays).items()}


def _pad(rows: np.ndarray) -> np.ndarray:
    """Returns rows [N, D] with rows of zeros after them.

    The numbers of rows are 64, 128, 192, 256, 384, 512, 768 and so on, because functions are
    compiled for each: two for each power of two, so that less than a third of the rows is added.
    """
    count = len(rows)
    next_power = 1 << (count - 1).bit_length()
    return np.pad(rows, ((0, -count % max(64, next_power // 4)), (0, 0)))


@jax.jit
def _cosines(source: jax.Array, target: jax.Array, sizes: jax.Array) -> jax.Array:
    """Returns the cosines of padded rows.

    Args:
      source: [N, D].
      target: [M, D].
      sizes: int32[2], rows of each side that are not padding; these come first.

    Returns:
      float32[N, M]; -inf where a row is padding or not finite.
    """
    sources, targets = (jnp.arange(len(x)) < n for x, n in zip((source, target), sizes))
    source, target = normalised(source), normalised(target)
    similarity = jnp.matmul(source, target.T, precision=jax.lax.Precision.HIGHEST)
    counted = sources[:, None] & targets[None] & jnp.isfinite(similarity)
    return jnp.where(counted, similarity, -jnp.inf)


@jax.jit
def _csls(similarity: jax.Array, sizes: jax.Array) -> jax.Array:
    """Returns CSLS scores [N, M] of cosines and sizes as in `_cosines`; -inf where these are."""
    source_means, target_means = (_neighbourhood(similarity, axis, sizes) for axis in (0, 1))
    return 2 * similarity - source_means[:, None] - target_means[None]


# A separate program: fused with the computation of the scores, the diagonal and the maximum may be
# rounded differently, and then no translation equals the best score.
@jax.jit
def _best(score: jax.Array) -> dict[str, jax.Array]:
    """Returns the results of `search` that need no margin, for square scores, [N] each."""
    gold, texts = jnp.diagonal(score), jnp.arange(len(score))

    def credit(axis: int) -> jax.Array:
        best = score.max(axis)
        ties = (score == jnp.expand_dims(best, axis)).sum(axis)
        return ((gold == best) & jnp.isfinite(gold)) / jnp.maximum(ties, 1)

    def share_of_f1(axis: int) -> jax.Array:
        # Precision is 1 in the number of texts that find the candidate, recall is 1.
        nearest, is_finite = score.argmax(axis), jnp.isfinite(score.max(axis))
        times = jnp.zeros(len(score)).at[nearest].add(is_finite)
        return jnp.where(is_finite & (nearest == texts), 2 / (1 + times), 0)

    return {
        "forward": credit(1),
        "backward": credit(0),
        "forward_f1": share_of_f1(1),
        "backward_f1": share_of_f1(0),
        "found": score.argmax(0),
    }


@functools.partial(jax.jit, static_argnames=("margin", "neighbours"))
def _nearest_by_margin(
    similarity: jax.Array, margin: Margin, neighbours: int
) -> dict[str, jax.Array]:
    """Returns "forward_margin", int32[N], and "backward_margin", int32[M], of `search`.

    Args:
      similarity: [N, M] from `_cosines`, which is -inf at padding.
      margin: how neighbours are scored; see `Margins`.
      neighbours: k; at most the number of texts of a side that are not padding.
    """
    cosines, indices = jax.lax.top_k(similarity, neighbours)
    back_cosines, back_indices = jax.lax.top_k(similarity.T, neighbours)
    means, back_means = cosines.mean(axis=1), back_cosines.mean(axis=1)

    def nearest(
        cosines: jax.Array, indices: jax.Array, means: jax.Array, other_means: jax.Array
    ) -> jax.Array:
        neighbourhood = (means[:, None] + other_means[indices]) / 2
        scores = {
            "ratio": cosines / neighbourhood,
            "distance": cosines - neighbourhood,
            "absolute": cosines,
        }[margin]
        nearest = jnp.take_along_axis(indices, scores.argmax(axis=1)[:, None], axis=1)[:, 0]
        return jnp.where(jnp.isfinite(scores).all(axis=1), nearest, -1)

    return {
        "forward_margin": nearest(cosines, indices, means, back_means),
        "backward_margin": nearest(back_cosines, back_indices, back_means, means),
    }


def _neighbourhood(similarity: jax.Array, axis: int, sizes: jax.Array) -> jax.Array:
    """Returns the mean cosine of each text with its nearest neighbours on the other side.

    Args:
      similarity: [N, M] from `_cosines`.
      axis: axis of `similarity` along which the texts lie: 0 for sources, 1 for targets.
      sizes: int32[2], texts of each side that are not padding.

    Returns:
      float32[N] for sources or float32[M] for targets; 0 at padding, and where a neighbour is not
      finite: because -inf - -inf would be NaN in `_csls`.
    """
    size, candidates = similarity.shape[axis], similarity.shape[1 - axis]
    count = min(NEIGHBOURS, candidates)
    counted = jnp.arange(count) < sizes[1 - axis]

    def of_text(index: jax.Array) -> jax.Array:
        values = jax.lax.dynamic_index_in_dim(similarity, index, axis, keepdims=False)
        nearest, _ = jax.lax.top_k(values, count)
        return jnp.where(counted, nearest, 0).sum() / counted.sum()

    means = jax.lax.map(of_text, jnp.arange(size), batch_size=max(_BLOCK // candidates, 1))
    return jnp.where(jnp.isfinite(means), means, 0)
