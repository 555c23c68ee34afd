"""Retrieval on the held-out translations of a prepared data set, and selection of a layer.

Selecting a layer on a test set overestimates its accuracy. Held-out lines of the training corpora
select one layer per readout, which is used for all languages and all other tasks.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import numpy as np

from xlme_jax.evaluation import encoding, readouts
from xlme_jax.evaluation.measure import About, Measure, Request
from xlme_jax.evaluation.outcome import Evaluation, Outcome, Result, Subject
from xlme_jax.evaluation.results import layer_results
from xlme_jax.evaluation.retrieval import TRAINED, Candidates, RetrievalProbe, flat
from xlme_jax.evaluation.training_text import EncodedSample, Fitted
from xlme_jax.validation.fields import check_at_least

TASK = "held_out_retrieval"
_METRICS = {"forward": "accuracy_forward", "backward": "accuracy_backward", "mean": "accuracy"}
_DRAWN = 300  # Texts of each language.
# (system, readout) -> layer.
Layers = Mapping[tuple[str, str], int]


@dataclasses.dataclass(frozen=True)
class HeldOutRetrieval(Measure):
    """Retrieval among all distinct held-out translations.

    Attributes:
      pairs: patterns (* and ?) of bitext task names; empty for all with a validation split.
      max_pairs: maximum translations per task; a search computes all pairwise similarities.
      layer: layer of the headline; None for the encoder's default. Results contain every layer.
      pooling: see `Tatoeba`.
      length: maximum tokens per text, including specials; longer texts are truncated.
      batch_tokens: tokens encoded at once.
      readouts: how texts are compared (`evaluation.readouts`).
    """

    about: ClassVar[About] = About(
        name=TASK,
        reads_data="yes",
        by_readout=True,
        hub_type="sentence-similarity",
    )

    pairs: tuple[str, ...] = ()
    max_pairs: int = 10_000
    layer: int | None = None
    pooling: encoding.Pooling = "mean"
    length: int = 512
    batch_tokens: int = encoding.BATCH_TOKENS
    readouts: tuple[str, ...] = readouts.RETRIEVAL

    def __post_init__(self) -> None:
        encoding.check(self)
        readouts.check(self.readouts, "HeldOutRetrieval.readouts")
        check_at_least(self, "HeldOutRetrieval", 2, "max_pairs")

    @classmethod
    def requested(cls, task: str, request: Request, configured: Sequence[Any]) -> Self:
        """See `Measure.requested`; `request.limit` is the maximum number of pairs per task."""
        del task, configured
        settings = cls(layer=request.layer, pooling=request.pooling, readouts=request.readouts)
        return dataclasses.replace(settings, max_pairs=request.limit or settings.max_pairs)

    def build(self, subject: Subject) -> Evaluation:
        """Reads the translations and returns the evaluation of some parameters.

        Raises:
          ValueError: there is no prepared data set, it has no held-out translations, or the encoder
            has no such layer.
        """
        layer = encoding.choose_layer(self.layer, subject, "HeldOutRetrieval.layer")
        if subject.training_text is None:
            raise ValueError(f"{TASK} reads held-out translations: it needs a prepared data set")
        length = min(self.length, subject.max_length or self.length)
        probe = RetrievalProbe(self.pairs, self.max_pairs, length=length)
        candidates = probe.candidates(subject.training_text.dataset)
        lay_out = functools.partial(
            encoding.batches, row_multiple=subject.row_multiple, batch_tokens=self.batch_tokens
        )
        languages = dict.fromkeys(translations.languages for translations in candidates.values())
        sample = EncodedSample(subject.training_text, languages, length, lay_out, self.readouts)
        batches = {
            name: lay_out(list(flat(translations.pairs)))
            for name, translations in candidates.items()
        }
        pooled = jax.jit(encoding.pool_all(subject.encode, self.pooling))
        task_of = _tasks_to_draw(candidates)
        joined = tuple(
            translations.languages
            for name, translations in candidates.items()
            if {task_of[language] for language in translations.languages} == {name}
        )

        def evaluate(params: Any) -> Outcome:
            fitted = sample.fit(pooled, params)
            accuracies: dict[str, dict[str, dict[str, np.ndarray]]] = {}
            drawn: dict[str, np.ndarray] = {}
            for name, translations in candidates.items():
                states = encoding.embed(pooled, params, batches[name]).swapaxes(0, 1)
                accuracies[name] = self._search(translations, states, fitted)
                for side, language in enumerate(translations.languages):
                    if task_of[language] == name:  # A view would keep all states.
                        drawn[language] = states[:, side : 2 * _DRAWN : 2].copy()
            results = tuple(self._results(accuracies, candidates))
            headline = _headline(results, layer)
            return Outcome(results, headline, embeddings=drawn, translations=joined)

        return evaluate

    def _search(
        self, translations: Candidates, embeddings: np.ndarray, fitted: Fitted
    ) -> dict[str, dict[str, np.ndarray]]:
        """Returns {readout: {metric: value at each layer, float64[K]}} of a task.

        Args:
          translations: the N translations of the task.
          embeddings: [K, 2 N, D], embeddings of source, target, source, target, ...
          fitted: means and rotations for readouts.
        """
        sides = embeddings[:, 0::2], embeddings[:, 1::2]
        by_readout = fitted.search(translations.languages, *sides, self.readouts)
        return {
            name: {
                _METRICS[direction]: value for direction, value in readouts.accuracies(hits).items()
            }
            for name, hits in by_readout.items()
        }

    def _results(
        self,
        accuracies: Mapping[str, Mapping[str, Mapping[str, np.ndarray]]],
        candidates: Mapping[str, Candidates],
    ) -> list[Result]:
        """Returns the results of the model and of chance, of each task and their means.

        Args:
          accuracies: {task: {readout: {metric: float64[K]}}}.
          candidates: {task: its translations}.
        """
        groups = {name: (name,) for name in accuracies} | {"mean": tuple(accuracies)}
        trained = tuple(name for name, by_readout in accuracies.items() if "centred" in by_readout)
        if 0 < len(trained) < len(accuracies):
            groups[TRAINED] = trained
        results = []
        for name, members in groups.items():
            chance = float(np.mean([1.0 / len(candidates[member].pairs) for member in members]))
            results.append(Result(TASK, name, "accuracy", chance, "validation", system="chance"))
        setting = f"{encoding.POOLINGS[self.pooling]}; {{}}; {encoding.LAYERS}"
        return results + layer_results(TASK, "validation", setting, accuracies, groups)


def _tasks_to_draw(candidates: Mapping[str, Candidates]) -> dict[str, str]:
    """Returns {language: the task whose first texts are drawn}, the first with most texts."""
    task_of: dict[str, str] = {}
    for name in sorted(candidates, key=lambda name: -min(len(candidates[name].pairs), _DRAWN)):
        for language in candidates[name].languages:
            task_of.setdefault(language, name)
    return task_of


def _headline(results: Sequence[Result], layer: int) -> dict[str, float]:
    """Returns the mean accuracies of the cosine at a layer, and chance, by their names in metrics.

    Args:
      results: results of the model, at every layer, and of chance, at none.
      layer: the layer.
    """
    return {
        f"{TASK}/{result.metric if result.system == 'model' else 'chance'}": result.value
        for result in results
        if (result.language, result.readout) == ("mean", readouts.RAW)
        and result.layer in (layer, None)
    }


def choose_layers(
    results: Sequence[Result], layer: int | None = None
) -> dict[tuple[str, str], int]:
    """Returns {(system, readout): layer with the best mean over held-out pairs}.

    Args:
      results: results, of which only those of `HeldOutRetrieval` select. Of layers that tie, the
        lowest is selected.
      layer: the layer of all systems and readouts; None selects it.
    """
    if layer is not None:
        return {(result.system, result.readout): layer for result in results}
    best: dict[tuple[str, str], tuple[float, int]] = {}
    for (system, readout, number), value in _means(results, TASK).items():
        best_so_far = best.get((system, readout))
        if best_so_far is None or (value, -number) > (best_so_far[0], -best_so_far[1]):
            best[system, readout] = value, number
    return {key: number for key, (_, number) in best.items()}


def selected_among(task: str, results: Sequence[Result]) -> int:
    """Returns the number of layers of which a task's own texts select the best: 1 if others do."""
    layers = {row.layer for row in results if (row.task, row.system) == (task, "model")}
    return max(len(layers), 1) if task == TASK else 1


