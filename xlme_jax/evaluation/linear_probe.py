"""Linear probes: how well a linear classifier reads a task off the frozen encoder's states.

At every layer, multinomial logistic regression with an L2 penalty is trained on the pooled states
of a benchmark's training examples. One probe is trained on one language, English, and tested on all
(zero-shot transfer), and a probe of each language is trained and tested on that language. Nothing
of the encoder is trained, so that a probe costs little more than encoding the sentences.
"""

import collections
import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from xlme_jax.data.benchmarks.catalogue import benchmark
from xlme_jax.data.benchmarks.examples import TextExample
from xlme_jax.data.benchmarks.featurize import encode
from xlme_jax.data.language_families import by_family
from xlme_jax.data.languages import same_language, spelled_as
from xlme_jax.data.text.reading import DataError, ReadReport
from xlme_jax.evaluation import encoding, scores
from xlme_jax.evaluation.measure import About, LayerFigure, Measure, ScoreColumn, ScoreTable
from xlme_jax.evaluation.outcome import Evaluation, Outcome, Result, Rows, Subject
from xlme_jax.evaluation.readouts import RAW
from xlme_jax.evaluation.results import layer_results
from xlme_jax.validation.fields import check_at_least

_log = logging.getLogger(__name__)

# Predicted class for states that are not finite, which no example has.
_NO_CLASS = -2
MEAN, ZERO_SHOT = "mean", "mean-zero-shot"
_METRICS = {"accuracy": scores.accuracy, "macro_f1": scores.macro_f1}
_IN_LANGUAGE = "_in_language"
_MOST_STEPS = 500
# Metric -> value at each layer, float64[K].
_Figures = dict[str, np.ndarray]


def _about(name: str, title: str, metric: str) -> About:
    """Returns the description of a benchmark's probe for reports, with `title` in headings."""
    return About(
        name=f"{name}_probe",
        metric=metric,
        averaged=(MEAN,),
        hub_type="text-classification",
        tables=(
            ScoreTable(
                f"{title}, linear probe",
                "Logistic regression on frozen states, trained in English, and in each language.",
                (
                    ScoreColumn("accuracy", "accuracy", (MEAN,)),
                    ScoreColumn("macro F1", "macro_f1", (MEAN,)),
                    ScoreColumn("not English", metric, (ZERO_SHOT,)),
                    ScoreColumn("in language", metric + _IN_LANGUAGE, (MEAN,)),
                ),
            ),
        ),
        figure=LayerFigure(
            f"{title} by a linear probe over layers", f"{metric} in percent", "mean over languages"
        ),
    )


