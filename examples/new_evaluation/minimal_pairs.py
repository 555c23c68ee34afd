"""Minimal pairs: a measure of grammar that is defined outside xlme_jax.

A pair is two sentences that differ in one word form, one of them ungrammatical ("the dogs bark",
"the dogs barks"), as in MultiBLiMP (Jumelet et al., 2025) for a hundred languages. The model is
right if it gives the grammatical one the higher pseudo-log-likelihood: the sum of the log
probabilities of its tokens, each masked alone (Salazar et al., 2020, Eq. 2). Chance is one half.

Files are `minimal_pairs/LANGUAGE.tsv`, a pair a line, the grammatical sentence first.
"""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np

from xlme_jax.configuration import registry
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.evaluation import encoding
from xlme_jax.evaluation.measure import About, Measure, ScoreColumn, ScoreTable
from xlme_jax.evaluation.outcome import Evaluation, Outcome, Result, Rows, Subject
from xlme_jax.evaluation.results import prediction_files


@dataclasses.dataclass(frozen=True)
class MinimalPairs(Measure):
    """Whether a masked language model prefers grammatical sentences.

    Attributes:
      folder: folder with the files.
      languages: names of the files; empty for all.
      length: maximum tokens per sentence, including specials; longer sentences are truncated.
      batch_tokens: tokens that are read at once; they are many, as each token is masked once.
    """

    about: ClassVar[About] = About(
        name="minimal_pairs",
        needs="masked_lm",
        hub_type="fill-mask",
        tables=(
            ScoreTable(
                "Minimal pairs",
                "Share of pairs whose grammatical sentence is more likely; pseudo-log-likelihood.",
                (
                    ScoreColumn("English", "accuracy", ("en",)),
                    ScoreColumn("all languages", "accuracy"),
                ),
                {"by definition": "a coin | 50.0 50.0"},
            ),
        ),
    )

    folder: str
    languages: tuple[str, ...] = ()
    length: int = 128
    batch_tokens: int = 1024

    def __post_init__(self) -> None:
        encoding.check(self)

    def build(self, subject: Subject) -> Evaluation:
        """Reads the pairs and returns the evaluation of some parameters.

        Raises:
          ValueError: the model is no masked language model, or a file is missing or damaged.
        """
        fill, mask_id = subject.fill, subject.vocabulary.mask_id
        if fill is None:
            raise ValueError("MinimalPairs needs a masked language model, such as a run of XLM")
        length = min(self.length, subject.max_length or self.length)
        pairs = {path.stem: _read(path) for path in self._files()}
        sentences = [text for of_file in pairs.values() for pair in of_file for text in pair]
        report = ReadReport()
        texts = encoding.texts_of(subject.vocabulary, sentences, length, report)
        # One row for each token of each sentence, with this token masked.
        masked = [(i, k) for i, text in enumerate(texts) for k in range(1, len(text) - 1)]
        rows = [(*texts[i][:k], mask_id, *texts[i][k + 1 :]) for i, k in masked]
        owners, positions = np.array(masked, np.int32).T
        targets = np.array([texts[i][k] for i, k in masked], np.int32)
        batches = [
            encoding.with_columns(batch, positions_of_masks=positions, targets=targets)
            for batch in encoding.batches(rows, subject.row_multiple, self.batch_tokens)
        ]

        @jax.jit
        def log_likelihood(params: Any, rows: Rows) -> jax.Array:
            logits = fill(params, rows, rows["positions_of_masks"][:, None])[:, 0]
            return jax.nn.log_softmax(logits)[np.arange(len(logits)), rows["targets"]]

        def evaluate(params: Any) -> Outcome:
            likelihoods = np.zeros(len(texts))
            np.add.at(likelihoods, owners, encoding.embed(log_likelihood, params, batches))
            good, bad = likelihoods.reshape(-1, 2).T
            starts = np.cumsum([len(of_file) for of_file in pairs.values()])[:-1]
            is_right = dict(zip(pairs, np.split(good > bad, starts)))
            return dataclasses.replace(self._outcome(is_right), repaired=dict(report.repaired))

        return evaluate

    def _files(self) -> list[Path]:
        paths = {path.stem: path for path in sorted(Path(self.folder).glob("*.tsv"))}
        missing = [code for code in self.languages if code not in paths]
        if missing or not paths:
            raise ValueError(
                f"{self.folder}: no LANGUAGE.tsv of {', '.join(missing) or 'any language'}; there "
                f"are those of {', '.join(paths) or 'none'}"
            )
        return [
            path for code, path in paths.items() if not self.languages or code in self.languages
        ]

    def _outcome(self, is_right: dict[str, np.ndarray]) -> Outcome:
        name, accuracies = self.about.name, {x: float(np.mean(of)) for x, of in is_right.items()}
        accuracies["mean"] = float(np.mean(list(accuracies.values())))
        results = [Result(name, x, "accuracy", y) for x, y in accuracies.items()]
        results += [Result(name, x, "accuracy", 0.5, system="chance") for x in accuracies]
        files: dict[str, str] = {}
        for language, of in is_right.items():
            choices = ["good" if right else "bad" for right in of]
            files |= prediction_files(name, "classification", "test", language, choices)
        return Outcome(tuple(results), {f"{name}/accuracy": accuracies["mean"]}, files)


def _read(path: Path) -> list[list[str]]:
    pairs = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    for number, pair in enumerate(pairs, 1):
        if len(pair) != 2 or not all(text.strip() for text in pair):
            raise ValueError(f"{path}, line {number}: expected two sentences and a tab between")
    return pairs


registry.add("MinimalPairs", MinimalPairs)
