"""Held-out losses: the objective's metrics on the validation split.

Rows are laid out as in training, but with each example once and in a fixed order; masks use a
constant seed, and there is no dropout. The metrics depend only on the weights, not on the step, the
devices, a resume or the run's seed.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from xlme_jax.data.batches import layouts
from xlme_jax.data.batches.one_pass import OnePass, one_pass
from xlme_jax.data.batches.pair_layouts import Sides
from xlme_jax.data.batches.streams import PairStream, Stream, TextStream, held_out_tasks
from xlme_jax.evaluation import encoding
from xlme_jax.evaluation.context import Context, MakeEvaluator
from xlme_jax.evaluation.measure import About, Measure
from xlme_jax.evaluation.outcome import Evaluation, Outcome, Result, Subject
from xlme_jax.objectives.base import Metrics, Objective, Params, init_carried
from xlme_jax.training import mesh as meshes
from xlme_jax.training.metrics import HELD_OUT, ratios
from xlme_jax.validation.fields import check_at_least

# Seed of masks, samples and all other randomness of a loss.
_SEED = 0
_log = logging.getLogger(__name__)
# params -> {"<stream>/<metric>": ratio}.
Ratios = Callable[[Params], dict[str, float]]


@dataclasses.dataclass(frozen=True)
class HeldOut(Measure):
    """Metrics of the objective on the validation split of each stream.

    Attributes:
      max_rows: maximum rows per stream, always the same ones; None for all.
      tasks: patterns of the tasks to measure, whether the streams train on them (`Stream.tasks`) or
        not; () for the tasks of each stream. With the tasks of an earlier run's data, the metrics
        show what continued training forgets.
      name: added to the metrics' prefix, "held_out_NAME/...", so that a run can have several.
    """

    about: ClassVar[About] = About(
        name=HELD_OUT,
        needs="run",
        hub_type="fill-mask",
    )

    max_rows: int | None = 512
    tasks: tuple[str, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        check_at_least(self, "HeldOut", 1, "max_rows")
        if self.name and not self.name.isidentifier():
            raise ValueError(
                f"HeldOut.name = {self.name!r} must be letters, digits and underscores."
            )

    def build(self, subject: Subject) -> Evaluation:
        """Returns the evaluation of some parameters; see `ratios`.

        Raises:
          ValueError: as `ratios`, or the run's data is not there.
        """
        if subject.context is None:
            raise ValueError(f"{HELD_OUT} reads the held-out text of a run: it needs its DATA_DIR")
        measure = self.ratios(subject.context)

        def evaluate(params: Any) -> Outcome:
            values = measure(params)
            results = []
            for name, value in values.items():
                stream, metric = name.rsplit("/", 1)
                results.append(Result(HELD_OUT, stream, metric, value, split="validation"))
            headline = {f"{HELD_OUT}/{name}": value for name, value in values.items()}
            return Outcome(tuple(results), headline)

        return evaluate

    def evaluator(self, context: Context) -> MakeEvaluator:
        """See `EvaluatorConfig.evaluator`; metrics are `held_out/<stream>/<metric>`.

        With `name`, they begin with `held_out_NAME/`. Unlike `Measure.evaluator`, this loads no
        vocabulary, because no text is encoded.
        """
        measure = self.ratios(context)
        prefix = f"{HELD_OUT}_{self.name}" if self.name else HELD_OUT

        def evaluate(params: Any, step: int) -> dict[str, float]:
            del step
            return {f"{prefix}/{name}": value for name, value in measure(params).items()}

        return lambda initial_params: evaluate

    def ratios(self, context: Context) -> Ratios:
        """Plans the rows and returns a function from parameters to metrics.

        Every process must call it, under `training.sharded_state.sharding_rules`. A metric is
        the sum of its numerators divided by the sum of its denominators, over all rows.

        Raises:
          ValueError: the objective has no loss on held-out text, or no stream has held-out text.
        """
        config = context.objective_config.held_out()
        if config is None:
            raise ValueError(
                f"HeldOut measures losses of pre-training, and {type(context.objective).__name__} "
                "has none: leave @HeldOut() out of Train.evaluators (fine-tuned models are "
                "measured by @TaskEvaluation())"
            )
        objective = config.build(context.dataset.vocabulary_size, context.dtype)
        streams = [_without_negatives(s) for s in context.streams if s.name in objective.inputs]
        measures = [
            _OfStream(objective, stream_pass, streams, context)
            for stream_pass in _passes(context, streams, self)
        ]

        def measure(params: Params) -> dict[str, float]:
            # Start all streams before waiting for the first.
            sums = [stream_measure.start(params) for stream_measure in measures]
            return {
                f"{stream_measure.name}/{name}": value
                for stream_measure, parts in zip(measures, sums)
                for name, value in ratios(_added(parts)).items()
            }

        return measure


def _without_negatives(stream: Stream) -> Stream:
    """Returns the stream for held-out pairs, which have no mined negatives."""
    if isinstance(stream, PairStream) and stream.kind == "triplet":
        return dataclasses.replace(stream, layout=Sides(pairs_per_row=stream.pairs_per_row))
    return stream


def _passes(context: Context, streams: list[Stream], settings: HeldOut) -> list[OnePass]:
    """Returns the rows of the validation split of each stream that has one, and logs their numbers.

    Raises:
      ValueError: no stream has a validation split.
    """
    if settings.tasks:
        streams = [dataclasses.replace(stream, tasks=settings.tasks) for stream in streams]
    tasks = {stream.name: held_out_tasks(context.dataset, stream) for stream in streams}
    missing = ", ".join(repr(name) for name, stream_tasks in tasks.items() if not stream_tasks)
    remedy = (
        "prepare the data with --validation=every:20 (of the embedded corpus: "
        "CldrCorpus.validation_documents and validation_pairs above 0)"
    )
    if not any(tasks.values()):
        chosen = f"tasks {settings.tasks} of the " if settings.tasks else ""
        raise ValueError(
            f"HeldOut: {context.dataset.directory} has no validation split for the {chosen}streams "
            f"{missing}: {remedy}, or leave @HeldOut() out of Train.evaluators"
        )
    passes = [
        one_pass(context.dataset, tasks[stream.name], stream, settings.max_rows)
        for stream in streams
        if tasks[stream.name]
    ]
    if jax.process_index() == 0:
        for stream_pass in passes:
            _log_pass(stream_pass)
        if missing:
            _log.info("Held out: without a validation split, left out: %s (%s).", missing, remedy)
    return passes


def _log_pass(stream_pass: OnePass) -> None:
    """Logs the numbers of rows, and of items without a row, in a pass."""
    is_text = isinstance(stream_pass.stream, TextStream)
    _log.info(
        "Held-out text to measure %s on: %d rows%s; %d too long, %d beyond HeldOut.max_rows.",
        stream_pass.stream.name,
        stream_pass.rows,
        "" if is_text else f" with {stream_pass.examples} pairs",
        stream_pass.too_long,
        stream_pass.beyond,
    )


class _OfStream:
    """Computes the metrics of one stream.

    An objective reads all its streams at once, but their numbers of batches differ. So all streams
    but this one get rows of padding, as few as the mesh allows; the compiler removes their
    computation, because their metrics are not used.
    """

    def __init__(
        self, objective: Objective, rows: OnePass, streams: list[Stream], context: Context
    ):
        self.name = rows.stream.name
        self._pass, self._objective = rows, objective
        multiple = context.row_multiple
        # No larger than a batch of training.
        max_rows = rows.stream.rows // context.micro_batches
        self._rows = encoding.round_up(min(max_rows, rows.rows), multiple)
        numbers = np.arange(multiple, dtype=np.int32)
        self._others = {
            stream.name: {**layouts.empty_rows(stream, multiple), "rows": numbers}
            for stream in streams
            if stream.name != self.name
        }
        self._sharding = meshes.batch_sharding(context.mesh)
        self._share = meshes.batch_share(context.mesh)
        self._sums = jax.jit(
            self._batch_sums, out_shardings=NamedSharding(context.mesh, PartitionSpec())
        )

    def start(self, params: Params) -> list[Metrics]:
        """Starts the computation of all batches.

        Returns {metric: (numerator, denominator)} of each batch, which may not be computed yet.
        """
        _, shares = self._share
        return [
            self._sums(
                params,
                meshes.put_batch(batch, self._sharding, shares),
                np.int32(number * self._rows),
            )
            for number, batch in enumerate(self._pass.batches(self._rows, *self._share))
        ]

    def _batch_sums(
        self, params: Params, rows: Mapping[str, jax.Array], first: jax.Array
    ) -> Metrics:
        """Returns {metric: (numerator, denominator)} of a batch with rows numbered from `first`.

        The randomness of a row derives from its number in the whole pass, so masks do not depend on
        the batch size.
        """
        numbers = first + jnp.arange(self._rows, dtype=jnp.int32)
        padding = jax.tree.map(jnp.asarray, self._others)
        batch = {self.name: {**rows, "rows": numbers}, **padding}
        carried = meshes.unbox(init_carried(self._objective, params))
        outputs = self._objective.loss(
            params, carried, batch, self._objective.totals(batch), jax.random.key(_SEED)
        )
        prefix = f"{self.name}/"
        return {
            name.removeprefix(prefix): pair
            for name, pair in outputs.metrics.items()
            if name.startswith(prefix)
        }


def _added(parts: list[Metrics]) -> dict[str, tuple[np.float64, np.float64]]:
    """Returns {metric: (numerator, denominator)}, summed in float64 over batches."""
    fetched = jax.device_get(parts)
    sums = {
        name: np.sum([np.asarray(part[name], np.float64) for part in fetched], axis=0)
        for name in fetched[0]
    }
    return {name: (pair[0], pair[1]) for name, pair in sums.items()}
