"""Families of languages, by which reports group them."""

from collections.abc import Mapping

from xlme_jax.data import languages

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "Germanic": ("af", "de", "en", "nl"),
    "Romance": ("es", "fr", "it", "pt"),
    "Slavic": ("bg", "ru"),
    "Greek": ("el",),
    "Indo-Aryan": ("bn", "hi", "mr", "ur"),
    "Iranian": ("fa",),
    "Uralic": ("et", "fi", "hu"),
    "Turkic": ("kk", "tr"),
    "Afro-Asiatic": ("ar", "he"),
    "Dravidian": ("ml", "ta", "te"),
    "Austronesian": ("id", "jv", "ms", "tl"),
    "Austro-Asiatic": ("vi",),
    "Sino-Tibetan": ("my", "zh"),
    "Kra-Dai": ("th",),
    "Japonic": ("ja",),
    "Koreanic": ("ko",),
    "Kartvelian": ("ka",),
    "Niger-Congo": ("sw", "yo"),
    "Basque": ("eu",),
}
"""{family: XTREME's languages}; Indo-European languages by branch."""

_MORE: Mapping[str, tuple[str, ...]] = {
    "Germanic": ("da", "fo", "fy", "is", "lb", "nb", "nn", "no", "sv", "yi"),
    "Romance": ("ca", "gl", "oc", "ro"),
    "Slavic": ("be", "bs", "cs", "hr", "mk", "pl", "sk", "sl", "sr", "uk"),
    "Baltic": ("lt", "lv"),
    "Celtic": ("br", "cy", "ga", "gd"),
    "Italic": ("la",),
    "Albanian": ("sq",),
    "Armenian": ("hy",),
    "Indo-Aryan": ("as", "gu", "ne", "or", "pa", "sa", "sd", "si"),
    "Iranian": ("ku", "ps", "tg"),
    "Turkic": ("az", "ba", "ky", "tk", "tt", "ug", "uz"),
    "Mongolic": ("mn",),
    "Afro-Asiatic": ("am", "ha", "kab", "mt", "om", "so", "ti"),
    "Dravidian": ("kn",),
    "Austronesian": ("mg", "mi", "sm", "su"),
    "Austro-Asiatic": ("km",),
    "Kra-Dai": ("lo",),
    "Niger-Congo": (
        *("bbj", "bm", "ee", "ff", "fon", "ig", "lg", "ln", "mos", "ns", "nso", "ny", "rw", "sn"),
        *("ss", "st", "tn", "ts", "tw", "ve", "wo", "xh", "zu"),
    ),
    "Quechuan": ("qu", "quy", "quz"),
    "Tupian": ("gn", "gug"),
    "creole": ("ht", "pcm"),
    "constructed": ("eo", "ia", "vo"),
}
_FAMILY = {
    language: family
    for table in (FAMILIES, _MORE)
    for family, members in table.items()
    for language in members
}


def family(language: str) -> str:
    """Returns the family of a language (`zh-Hans`: that of zh), or "" if it is not listed here."""
    known = languages.find(language)
    return _FAMILY.get(language if known is None else known.code, "")
