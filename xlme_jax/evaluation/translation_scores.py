"""Scores of translations against references: BLEU and chrF, with sacreBLEU's signatures."""

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class SystemScore(NamedTuple):
    """A metric of one system.

    Attributes:
      score: of the whole text, 0 to 100.
      margin: half of the 95% interval of the bootstrap.
      p_value: of the difference to the first system (paired bootstrap); None for the first itself.
    """

    score: float
    margin: float
    p_value: float | None


class Comparison(NamedTuple):
    """Scores of systems.

    Attributes:
      scores: {metric: a score for each system}.
      signatures: {metric: sacreBLEU's signature}.
    """

    scores: Mapping[str, Sequence[SystemScore]]
    signatures: Mapping[str, str]


def sacrebleu() -> Any:
    """Returns the package; ValueError if it is not installed."""
    try:
        import sacrebleu
    except ImportError as error:
        raise ValueError(
            "scores of translations need sacreBLEU: pip install 'xlme_jax[mt]'"
        ) from error
    return sacrebleu


def score(translations: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Returns the exact matches as a share, BLEU and chrF (sacreBLEU's defaults, 0 to 100).

    Raises:
      ValueError: sacreBLEU is not installed.
    """
    package = sacrebleu()
    exact = np.mean([ours == theirs for ours, theirs in zip(translations, references)])
    return {
        "exact_match": float(exact),
        "bleu": package.corpus_bleu(translations, [references]).score,
        "chrf": package.corpus_chrf(translations, [references]).score,
    }


def multi_bleu(translations: Sequence[str], references: Sequence[str], tokenizer: str) -> float:
    """Returns what multi-bleu.perl -lc says of tokenized texts: BLEU without case and smoothing.

    Args:
      translations: the translations.
      references: the references.
      tokenizer: command that tokenizes lines from standard input to standard output, such as
        Moses' "tokenizer.perl -l de".

    Raises:
      ValueError: the command fails or returns another number of lines, or sacreBLEU is not
        installed.
    """
    bleu = sacrebleu().BLEU(lowercase=True, force=True, tokenize="none", smooth_method="none")
    both = (_tokenized(lines, tokenizer) for lines in (translations, references))
    ours, theirs = both
    return float(bleu.corpus_score(ours, [theirs]).score)


def _tokenized(lines: Sequence[str], command: str) -> list[str]:
    text = "".join(f"{line}\n" for line in lines)
    try:
        words = shlex.split(command)
        done = subprocess.run(words, input=text.encode(), capture_output=True, check=True)
    except (OSError, ValueError, IndexError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"") or b""
        raise ValueError(
            f"the tokenizer {command!r} failed: {error}. {said.decode(errors='replace')[-500:]}"
        ) from error
    found = done.stdout.decode().split("\n")
    if len(found) != len(lines) + 1 or found[-1]:
        raise ValueError(
            f"the tokenizer {command!r} made {len(found) - 1:,} lines of {len(lines):,}; it must "
            "write a line for each line that it reads"
        )
    return found[:-1]


def compare(
    references: Sequence[str],
    systems: Mapping[str, Sequence[str]],
    tokenize: str | None = None,
    language: str = "",
) -> Comparison:
    """Scores translations by BLEU and chrF, and compares systems with the first.

    Args:
      references: the references.
      systems: {name: translations of the same lines}.
      tokenize: sacreBLEU's tokenizer for BLEU; None for that of the language.
      language: of the references; tokenized as in mteval-v13a except for zh, ja and ko.

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
    known = package.BLEU.TOKENIZERS
    if tokenize not in (None, *known):
        raise ValueError(f"--tokenize={tokenize}: sacreBLEU has {', '.join(known)}")
    try:
        bleu = package.BLEU(tokenize=tokenize, trg_lang=language)
    except (RuntimeError, ImportError) as error:
        raise ValueError(f"--tokenize={tokenize or language}: {error}") from error
    metrics = {"BLEU": bleu, "chrF": package.CHRF()}
    test = PairedTest(list(systems.items()), metrics, [list(references)], test_type="bs")
    signatures, results = test()
    names: dict[str, str] = {name: name.replace("chrF2", "chrF") for name in signatures}
    scores: Any = results
    return Comparison(
        {
            metric: [SystemScore(one.score, float(one.ci), one.p_value) for one in scores[name]]
            for name, metric in names.items()
        },
        {metric: str(signatures[name]) for name, metric in names.items()},
    )


def to_text(found: Comparison, systems: Sequence[str]) -> str:
    """Returns a table of the systems, and the signatures.

    "*" marks differences to the first system with p < .05.
    """
    width = max(map(len, systems))
    lines = [f"{'':{width}}" + "".join(f"  {metric:>24}" for metric in found.scores)]
    for number, name in enumerate(systems):
        cells = []
        for scores in found.scores.values():
            score, margin, p_value = scores[number]
            cell = f"{score:.2f} +- {margin:.2f}"
            if p_value is not None:
                cell += f" p={p_value:.3f}{'*' if p_value < 0.05 else ' '}"
            cells.append(f"  {cell:>24}")
        lines.append(f"{name:{width}}{''.join(cells)}")
    signatures = [f"{metric}: {text}" for metric, text in found.signatures.items()]
    return "\n".join([*lines, *signatures, ""])
