"""Compares samplers of language pairs: heat maps (XY-LENT, Figures 2 and 6) and a table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from xlme_jax.data.batches import mixing, pair_sampling
from xlme_jax.studies.reports import pictures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LogNorm
    from matplotlib.image import AxesImage


@dataclasses.dataclass(frozen=True)
class PairDensity:
    """A distribution over language pairs.

    Attributes:
      name: display name.
      density: float64[L, L], symmetric, sum 1: half of a pair's probability in each direction.
    """

    name: str
    density: np.ndarray


def samplers(
    languages: Sequence[str], counts: np.ndarray, alpha: float, smoothing: float = 0.0
) -> list[PairDensity]:
    """Returns three samplers of language pairs: temperature, Eq. 1 and Eq. 2.

    Args:
      languages: L names.
      counts: float64[L, L], examples per pair, symmetric, zero diagonal.
      alpha: exponent of the pairs' shares (temperature) or of the languages' shares.
      smoothing: smoothing of the entropic sampler.

    Raises:
      ValueError: the share of a language cannot be met; the message names the language.
    """
    pairs = np.nonzero(counts)
    tempered = np.zeros_like(counts)
    tempered[pairs] = mixing.temperature_weights(counts[pairs], alpha)
    corner = pair_sampling.linear_programme(languages, counts, alpha)
    return [
        PairDensity("temperature", tempered),
        PairDensity("linear programme", (corner + corner.T) / 2),
        PairDensity("Sinkhorn", pair_sampling.entropic(languages, counts, alpha, smoothing)),
    ]


def table(counts: np.ndarray, densities: Sequence[PairDensity]) -> str:
    """Returns a text table that compares samplers.

    Columns: pairs that are never drawn, their share, the entropy over pairs in nats, the effective
    number of pairs (the exponential of the entropy), and the largest share of a pair and of a
    language.
    """
    upper = np.triu(counts > 0)
    lines = [
        f"{_numbered(upper.sum(), 'pair')} of {len(counts)} languages, "
        f"{_numbered(np.triu(counts).sum(), 'example')}",
        f"{'sampler':<18}{'never drawn':>12}{'share':>8}{'entropy':>9}{'effective pairs':>17}"
        f"{'largest pair':>14}{'largest language':>18}",
    ]
    for sampler in densities:
        shares = 2 * sampler.density[upper]
        drawn = shares[shares > 0]
        entropy = max(0.0, -float((drawn * np.log(drawn)).sum()))  # Avoid -0 for a single pair.
        never = len(shares) - len(drawn)
        largest = float(sampler.density.sum(axis=1).max())
        lines.append(
            f"{sampler.name:<18}{never:>12,}{never / len(shares):>8.1%}{entropy:>9.3f}"
            f"{math.exp(entropy):>17,.1f}{_percent(shares.max()):>14}{_percent(largest):>18}"
        )
    return "\n".join(lines)


def _numbered(count: float, noun: str) -> str:
    """Returns "COUNT WHAT", with a plural s unless the count is 1."""
    return f"{count:,.0f} {noun}{'' if count == 1 else 's'}"


def _percent(share: float) -> str:
    """Formats a share as percent with at least two significant digits."""
    return f"{share:.{max(2, 1 - math.floor(math.log10(100 * share)))}%}"


def draw(
    path: Path,
    languages: Sequence[str],
    counts: np.ndarray,
    densities: Sequence[PairDensity],
    highlighted: Collection[str] = (),
) -> None:
    """Draws densities side by side, languages with the most examples first.

    Args:
      path: PNG to write.
      languages: L names.
      counts: float64[L, L], symmetric.
      densities: the distributions of the samplers to draw.
      highlighted: languages to draw; empty for all. Densities always refer to all languages.

    Raises:
      ValueError: `highlighted` has an unknown language, or no two languages to draw are a pair.
    """
    from matplotlib.colors import LogNorm

    if unknown := sorted(set(highlighted) - set(languages)):
        raise ValueError(f"no pair has the languages {unknown}; there are {list(languages)}")
    order = np.argsort(-counts.sum(axis=1), kind="stable").tolist()
    order = [n for n in order if not highlighted or languages[n] in highlighted]
    names = [languages[n] for n in order]
    drawn = np.ix_(order, order)
    panels = [(sampler.name, sampler.density[drawn]) for sampler in densities]
    positive = np.concatenate([density[density > 0] for _, density in panels])
    if not len(positive):
        raise ValueError(f"no two of the languages {names} are a pair")
    side = min(max(4.0, 0.11 * len(names)), 12.0)
    figure = pictures.empty(len(panels) * side + 1.2, side + 0.8)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    # The colours span six orders of magnitude; smaller values are palest, zero is grey.
    norm = LogNorm(max(positive.min(), positive.max() * 1e-6), positive.max(), clip=True)
    size = min(9.0, 72 * 0.9 * side / max(len(names), 1))
    for axis, (name, density) in zip(axes, panels):
        image = _draw_density(axis, name, density, counts[drawn] > 0, norm)
        axis.set_xticks(range(len(names)), names, fontsize=size, rotation=90)
        axis.set_yticks(range(len(names)), names, fontsize=size)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    figure.colorbar(
        image, ax=axes, label="probability (grey: never drawn, white: no such pair)", shrink=0.8
    )
    path.write_bytes(pictures.png(figure))


def _draw_density(
    axis: Axes, name: str, density: np.ndarray, is_pair: np.ndarray, norm: LogNorm
) -> AxesImage:
    """Draws a density, float64[L, L], and returns the image, whose colours the bar explains.

    Args:
      axis: where to draw.
      name: name of the sampler.
      density: probabilities of pairs.
      is_pair: bool[L, L], whether there is such a pair.
      norm: normalisation of the colours.
    """
    never = int(np.triu(is_pair & (density == 0)).sum())
    title = f"{name}:\n{never:,} of {np.triu(is_pair).sum():,} pairs never drawn"
    axis.set_title(title, fontsize=11, fontweight="bold", loc="left")
    axis.set_facecolor("white")
    axis.imshow(np.where(is_pair, 0.0, np.nan), cmap="Greys_r", vmin=-5, vmax=1)
    return axis.imshow(np.ma.masked_equal(density, 0), cmap="viridis_r", norm=norm)
