"""Held-out translation retrieval: accuracy@1 of finding a text's translation among all candidates.

This is the cheapest measure of cross-lingual alignment: no labels, no fine-tuning, seconds per run.
By default, the headline is that of Tatoeba in XTREME: mean-pooled states of a middle layer, cosine.
All layers are also evaluated, with several `readouts`.

Shared tokens (digits, names, punctuation) let even an untrained encoder find many translations, so
the accuracy is reported together with that of step 0 (`with_untrained`), and
`RetrievalProbe.max_shared` can skip pairs that share too many tokens.
"""

import dataclasses
import fnmatch
import functools
import logging
import math
import re
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from xlme_jax.data.languages import tag_or_code
from xlme_jax.data.prepared import PreparedDataset, TaskInfo
from xlme_jax.data.token_ids import BOS_ID, EOS_ID
from xlme_jax.evaluation import readouts
from xlme_jax.evaluation.context import Context, MakeEvaluator
from xlme_jax.evaluation.encoding import (
    Batch,
    Text,
    check_layer,
    cut,
    embed,
    fill_rows,
    pool_all,
    round_up,
)
from xlme_jax.evaluation.training_text import EncodedSample, Pooled, TrainingText
from xlme_jax.objectives import base
from xlme_jax.objectives.masked_lm import check_lengths
from xlme_jax.training.metrics import RETRIEVAL_LAYER
from xlme_jax.validation.fields import check_at_least

ACCURACY = "probe/retrieval_accuracy"
CHANCE = "probe/retrieval_chance"
UNTRAINED = "probe/retrieval_untrained"
# Name of the mean over the languages that are in the training text, if these are some but not all.
TRAINED = "mean-trained"

Evaluator = Callable[[Any, int], dict[str, float]]
# (params, {"tokens", "segment_ids", "positions": int32[R, L]}) -> hidden states [R, L, D] of the
# embeddings and of each layer.
Encode = Callable[[Any, Mapping[str, jax.Array]], Sequence[jax.Array]]
# {task: {readout: accuracy@1 at each layer, the mean of both directions, float64[K]}}.
Accuracies = Mapping[str, Mapping[str, np.ndarray]]

# Maximum number of tasks with separate metrics for every readout and layer.
_NAMED_TASKS = 12
_MEAN = re.compile(rf"probe/(\w+/)?({'|'.join(readouts.READOUTS)})/layer_\d+")
_READ_AT_ONCE = 1024
_log = logging.getLogger(__name__)


def with_untrained(evaluator: Evaluator, initial_params: Any) -> Evaluator:
    """Returns an evaluator that also reports the results of the parameters of step 0.

    Args:
      evaluator: an evaluator from `RetrievalProbe.build`; it runs once now.
      initial_params: parameters at step 0, to which no reference is kept. A resumed run initializes
        them again from its seed.

    Returns:
      An evaluator whose metrics are those of `evaluator` and, of step 0,
      `probe/retrieval_untrained` and the means `probe/untrained/...`.
    """
    at_start = evaluator(initial_params, 0)
    untrained = {UNTRAINED: at_start[ACCURACY]} | {
        name.replace("probe/", "probe/untrained/", 1): value
        for name, value in at_start.items()
        if _MEAN.fullmatch(name)
    }
    # A run from scratch evaluates the same arrays after step 0. The references are weak, because a
    # warm start needs the memory of the weights that it replaces.
    initial = [weakref.ref(leaf) for leaf in jax.tree.leaves(initial_params)]

    def evaluate(params: Any, step: int) -> dict[str, float]:
        is_initial = all(
            leaf is reference() for leaf, reference in zip(jax.tree.leaves(params), initial)
        )
        metrics = at_start if is_initial else evaluator(params, step)
        return {**metrics, **untrained}

    return evaluate


@dataclasses.dataclass(frozen=True)
class Candidates:
    """Tokenized translations of two languages; no text occurs twice.

    Attributes:
      languages: (language of the sources, language of the targets).
      pairs: (source, target), in a fixed random order.
    """

    languages: tuple[str, str]
    pairs: Sequence[tuple[Text, Text]]