def at_layers(task: str, results: Sequence[Result], layers: Layers) -> dict[str, float]:
    """Returns headline entries: a task's mean accuracy with each readout, at the readout's layer.

    Args:
      task: task of a measure whose `About.by_readout` is set.
      results: results of the task.
      layers: layers from `choose_layers`.

    Returns:
      {"tatoeba/centred/layer_2": accuracy}; systems other than "model" follow in parentheses. The
      diagnostic readout has none.
    """
    return {
        f"{task}/{readout}/layer_{layer}" + ("" if system == "model" else f" ({system})"): value
        for (system, readout, layer), value in _means(results, task).items()
        if layers.get((system, readout)) == layer and readout in readouts.RETRIEVAL
    }


def readout_panels(task: str, outcome: Outcome) -> dict[str, readouts.ReadoutLines]:
    """Returns a task's mean accuracies in the form of `reports.pictures.layers_by_readout`."""
    panels: dict[str, dict[tuple[str, str], dict[int, float]]] = {}
    for (system, readout, layer), value in _means(outcome.results, task).items():
        trained = "untrained" if "untrained" in system else "trained"
        is_exported = system in ("model", "untrained")
        encoder = outcome.encoder if is_exported else system.split(" (")[0]
        lines = panels.setdefault(encoder, {})
        lines.setdefault((readout, trained), {})[layer] = value
    return dict(panels)


def _means(results: Sequence[Result], task: str) -> dict[tuple[str, str, int], float]:
    """Returns {(system, readout, layer): mean accuracy} of a task.

    The mean is over the languages of the training text if these are not all, else over all.
    """
    means: dict[tuple[str, str, int], float] = {}
    for name in ("mean", TRAINED):
        means |= {
            (result.system, result.readout, result.layer): result.value
            for result in results
            if (result.task, result.language, result.metric) == (task, name, "accuracy")
            and result.layer is not None
        }
    return means