@dataclasses.dataclass(frozen=True)
class LinearProbe(Measure):
    """Linear probe on a benchmark of classes; subclasses name the benchmark.

    Attributes:
      folder: folder with the benchmark's files, as distributed.
      languages: tested languages; empty for all that have a file.
      source: language whose training examples the probe for all languages is trained on.
      in_language: whether a probe is also trained on the training examples of each language.
      split: "validation" or "test".
      layer: layer of the headline; None for the encoder's default. Results contain every layer.
      pooling: see `Tatoeba`.
      length: maximum tokens per example, including specials; longer examples are truncated.
      limit: maximum examples per language and split, the first ones of each file; None for all.
      penalties: factors of half the squared norm of a probe's weights, which is added to the mean
        loss on the standardised states. Each layer uses the penalty with the best metric of the
        benchmark on the training language's validation split; without that split, the first one.
      batch_tokens: tokens encoded at once.
    """

    benchmark: ClassVar[str]

    folder: str
    languages: tuple[str, ...] = ()
    source: str = "en"
    in_language: bool = True
    split: Literal["validation", "test"] = "test"
    layer: int | None = None
    pooling: encoding.Pooling = "mean"
    length: int = 512
    limit: int | None = None
    penalties: tuple[float, ...] = (1e-2, 1e-1, 1e-3)
    batch_tokens: int = encoding.BATCH_TOKENS

    def __post_init__(self) -> None:
        encoding.check(self)
        name = type(self).__name__
        check_at_least(self, name, 1, "limit")
        if not self.penalties or min(self.penalties) <= 0:
            raise ValueError(f"{name}.penalties = {self.penalties}: give positive numbers.")

    def build(self, subject: Subject) -> Evaluation:
        """Reads the examples and returns a function that evaluates a model's parameters.

        Raises:
          ValueError: the folder, the source's training examples or a language is missing, a file is
            damaged, or the encoder has no such layer.
        """
        name = type(self).__name__
        headline = encoding.choose_layer(self.layer, subject, f"{name}.layer")
        report = ReadReport()
        available = benchmark(self.benchmark).available(self.folder)
        source, tested = self._languages(available)

        def read(split: str, language: str) -> _Examples:
            return _Examples(self, split, language, subject, report)

        tests = {language: read(self.split, language) for language in tested}
        trained = [source]
        if self.in_language:
            trained += [language for language in tested if language in available["train"]]
        sets = {
            language: {
                split: read(split, language)
                for split in ("train", "validation")
                if language in available.get(split, ())
            }
            for language in dict.fromkeys(trained)
        }
        pooled = jax.jit(encoding.pool_all(subject.encode, self.pooling))

        def evaluate(params: Any) -> Outcome:
            def fitted(language: str) -> list[Probe]:
                return self._fit(sets[language], pooled, params)

            of_source = fitted(source)
            transfer: dict[str, _Figures] = {}
            in_language: dict[str, _Figures] = {}
            for language, test in tests.items():
                states = test.embed(pooled, params)
                transfer[language] = test.scores(of_source, states)
                if self.in_language and language in sets:
                    probes = of_source if language == source else fitted(language)
                    in_language[language] = test.scores(probes, states, _IN_LANGUAGE)
            results = self._results(transfer, in_language, source)
            results += self._majority(tests, source)
            return self._outcome(results, headline, report)

        return evaluate

    def _languages(self, available: Mapping[str, Sequence[str]]) -> tuple[str, Sequence[str]]:
        """Returns the language to train on and the languages to test, as the files spell them.

        Args:
          available: {split: languages with a file}.

        Raises:
          ValueError: there are no training examples of the source, or no examples to test.
        """
        training = available.get("train", ())
        testing = available.get(self.split, ())
        (source,) = spelled_as([self.source], training)
        if source not in training:
            raise DataError(
                f"{self.folder}: no training examples of {self.benchmark} in {self.source!r}, on "
                f"which {type(self).__name__}.source trains; available: "
                f"{', '.join(training) or 'none'}"
            )
        tested = spelled_as(self.languages, testing) or testing
        if not tested:
            raise DataError(f"{self.folder}: no examples of {self.benchmark}, {self.split}")
        return source, tested

    def _fit(
        self,
        sets: Mapping[str, "_Examples"],
        pooled: Callable[[Any, Rows], jax.Array],
        params: Any,
    ) -> "list[Probe]":
        """Returns a probe for each layer, the best of `penalties` on the validation split.

        Args:
          sets: {split: examples of the training language}, "train" and perhaps "validation".
          pooled: (params, rows) -> pooled states of all layers.
          params: the encoder's parameters.
        """
        train = sets["train"]
        validation = sets.get("validation")
        classes = len(benchmark(self.benchmark).labels)
        states = train.embed(pooled, params)
        held_out = None if validation is None else validation.embed(pooled, params)
        probes = []
        for layer, of_layer in enumerate(states):
            candidates = fit(of_layer, train.classes, classes, self.penalties)
            if validation is None or held_out is None:
                probes.append(candidates[0])
                continue
            metric = _METRICS[self.about.metric]
            values = [metric(validation.classes, x.predict(held_out[layer])) for x in candidates]
            probes.append(candidates[int(np.argmax(values))])
        return probes

    def _results(
        self, transfer: Mapping[str, _Figures], in_language: Mapping[str, _Figures], source: str
    ) -> list[Result]:
        """Returns the results of each language and their means.

        Args:
          transfer: {language: figures of the probe of `source`}.
          in_language: {language: figures of the language's own probe}.
          source: training language of the probe for all languages.
        """
        results = []
        how = f"logistic regression on standardised states; {encoding.POOLINGS[self.pooling]}; "
        for figures, training in (
            (transfer, f"trained on {source}"),
            (in_language, "trained on itself"),
        ):
            if not figures:
                continue
            groups = _groups(figures, source)
            if figures is in_language:
                groups.pop(ZERO_SHOT, None)
            values = {language: {RAW: metrics} for language, metrics in figures.items()}
            setting = f"{how}{training}; {encoding.LAYERS}"
            results += layer_results(self.about.name, self.split, setting, values, groups)
        return results

    def _majority(self, tests: "Mapping[str, _Examples]", source: str) -> list[Result]:
        """Returns results of predicting each language's most frequent class, and their means."""
        values = {language: test.majority() for language, test in tests.items()}
        results = []
        for name, members in _groups(tests, source).items():
            for metric in _METRICS:
                value = float(np.mean([values[member][metric] for member in members]))
                results.append(
                    Result(self.about.name, name, metric, value, self.split, system="majority")
                )
        return results

    def _outcome(self, results: Sequence[Result], headline: int, report: ReadReport) -> Outcome:
        """Returns the outcome, whose headline has the means over languages at one layer."""
        values = {
            f"{self.about.name}/{result.metric}": result.value
            for result in results
            if (result.language, result.layer) == (MEAN, headline)
        }
        skipped, repaired = dict(report.skipped), dict(report.repaired)
        return Outcome(tuple(results), values, skipped=skipped, repaired=repaired)