@dataclasses.dataclass(frozen=True)
class RetrievalProbe:
    """Retrieval of held-out translations during training.

    Attributes:
      pairs: patterns (* and ?) of bitext task names; empty for all with a validation split.
      max_pairs: maximum translations per task, which are the candidates of each search.
      layer: hidden states of the headline: 0 embeddings, k the output of layer k, None the layer of
        sentence vectors that are trained, or else the middle one.
      readout: how texts are compared for the headline (`evaluation.readouts`).
      length: maximum tokens per text, including specials; longer texts are truncated.
      batch_rows: texts encoded at once.
      max_shared: skips translations if more than this share of the distinct tokens of the shorter
        side occurs in the other side; 1 keeps all but identical texts, 0 only texts without a
        token in common.
      readouts: how texts are compared at every layer; "raw" and that of the headline are always
        included.
      training_texts: number of texts per language for the means that centred readouts subtract.
    """

    pairs: tuple[str, ...] = ()
    max_pairs: int = 500
    layer: int | None = None
    readout: str = readouts.RAW
    length: int = 128
    batch_rows: int = 64
    max_shared: float = 1.0
    readouts: tuple[str, ...] = ("raw", "centred", "csls")
    training_texts: int = 256

    def __post_init__(self) -> None:
        readouts.check(self.readouts, "RetrievalProbe.readouts")
        readouts.check((self.readout,), "RetrievalProbe.readout")
        if not readouts.available((self.readout,), True, False):
            raise ValueError(
                f"RetrievalProbe.readout = {self.readout!r} is fitted on translations, a "
                "diagnostic; name it in RetrievalProbe.readouts"
            )
        check_at_least(self, "RetrievalProbe", 3, "length")
        check_at_least(self, "RetrievalProbe", 2, "max_pairs")
        check_at_least(self, "RetrievalProbe", 1, "batch_rows", "training_texts")
        if not 0 <= self.max_shared <= 1:
            raise ValueError(f"RetrievalProbe.max_shared = {self.max_shared} must lie in [0, 1].")

    def layer_of(self, num_layers: int, trained: base.Pooled | None = None) -> int:
        """Returns the index of the hidden states to pool in an encoder of `num_layers` layers.

        Args:
          num_layers: layers of the encoder.
          trained: how its states become the sentence vectors that are trained; None if none are.

        Raises:
          ValueError: the encoder has no such layer.
        """
        layer = base.default_layer(num_layers, trained) if self.layer is None else self.layer
        return check_layer(layer, num_layers, "RetrievalProbe.layer")

    def build(
        self,
        dataset: PreparedDataset,
        encode: Encode,
        row_multiple: int = 1,
        further: Mapping[str, Encode] = types.MappingProxyType({}),
    ) -> Evaluator:
        """Reads the translations and returns an evaluator.

        Args:
          dataset: prepared data whose bitext tasks have a validation split.
          encode: (params, {"tokens", "segment_ids", "positions"} of int32[rows, L]) -> hidden
            states [rows, L, D] of all layers, without dropout. Rows have one text `<s> x </s>`;
            segment id 0 is padding.
          row_multiple: number of devices that share a batch; the number of rows is rounded up to a
            multiple of it.
          further: {name: encoder}, other encoders of the objective.

        Returns:
          (params, step) -> metrics, a pure function that every process must call. The metrics are:

          - `probe/retrieval_accuracy`: by `readout` at `layer`, the mean over tasks and directions.
          - `probe/retrieval_accuracy/<language>-<language>`: the accuracy of each task.
          - `probe/retrieval_layer/<readout>`: the layer and the readout of these.
          - `probe/retrieval_chance`: the mean over tasks of 1/N for N translations.
          - `probe/<readout>/layer_<k>`: the mean over tasks, for every readout and layer. A readout
            that a task lacks (centred, for languages without training text) has no mean.
          - `probe/<readout>/layer_<k>/<task>`: the accuracy of each task, if tasks are few.
          - `probe/<name>/<readout>/layer_<k>`: the mean over tasks for each further encoder.

        Raises:
          ValueError: no task fits, or none has two different translations; or `readout` needs
            training text that a language lacks.
        """
        candidates = self.candidates(dataset)
        text = TrainingText(dataset)
        tags = {tag_or_code(tag) for task in candidates.values() for tag in task.languages}
        missing = sorted(tags - text.languages)
        if missing and not readouts.available((self.readout,), False, False):
            raise ValueError(
                f"RetrievalProbe.readout = {self.readout!r} needs training text of "
                f"{', '.join(missing)}, of which the prepared data have none; take 'raw', or leave "
                "their pairs out with RetrievalProbe.pairs"
            )
        # As short as possible, because padding costs as much as text; multiples of 8 suit all
        # devices.
        length = max(
            len(text) for translations in candidates.values() for text in flat(translations.pairs)
        )
        lay_out = functools.partial(
            _batches,
            rows=round_up(self.batch_rows, row_multiple),
            lengths=sorted({round_up(math.ceil(length / parts), 8) for parts in (1, 2, 4)}),
        )
        batches = {
            name: lay_out(list(flat(translations.pairs)))
            for name, translations in candidates.items()
        }
        readout_names = tuple(dict.fromkeys((readouts.RAW, self.readout, *self.readouts)))
        sample = EncodedSample(
            text,
            dict.fromkeys(translations.languages for translations in candidates.values()),
            length,
            lay_out,
            readout_names,
            self.training_texts,
        )
        chance = float(
            np.mean([1.0 / len(translations.pairs) for translations in candidates.values()])
        )

        def search(pooled: Pooled, params: Any) -> Accuracies:
            fitted = sample.fit(pooled, params)
            by_task: dict[str, dict[str, np.ndarray]] = {}
            for name, translations in candidates.items():
                states = embed(pooled, params, batches[name]).swapaxes(0, 1)
                sides = states[:, 0::2], states[:, 1::2]
                by_readout = fitted.search(translations.languages, *sides, readout_names)
                by_task[name] = {
                    readout: readouts.accuracies(hits)["mean"]
                    for readout, hits in by_readout.items()
                }
            return by_task

        encoders = {
            name: jax.jit(pool_all(encoder, "mean"))
            for name, encoder in {"": encode, **further}.items()
        }

        def evaluate(params: Any, step: int) -> dict[str, float]:
            del step
            by_encoder = {name: search(pooled, params) for name, pooled in encoders.items()}
            metrics = self._at_layer(by_encoder[""]) | {CHANCE: chance}
            for name, accuracies in by_encoder.items():
                metrics |= _at_all_layers(name, accuracies)
            return metrics

        return evaluate

    def _at_layer(self, accuracies: Accuracies) -> dict[str, float]:
        """Returns {metric: accuracy by `readout` at `layer`} of tasks and their mean."""
        by_task = {name: of_task[self.readout] for name, of_task in accuracies.items()}
        layer = self.layer_of(len(next(iter(by_task.values()))) - 1)
        metrics = {f"{ACCURACY}/{name}": float(values[layer]) for name, values in by_task.items()}
        mean = float(np.mean(list(metrics.values())))
        return {ACCURACY: mean, f"{RETRIEVAL_LAYER}{self.readout}": float(layer)} | metrics

    def candidates(self, dataset: PreparedDataset) -> dict[str, Candidates]:
        """Returns {name in metrics: translations of a task}; tasks with less than two are left out.

        Raises:
          ValueError: no task fits, or none has two different translations.
        """
        held_out = ("bitext", "validation")
        tasks = [task for task in dataset.tasks if (task.kind, task.split) == held_out]
        matches = [task for task in tasks if not self.pairs or _matches(task.name, self.pairs)]
        if not matches:
            names = ", ".join(task.name for task in tasks) or "none"
            raise ValueError(
                f"RetrievalProbe.pairs = {self.pairs!r} matches no bitext task with a validation "
                f"split (there are: {names}); change the patterns, prepare the data with held-out "
                "pairs, or leave @RetrievalProbe() out of Train.evaluators"
            )
        chosen: dict[str, Candidates] = {}
        languages = ["-".join(task.tags) for task in matches]
        for task, language in zip(matches, languages):
            pairs = self._choose(_read_pairs(dataset, task))
            if len(pairs) < 2:
                _log.warning("retrieval probe: %s has no two usable pairs, left out", task.name)
                continue
            # Two corpora of the same languages are distinguished by the tasks' names.
            name = language if languages.count(language) == 1 else task.name
            chosen[name] = Candidates((task.tags[0], task.tags[1]), pairs)
        if not chosen:
            raise ValueError(
                "RetrievalProbe: no task has two different translations; hold out more pairs, or "
                f"raise RetrievalProbe.max_shared ({self.max_shared})"
            )
        return chosen

    def _choose(self, pairs: Iterable[tuple[Text, Text]]) -> list[tuple[Text, Text]]:
        """Returns the first `max_pairs` pairs that can be used, cut to `length` tokens.

        No text occurs twice on a side, so that each has one right answer, and the sides of a pair
        do not share too many tokens.
        """
        sources: set[Text] = set()
        targets: set[Text] = set()
        chosen = []
        for source, target in pairs:
            source, target = cut(source, self.length), cut(target, self.length)
            if source == target or shared_tokens(source, target) > self.max_shared:
                continue
            if source in sources or target in targets:
                continue
            sources.add(source)
            targets.add(target)
            chosen.append((source, target))
            if len(chosen) == self.max_pairs:
                break
        return chosen

    def evaluator(self, context: Context) -> MakeEvaluator:
        """See `context.EvaluatorConfig.evaluator`; metrics are those of `build` and of step 0."""
        objective = context.objective
        encoder = objective.encoder
        check_lengths("encoder", encoder.config, {"RetrievalProbe": self.length})
        layer = self.layer_of(encoder.config.num_layers, encoder.pooled)
        encoders = {name: other.encode for name, other in objective.diagnostics.encoders.items()}
        evaluate = dataclasses.replace(self, layer=layer).build(
            context.dataset, encoder.encode, context.row_multiple, encoders
        )
        return lambda initial_params: with_untrained(evaluate, initial_params)


