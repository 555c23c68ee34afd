"""Configuration of a training run."""

import dataclasses
import reprlib
from typing import Any, Literal

import jax.numpy as jnp

from xlme_jax.configuration.registry import SYSTEMS
from xlme_jax.data.batches.pair_layouts import Translations
from xlme_jax.data.batches.streams import STREAMS, PairStream, Stream
from xlme_jax.evaluation.context import EvaluatorConfig
from xlme_jax.objectives.base import StreamInput
from xlme_jax.objectives.system_config import SystemConfig
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.storage.caches import DATA_GB
from xlme_jax.storage.paths import as_path, is_bucket
from xlme_jax.training.best import Best
from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.mesh import MeshConfig
from xlme_jax.training.optimizer import OptimizerConfig
from xlme_jax.training.stop_rule import StopRule
from xlme_jax.training.trackers import TensorBoard, TrackerConfig


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Configuration of a training run.

    Attributes:
      model_dir: folder for checkpoints, metrics and the report.
      data_dir: prepared data set (`python -m xlme_jax.prepare`).
      objective: the system, one of `registry.SYSTEMS` or from another package.
      streams: training data; streams that the objective does not require are ignored.
      loop: number of steps, logging and checkpoints.
      optimizer: the update rule, its schedule and its clipping.
      mesh: shape of the device mesh.
      evaluators: evaluations during training, such as `@RetrievalProbe()`, `@HeldOut()` or
        `@Tatoeba()` (`evaluation.context.EvaluatorConfig`).
      vocab_size: number of token ids; None uses the number of the prepared data.
      compute_dtype: "bfloat16", "float32", or "auto": bfloat16 on accelerators, float32 on CPUs.
        "mixed" is float32, but products with weights round their operands to bfloat16: faster on
        CPUs with AVX512-BF16 or AMX.
      prepare: how to prepare the data.
      prepare_if_missing: whether training prepares missing data itself, as with the embedded
        corpus.
      verify_data: whether to verify the checksums of all prepared files before training, each
        process its share. ArrayRecord also checks records as they are read.
      data_cache: local folder for copies of the data, if that is in a bucket; None is
        ~/.cache/xlme_jax/data. Copies are verified, and reused after a restart.
      data_cache_gb: most that all copies may take; 0 reads everything from the bucket.
      epochs: passes over the examples of a labelled stream; overrides TRAIN_STEPS.
      evaluate_epochs: passes between evaluations; overrides Loop.evaluate_every.
      stop_rules: conditions on logged metrics for the run to continue, such as `(@StopRule(),)`.
      best: which checkpoints are kept as the best, and after how many evaluations without an
        improvement the run ends, `@Best()`; None keeps the newest checkpoints alone.
      trackers: where metrics go besides `metrics.jsonl`: `@TensorBoard()`, `@WandB()`, or one of
        another package (`training.trackers`).
      phases: later parts of the run that have another objective or other streams, such as
        `(@mid/Phase(), @decay/Phase())`.
    """

    model_dir: str
    data_dir: str
    objective: Any
    streams: tuple[Stream, ...]
    loop: LoopConfig
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    evaluators: tuple[Any, ...] = ()
    vocab_size: int | None = None
    compute_dtype: Literal["auto", "bfloat16", "float32", "mixed"] = "auto"
    prepare: PrepareConfig | None = None
    prepare_if_missing: bool = False
    verify_data: bool = True
    data_cache: str | None = None
    data_cache_gb: float = DATA_GB
    epochs: float | None = None
    evaluate_epochs: float | None = None
    stop_rules: tuple[StopRule, ...] = ()
    best: Best | None = None
    trackers: tuple[Any, ...] = (TensorBoard(),)
    phases: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        for folder in (self.model_dir, self.data_dir):
            as_path(folder)  # Raises ValueError for a kind of storage that is not supported.
        if not isinstance(self.objective, SystemConfig):
            raise ValueError(
                f"Train.objective = {reprlib.repr(self.objective)} is not an objective; bind one "
                f"of {', '.join(f'@{name}()' for name in SYSTEMS)}, or a dataclass that derives "
                "from objectives.system_config.SystemConfig."
            )
        for evaluator in self.evaluators:
            if not isinstance(evaluator, EvaluatorConfig):
                raise ValueError(
                    f"Train.evaluators: {reprlib.repr(evaluator)} is no evaluation; bind "
                    "(@RetrievalProbe(),) or others of --help."
                )
        for tracker in self.trackers:
            if not isinstance(tracker, TrackerConfig):
                raise ValueError(
                    f"Train.trackers: {reprlib.repr(tracker)} is no tracker; bind "
                    "(@TensorBoard(), @WandB())."
                )
        if self.data_cache is not None and is_bucket(self.data_cache):
            raise ValueError(f"Train.data_cache = {self.data_cache!r} must be on a local disk.")
        if self.data_cache_gb < 0:
            raise ValueError(f"Train.data_cache_gb = {self.data_cache_gb} must not be negative.")
        passes_by_field = {"epochs": self.epochs, "evaluate_epochs": self.evaluate_epochs}
        for field, passes in passes_by_field.items():
            if passes is not None and passes <= 0:
                raise ValueError(f"Train.{field} = {passes} must be positive.")
        names = [stream.name for stream in self.streams]
        if len(set(names)) < len(names):
            raise ValueError(f"Train.streams = {names}: each stream needs a name of its own.")

    def streams_of(self, objective: Any) -> list[Stream]:
        """Returns the streams that an objective reads.

        Raises:
          ValueError: a stream is missing, or has another kind, layout or setting than the objective
            reads; names the stream and the remedy.
        """
        inputs = objective.inputs
        streams = [stream for stream in self.streams if stream.name in inputs]
        if missing := set(inputs) - {stream.name for stream in streams}:
            raise ValueError(
                f"Train.streams lacks {sorted(missing)}, which the objective needs{_WITHOUT_PAIRS}."
            )
        for stream in streams:
            expected = inputs[stream.name]
            if not isinstance(stream, STREAMS[expected.kind]):
                cls = STREAMS[expected.kind].__name__
                raise ValueError(
                    f"Stream {stream.name!r} is a {type(stream).__name__}, and the objective reads "
                    f"a {cls} there; name @{stream.name}/{cls}() in Train.streams."
                )
            if stream.layout_name != expected.layout:
                raise ValueError(
                    f"Stream {stream.name!r} has the layout {stream.layout_name!r}, and the "
                    f"objective reads {expected.layout!r}; set {stream.name}/"
                    f"{_layout_binding(stream, expected.layout)}."
                )
            if isinstance(stream, PairStream):
                self._check_pairs(stream, objective, expected)
        return streams

    def _check_pairs(self, stream: PairStream, objective: Any, expected: StreamInput) -> None:
        """Raises ValueError if the settings of a stream of pairs do not fit an objective."""
        name, layout = stream.name, stream.layout
        if stream.positions_restart and not objective.encoder.config.absolute_positions:
            raise ValueError(
                f"Stream {name!r} has positions = 'restart', which nothing sees: the encoder has "
                "Encoder.absolute_positions = False, and its relative bias goes by distances in "
                f"the row. Leave {name}/Joint.positions out."
            )
        if isinstance(layout, Translations):
            for field, of_stream, of_objective in (
                ("languages", layout.languages, expected.languages),
                ("directions", layout.directions, expected.directions),
            ):
                if of_stream != of_objective:
                    raise ValueError(
                        f"{name}/Translations.{field} = {of_stream!r}, and the objective has "
                        f"{of_objective!r}; set the same list in both."
                    )
        if expected.marked and stream.pairs_per_row is None:
            raise ValueError(
                f"Stream {name!r} does not say where its sentences begin; set "
                f"{name}/Sides.pairs_per_row, the most pairs in a row."
            )
        if expected.tasks and not stream.has_tasks:
            raise ValueError(
                f"Stream {name!r} does not say which task each token comes from; set "
                f"{name}/PairStream.mark_tasks = True."
            )
        if stream.robust is not None:
            self._check_robust(name, stream.robust.updates, expected)

    def _check_robust(self, name: str, updates: int, expected: StreamInput) -> None:
        """Raises ValueError if a stream cannot be sampled by losses, with so many updates."""
        if not expected.task_losses:
            raise ValueError(
                f"Stream {name!r} has robust sampling, and this objective does not compute the "
                f"losses of its tasks; leave {name}/PairStream.robust out."
            )
        if self.loop.train_steps <= updates:
            raise ValueError(
                f"RobustSampling.updates = {updates} must be less than TRAIN_STEPS = "
                f"{self.loop.train_steps}: each phase needs a step."
            )

    def dtype_on(self, platform: str) -> Any:
        """Returns the compute type on a platform: "cpu", "gpu", "cuda" or "tpu".

        For "mixed" it is float32; `ops.products.rounded` has the rounding of operands.
        """
        if self.compute_dtype == "auto":
            return jnp.float32 if platform == "cpu" else jnp.bfloat16
        return jnp.dtype("float32" if self.compute_dtype == "mixed" else self.compute_dtype)


_WITHOUT_PAIRS = "; XLM, XLME and InfoXLM train without pairs with translation_pairs = False"


def _layout_binding(stream: Stream, layout: str) -> str:
    """Returns the binding, without scope, that gives a stream the layout of a `StreamInput`."""
    if isinstance(stream, PairStream):
        return f"PairStream.layout = @{layout.capitalize()}()"
    return f"{type(stream).__name__}.split_pieces = {layout == 'sides'}"
