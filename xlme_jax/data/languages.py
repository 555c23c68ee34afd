"""What a language is: codes, scripts and names, and which spellings mean the same one.

Languages are those of ISO 639-1, 639-2 and 639-3 (tables of SIL, in `python-iso639`). Retired
codes, default scripts, and the language that a macrolanguage's code usually means are those of
Unicode CLDR (in `Babel`). Each language, in each script, has one canonical tag, which everything
keyed by a language uses: data sets, held-out text, means of encodings, choices of checkpoints.

Which names of files are languages is said by `data.file_languages`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import babel
    import iso639

UNKNOWN_SCRIPT = "Zzzz"

_XLMR_TAGS = """
    af am ar as az be bg bn bn_rom br bs ca cs cy da de el en eo es et eu fa fi fr fy ga gd gl gu ha
    he hi hi_rom hr hu hy id is it ja jv ka kk km kn ko ku ky la lo lt lv mg mk ml mn mr ms my
    my_zaw ne nl no om or pa pl ps pt ro ru sa sd si sk sl so sq sr su sv sw ta ta_rom te te_rom th
    tl tr ug uk ur ur_rom uz vi xh yi zh zh-Hant
"""
XLMR: tuple[str, ...] = tuple(_XLMR_TAGS.split())
"""Tags of XLM-R's 100 languages (Conneau et al., 2020, Table 6). CC-100 spells zh as zh-Hans."""
_XLMR_CODES = frozenset(XLMR)

# {code: the code that this project uses for the language}: XLM-R's code, if XLM-R has the language.
_PREFERRED = {
    "nb": "no",
    "nob": "no",
    "fil": "tl",
    "tgl": "tl",
    "hbs": "sh",
    "sh": "sh",
    "pbt": "ps",
}
# Groups that Tatoeba and AmericasNLI use as one language; ISO 639-3 has only their members.
_GROUPS = {"ber": "Berber languages", "nah": "Nahuatl languages", "oto": "Otomian languages"}
# Spellings of Wikipedia's editions that are not language tags.
_WIKIPEDIA = {
    "bat-smg": "sgs",
    "be-x-old": "be",
    "cbk-zam": "cbk",
    "fiu-vro": "vro",
    "map-bms": "jv",
    "roa-rup": "rup",
    "roa-tara": "nap",
    "simple": "en",
    "zh-classical": "lzh",
    "zh-min-nan": "nan",
    "zh-wuu": "wuu",
    "zh-yue": "yue",
}
# Words after "@" or "_" in names of locales and corpora, as scripts. "Qaag" is CLDR's for Zawgyi.
_SCRIPT_WORDS = {
    "arabic": "Arab",
    "cyrillic": "Cyrl",
    "devanagari": "Deva",
    "latin": "Latn",
    "rom": "Latn",
    "zaw": "Qaag",
}
# {(language, script in some corpora): the script that CLDR has for the same text}.
_SAME_SCRIPT = {
    ("ja", "Hrkt"): "Jpan",
    ("ko", "Hang"): "Kore",
    ("zh", "Hani"): "Hans",
}
# {variant of a script: the script}.
_STYLES = {"Aran": "Arab", "Cyrs": "Cyrl", "Latf": "Latn", "Latg": "Latn", "Syre": "Syrc"}
_XLMR_SPELLING = {"my-Qaag": "my_zaw"} | {
    f"{code}-Latn": f"{code}_rom" for code in ("bn", "hi", "ta", "te", "ur")
}
# Names of dialects in Glottolog, as FLORES+ has them: por_Latn_braz1246.
_GLOTTOCODE = re.compile(r"[a-z]{4}\d{4}")
_PART = re.compile("[a-z0-9]{1,8}")


@dataclasses.dataclass(frozen=True)
class Language:
    """A language in a script.

    Attributes:
      tag: The canonical tag, such as "sw", "sr-Latn" or "zh-Hant".
      code: ISO 639 code without script, of two letters if the language has such a code.
      script: ISO 15924 code; "Zzzz" if CLDR knows none.
      name: English name, with the script if it is not the default.
    """

    tag: str
    code: str
    script: str
    name: str


