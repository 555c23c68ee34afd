"""Word order of XTREME's languages, and their distances from English in script and word order.

Word order is features 81A (subject, object and verb), 85A (adposition), 86A (genitive), 87A
(adjective), 88A (demonstrative), 89A (numeral) and 90A (relative clause) of WALS: Dryer, M. S. and
Haspelmath, M. (eds.) 2013, The World Atlas of Language Structures Online, v2020.4,
https://wals.info, CC BY 4.0. The table has the numbers of WALS's values, and "?" where WALS has no
value. Arabic has the values of WALS's Modern Standard Arabic, Chinese those of Mandarin.
"""

from xlme_jax.data import languages

FEATURES = ("81A", "85A", "86A", "87A", "88A", "89A", "90A")
# A distance needs at least so many features that both languages have.
_FEWEST = 4

_TABLE = """
    af ? ? ? ? ? ? ?
    ar 3 2 2 2 1 1 ?
    bg 2 2 3 1 1 1 1
    bn 1 ? ? ? ? ? ?
    de 7 2 2 1 1 1 1
    el 7 2 2 1 1 1 1
    en 2 2 3 1 1 1 1
    es 2 2 2 2 1 1 1
    et 2 1 1 1 1 1 1
    eu 1 1 1 2 2 1 2
    fa 1 2 2 2 1 1 1
    fi 2 1 1 1 1 1 1
    fr 2 2 2 2 1 1 1
    he 2 2 2 2 2 1 1
    hi 1 1 1 1 1 1 4
    hu 7 1 1 1 1 1 7
    id 2 2 2 2 2 1 1
    it 2 2 2 2 1 1 1
    ja 1 1 1 1 1 1 2
    jv ? ? ? ? ? ? ?
    ka 1 1 1 1 1 1 1
    kk ? ? ? ? ? ? ?
    ko 1 1 1 1 1 1 2
    ml 1 ? 1 1 1 1 2
    mr 1 1 1 1 1 1 2
    ms ? ? ? ? ? ? ?
    my 1 1 1 2 1 2 2
    nl 7 2 2 1 1 1 1
    pt 2 2 2 2 1 ? 1
    ru 2 2 2 1 1 1 1
    sw 2 2 2 2 2 2 1
    ta 1 1 1 1 1 1 2
    te 1 1 1 1 1 1 2
    th 2 2 2 2 2 2 1
    tl 3 ? 2 3 6 1 1
    tr 1 1 1 1 1 1 2
    ur 1 1 1 1 1 1 4
    vi 2 2 2 2 2 1 1
    yo 2 2 2 2 2 2 1
    zh 2 4 1 1 1 1 2
"""


def _read() -> dict[str, tuple[int | None, ...]]:
    """Returns the rows of `_TABLE` by language."""
    rows = {}
    for line in _TABLE.strip().splitlines():
        code, *values = line.split()
        assert len(values) == len(FEATURES), line
        rows[code] = tuple(None if value == "?" else int(value) for value in values)
    return rows


WORD_ORDER: dict[str, tuple[int | None, ...]] = _read()
"""{language: value of each of `FEATURES`, None where WALS has none}."""


def script_distance(language: str, other: str = "en") -> float | None:
    """Returns 0 for two languages of one script, else 1; None if the table lacks one of them."""
    if not {language, other} <= WORD_ORDER.keys():
        return None
    return float(languages.script(language) != languages.script(other))


def word_order_distance(language: str, other: str = "en") -> float | None:
    """Returns the share of features with different values, in [0, 1].

    Args:
      language: a language.
      other: another one.

    Returns:
      The share among the features that WALS has for both languages; None if these are fewer than
      four, or the table lacks one of the languages.
    """
    if not {language, other} <= WORD_ORDER.keys():
        return None
    both = [
        (a, b)
        for a, b in zip(WORD_ORDER[language], WORD_ORDER[other])
        if a is not None and b is not None
    ]
    if len(both) < _FEWEST:
        return None
    return sum(a != b for a, b in both) / len(both)
