"""Families of languages, by which evaluations and reports group them (`language_families.tsv`).

Families are those of Glottolog (Hammarström et al., 2024, https://glottolog.org) under their usual
names, with the branches of Indo-European; Niger-Congo is in the sense of Ethnologue, with Mande.
The languages are XTREME's, and those of FLORES+, NTREX-128, TICO-19 and MASSIVE.
"""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from xlme_jax.data import languages


def _rows() -> list[dict[str, str]]:
    """Returns the rows of the table of families: family, XTREME's languages, other languages."""
    text = Path(__file__).with_suffix(".tsv").read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return list(csv.DictReader(lines, delimiter="\t", restval=""))


_ROWS = _rows()
FAMILIES: Mapping[str, tuple[str, ...]] = {
    row["family"]: tuple(row["xtreme"].split()) for row in _ROWS if row["xtreme"]
}
"""{family: XTREME's languages}; Indo-European languages by branch."""
_FAMILY = {
    language: row["family"]
    for row in _ROWS
    for language in (*row["xtreme"].split(), *row["others"].split())
}


def by_family(languages: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Returns {family: languages}, sorted; "other" has the languages that are not listed here."""
    members: dict[str, list[str]] = {}
    for language in languages:
        members.setdefault(family(language) or "other", []).append(language)
    return {name: tuple(of_family) for name, of_family in sorted(members.items())}


def family(language: str) -> str:
    """Returns the family of a language in any script, or "" if the language is not listed here."""
    entry = languages.find(language)
    return _FAMILY.get(language if entry is None else entry.code, "")