@functools.lru_cache(maxsize=1 << 14)
def find(code: str) -> Language | None:
    """Returns the language of a code in any spelling, or None if the code is no language.

    A spelling is a code of ISO 639, followed by a script, region, variant or dialect, with "-", "_"
    or "@" between them, in either case: `swh_Latn`, `pt_br`, `ca@valencia`, `zh-min-nan`, `iw`.
    Region, variant and dialect are checked but make no other language; a region may imply a script
    (`zh_TW`).
    """
    parts = _parts(code)
    primary = _primary(parts[0]) if parts else None
    if primary is None:
        return None
    script = region = ""
    for number, part in enumerate(parts[1:], 1):
        if part == "x":  # The parts behind it are for private use, and have no common meaning.
            break
        if not script and (named := _script_of(part)):
            script = named
        elif not region and part.upper() in english_locale().territories:
            region = part.upper()
        elif part.upper() not in english_locale().variants and not (
            _GLOTTOCODE.fullmatch(part) and number > 1
        ):
            return None
    return _language(primary, script, region)


def is_language(code: str) -> bool:
    """Returns whether a code is a language, in any spelling that `find` knows."""
    return find(code) is not None


def canonical(code: str) -> str:
    """Returns the one tag of a language: `swh_Latn`, `swa` and `sw-KE` are "sw".

    The tag is XLM-R's code where XLM-R has the language, else the code of ISO 639-1, else the code
    of ISO 639-3. A script that is not the language's default follows as in BCP 47: "sr-Latn".

    Raises:
      ValueError: The code is not a language; names the nearest ones.
    """
    if code in _XLMR_CODES:  # Most calls, without loading tables.
        return code
    language = find(code)
    if language is None:
        raise ValueError(f"{code!r} is not a language code of ISO 639{nearest_text(code)}")
    return language.tag


def same_language(code: str, other: str) -> bool:
    """Returns whether two codes are one language in one script; other words equal themselves."""
    return tag_or_code(code) == tag_or_code(other)


def tag_or_code(code: str) -> str:
    """Returns the canonical tag of a code, or the code unchanged if it is no language."""
    if code in _XLMR_CODES:
        return code
    language = find(code)
    return code if language is None else language.tag


def spelled_as(codes: Iterable[str], available: Iterable[str]) -> tuple[str, ...]:
    """Returns the codes, each in the spelling that `available` has for its language, if any.

    Each spelling is returned once. Where `available` has several varieties of a language, such as
    "en" and "en-GB" (`distinct_tags`), it is the one with the most parts of the code: "en-GB" for
    `en_GB`, "apc-x-ajp" for `ajp_Arab`; of equal ones the simplest: "en" for `eng`.
    """
    varieties: dict[str, list[str]] = {}
    for name in sorted(available, key=_by_length):
        varieties.setdefault(tag_or_code(name), []).append(name)

    def spelling(code: str) -> str:
        parts = frozenset(_parts(code))
        names = varieties.get(tag_or_code(code), [code])
        return max(names, key=lambda name: (name == code, len(parts.intersection(_parts(name)))))

    return tuple(dict.fromkeys(map(spelling, codes)))


def distinct_tags(codes: Iterable[str]) -> dict[str, str]:
    """Returns {code: tag} for the codes of one set of files, so that no two have the same tag.

    The tag is the canonical one, except where several codes are one language: then the shortest
    code has the canonical tag, and the tags of the others add what tells them apart. `eng`,
    `eng-GB` and `eng_US` give "en", "en-GB" and "en-US"; `apc_Arab` and `ajp_Arab` give "apc" and
    "apc-x-ajp". `find` knows these tags too.

    Args:
      codes: Languages in any spelling, all different.

    Raises:
      ValueError: A code is not a language.
    """
    tags: dict[str, str] = {}
    for code in sorted(codes, key=_by_length):
        tag, parts = canonical(code), _parts(code)
        if tag in tags.values():
            last = parts[-1]
            if len(parts) > 1 and last.upper() in english_locale().territories:
                tag += f"-{last.upper()}"
            else:
                tag += f"-x-{last if _GLOTTOCODE.fullmatch(last) else parts[0]}"
        tags[code] = code if tag in tags.values() else tag
    return tags


def _by_length(code: str) -> tuple[int, bool, str]:
    """Returns a sort key: codes of few parts first, then those with the canonical ISO 639 code."""
    parts, language = _parts(code), find(code)
    return len(parts), language is not None and parts[0] != language.code, code


