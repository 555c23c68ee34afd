"""Scores of translations against references: BLEU and chrF, with sacreBLEU's signatures.

BLEU counts words, so that its tokenizer has to fit the script: 13a, sacreBLEU's default, takes a
sentence of Chinese or Thai for one word, and BLEU is then 0 or 100.
"""

import functools
import shlex
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from fontTools import unicodedata as properties

from xlme_jax.data import languages
from xlme_jax.validation import extras

DEFAULT, CHINESE, JAPANESE, KOREAN, CHARACTERS = "13a", "zh", "ja-mecab", "ko-mecab", "char"
# Scripts without spaces between words: those with line breaks between letters (CLDR's
# scriptMetadata.txt; Qaag is Zawgyi's Burmese), Tibetan, and some of Indonesia.
_UNSPACED = """
    Ahom Kits Khmr Lana Laoo Mymr Nshu Qaag Tale Talu Tang Tavt Thai Yiii Tibt
    Bali Batk Bugi Java Kawi Maka Rjng
"""
# SacreBLEU has further tokenizers for some of these scripts (flores200), but they need a download,
# so that the score would depend on the machine.
_TOKENIZERS = {
    **dict.fromkeys(_UNSPACED.split(), CHARACTERS),
    **dict.fromkeys(("Bopo", "Hanb", "Hani", "Hans", "Hant"), CHINESE),
    **dict.fromkeys(("Hira", "Hrkt", "Jpan", "Kana"), JAPANESE),
    **dict.fromkeys(("Hang", "Kore"), KOREAN),
}
_PACKAGES = {JAPANESE: "sacrebleu[ja]", KOREAN: "sacrebleu[ko]"}
# Least share of a text's letters that scripts of `_TOKENIZERS` must have to choose the tokenizer,
# and least share of kana, among Chinese characters and kana, with which a text is Japanese.
_LETTERS_SHARE = 0.25
_KANA_SHARE = 0.1


class SystemScore(NamedTuple):
    """A metric of one system.

    Attributes:
      score: score of the whole text, 0 to 100.
      margin: half of the width of the bootstrap's 95% interval.
      p_value: p-value of the difference to the first system (paired bootstrap); None for the first
        system itself.
    """

    score: float
    margin: float
    p_value: float | None


class SystemScores(NamedTuple):
    """Scores of systems.

    Attributes:
      scores: {metric: a score for each system}.
      signatures: {metric: sacreBLEU's signature}.
    """

    scores: Mapping[str, Sequence[SystemScore]]
    signatures: Mapping[str, str]


def sacrebleu() -> Any:
    """Returns the package sacreBLEU; ValueError if it is not installed."""
    try:
        import sacrebleu
    except ImportError as error:
        raise ValueError(extras.missing("the score of translations", "sacrebleu")) from error
    return sacrebleu


def tokenizer_of(language: str, references: Sequence[str] = ()) -> str:
    """Returns sacreBLEU's tokenizer for text in a language.

    The language's script decides: `zh`, `ja-mecab`, `ko-mecab`, `char` for other scripts without
    spaces between words (Thai, Lao, Khmer, Burmese, Tibetan, ...), else `13a`. If the script gives
    13a, or the language is not known, the letters of the references decide by the same table.

    Args:
      language: language of the text, in any spelling, or "".
      references: lines of the text.
    """
    chosen = _TOKENIZERS.get(languages.script(language), DEFAULT)
    return _tokenizer_of_letters(references) if chosen == DEFAULT else chosen


def _tokenizer_of_letters(text: Sequence[str]) -> str:
    """Returns the tokenizer for most of a text's letters; 13a if few are of unspaced scripts."""
    letters = Counter(character for line in text for character in line if character.isalpha())
    counts: Counter[str] = Counter()
    for character, count in letters.items():
        counts[_TOKENIZERS.get(properties.script(character), DEFAULT)] += count
    unspaced = counts.total() - counts.pop(DEFAULT, 0)
    if unspaced < _LETTERS_SHARE * letters.total() or not unspaced:
        return DEFAULT
    kana = counts.pop(JAPANESE, 0)
    counts[CHINESE] += kana
    (script, count), *_ = counts.most_common(1)
    return JAPANESE if script == CHINESE and kana >= _KANA_SHARE * count else script


def bleu(tokenizer: str) -> Any:
    """Returns sacreBLEU's BLEU with a tokenizer.

    Raises:
      ValueError: sacreBLEU or the tokenizer's package is not installed, its model cannot be
        downloaded, or there is no such tokenizer.
    """
    package = sacrebleu()
    tokenizers = package.BLEU.TOKENIZERS
    if tokenizer not in tokenizers:
        raise ValueError(f"--tokenize={tokenizer}: sacreBLEU has {', '.join(tokenizers)}")
    try:
        return package.BLEU(tokenize=tokenizer)
    # SacreBLEU asserts that MeCab has its dictionary, and downloads models.
    except (RuntimeError, ImportError, AssertionError, OSError) as error:
        remedy = f"pip install '{_PACKAGES[tokenizer]}'" if tokenizer in _PACKAGES else "try again"
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"BLEU's tokenizer {tokenizer} cannot be used ({why}): {remedy}, or score a file of "
            "translations by characters: report --translations=REFERENCES,FILE --tokenize=char"
        ) from error


