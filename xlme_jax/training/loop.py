"""The train loop. It knows objectives only through `objectives.base.Objective`."""

import collections
import contextlib
import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from xlme_jax.objectives.base import Metrics, Objective, Params
from xlme_jax.training import mesh as meshes
from xlme_jax.training.checkpoints import Checkpoints, RunRecord, check_warm_start, warm_start
from xlme_jax.training.metrics import MetricsWriter, ratios
from xlme_jax.training.progress import ProgressLine, Throughput, peak_flops
from xlme_jax.training.step import TrainState, init_state, make_train_step

_log = logging.getLogger(__name__)

Evaluator = Callable[[Params, int], Mapping[str, float]]


class BatchIterator(Protocol):
    """The data pipeline as the loop sees it (`data.pipeline.make_iterator`)."""

    def __next__(self) -> Mapping[str, Mapping[str, np.ndarray]]:
        """This process's rows of the next global batch."""

    def get_state(self) -> dict[str, Any]:
        """Position of the next batch, JSON-able."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a position."""


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """How long to train, what to keep and what to say.

    Attributes:
      train_steps: updates in all.
      checkpoint_every: steps between checkpoints; the last step is always saved.
      keep_checkpoints: newest checkpoints that stay.
      log_every: steps that a line of metrics averages over.
      evaluate_every: steps between evaluations; also at step 0 and at the end.
      micro_batches: parts in which a batch is processed; the gradient stays the same.
      seed: of initialisation, masking, sampling and dropout.
      init_from: MODEL_DIR or checkpoint to take the weights from, if the run is new.
    """

    train_steps: int
    checkpoint_every: int = 1000
    keep_checkpoints: int = 3
    log_every: int = 50
    evaluate_every: int = 1000
    micro_batches: int = 1
    seed: int = 0
    init_from: str | None = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if (
                field.type in (int, "int")
                and field.name != "seed"
                and getattr(self, field.name) < 1
            ):
                raise ValueError(
                    f"Loop.{field.name} = {getattr(self, field.name)} must be at least 1."
                )


def check_divisible(rows: Mapping[str, int], mesh: jax.sharding.Mesh, micro_batches: int) -> None:
    """ValueError if a stream's rows cannot be dealt out evenly, before anything is compiled."""
    parts = meshes.batch_shards(mesh) * micro_batches
    for name, count in rows.items():
        if count % parts:
            raise ValueError(
                f"Stream {name!r} has rows = {count}, not divisible by {parts} = mesh data x fsdp "
                f"({meshes.batch_shards(mesh)}) x micro_batches ({micro_batches}). Choose rows = "
                f"{math.ceil(count / parts) * parts}, or another mesh."
            )


def abstract_state(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    mesh: jax.sharding.Mesh,
    seed: int = 0,
) -> TrainState:
    """Shapes, types and shardings of a run's state; nothing is computed."""
    with sharding_rules(mesh):
        boxed = jax.eval_shape(functools.partial(init_state, objective, optimizer, seed))
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        meshes.unbox(boxed),
        meshes.shardings(boxed, mesh),
    )


@contextlib.contextmanager
def sharding_rules(mesh: jax.sharding.Mesh) -> Iterator[None]:
    """Context in which linen's logical constraints take effect.

    `jax.set_mesh`, because under a plain `with mesh:` linen drops the constraints silently.
    """
    with jax.set_mesh(mesh), nn.logical_axis_rules(meshes.LOGICAL_AXIS_RULES):
        yield


def fresh_state(
    objective: Objective, optimizer: optax.GradientTransformation, abstract: TrainState, seed: int
) -> TrainState:
    """The state at step 0, made in its shardings: no weight is ever whole on one device."""
    init = functools.partial(init_state, objective, optimizer, seed)
    out = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    return jax.jit(lambda: meshes.unbox(init()), out_shardings=out)()


def compile_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    abstract: TrainState,
    config: LoopConfig,
) -> Callable[[TrainState, Any], tuple[TrainState, Metrics]]:
    """The jitted train step; the old state's memory is given to the new one."""
    step = make_train_step(
        objective, optimizer, seed=config.seed, micro_batches=config.micro_batches
    )
    out = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    return jax.jit(step, donate_argnums=0, out_shardings=(out, None))


