"""The configuration of the embedded corpus (`data.cldr`), which every run on it has.

It is in a module of its own, because training reads prepared data and writes no phrases.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections import Counter
from collections.abc import Sequence

from xlme_jax.data.languages import XLMR, tag_or_code

WITHOUT_CLDR: tuple[str, ...] = ("bn_rom", "hi_rom", "my_zaw", "ta_rom", "te_rom", "ur_rom")
"""XLM-R's languages without CLDR locales (CLDR's `hi_Latn` has English names)."""

LANGUAGES: tuple[str, ...] = tuple(code for code in XLMR if code not in WITHOUT_CLDR)
"""XLM-R's other languages (`zh` is simplified Chinese, as in XLM-R)."""

KINDS: tuple[str, ...] = (
    "date",
    "time",
    "duration",
    "currency",
    "unit",
    "territory_list",
    "language_list",
    "currency_list",
    "list",
)


@dataclasses.dataclass(frozen=True)
class CldrConfig:
    """Configuration of the corpus.

    Attributes:
        languages: Languages of `LANGUAGES`, in any spelling; stored as canonical tags.
        kinds: Kinds of phrases from `KINDS`, drawn uniformly (repeat one to double its frequency).
        inventory: Maximum number of territories, languages, currencies and units (each) to draw
            from; fewer make an easier task. None uses all that have a name in every language.
        list_size: Minimum and maximum number of items in a list.
        heldout_every: One in this many combinations of concepts is held out for `validation`.
        distinct_names: Whether to drop list items with the same name in two of the languages
            ("Angola"), so that comparing strings does not help in retrieval and alignment. Many
            languages in one script leave few names.
        multiway: Whether `documents` and `pairs` use only items that all `languages` name (and name
            distinctly). If False, each language or pair uses all of its items, which large sets of
            languages need; `phrases` is always multi-way. Does not change what is held out.
        statements: How often each phrase is repeated in a document; the items of a list are rotated
            by one each time.
        seed: Seed of the drawn phrases and their order. Does not change what is held out.

    Raises:
        ValueError: A value is not allowed; the message names the field and the allowed values.
    """

    languages: tuple[str, ...]
    kinds: tuple[str, ...] = KINDS
    inventory: int | None = None
    list_size: tuple[int, int] = (2, 5)
    heldout_every: int = 20
    distinct_names: bool = True
    multiway: bool = True
    statements: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for field in ("languages", "kinds", "list_size"):
            if isinstance(getattr(self, field), str):
                raise ValueError(f"cldr: `{field}` is a string; give a list, such as ('en', 'fr')")
            object.__setattr__(self, field, tuple(getattr(self, field)))
        object.__setattr__(self, "languages", tuple(map(tag_or_code, self.languages)))
        for field in ("languages", "kinds"):
            if not getattr(self, field):
                raise ValueError(f"cldr: `{field}` is empty; give at least one")
        for language in self.languages:
            check_language(language)
        for kind in self.kinds:
            check_choice("kind", kind, KINDS)
        repeated = [name for name, n in Counter(self.languages).items() if n > 1]
        if repeated:
            raise ValueError(
                f"cldr: `languages` repeats {', '.join(repeated)}; give each language once"
            )
        if self.inventory is not None and self.inventory < 1:
            raise ValueError(
                f"cldr: `inventory` is {self.inventory}; give at least 1, or None for all"
            )
        if len(self.list_size) != 2 or not 1 <= self.list_size[0] <= self.list_size[1]:
            raise ValueError(
                f"cldr: `list_size` is {self.list_size}; give (smallest, largest), "
                "1 <= smallest <= largest"
            )
        if self.statements < 1:
            raise ValueError(f"cldr: `statements` is {self.statements}; give at least 1")
        if self.heldout_every < 2:
            raise ValueError(f"cldr: `heldout_every` is {self.heldout_every}; give at least 2")


def check_choice(setting: str, value: str, allowed: Sequence[str]) -> None:
    """Raises ValueError with close matches if `value` is not one of `allowed`."""
    if value not in allowed:
        near = difflib.get_close_matches(str(value), allowed, n=3, cutoff=0.3)
        meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
        raise ValueError(f"cldr: unknown {setting} {value!r}{meant} Allowed: {', '.join(allowed)}")


def check_language(language: str) -> None:
    """Raises ValueError if `language` is not one of `LANGUAGES`."""
    if language in WITHOUT_CLDR:
        raise ValueError(f"cldr: XLM-R has {language!r}, but CLDR has no data for it; remove it")
    check_choice("language", language, LANGUAGES)