def score(
    translations: Sequence[str], references: Sequence[str], language: str = ""
) -> dict[str, float]:
    """Returns the scores of translations.

    Args:
      translations: the translations.
      references: a reference for each translation.
      language: language of both; chooses the tokenizer (`tokenizer_of`).

    Returns:
      {"exact_match": share of translations that equal their reference, "bleu" and "chrf": 0 to 100,
      with sacreBLEU's defaults}.

    Raises:
      ValueError: sacreBLEU or the tokenizer's package is not installed.
    """
    metric = _bleu(tokenizer_of(language, references))
    exact = np.mean([text == reference for text, reference in zip(translations, references)])
    return {
        "exact_match": float(exact),
        "bleu": metric.corpus_score(translations, [references]).score,
        "chrf": sacrebleu().corpus_chrf(translations, [references]).score,
    }


@functools.cache
def _bleu(tokenizer: str) -> Any:
    return bleu(tokenizer)  # Loading MeCab's dictionary, or a model, takes a while.


def multi_bleu(translations: Sequence[str], references: Sequence[str], tokenizer: str) -> float:
    """Computes BLEU as multi-bleu.perl -lc does, on tokenized text without case and smoothing.

    Args:
      translations: the translations.
      references: the references.
      tokenizer: command that tokenizes lines from standard input to standard output, such as
        Moses' "tokenizer.perl -l de".

    Raises:
      ValueError: the command fails or returns another number of lines, or sacreBLEU is not
        installed.

    Returns:
      BLEU, 0 to 100.
    """
    metric = sacrebleu().BLEU(lowercase=True, force=True, tokenize="none", smooth_method="none")
    translations = tokenized_by(tokenizer, translations)
    references = tokenized_by(tokenizer, references)
    return float(metric.corpus_score(translations, [references]).score)


def tokenized_by(command: str, lines: Sequence[str]) -> list[str]:
    """Returns the lines that a command writes for lines on its standard input.

    Raises:
      ValueError: the command fails, or writes another number of lines.
    """
    text = "".join(f"{line}\n" for line in lines)
    try:
        words = shlex.split(command)
        done = subprocess.run(words, input=text.encode(), capture_output=True, check=True)
    except (OSError, ValueError, IndexError, subprocess.CalledProcessError) as error:
        stderr = getattr(error, "stderr", b"") or b""
        raise ValueError(
            f"the tokenizer {command!r} failed: {error}. {stderr.decode(errors='replace')[-500:]}"
        ) from error
    tokenized = done.stdout.decode().split("\n")
    if len(tokenized) != len(lines) + 1 or tokenized[-1]:
        raise ValueError(
            f"the tokenizer {command!r} made {len(tokenized) - 1:,} lines of {len(lines):,}; it "
            "must write a line for each line that it reads"
        )
    return tokenized[:-1]


def compare(
    references: Sequence[str],
    systems: Mapping[str, Sequence[str]],
    tokenize: str | None = None,
    language: str = "",
) -> SystemScores:
    """Scores translations by BLEU and chrF, and compares systems with the first.

    Args:
      references: the references.
      systems: {name: translations of the same lines}.
      tokenize: sacreBLEU's tokenizer for BLEU; None chooses it by the language.
      language: language of the references (`tokenizer_of`).

    Raises:
      ValueError: sacreBLEU or the tokenizer's package is not installed, there is no such tokenizer,
        or a system has another number of lines.
    """
    package = sacrebleu()
    from sacrebleu.significance import PairedTest

    for name, lines in systems.items():
        if len(lines) != len(references) or not lines:
            raise ValueError(
                f"{name} has {len(lines):,} lines, and there are {len(references):,} references; "
                "line n must be a translation for reference n"
            )
    metrics = {"BLEU": bleu(tokenize or tokenizer_of(language, references)), "chrF": package.CHRF()}
    test = PairedTest(list(systems.items()), metrics, [list(references)], test_type="bs")
    signatures, results = test()
    names: dict[str, str] = {name: name.replace("chrF2", "chrF") for name in signatures}
    scores: Any = results
    return SystemScores(
        {
            metric: [
                SystemScore(system_score.score, float(system_score.ci), system_score.p_value)
                for system_score in scores[name]
            ]
            for name, metric in names.items()
        },
        {metric: str(signatures[name]) for name, metric in names.items()},
    )


def to_text(scored: SystemScores, systems: Sequence[str]) -> str:
    """Returns a table of the systems' scores as text, and below it the signatures.

    "*" marks differences to the first system with p < .05.

    Args:
      scored: the scores.
      systems: names of the systems, in the order of the scores.
    """
    width = max(map(len, systems))
    lines = [f"{'':{width}}" + "".join(f"  {metric:>24}" for metric in scored.scores)]
    for number, name in enumerate(systems):
        cells = []
        for scores in scored.scores.values():
            score, margin, p_value = scores[number]
            cell = f"{score:.2f} +- {margin:.2f}"
            if p_value is not None:
                cell += f" p={p_value:.3f}{'*' if p_value < 0.05 else ' '}"
            cells.append(f"  {cell:>24}")
        lines.append(f"{name:{width}}{''.join(cells)}")
    signatures = [f"{metric}: {text}" for metric, text in scored.signatures.items()]
    return "\n".join([*lines, *signatures, ""])