def script(code: str) -> str:
    """Returns the ISO 15924 code of a language's script; "Zzzz" if it is not known."""
    language = find(code)
    return UNKNOWN_SCRIPT if language is None else language.script


# CLDR's locales hi_Latn and zh_Latn are romanizations, whose text has tags of its own.
_ROMANIZED = frozenset(("hi", "zh"))


def scripts_in_use(code: str) -> frozenset[str]:
    """Returns the scripts that CLDR's locales have for a language, without romanizations.

    If the code names another script than the default, returns this script alone. Returns an empty
    set if CLDR has no locale of the language: then too little is known of how it is written.
    """
    language = find(code)
    if language is None or language.code not in _scripts_of_locales():
        return frozenset()
    if language.tag != language.code:
        return frozenset({language.script})
    scripts = _scripts_of_locales()[language.code] | {language.script}
    return scripts - {"Latn"} if language.code in _ROMANIZED else scripts


def named(name: str) -> Language | None:
    """Returns the language of an English name in either case, or None if no language has it.

    A remark in parentheses behind the name is ignored: `Central Kurdish (Soranî)`.
    """
    code = _codes_of_names().get(name.partition(" (")[0].lower())
    return None if code is None else find(code)


def english_name(code: str) -> str:
    """Returns the English name of a language, or the code if it is not a language."""
    language = find(code)
    return code if language is None else language.name


def nearest(code: str, count: int = 3) -> list[Language]:
    """Returns the languages that a code or a name may mean, the most likely first.

    A code that is no language's may be a country's, whose languages come first: "cz" is Czech. Or
    it begins the name of one of XLM-R's languages: "po" is Polish or Portuguese.
    """
    from babel.languages import get_official_languages

    parts = re.split(r"[\W_]+", code.lower())
    prefixes = ["-".join(parts[:end]) for end in range(len(parts), 0, -1)]
    names = _codes_of_names()
    begun, close = [], []
    if len(code) <= 3:  # too short for the spelling of a name to say much
        begun = [tag for tag in XLMR if english_name(tag).lower().startswith(code.lower())]
    else:
        close = difflib.get_close_matches(code.lower(), names, n=count, cutoff=0.8)
    codes = difflib.get_close_matches(parts[0], XLMR, n=count, cutoff=0.6)
    country = get_official_languages(code.upper(), de_facto=True)
    texts = [*prefixes, *country, *begun, *(names[name] for name in close), *codes]
    candidates = [find(text) for text in texts]
    return list(dict.fromkeys(filter(None, candidates)))[:count]


@functools.lru_cache(maxsize=1 << 10)
def nearest_text(code: str) -> str:
    """Returns "; nearest: ..." for a message about a code, or "" if nothing is near."""
    texts = [f"{language.tag} ({language.name})" for language in nearest(code)]
    return "; nearest: " + ", ".join(texts) if texts else ""


# --- Parts of a code ---


def _parts(code: str) -> list[str]:
    """Returns the parts of a code in lower case; [] if a part cannot be one.

    A code of a Wikipedia edition is replaced by the language that it stands for.
    """
    parts = re.split("[-_@]", code.lower())
    parts = _WIKIPEDIA.get("-".join(parts), "-".join(parts)).split("-")
    return parts if all(map(_PART.fullmatch, parts)) else []


@functools.cache
def iso_table() -> dict[str, iso639.Language]:
    """Returns {code of ISO 639-1, -2 or -3: its language}."""
    import iso639

    rows: dict[str, iso639.Language] = {}
    for language in iso639.ALL_LANGUAGES:
        for code in (language.part3, language.part1, language.part2b, language.part2t):
            if code:
                rows.setdefault(code, language)
    return rows


def _cldr(table: Literal["language_aliases", "likely_subtags"]) -> Mapping[str, str]:
    """Returns a table of CLDR: {code: locale that replaces it}, or {locale: the same in full}."""
    from babel.core import get_global

    return get_global(table)


@functools.cache
def english_locale() -> babel.Locale:
    """Returns CLDR's English names of languages, scripts, regions and variants."""
    from babel import Locale

    return Locale("en")


