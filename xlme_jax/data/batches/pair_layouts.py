"""Layouts of a pair of texts e and f in a row, as a configuration names them."""

from __future__ import annotations

import dataclasses
import itertools
from typing import ClassVar, Literal

from xlme_jax.data.languages import tag_or_code
from xlme_jax.validation.fields import check_at_least, check_choices, check_directions


@dataclasses.dataclass(frozen=True)
class Joint:
    """A pair is one segment, `<s> e </s> f </s>`.

    Attributes:
      positions: "continuous", or "restart", which restarts at 0 with the first token of f, as in
        XLM (Lample and Conneau 2019, Sec. 3.3: "we also reset the positions of target sentences").
        Only learned absolute positions restart; the relative bias always uses distances within the
        row (`model.relative_bias`).
    """

    name: ClassVar[str] = "joint"
    segments: ClassVar[int] = 1  # Number of segments of an item.
    pairs_per_item: ClassVar[int] = 1  # Number of pairs that an item is made from.

    positions: Literal["continuous", "restart"] = "continuous"

    def __post_init__(self) -> None:
        check_choices(self, "Joint")

    def order_settings(self) -> dict[str, object]:
        """Returns the settings that affect the rows or their order (`Stream.order_settings`)."""
        return {"layout": "joint", "positions": self.positions}


@dataclasses.dataclass(frozen=True)
class Sides:
    """A pair is two segments, `<s> e </s>` and `<s> f </s>`.

    The segment ids of pair p = 1, 2, ... of a row are 2p - 1 and 2p.

    Attributes:
      mixup: "order" joins two consecutive draws into one pair, `<s> c1 </s> d1 </s>` and `<s> c2
        </s> d2 </s>`, with an independent random order on each side (InfoXLM's public code);
        "languages" also swaps d1 and d2 with probability 0.5 (InfoXLM's paper).
      pairs_per_row: maximum pairs, or mixed pairs, per row; None for as many as fit. If set, the
        batch contains the starts of segments (`layouts.segment_starts`).
    """

    name: ClassVar[str] = "sides"
    segments: ClassVar[int] = 2

    mixup: Literal["none", "order", "languages"] = "none"
    pairs_per_row: int | None = None

    def __post_init__(self) -> None:
        check_choices(self, "Sides")
        check_at_least(self, "Sides", 1, "pairs_per_row")

    @property
    def pairs_per_item(self) -> int:
        """Number of pairs, and so of draws, that an item is made from."""
        return 1 if self.mixup == "none" else 2

    def order_settings(self) -> dict[str, object]:
        """Returns the settings that affect the rows or their order (`Stream.order_settings`)."""
        return {"layout": "sides", "mixup": self.mixup, "pairs_per_row": self.pairs_per_row}


@dataclasses.dataclass(frozen=True)
class Translations:
    """A pair is two segments as in `Sides`, and each token has its language.

    Attributes:
      languages: the batch contains the language of each token as its number in this list, 1, 2, ...
        (0 for padding).
      directions: if given, such as ("en-de",), rows have sources in the first half of their columns
        and their translations in the second. Only pairs with one of these directions are drawn; a
        pair with both directions gets one of them at random.
    """

    name: ClassVar[str] = "translations"
    segments: ClassVar[int] = 2
    pairs_per_item: ClassVar[int] = 1

    languages: tuple[str, ...]
    directions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.languages:
            raise ValueError(
                "Translations.languages = () must name the languages of the pairs; with no need of "
                "their numbers, use the layout Sides()"
            )
        tags = tuple(map(tag_or_code, self.languages))
        if len(set(tags)) < len(tags):
            repeated = [code for code, tag in zip(self.languages, tags) if tags.count(tag) > 1]
            raise ValueError(
                f"Translations.languages = {self.languages} names a language more than once: "
                f"{', '.join(repeated)}; list each once"
            )
        check_directions(self.directions, self.languages, "Translations")

    def order_settings(self) -> dict[str, object]:
        """Returns the settings that affect the rows or their order (`Stream.order_settings`)."""
        return {"layout": "sides", "directions": self.directions}

    def pairs_of_directions(self) -> dict[str, tuple[str, str]]:
        """Returns {direction: canonical tags of its two languages}."""
        return {
            f"{source}-{target}": (tag_or_code(source), tag_or_code(target))
            for source, target in itertools.permutations(self.languages, 2)
            if f"{source}-{target}" in self.directions
        }

    def draws(self, tags: tuple[str, ...]) -> bool:
        """Returns whether pairs of these languages are drawn."""
        return not self.directions or self._translates(tags) or self._translates(tags[::-1])

    def swapped_share(self, tags: tuple[str, ...]) -> float:
        """Returns the share of pairs whose second side becomes the source: 0, 0.5 or 1.

        Args:
          tags: canonical tags of both sides; pairs of these languages must be drawn (`draws`).
        """
        forward, backward = (self._translates(pair) for pair in (tags, tags[::-1]))
        return backward / (forward + backward)

    def _translates(self, tags: tuple[str, ...]) -> bool:
        """Returns whether the translation from the first language to the second is a direction."""
        return tags in self.pairs_of_directions().values()


Layout = Joint | Sides | Translations
