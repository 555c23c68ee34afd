"""Texts of several languages in the plane of their first two principal components."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from xlme_jax.studies.reports import pictures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "o^sDvP*"
_LINES = 24  # Between translations.


def languages(
    embeddings: Mapping[str, np.ndarray],
    title: str = "",
    translations: Sequence[tuple[str, str]] = (),
    note: str = "",
) -> bytes:
    """Draws texts as they are, and with each language's mean subtracted; returns a PNG.

    Args:
      embeddings: {language: vectors [N, D] of its texts}, such as `Model.encode` returns.
      title: title.
      translations: pairs of languages whose texts with the same number are translations, of which
        lines join the first ones.
      note: sentence below the picture.

    Raises:
      ValueError: there are fewer than three texts in all, or their vectors have one dimension.
    """
    vectors = {name: np.asarray(rows, np.float64) for name, rows in embeddings.items()}
    centred = {name: rows - rows.mean(axis=0) for name, rows in vectors.items()}
    figure = pictures.empty(10, 4.4, title)
    left, right = figure.subplots(1, 2)
    _draw(left, vectors, translations, "as they are")
    _draw(right, centred, translations, "each language's mean subtracted")
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.supxlabel(textwrap.fill(note, 130), fontsize=9)
    return pictures.png(figure)


def principal_components(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Projects vectors on their first two principal components.

    Args:
      vectors: [N, D].

    Returns:
      The coordinates, float64[N, 2], and each component's share of the variance, float64[2].

    Raises:
      ValueError: there are fewer than three rows, or one column.
    """
    if len(vectors) < 3 or vectors.shape[1] < 2:
        raise ValueError(
            f"a plane needs three texts and vectors of two dimensions; there are {len(vectors)} of "
            f"{vectors.shape[1]}: give more texts"
        )
    centred = np.asarray(vectors, np.float64) - np.mean(vectors, axis=0, dtype=np.float64)
    _, lengths, directions = np.linalg.svd(centred, full_matrices=False)
    total = max(float(np.sum(lengths**2)), np.finfo(np.float64).tiny)
    return centred @ directions[:2].T, lengths[:2] ** 2 / total


def _joined(translations: Sequence[tuple[str, str]], count: int) -> str:
    """Returns which translations lines join: the first `count` of each pair of languages."""
    names = ", ".join(map("-".join, translations[:3]))
    if len(translations) > 3:
        names = f"each of {len(translations)} pairs"
    return f"translations: the first {count}\nof {pictures.plain(names, 40)}"


def _draw(
    axis: "Axes",
    embeddings: Mapping[str, np.ndarray],
    translations: Sequence[tuple[str, str]],
    title: str,
) -> None:
    """Draws {language: vectors [N, D]} in the plane of their principal components."""
    points, shares = principal_components(np.concatenate(list(embeddings.values())))
    ends = np.cumsum([len(rows) for rows in embeddings.values()])[:-1]
    colors = pictures.COLORS
    groups = dict(zip(embeddings, np.split(points, ends)))
    for source, target in translations:
        count = max(_LINES // len(translations), 1)
        sides = np.stack([groups[source][:count], groups[target][:count]])
        lines = axis.plot(sides[..., 0], sides[..., 1], color="#888888", linewidth=0.7, zorder=0)
        if (source, target) == translations[0]:
            lines[0].set_label(_joined(translations, sides.shape[1]))
    for number, (name, group) in enumerate(groups.items()):
        marker = _MARKERS[number // len(colors) % len(_MARKERS)]
        axis.scatter(
            group[:, 0],
            group[:, 1],
            s=9,
            alpha=0.6,
            linewidths=0,
            label=pictures.plain(name),
            color=colors[number % len(colors)],
            marker=marker,
        )
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(f"first component, {shares[0]:.0%} of the variance", fontsize=8)
    axis.set_ylabel(f"second component, {shares[1]:.0%}", fontsize=8)
    axis.set_xticks([])
    axis.set_yticks([])
