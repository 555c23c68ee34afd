"""Which names of files and folders are languages.

Names are harder than codes: ISO 639-3 has Domung (dev), Edo (bin), Logo (log) and Logudorese (src).
"""

from collections.abc import Collection, Iterable

from xlme_jax.data import languages

# Names of parts of corpora, and of files beside corpora, that are codes of ISO 639-3 too.
_PARTS_OF_CORPORA = """
    ali all bak bin bpe clf cls cnt con csv dat dep dev dic dir doc dtd dup err ext ids idx inp
    key lab lbl lem len lex lid log lst map mdl mix mod neu nmt not num old one org out pho pic
    png pos pre raw ref rej rel res seg sgm spk spl spm src srt std sub sym sys tab tag tbl tcl
    tem ter tex tgt tmp tmx tok top trg trn tst tsv two txt typ uni url val var ver wav wer xls
    xml yml
"""
_WORDS = frozenset(_PARTS_OF_CORPORA.split())
# Codes of languages in CLDR that are usual suffixes of files too.
_SUFFIXES = frozenset(
    ("aln", "arc", "asc", "ext", "in", "mid", "mo", "new", "sam", "sco", "sh", "vec")
)
# If a folder has so many names that are undoubted codes of three letters, its files are named by
# ISO 639-3, and doubtful names are codes too.
_ENOUGH = 10


def tags_of_names(names: Iterable[str]) -> dict[str, str]:
    """Returns {name: canonical tag} of the names in one folder that are languages.

    The names stand alone, as `sw` of `sw.txt` or of a folder `sw/` does, and begin in lower case. A
    word such as `dev`, `raw` or `src` is a language only with a script (`src_Latn`), or among ten
    or more other codes of three letters.
    """
    return _tags(names, _WORDS)


def tags_of_suffixes(suffixes: Iterable[str]) -> dict[str, str]:
    """Returns {suffix: canonical tag} of the suffixes of one stem (`corpus.en`) that are languages.

    The rules are those of `tags_of_names`, with further words (`vec`). A code of three letters that
    CLDR has no name for is treated as such a word, because nearly every suffix of three letters is
    in ISO 639-3.
    """
    return _tags(suffixes, _WORDS | _SUFFIXES, only_known=True)


def tag_of_half(name: str) -> str | None:
    """Returns the canonical tag of one half of a pair's name (`en` of `en-sw`), or None."""
    # "bak" is among the words because of backups, but Tatoeba has pairs with Bashkir (bak).
    is_word = name in _WORDS and name != "bak"
    # `find` ignores case, but in names of files a code begins in lower case.
    if is_word or not name[:2].islower():
        return None
    language = languages.find(name)
    return None if language is None else language.tag


def why_not(name: str) -> str:
    """Returns why a name is not taken for a language, and how to write it; "" if it is taken."""
    language = languages.find(name)
    if language is None:
        return f"{name!r} is not a language{languages.nearest_text(name)}"
    if not name[:2].islower():
        return f"{name!r} is {language.name} if written as {language.tag!r}"
    if is_pair(name):
        return f"{name!r} reads as a pair of languages; {language.tag!r} is {language.name}"
    if name in tags_of_suffixes([name]):
        return ""
    spelling = (
        f"{name}_{language.script if language.script != languages.UNKNOWN_SCRIPT else 'Latn'}"
    )
    return f"{name!r} is a usual name of files; write {spelling!r} for {language.name}"


def is_pair(name: str) -> bool:
    """Returns whether a name such as `en-ca` is two languages rather than a language in a region.

    `en_CA` is English in Canada. `pt-br` and `zh-tw` could be pairs with Breton and Twi, but no
    corpus has them, so these names are languages in a region.
    """
    halves = name.split("-")
    return (
        len(halves) == 2
        and name not in ("pt-br", "zh-tw")
        and all(half in languages.iso_table() for half in halves)
        and not languages.same_language(halves[0], halves[1])
    )


def _tags(names: Iterable[str], words: Collection[str], only_known: bool = False) -> dict[str, str]:
    """Returns {name: canonical tag} of the names that are languages; see `tags_of_names`.

    Args:
      names: Names in one folder.
      words: Names that are doubtful though they are codes.
      only_known: Whether codes of three letters that CLDR has no name for are doubtful too.
    """
    of_names = {
        name: languages.find(name) for name in names if name[:2].islower() and not is_pair(name)
    }
    tags = {name: language for name, language in of_names.items() if language is not None}

    def is_doubtful(name: str) -> bool:
        """Returns whether a name that is a code rather means something else."""
        if name in words:
            return True
        english_names = languages.english_locale().languages
        return only_known and len(name) == 3 and not {name, tags[name].code} & english_names.keys()

    certain = {name for name in tags if not is_doubtful(name)}
    if sum(len(name) == 3 for name in certain) < _ENOUGH:
        tags = {name: tags[name] for name in tags if name in certain}
    return {name: language.tag for name, language in tags.items()}
