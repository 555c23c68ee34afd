"""Tatoeba: retrieval of English translations at every layer (XLM-E Table 5, Figure 3).

Each language has up to 1,000 sentences with their English translations. Embeddings are pooled
hidden states of a sentence. The nearest neighbour among all sentences of the language is found with
several readouts (the paper's is "raw", the cosine); accuracy@1 is computed in both directions, and
by cosine MTEB's F1, whose main score is `f1_to_en`. One pass evaluates all layers.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import numpy as np

from xlme_jax.data.benchmarks import labelled_rows
from xlme_jax.data.benchmarks.parallel_sets import (
    TATOEBA_14,
    TATOEBA_36,
    ParallelSentences,
    read_tatoeba,
    tatoeba_languages,
)
from xlme_jax.data.languages import spelled_as
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.evaluation import encoding, readouts, similarity
from xlme_jax.evaluation.measure import (
    About,
    LayerFigure,
    Measure,
    Request,
    ScoreColumn,
    ScoreTable,
)
from xlme_jax.evaluation.outcome import Evaluation, Outcome, Result, Rows, Subject
from xlme_jax.evaluation.results import f1s, layer_results, prediction_files
from xlme_jax.evaluation.retrieval import TRAINED
from xlme_jax.evaluation.training_text import EncodedSample, Fitted

# Languages embedded at once: about 0.6 GB for 8 languages with Base.
_AT_ONCE = 8
_METRICS = {"forward": "accuracy_to_en", "backward": "accuracy_from_en", "mean": "accuracy"}
# The first is MTEB's main score.
_F1_METRICS = {"forward": "f1_to_en", "backward": "f1_from_en"}


@dataclasses.dataclass(frozen=True)
class Tatoeba(Measure):
    """Sentence retrieval on Tatoeba.

    Attributes:
      folder: folder with LASER's files, such as `tatoeba.deu-eng.deu` and `tatoeba.deu-eng.eng`.
      languages: XTREME's codes ("de", ...); empty for all that have files.
      layer: layer of the headline and of the (raw) predictions; None for the encoder's default.
        Results contain every layer and readout.
      pooling: "mean" of the hidden states of all tokens, "mean_without_specials" of the tokens
        between `<s>` and `</s>`, or the state of the "first" token, `<s>`.
      length: maximum tokens per sentence, including specials; longer sentences are truncated.
      batch_tokens: tokens encoded at once.
      readouts: how sentences are compared (`evaluation.readouts`); "raw" is always among them.
    """

    about: ClassVar[About] = About(
        name="tatoeba",
        reads_data="if_there",
        is_default=True,
        by_readout=True,
        hub_type="sentence-similarity",
        tables=(
            ScoreTable(
                "Tatoeba sentence retrieval",
                "XLM-E Table 5: accuracy@1.",
                tuple(
                    ScoreColumn(f"{len(codes)}:{way}", f"accuracy_{metric}_en", codes)
                    for codes in (TATOEBA_14, TATOEBA_36)
                    for way, metric in (("en→xx", "from"), ("xx→en", "to"))
                ),
            ),
        ),
        figure=LayerFigure(
            "Tatoeba over layers",
            "accuracy@1 in percent",
            "mean over both directions and all languages that were evaluated, of which XLM-E's "
            "Figure 3 has 36",
        ),
        xtreme=ScoreColumn("Tatoeba", "accuracy_to_en", official=36),
    )

    folder: str
    languages: tuple[str, ...] = ()
    layer: int | None = None
    pooling: encoding.Pooling = "mean"
    length: int = 512
    batch_tokens: int = encoding.BATCH_TOKENS
    readouts: tuple[str, ...] = readouts.RETRIEVAL

    def __post_init__(self) -> None:
        encoding.check(self)
        readouts.check(self.readouts, "Tatoeba.readouts")

    @classmethod
    def requested(cls, task: str, request: Request, configured: Sequence[Any]) -> Self | None:
        """See `Measure.requested`; pairs of languages, which other measures read, are left out.

        Raises:
          ValueError: only pairs are given, and no other task reads them.
        """
        del configured
        codes = request.single_languages(task)
        if codes is None:
            return None
        return cls(
            str(labelled_rows.folder_of(request.data, task)),
            codes,
            request.layer,
            pooling=request.pooling,
            readouts=request.readouts,
        )

    def build(self, subject: Subject) -> Evaluation:
        """Reads the sentences and returns a function that evaluates a model's parameters.

        Raises:
          ValueError: the folder or a language is missing, the sides differ in length, or the
            encoder has no such layer.
        """
        layer = encoding.choose_layer(self.layer, subject, "Tatoeba.layer")
        report = ReadReport()
        available = tatoeba_languages(self.folder)
        languages = spelled_as(self.languages, available) or available
        if not languages:
            raise ValueError(
                f"{self.folder}: no files of Tatoeba's; get LASER's data/tatoeba/v1, whose names "
                "are like tatoeba.deu-eng.deu and tatoeba.deu-eng.eng"
            )
        sets = {code: read_tatoeba(self.folder, code, report) for code in languages}
        chance = {code: 1.0 / len(parallel.sources) for code, parallel in sets.items()}
        groups = [
            _Group(
                {code: sets[code] for code in languages[start : start + _AT_ONCE]},
                self,
                subject,
                report,
            )
            for start in range(0, len(languages), _AT_ONCE)
        ]
        readout_names = tuple(dict.fromkeys((readouts.RAW, *self.readouts)))
        sample = EncodedSample(
            subject.training_text,
            [(code, "en") for code in languages],
            _length(self, subject),
            lambda texts: encoding.batches(texts, subject.row_multiple, self.batch_tokens),
            readout_names,
        )
        pooled = jax.jit(encoding.pool_all(subject.encode, self.pooling))

        def evaluate(params: Any) -> Outcome:
            accuracies, similarities = {}, {}
            files: dict[str, str] = {}
            fitted = sample.fit(pooled, params)
            for group in groups:
                for code, by_readout, similar in group.search(
                    pooled, params, fitted, readout_names
                ):
                    similarities[code] = {readouts.RAW: similar}
                    accuracies[code] = {
                        name: {
                            _METRICS[direction]: values
                            for direction, values in readouts.accuracies(hits).items()
                        }
                        for name, hits in by_readout.items()
                    }
                    accuracies[code][readouts.RAW] |= {
                        _F1_METRICS[direction]: values
                        for direction, values in f1s(by_readout[readouts.RAW]).items()
                    }
                    lines = by_readout[readouts.RAW]["found"][layer].tolist()
                    files |= prediction_files(self.about.name, "retrieval", "test", code, lines)
            results = self._results(accuracies, similarities, chance)
            return Outcome(
                tuple(results),
                self._headline(results, layer),
                files,
                dict(report.skipped),
                repaired=dict(report.repaired),
            )

        return evaluate

    def _headline(self, results: Sequence[Result], layer: int) -> dict[str, float]:
        """Returns the mean accuracies by cosine at a layer, and that of chance."""
        headline = {}
        for result in results:
            is_mean = (result.language, result.readout) == ("mean", readouts.RAW)
            at_layer = result.layer in (layer, None)  # Chance has no layer.
            if is_mean and at_layer and result.metric not in similarity.METRICS:
                metric = result.metric if result.system == "model" else "chance"
                headline[f"{self.about.name}/{metric}"] = result.value
        return headline

    def _results(
        self,
        accuracies: Mapping[str, Mapping[str, Mapping[str, np.ndarray]]],
        similarities: Mapping[str, Mapping[str, Mapping[str, np.ndarray]]],
        chance: Mapping[str, float],
    ) -> list[Result]:
        """Returns results of each language and their means, at each layer and for each readout.

        Args:
          accuracies: {language: {readout: {metric: float64[K]}}}.
          similarities: figures of `similarity.measures` in the form of `accuracies`, as "raw".
          chance: {language: accuracy of chance}.
        """
        trained = tuple(code for code, by_readout in accuracies.items() if "centred" in by_readout)
        means = {"mean": tuple(accuracies), "mean-14": TATOEBA_14, "mean-36": TATOEBA_36}
        if 0 < len(trained) < len(accuracies):
            means[TRAINED] = trained
        groups = {code: (code,) for code in accuracies} | {
            name: codes for name, codes in means.items() if set(codes) <= set(accuracies)
        }
        results = []
        for name, codes in groups.items():
            expected = float(np.mean([chance[code] for code in codes]))
            results.append(Result(self.about.name, name, "accuracy", expected, system="chance"))
        pooling = encoding.POOLINGS[self.pooling]
        for values, how in ((accuracies, "{}"), (similarities, similarity.DESCRIPTION)):
            setting = f"{pooling}; {how}; {encoding.LAYERS}"
            results += layer_results(self.about.name, "test", setting, values, groups)
        return results


def _length(settings: Tatoeba, subject: Subject) -> int:
    """Returns the maximum tokens per sentence that the settings and the encoder allow."""
    return min(settings.length, subject.max_length or settings.length)


class _Group:
    """Languages that are encoded in one pass.

    Attributes:
      sizes: {language: number of sentences}.
      batches: batches of the sentences of all languages; of each language, those in the language
        come first, then the English ones.
    """

    def __init__(
        self,
        sets: Mapping[str, ParallelSentences],
        settings: Tatoeba,
        subject: Subject,
        report: ReadReport,
    ):
        self.sizes = {code: len(parallel.sources) for code, parallel in sets.items()}
        sentences = [
            text
            for parallel in sets.values()
            for side in (parallel.sources, parallel.targets)
            for text in side
        ]
        length = _length(settings, subject)
        texts = encoding.texts_of(subject.vocabulary, sentences, length, report)
        self.batches = encoding.batches(texts, subject.row_multiple, settings.batch_tokens)

    def search(
        self,
        pooled: Callable[[Any, Rows], jax.Array],
        params: Any,
        fitted: Fitted,
        readout_names: Sequence[str],
    ) -> Iterator[tuple[str, Mapping[str, readouts.Found], dict[str, np.ndarray]]]:
        """Yields (language, {readout: result of `readouts.search`}, `similarity.measures`)."""
        embeddings = encoding.embed(pooled, params, self.batches)
        start = 0
        for code, size in self.sizes.items():
            states = embeddings[start : start + 2 * size].swapaxes(0, 1)
            sides = states[:, :size], states[:, size:]
            by_readout = fitted.search((code, "en"), *sides, readout_names)
            yield code, by_readout, similarity.measures(*sides)
            start += 2 * size
