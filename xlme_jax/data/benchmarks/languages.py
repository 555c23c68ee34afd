"""Script and word order of XTREME's languages, and their distances from English.

Scripts are the likely ones of Unicode CLDR, as ISO 15924 codes. Word order is features 81A
(subject, object and verb), 85A (adposition), 86A (genitive), 87A (adjective), 88A (demonstrative),
89A (numeral) and 90A (relative clause) of WALS: Dryer, M. S. and Haspelmath, M. (eds.) 2013, The
World Atlas of Language Structures Online, v2020.4, https://wals.info, CC BY 4.0; with the numbers
of its values, and "?" where it has none. Its Modern Standard Arabic is Arabic here, and its
Mandarin Chinese.
"""

import dataclasses

FEATURES = ("81A", "85A", "86A", "87A", "88A", "89A", "90A")
# Distances over fewer features are not given.
_FEWEST = 4

_TABLE = """
    af Latn ? ? ? ? ? ? ?
    ar Arab 3 2 2 2 1 1 ?
    bg Cyrl 2 2 3 1 1 1 1
    bn Beng 1 ? ? ? ? ? ?
    de Latn 7 2 2 1 1 1 1
    el Grek 7 2 2 1 1 1 1
    en Latn 2 2 3 1 1 1 1
    es Latn 2 2 2 2 1 1 1
    et Latn 2 1 1 1 1 1 1
    eu Latn 1 1 1 2 2 1 2
    fa Arab 1 2 2 2 1 1 1
    fi Latn 2 1 1 1 1 1 1
    fr Latn 2 2 2 2 1 1 1
    he Hebr 2 2 2 2 2 1 1
    hi Deva 1 1 1 1 1 1 4
    hu Latn 7 1 1 1 1 1 7
    id Latn 2 2 2 2 2 1 1
    it Latn 2 2 2 2 1 1 1
    ja Jpan 1 1 1 1 1 1 2
    jv Latn ? ? ? ? ? ? ?
    ka Geor 1 1 1 1 1 1 1
    kk Cyrl ? ? ? ? ? ? ?
    ko Kore 1 1 1 1 1 1 2
    ml Mlym 1 ? 1 1 1 1 2
    mr Deva 1 1 1 1 1 1 2
    ms Latn ? ? ? ? ? ? ?
    my Mymr 1 1 1 2 1 2 2
    nl Latn 7 2 2 1 1 1 1
    pt Latn 2 2 2 2 1 ? 1
    ru Cyrl 2 2 2 1 1 1 1
    sw Latn 2 2 2 2 2 2 1
    ta Taml 1 1 1 1 1 1 2
    te Telu 1 1 1 1 1 1 2
    th Thai 2 2 2 2 2 2 1
    tl Latn 3 ? 2 3 6 1 1
    tr Latn 1 1 1 1 1 1 2
    ur Arab 1 1 1 1 1 1 4
    vi Latn 2 2 2 2 2 1 1
    yo Latn 2 2 2 2 2 2 1
    zh Hans 2 4 1 1 1 1 2
"""


@dataclasses.dataclass(frozen=True)
class Language:
    """What is known of a language.

    Attributes:
      script: ISO 15924 code.
      word_order: value of each of `FEATURES`; None where WALS has none.
    """

    script: str
    word_order: tuple[int | None, ...]


def _read() -> dict[str, Language]:
    found = {}
    for line in _TABLE.strip().splitlines():
        code, script, *values = line.split()
        order = tuple(None if value == "?" else int(value) for value in values)
        assert len(order) == len(FEATURES), line
        found[code] = Language(script, order)
    return found


LANGUAGES: dict[str, Language] = _read()
"""{language: its features}."""


def script_distance(one: str, other: str = "en") -> float | None:
    """Returns 0 for two languages of one script, else 1; None if one is unknown."""
    if not {one, other} <= LANGUAGES.keys():
        return None
    return float(LANGUAGES[one].script != LANGUAGES[other].script)


def word_order_distance(one: str, other: str = "en") -> float | None:
    """Returns the share of features with different values, in [0, 1].

    Args:
      one: a language.
      other: the other.

    Returns:
      The share, over the features that WALS has for both; None if these are fewer than four.
    """
    if not {one, other} <= LANGUAGES.keys():
        return None
    both = [
        (a, b)
        for a, b in zip(LANGUAGES[one].word_order, LANGUAGES[other].word_order)
        if a is not None and b is not None
    ]
    if len(both) < _FEWEST:
        return None
    return sum(a != b for a, b in both) / len(both)
