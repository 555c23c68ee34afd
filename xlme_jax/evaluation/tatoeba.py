"""Tatoeba: which sentence in English is the translation, at every layer (XLM-E Table 5, Figure 3).

Each language has up to 1,000 sentences with their English translations. Embeddings are hidden
states pooled over a sentence, the nearest neighbour is searched among all of the language's
sentences by several readouts (the paper's is "raw", the cosine), accuracy@1 is counted in both
directions. All layers come out of one pass.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from xlme_jax.data.benchmarks.parallel_sets import (
    TATOEBA_14,
    TATOEBA_36,
    ParallelSentences,
    read_tatoeba,
    tatoeba_languages,
)
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.evaluation import encoding, readouts
from xlme_jax.evaluation.context import OfficialEvaluation
from xlme_jax.evaluation.outcome import Evaluation, Outcome, Result, Rows, Subject
from xlme_jax.evaluation.results import prediction_files
from xlme_jax.evaluation.retrieval import TRAINED, figures
from xlme_jax.evaluation.training_text import Fitted, Sample

# Languages whose embeddings are held at once: at Base's size some 0.6 GB in 8 of them.
_AT_ONCE = 8
_METRICS = {"forward": "accuracy_to_en", "backward": "accuracy_from_en", "mean": "accuracy"}


@dataclasses.dataclass(frozen=True)
class Tatoeba(OfficialEvaluation):
    """What to retrieve and how.

    Attributes:
      folder: with LASER's files, `tatoeba.deu-eng.deu` and `tatoeba.deu-eng.eng`.
      languages: "de", ... (XTREME's codes); empty for all that are there.
      layer: the layer of the headline and of the predictions, which are raw; None the middle one.
        Results are of every layer and readout.
      pooling: what of the hidden states: the mean over all tokens, over those between `<s>` and
        `</s>`, or the first one.
      length: tokens of a sentence at most, specials included; longer ones are cut.
      batch_tokens: tokens encoded at once.
      readouts: how sentences are compared (`evaluation.readouts`); "raw" is always among them.
    """

    folder: str
    languages: tuple[str, ...] = ()
    layer: int | None = None
    pooling: encoding.Pooling = "mean"
    length: int = 512
    batch_tokens: int = encoding.BATCH_TOKENS
    readouts: tuple[str, ...] = readouts.READOUTS

    def __post_init__(self) -> None:
        encoding.check(self)
        readouts.check(self.readouts, "Tatoeba.readouts")

    def build(self, subject: Subject) -> Evaluation:
        """Reads the sentences and returns the evaluation of some parameters.

        Raises:
          ValueError: the folder or a language is missing, sides differ in length, or the encoder
            has no such layer.
        """
        headline = encoding.choose_layer(self.layer, subject.num_layers, "Tatoeba.layer")
        report = ReadReport()
        languages = self.languages or tatoeba_languages(self.folder)
        if not languages:
            raise ValueError(
                f"{self.folder}: no files of Tatoeba's; get LASER's data/tatoeba/v1, whose names "
                "are like tatoeba.deu-eng.deu and tatoeba.deu-eng.eng"
            )
        sets = {code: read_tatoeba(self.folder, code, report) for code in languages}
        chance = {code: 1.0 / len(one.sources) for code, one in sets.items()}
        groups = [
            _Group(
                {code: sets[code] for code in languages[start : start + _AT_ONCE]}, self, subject
            )
            for start in range(0, len(languages), _AT_ONCE)
        ]
        wanted = tuple(dict.fromkeys((readouts.RAW, *self.readouts)))
        sample = Sample(
            subject.training_text,
            [(code, "en") for code in languages],
            _length(self, subject),
            lambda texts: encoding.batches(texts, subject.row_multiple, self.batch_tokens),
            wanted,
        )
        pooled = jax.jit(encoding.pool_all(subject.encode, self.pooling))

        def evaluate(params: Any) -> Outcome:
            accuracies = {}
            files: dict[str, str] = {}
            fitted = sample.fit(pooled, params)
            for group in groups:
                for code, found in group.search(pooled, params, fitted, wanted):
                    accuracies[code] = {
                        name: {_METRICS[way]: of for way, of in readouts.accuracies(one).items()}
                        for name, one in found.items()
                    }
                    lines = found[readouts.RAW]["found"][headline].tolist()
                    files |= prediction_files("tatoeba", "retrieval", "test", code, lines)
            results = self._results(accuracies, chance)
            shown = {
                f"tatoeba/{result.metric if result.system == 'model' else 'chance'}": result.value
                for result in results
                if (result.language, result.readout) == ("mean", readouts.RAW)
                and result.layer in (headline, None)
            }
            return Outcome(tuple(results), shown, files, dict(report.skipped))

        return evaluate

    def _results(
        self,
        accuracies: Mapping[str, Mapping[str, Mapping[str, np.ndarray]]],
        chance: Mapping[str, float],
    ) -> list[Result]:
        """Figures of each language and of their means, at each layer, by each readout."""
        trained = tuple(code for code, found in accuracies.items() if "centred" in found)
        means = {"mean": tuple(accuracies), "mean-14": TATOEBA_14, "mean-36": TATOEBA_36}
        if 0 < len(trained) < len(accuracies):
            means[TRAINED] = trained
        groups = {code: (code,) for code in accuracies} | {
            name: codes for name, codes in means.items() if set(codes) <= set(accuracies)
        }
        results = []
        for name, codes in groups.items():
            expected = float(np.mean([chance[code] for code in codes]))
            results.append(Result("tatoeba", name, "accuracy", expected, system="chance"))
        setting = f"{encoding.POOLINGS[self.pooling]}; {{}}; {encoding.LAYERS}"
        return results + figures("tatoeba", "test", setting, accuracies, groups)


def _length(settings: Tatoeba, subject: Subject) -> int:
    return min(settings.length, subject.max_length or settings.length)


class _Group:
    """Languages that are encoded together."""

    def __init__(self, sets: Mapping[str, ParallelSentences], settings: Tatoeba, subject: Subject):
        self.sizes = {code: len(one.sources) for code, one in sets.items()}
        sentences = [
            text for one in sets.values() for side in (one.sources, one.targets) for text in side
        ]
        texts = encoding.texts_of(subject.vocabulary, sentences, _length(settings, subject))
        self.batches = encoding.batches(texts, subject.row_multiple, settings.batch_tokens)

    def search(
        self,
        pooled: Callable[[Any, Rows], jax.Array],
        params: Any,
        fitted: Fitted,
        wanted: Sequence[str],
    ) -> Iterator[tuple[str, Mapping[str, readouts.Found]]]:
        """Yields each language and what every readout finds of it."""
        embeddings = encoding.embed(pooled, params, self.batches)
        start = 0
        for code, size in self.sizes.items():
            own = embeddings[start : start + 2 * size].swapaxes(0, 1)
            yield code, fitted.search((code, "en"), own[:, :size], own[:, size:], wanted)
            start += 2 * size