@dataclasses.dataclass(frozen=True)
class Sib200Probe(LinearProbe):
    """Linear probe on SIB-200's topics; its fields are those of `LinearProbe`."""

    about: ClassVar[About] = _about("sib200", "SIB-200", "accuracy")
    benchmark: ClassVar[str] = "sib200"


@dataclasses.dataclass(frozen=True)
class MassiveProbe(LinearProbe):
    """Linear probe on MASSIVE's intents; its fields are those of `LinearProbe`."""

    about: ClassVar[About] = _about("massive", "MASSIVE", "accuracy")
    benchmark: ClassVar[str] = "massive"


@dataclasses.dataclass(frozen=True)
class Taxi1500Probe(LinearProbe):
    """Linear probe on Taxi1500's topics; its fields are those of `LinearProbe`."""

    about: ClassVar[About] = _about("taxi1500", "Taxi1500", "macro_f1")
    benchmark: ClassVar[str] = "taxi1500"


def _groups(languages: Collection[str], source: str) -> dict[str, tuple[str, ...]]:
    """Returns {name in results: languages}: each language by itself, and means.

    Means are over all languages, over those other than `source`, and over each family.
    """
    groups: dict[str, tuple[str, ...]] = {x: (x,) for x in languages}
    groups[MEAN] = tuple(languages)
    if targets := tuple(x for x in languages if not same_language(x, source)):
        groups[ZERO_SHOT] = targets
    return groups | {f"{MEAN}-{name}": members for name, members in by_family(languages).items()}


class _Examples:
    """The labelled examples of one language and split, in batches.

    Attributes:
      classes: int[N], the class of each example; -1 for a label that is no class of the benchmark.
        A test counts such an example as wrong, and training leaves it out.
    """

    def __init__(
        self,
        settings: LinearProbe,
        split: str,
        language: str,
        subject: Subject,
        report: ReadReport,
    ):
        self._task = benchmark(settings.benchmark)
        examples = [
            example
            for example in self._task.read(settings.folder, split, language, report)
            if isinstance(example, TextExample) and example.label is not None
        ][: settings.limit]
        if not examples:
            raise DataError(
                f"{self._task.name}, {split} in {language}: no example has a label; choose "
                "another split"
            )
        numbers = {label: number for number, label in enumerate(self._task.labels)}
        self.classes = np.array([numbers.get(str(example.label), -1) for example in examples])
        length = min(settings.length, subject.max_length or settings.length)
        rows = encode(
            subject.vocabulary, self._task, examples, length, report=report, training=False
        )
        texts = [tuple(row.tokens.tolist()) for row in rows]
        self._batches = encoding.batches(texts, subject.row_multiple, settings.batch_tokens)

    def embed(self, pooled: Callable[[Any, Rows], jax.Array], params: Any) -> np.ndarray:
        """Returns the pooled states of the examples at all layers, float32[K, N, D]."""
        return encoding.embed(pooled, params, self._batches).swapaxes(0, 1)

    def scores(self, probes: "Sequence[Probe]", states: np.ndarray, suffix: str = "") -> _Figures:
        """Returns {metric + suffix: value at each layer, float64[K]}.

        Args:
          probes: a probe for each layer.
          states: [K, N, D], pooled states of the examples.
          suffix: end of the metrics' names.
        """
        predicted = [probe.predict(of_layer) for probe, of_layer in zip(probes, states)]
        return {
            metric + suffix: np.array([score(self.classes, of_layer) for of_layer in predicted])
            for metric, score in _METRICS.items()
        }

    def majority(self) -> dict[str, float]:
        """Returns {metric: value} of predicting the most frequent class everywhere."""
        ((majority_class, _),) = collections.Counter(self.classes.tolist()).most_common(1)
        predicted = np.full_like(self.classes, majority_class)
        return {metric: score(self.classes, predicted) for metric, score in _METRICS.items()}