def train(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    batches: BatchIterator,
    evaluators: Sequence[Callable[[Params], Evaluator]],
    mesh: jax.sharding.Mesh,
    config: LoopConfig,
    model_dir: Path,
    *,
    dataset_digest: str,
    config_text: str,
    files: Mapping[str, str] | None = None,
    flops_per_step: float | None = None,
) -> TrainState:
    """Trains to `config.train_steps`, from where the run stands.

    Precedence: a checkpoint in `model_dir` (resume), else `config.init_from` (warm start), else
    fresh weights.

    Args:
      objective: what is learned.
      optimizer: gradient transformation, and its
      schedule: learning rate by step, for the log.
      batches: data; its position is saved and restored with the state.
      evaluators: each is given the parameters of step 0 and returns an evaluator.
      mesh: devices.
      config: the loop's own settings.
      model_dir: where checkpoints and metrics go.
      dataset_digest: of the prepared data, which a resumed run must match.
      config_text: operative configuration, kept in each checkpoint.
      files: texts to write into `model_dir` once nothing speaks against the run, by name.
      flops_per_step: for the MFU shown.

    Returns:
      The final state.
    """
    is_primary = jax.process_index() == 0
    # Closed on errors too, so that a checkpoint under way is finished.
    checkpoints = Checkpoints(model_dir, config.keep_checkpoints)
    with sharding_rules(mesh), contextlib.closing(checkpoints):
        abstract = abstract_state(objective, optimizer, mesh, config.seed)
        checkpoints.check(abstract, dataset_digest)
        if checkpoints.latest_step() is None and config.init_from is not None:
            check_warm_start(Path(config.init_from), abstract.params)
        if is_primary:  # Not before: a run that is refused leaves the folder as it was.
            for name, text in (files or {}).items():
                (model_dir / name).write_text(text, encoding="utf-8")
        state = fresh_state(objective, optimizer, abstract, config.seed)
        evaluate = _Evaluation(evaluators, state.params)
        state = _starting_point(state, abstract, batches, checkpoints, config)
        step = first_step = int(state.step)
        writer = MetricsWriter(model_dir, resume_step=step, active=is_primary)
        meter = Throughput(flops_per_step=flops_per_step, peak_flops_per_second=_peak_flops(mesh))
        progress = ProgressLine(config.train_steps, meter, active=is_primary)
        if step == 0 and evaluators:
            writer.write(0, evaluate(state.params, 0))
        train_step = compile_step(objective, optimizer, abstract, config)
        sharding, (_, shares) = meshes.batch_sharding(mesh), meshes.batch_share(mesh)
        window = _Window()
        pending: Metrics | None = None

        def settle(metrics: Metrics, finished: int) -> None:
            """Takes in a step's metrics, one step late so that the device never waits for us."""
            tokens = window.add(jax.device_get(metrics))
            meter.update(finished, tokens)
            progress.show(finished, {"loss": window.last("loss")})

        while step < config.train_steps:
            batch = meshes.put_batch(next(batches), sharding, shares)
            state, metrics = train_step(state, batch)
            step += 1
            if pending is not None:
                settle(pending, step - 1)
            pending = metrics
            is_last = step == config.train_steps
            log = is_last or step % config.log_every == 0
            evaluation = is_last or step % config.evaluate_every == 0
            if log or evaluation:
                settle(pending, step)
                pending = None
                values = window.close() | {"learning_rate": float(schedule(step - 1))}
                # Null in the first line of a run that logs every step: a rate takes two.
                values["tokens_per_second"] = meter.tokens_per_second or math.nan
                if meter.mfu is not None:
                    values["mfu"] = meter.mfu
                if evaluation:
                    with meter.pause():
                        values |= evaluate(state.params, step)
                writer.write(step, values)
                progress.show(step, values, log=True)
            if is_last or step % config.checkpoint_every == 0:
                record = RunRecord(batches.get_state(), dataset_digest, config_text)
                checkpoints.save(step, state, record)
        progress.close()
        writer.close()
        if step == first_step:
            _log.info("Nothing to do: the run in %s already has %d steps.", model_dir, step)
    return state


def _starting_point(
    state: TrainState,
    abstract: TrainState,
    batches: BatchIterator,
    checkpoints: Checkpoints,
    config: LoopConfig,
) -> TrainState:
    """Resume, else warm start, else the fresh `state`; says which."""
    if (latest := checkpoints.latest_step()) is not None:
        jax.tree.map(lambda leaf: leaf.delete(), state)  # Two states may not fit.
        state, record = checkpoints.restore(latest, abstract)
        batches.set_state(record.data)
        _log.info("Resuming from the checkpoint of step %d.", latest)
    elif config.init_from is not None:
        params = warm_start(Path(config.init_from), abstract.params)
        state = dataclasses.replace(state, params=params)
    else:
        _log.info("Starting from scratch.")
    return state


def _peak_flops(mesh: jax.sharding.Mesh) -> float | None:
    """FLOP/s of all devices: by data sheet for accelerators, measured for CPUs."""
    device = mesh.devices.flat[0]
    if device.platform == "cpu":
        # All cores of this host serve one product, however many virtual devices there are.
        return _measured_flops() * jax.process_count()
    peak = peak_flops(device.device_kind)
    return None if peak is None else peak * mesh.devices.size


def _measured_flops(size: int = 1024, repeats: int = 5) -> float:
    """Best rate of a float32 matrix product of `size`, in FLOP/s."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((size, size)), jnp.float32)
    product = jax.jit(jnp.matmul)
    product(x, x).block_until_ready()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        product(x, x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2.0 * size**3 / min(seconds)


class _Evaluation:
    """All evaluators as one."""

    def __init__(self, evaluators: Sequence[Callable[[Params], Evaluator]], initial: Params):
        self._evaluators = [make(initial) for make in evaluators]

    def __call__(self, params: Params, step: int) -> dict[str, float]:
        merged: dict[str, float] = {}
        for evaluator in self._evaluators:
            merged |= evaluator(params, step)
        return merged


class _Window:
    """Sums of the metrics since the last line of the log."""

    def __init__(self):
        self._sums: dict[str, np.ndarray] = collections.defaultdict(lambda: np.zeros(2))
        self._latest: dict[str, tuple[Any, Any]] = {}

    def add(self, metrics: dict[str, tuple[Any, Any]]) -> float:
        """Adds a step's metrics; returns its number of tokens."""
        self._latest = metrics
        for name, pair in metrics.items():
            self._sums[name] += np.asarray(pair, np.float64)
        return float(metrics["tokens_per_step"][0])

    def last(self, name: str) -> float:
        """Value of one metric in the step added last."""
        return ratios({name: self._latest[name]}).get(name, math.nan)

    def close(self) -> dict[str, float]:
        """The window's ratios; the next window begins."""
        sums = {name: (pair[0], pair[1]) for name, pair in self._sums.items()}
        self._sums.clear()
        return ratios(sums)