def shared_tokens(source: Text, target: Text) -> float:
    """Returns the share of the distinct tokens of one side that occur in the other side.

    The side is that with fewer distinct tokens; specials do not count.
    """
    source_tokens, target_tokens = set(source) - {BOS_ID, EOS_ID}, set(target) - {BOS_ID, EOS_ID}
    return len(source_tokens & target_tokens) / max(min(len(source_tokens), len(target_tokens)), 1)


def _read_pairs(dataset: PreparedDataset, task: TaskInfo) -> Iterable[tuple[Text, Text]]:
    """Yields a task's translations in a fixed random order.

    Corpora are often sorted by topic or length, so their first lines are not representative.
    """
    order = np.random.default_rng(0).permutation(task.examples)
    for start in range(0, len(order), _READ_AT_ONCE):
        for source, target in dataset.read_pairs(task, order[start : start + _READ_AT_ONCE]):
            yield tuple(source.tolist()), tuple(target.tolist())


def _at_all_layers(encoder: str, accuracies: Accuracies) -> dict[str, float]:
    """Returns {metric: mean accuracy} of every readout and layer, and that of each of few tasks.

    Args:
      encoder: name of the encoder in metrics; "" for the exported one, the only one for which
        tasks are named.
      accuracies: accuracies of the encoder.
    """
    prefix = f"probe/{encoder}/" if encoder else "probe/"
    tasks = list(accuracies.values())
    metrics = {}
    for readout in tasks[0]:
        if not all(readout in task for task in tasks):
            continue
        for layer, value in enumerate(np.mean([task[readout] for task in tasks], axis=0)):
            metrics[f"{prefix}{readout}/layer_{layer}"] = float(value)
    if not encoder and len(tasks) <= _NAMED_TASKS:
        for name, task in accuracies.items():
            for readout, values in task.items():
                for layer, value in enumerate(values):
                    metrics[f"{prefix}{readout}/layer_{layer}/{name}"] = float(value)
    return metrics


def _batches(texts: Sequence[Text], rows: int, lengths: Sequence[int]) -> list[Batch]:
    """Returns the texts in batches of few shapes, because each shape is compiled.

    Args:
      texts: texts, not longer than the last length.
      rows: rows per batch.
      lengths: allowed row lengths, ascending; the shortest that fits is used.
    """
    batches = []
    for shortest, length in zip([0, *lengths], lengths):
        fits = [i for i, text in enumerate(texts) if shortest < len(text) <= length]
        for start in range(0, len(fits), rows):
            chosen = np.array(fits[start : start + rows])
            batches.append(Batch(fill_rows([texts[i] for i in chosen], rows, length), chosen))
    return batches


def _matches(name: str, patterns: Iterable[str]) -> bool:
    """Returns whether a name matches one of the patterns."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def flat(pairs: Iterable[tuple[Text, Text]]) -> Iterable[Text]:
    """Yields the texts of pairs: source, target, source, target, ..."""
    return (text for pair in pairs for text in pair)