# --- Logistic regression ---


@dataclasses.dataclass(frozen=True)
class Probe:
    """A linear classifier of states.

    Attributes:
      mean: float32[D], mean of the training states.
      scale: float32[D], standard deviation of the training states; 1 where it is 0.
      weights: float32[D + 1, C]; the last row is the bias.
    """

    mean: np.ndarray
    scale: np.ndarray
    weights: np.ndarray

    def predict(self, states: np.ndarray) -> np.ndarray:
        """Returns the most likely class of states [N, D], int[N]; -2 where one is not finite."""
        standard = (states - self.mean) / self.scale
        logits: np.ndarray = standard @ self.weights[:-1] + self.weights[-1]
        return np.where(np.isfinite(logits).all(axis=1), logits.argmax(axis=1), _NO_CLASS)


def fit(
    states: np.ndarray, labels: np.ndarray, classes: int, penalties: Sequence[float]
) -> list[Probe]:
    """Fits logistic regressions by L-BFGS: the minima of mean cross-entropy plus an L2 penalty.

    Args:
      states: float32[N, D], training states.
      labels: int[N], classes of the states; examples of class -1 are left out.
      classes: C, the number of classes.
      penalties: factors l of l / 2 |W|^2, where W is without the bias. scikit-learn's C is
        1 / (l N).

    Returns:
      A probe for each penalty, in the order of `penalties`. States that are not finite are left
      out, with a warning; if all are, the weights are NaN, and nothing is predicted.
    """
    from scipy.optimize import minimize

    states, labels = states[labels >= 0], labels[labels >= 0]
    is_finite = np.isfinite(states).all(axis=1)
    if not is_finite.all():
        _log.warning(
            "linear probe: %d of %d training texts are left out, as their states are not finite",
            (~is_finite).sum(),
            len(states),
        )
        states, labels = states[is_finite], labels[is_finite]
    if not len(states):
        nothing = np.full((states.shape[1] + 1, classes), np.nan, np.float32)
        return [Probe(nothing[:-1, 0], nothing[:-1, 0], nothing) for _ in penalties]
    mean, scale = states.mean(axis=0), states.std(axis=0)
    scale = np.where(scale > 0, scale, 1).astype(np.float32)
    standard = jnp.asarray((states - mean) / scale)
    targets = jnp.asarray(labels)
    shape = (states.shape[1] + 1, classes)
    probes = {}
    weights = np.zeros(shape)
    # From the strongest penalty to the weakest; each fit starts at the weights of the last.
    for penalty in sorted(penalties, reverse=True):

        def loss(flat: np.ndarray, penalty: float = penalty) -> tuple[float, np.ndarray]:
            value, gradient = _loss(flat.reshape(shape), standard, targets, penalty)
            return float(value), np.asarray(gradient, np.float64).ravel()

        options = {"maxiter": _MOST_STEPS}
        minimum = minimize(loss, weights.ravel(), jac=True, method="L-BFGS-B", options=options)
        weights = minimum.x.reshape(shape)
        probes[penalty] = Probe(mean, scale, weights.astype(np.float32))
    return [probes[penalty] for penalty in penalties]


@jax.jit
@jax.value_and_grad
def _loss(
    weights: jax.Array, states: jax.Array, labels: jax.Array, penalty: jax.Array
) -> jax.Array:
    """Returns mean cross-entropy plus penalty, and the gradient of `weights`, [D + 1, C]."""
    logits = jnp.matmul(states, weights[:-1], precision=jax.lax.Precision.HIGHEST) + weights[-1]
    chosen = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    losses = jax.nn.logsumexp(logits, axis=1) - chosen
    return losses.mean() + penalty / 2 * jnp.square(weights[:-1]).sum()
