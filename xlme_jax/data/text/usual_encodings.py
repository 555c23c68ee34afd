"""Encodings in which text of a language usually is if it is not UTF-8, by iconv's names.

A wrong single-byte encoding gives wrong letters without an error: CP1252 decodes Turkish, Greek and
Cyrillic text, too. So an error names an encoding only by the language of the file.
"""

import re
from pathlib import Path

from xlme_jax.data import languages

# {encoding: languages}, of Windows' code pages, and the national standards of East Asia.
_LANGUAGES = {
    "CP1250": "bs cs hr hu pl ro sk sl sq",
    "CP1251": "be bg mk ru sr uk",
    "CP1252": "af ca da de en es eu fi fr ga gl id is it ms nl no pt sv sw",
    "CP1253": "el",
    "CP1254": "az tr",
    "CP1255": "he yi",
    "CP1256": "ar fa ur",
    "CP1257": "et lt lv",
    "CP1258": "vi",
    "CP874": "th",
    "CP932 or EUC-JP": "ja",
    "CP949": "ko",
    "GB18030 or BIG5": "zh",
}
_ENCODINGS = {code: name for name, codes in _LANGUAGES.items() for code in codes.split()}


def usual_encodings(path: str) -> dict[str, str]:
    """Returns {language: its usual encoding} of the languages in a file's name, else its folder's.

    English, whose letters are in all encodings, is left out beside another language.

    Args:
        path: the file.
    """
    for name in (Path(path).name, Path(path).parent.name):
        words = [word for word in re.split(r"[^A-Za-z]+", name) if languages.is_language(word)]
        codes = [languages.canonical(word).partition("-")[0] for word in words]
        encodings = {code: _ENCODINGS[code] for code in codes if code in _ENCODINGS}
        if len(encodings) > 1:
            encodings.pop("en", None)
        if encodings:
            return encodings
    return {}


def conversion_advice(path: str) -> str:
    """Returns how to convert a file that is not UTF-8, for an error.

    Args:
        path: the file.
    """
    usual = usual_encodings(path)
    named = " or ".join(f"{encoding} ({language})" for language, encoding in usual.items())
    origin = f"usually {named}" if usual else "which its source must tell"
    return (
        "convert the file by `iconv -f ENCODING -t UTF-8 FILE > CONVERTED` from the ENCODING it is "
        f"written in, {origin}; another one gives wrong letters without an error, so read some "
        "lines of CONVERTED. `iconv -c` deletes the letters that it cannot read"
    )
