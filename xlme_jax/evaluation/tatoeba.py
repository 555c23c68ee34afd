"""Tatoeba: which sentence in English is the translation, at every layer (XLM-E Table 5, Figure 3).

Each language has up to 1,000 sentences with their English translations. Embeddings are hidden
states pooled over a sentence, the nearest neighbour is by cosine among all of the language's
sentences, accuracy@1 is counted in both directions. All layers come out of one pass.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from xlme_jax.data.parallel_sets import (
    TATOEBA_14,
    TATOEBA_36,
    ParallelSentences,
    read_tatoeba,
    tatoeba_languages,
)
from xlme_jax.data.text import ReadReport
from xlme_jax.evaluation import encoding
from xlme_jax.evaluation.context import OfficialEvaluation
from xlme_jax.evaluation.outcome import Evaluation, Outcome, Result, Rows, Subject
from xlme_jax.evaluation.results import prediction_files
from xlme_jax.evaluation.retrieval import nearest

# Languages whose embeddings are held at once: at Base's size some 0.6 GB in 8 of them.
_AT_ONCE = 8
_METRICS = {"accuracy_to_en": "forward", "accuracy_from_en": "backward"}
# Metric -> float64[layers + 1].
Accuracies = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Tatoeba(OfficialEvaluation):
    """What to retrieve and how.

    Attributes:
      folder: with LASER's files, `tatoeba.deu-eng.deu` and `tatoeba.deu-eng.eng`.
      languages: "de", ... (XTREME's codes); empty for all that are there.
      layer: the layer of the headline and of the predictions; None the middle one. Results are of
        every layer.
      pooling: what of the hidden states: the mean over all tokens, over those between `<s>` and
        `</s>`, or the first one.
      length: tokens of a sentence at most, specials included; longer ones are cut.
      batch_tokens: tokens encoded at once.
    """

    folder: str
    languages: tuple[str, ...] = ()
    layer: int | None = None
    pooling: encoding.Pooling = "mean"
    length: int = 512
    batch_tokens: int = encoding.BATCH_TOKENS

    def __post_init__(self) -> None:
        encoding.check(self)

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
        pooled = jax.jit(encoding.pool_all(subject.encode, self.pooling))

        def evaluate(params: Any) -> Outcome:
            accuracies: dict[str, Accuracies] = {}
            files: dict[str, str] = {}
            for group in groups:
                for code, found in group.search(pooled, params):
                    accuracies[code] = {
                        metric: found[way].mean(axis=1, dtype=np.float64)
                        for metric, way in _METRICS.items()
                    }
                    lines = found["found"][headline].tolist()
                    files |= prediction_files("tatoeba", "retrieval", "test", code, lines)
            results = self._results(accuracies, chance)
            shown = {
                f"tatoeba/{result.metric if result.system == 'model' else 'chance'}": result.value
                for result in results
                if result.language == "mean" and result.layer in (headline, None)
            }
            return Outcome(tuple(results), shown, files, dict(report.skipped))

        return evaluate

    def _results(
        self, accuracies: Mapping[str, Accuracies], chance: Mapping[str, float]
    ) -> list[Result]:
        """Figures of each language and of their means, at each layer."""
        means = {"mean": tuple(accuracies), "mean-14": TATOEBA_14, "mean-36": TATOEBA_36}
        groups = {code: (code,) for code in accuracies} | {
            name: codes for name, codes in means.items() if set(codes) <= set(accuracies)
        }
        setting = f"{encoding.POOLINGS[self.pooling]}; cosine; {encoding.LAYERS}"
        results = []
        for name, codes in groups.items():
            expected = float(np.mean([chance[code] for code in codes]))
            results.append(Result("tatoeba", name, "accuracy", expected, system="chance"))
            values = {
                metric: np.mean([accuracies[code][metric] for code in codes], axis=0)
                for metric in _METRICS
            }
            values["accuracy"] = np.mean(list(values.values()), axis=0)
            results += [
                Result("tatoeba", name, metric, float(value), layer=layer, setting=setting)
                for metric, of_layers in values.items()
                for layer, value in enumerate(of_layers)
            ]
        return results


class _Group:
    """Languages that are encoded together."""

    def __init__(self, sets: Mapping[str, ParallelSentences], settings: Tatoeba, subject: Subject):
        self.sizes = {code: len(one.sources) for code, one in sets.items()}
        length = min(settings.length, subject.max_length or settings.length)
        sentences = [
            text for one in sets.values() for side in (one.sources, one.targets) for text in side
        ]
        texts = encoding.texts_of(subject.vocabulary, sentences, length)
        self.batches = encoding.batches(texts, subject.row_multiple, settings.batch_tokens)

    def search(
        self, pooled: Callable[[Any, Rows], jax.Array], params: Any
    ) -> Iterator[tuple[str, Mapping[str, np.ndarray]]]:
        """Yields each language and what `nearest` gives of it."""
        embeddings = encoding.embed(pooled, params, self.batches)
        start = 0
        for code, size in self.sizes.items():
            own = embeddings[start : start + 2 * size].swapaxes(0, 1)
            yield code, jax.tree.map(encoding.on_host, nearest(own[:, :size], own[:, size:]))
            start += 2 * size