@functools.cache
def _codes_of_names() -> dict[str, str]:
    """Returns {English name in lower case: code}."""
    names = {name.lower(): code for code, name in english_locale().languages.items() if find(code)}
    iso = {language.name.lower(): language.part3 for language in iso_table().values()}
    return iso | names


@functools.cache
def _scripts_of_locales() -> dict[str, frozenset[str]]:
    """Returns {code: scripts of the language in CLDR's locales, also in those of regions}."""
    from babel.localedata import locale_identifiers

    identifiers = locale_identifiers()
    codes = {name.partition("_")[0] for name in identifiers}
    likely = [name for name in _cldr("likely_subtags").values() if name.partition("_")[0] in codes]
    scripts: dict[str, set[str]] = {}
    for name in (*identifiers, *likely):
        code = _preferred(name.partition("_")[0])  # CLDR's codes are canonical, but for XLM-R's.
        scripts.setdefault(code, set()).update(filter(None, [_script_in(name)]))
    return {code: frozenset(names) for code, names in scripts.items()}


def _primary(code: str) -> str | None:
    """Returns a language's code without script, of ISO 639-1 or else 639-3; None if it is none."""
    if code in _PREFERRED or code in _GROUPS or _is_canonical(code):
        return _preferred(code)
    row = iso_table().get(code)
    if row is not None and row.scope == "S":  # Such as und, mul and zxx.
        return None
    if row is not None and row.part1:
        return _preferred(row.part1)
    alias = _cldr("language_aliases").get(code, "")
    if alias and "_" not in alias:
        return _preferred(alias)
    if row is None:
        return None
    if row.retire_change_to:
        return _primary(row.retire_change_to)
    return row.part3


def _preferred(code: str) -> str:
    """Returns the code that this project uses for the language of a code; see `_PREFERRED`."""
    return _PREFERRED.get(code, code)


def _is_canonical(code: str) -> bool:
    """Returns whether a code is that of a language of XLM-R, or of ISO 639-1 and not retired.

    Corpora mostly have such codes, and CLDR has all of them. The tables of ISO 639, which take half
    a second to load, are not needed for them.
    """
    is_of_two_letters = len(code) == 2 and code in english_locale().languages
    return code in _XLMR_CODES or (is_of_two_letters and code not in _cldr("language_aliases"))


def _script_of(part: str) -> str:
    """Returns the ISO 15924 code of the script that a part of a code names, or ""."""
    name = _SCRIPT_WORDS.get(part, part.title() if len(part) == 4 else "")
    name = _STYLES.get(name, name)
    return name if name in english_locale().scripts else ""


def _language(code: str, named_script: str, region: str) -> Language:
    """Returns a language in the named script, else in the script usual in the region.

    Args:
      code: Canonical code of the language.
      named_script: ISO 15924 code, or "".
      region: Region in upper case, or "".
    """
    default = _default_script(code)
    implied = _script_in(_cldr("likely_subtags").get(f"{code}_{region}", ""))
    # The languages that CLDR has no script for are mostly written in Latin, if at all.
    default = default or "Latn" if named_script == "Latn" else default
    script = named_script or implied or default or UNKNOWN_SCRIPT
    script = _SAME_SCRIPT.get((code, script), script)
    names = english_locale().languages
    name = names.get(code) or _GROUPS.get(code) or iso_table()[code].name
    if script in (default, UNKNOWN_SCRIPT):
        return Language(code, code, script, name)
    tag = f"{code}-{script}"
    name = f"{name} ({english_locale().scripts.get(script, script)})"
    return Language(_XLMR_SPELLING.get(tag, tag), code, script, name)


def _default_script(code: str) -> str:
    """Returns the script that CLDR has for a language, else for its macrolanguage, else "".

    The macrolanguage of prs (Dari) is fas (Persian).
    """
    for table in ("likely_subtags", "language_aliases"):  # An alias: sh is sr_Latn.
        if name := _script_in(_cldr(table).get(code, "")):
            return name
    row = iso_table().get(code)
    macrolanguage = _primary(row.macrolanguage) if row is not None and row.macrolanguage else None
    return _default_script(macrolanguage) if macrolanguage else ""


def _script_in(locale: str) -> str:
    """Returns the script of a locale such as `zh_Hant_TW`, or ""."""
    return next((part for part in locale.split("_")[1:] if len(part) == 4), "")
