"""The train loop. It uses objectives only through `objectives.base.Objective`."""

import contextlib
import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.checkpoints.growth import Growth
from xlme_jax.checkpoints.saved import RunRecord, checkpoint_of, pretraining_flops
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.checkpoints.warm_optimizer import check_warm_optimizer, warm_optimizer
from xlme_jax.checkpoints.warm_start import check_warm_start, warm_start
from xlme_jax.objectives.base import Metrics, Objective, Params, init_carried
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.paths import as_path
from xlme_jax.training import mesh as meshes
from xlme_jax.training import task_losses
from xlme_jax.training.best import Best
from xlme_jax.training.journal import Diverged, Evaluator, Journal, Tasks
from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.metrics import ReadSamples, Tracker, naming
from xlme_jax.training.profiling import Profile
from xlme_jax.training.progress import Throughput, peak_flops
from xlme_jax.training.state import (
    WarmParams,
    abstract_state,
    compile_step,
    fresh_state,
    sharding_rules,
)
from xlme_jax.training.step import Points, make_fill_step
from xlme_jax.training.stop_rule import StopRule
from xlme_jax.training.stopping import NEVER, NeverStop

_log = logging.getLogger(__name__)
_MAX_ROLL_BACKS = 3  # To one and the same checkpoint.
# Fields of a checkpoint's record that the run goes on with.
_KEPT = ("window", "origin", "inherited_flops", "inherited_table_4_flops")


class Batches(Protocol):
    """The data pipeline as the loop sees it (`data.batches.pipeline.make_iterator`)."""

    def __next__(self) -> Mapping[str, Mapping[str, np.ndarray]]:
        """Returns this process's rows of the next global batch."""

    def get_state(self) -> dict[str, Any]:
        """Returns the position of the next batch, JSON-serializable."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Moves to a position returned by `get_state`."""

    def tasks(self) -> Tasks:
        """Returns where this process's rows of the last batch came from."""

    def left_out(self) -> Mapping[str, tuple[float, float]]:
        """Returns {stream: (items of the last global batch that fit no row, all items drawn)}."""


@dataclasses.dataclass(frozen=True)
class Run:
    """The inputs of the loop.

    Attributes:
      objective: what to train.
      optimizer: gradient transformation.
      schedule: the optimizer's learning rate by step, for the log.
      batches: data; its position is saved and restored with the state.
      mesh: devices.
      config: the loop's own settings.
      model_dir: where checkpoints and metrics go.
      dataset_digest: digest of the prepared data, which a resumed run must match.
      evaluators: each is given the parameters of step 0 and returns an evaluator.
      files: texts to write into `model_dir` once all checks have passed, by name; "config.gin" is
        kept in each checkpoint too.
      flops_per_step: floating-point operations of a step, for MFU and the checkpoints' records.
      table_4_flops_per_step: these as XLM-E's Table 4 counts, for the checkpoints' records.
      encoder_parameters: parameters of the exported encoder, for the checkpoints' records.
      vocabulary_digest: digest of the data's vocabulary, which a warm start's source must match.
      growth: how weights of the vocabulary that the data's one extends are grown in a warm start.
      weights: weight schedules of streams, for `make_train_step`.
      stop_rules: rules that the log must meet for the run to continue.
      best: which checkpoints are kept as the best, and when the run has stopped improving.
      trackers: where metrics go besides `metrics.jsonl` (`MetricsWriter`).
      manifest: the entry of this start, for checkpoints (`training.manifest`).
      choices: the implementations that were chosen, for the checkpoints' records.
      phases: `batches`, if sampling weights follow the losses of tasks; else None.
      read_samples: reads what is shown every `config.samples_every` steps; None for nothing.
    """

    objective: Objective
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    batches: Batches
    mesh: jax.sharding.Mesh
    config: LoopConfig
    model_dir: Path
    dataset_digest: str
    evaluators: Sequence[Callable[[Params], Evaluator]] = ()
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    flops_per_step: float | None = None
    table_4_flops_per_step: float | None = None
    encoder_parameters: int | None = None
    vocabulary_digest: str = ""
    growth: Growth | None = None
    weights: Mapping[str, Points] = dataclasses.field(default_factory=dict)
    stop_rules: Sequence[StopRule] = ()
    best: Best | None = None
    trackers: Sequence[Callable[[Path, int], Tracker]] = ()
    manifest: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    choices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    phases: task_losses.Phases | None = None
    read_samples: ReadSamples | None = None


def check_divisible(rows: Mapping[str, int], mesh: jax.sharding.Mesh, micro_batches: int) -> None:
    """Raises ValueError if a stream's rows cannot be split evenly, before anything is compiled."""
    parts = meshes.batch_shards(mesh) * micro_batches
    for name, count in rows.items():
        if count % parts:
            raise ValueError(
                f"Stream {name!r} has rows = {count}, not divisible by {parts} = mesh data x fsdp "
                f"({meshes.batch_shards(mesh)}) x micro_batches ({micro_batches}). Choose rows = "
                f"{math.ceil(count / parts) * parts}, or another mesh."
            )


def train(run: Run, stop: NeverStop = NEVER) -> TrainState:
    """Trains to `run.config.train_steps`, or until it stops improving; resumes a run.

    Precedence: a checkpoint in `model_dir` (resume), else `config.init_from` (warm start), else
    fresh weights.

    Args:
      run: what to train, how and where.
      stop: asked after each step whether to end early.

    Returns:
      The final state.

    Raises:
      Stopped: `stop` requested the end; the state is saved.
      Diverged: too many updates in a row were skipped.
      RuleNotMet: a stop rule ended the run; the state is saved.
      CheckpointError: a checkpoint could not be written, or all existing ones are damaged.
    """
    config = run.config
    with contextlib.ExitStack() as stack:
        stack.enter_context(sharding_rules(run.mesh))
        checkpoints = stack.enter_context(
            Checkpoints(run.model_dir, config.keep_checkpoints, config.keep_every)
        )
        abstract = abstract_state(run.objective, run.optimizer, run.mesh, config.seed)
        checkpoints.check(abstract, run.dataset_digest)
        warm = WarmParams(run.objective, abstract, run.mesh, config.seed)
        if checkpoints.latest_step() is None and config.init_from is not None:
            check_warm_start(*_warm_source(run, warm))
            if config.init_optimizer:
                check_warm_optimizer(as_path(config.init_from), abstract.opt_state, run.growth)
        _log.info("Compiling what starts a run; programs are kept for the next start.")
        state, record, evaluators = _starting_point(run, abstract, checkpoints, warm)
        # A run that is rejected, or has all its steps, leaves the folder as it is.
        if jax.process_index() == 0 and int(state.step) < config.train_steps:
            for name, text in run.files.items():
                with naming(run.model_dir / name):
                    replace_file(run.model_dir / name, text.encode())
        stop.saved(int(state.step), checkpoints.wait)
        meter = Throughput(
            flops_per_step=run.flops_per_step, peak_flops_per_second=_peak_flops(run.mesh)
        )
        journal = Journal(
            run.model_dir,
            config,
            run.schedule,
            run.objective.diagnostics.alarms,
            evaluators,
            meter,
            run.stop_rules,
            run.trackers,
            run.best,
            run.phases,
            run.read_samples,
        )
        stack.callback(journal.close)
        counts = run.phases.task_counts() if run.phases else {}
        train_step = compile_step(
            run.objective, run.optimizer, abstract, config, run.weights, counts
        )
        roll_backs: dict[int, int] = {}
        while True:
            try:
                return _steps(run, state, record, train_step, journal, checkpoints, stop)
            except Diverged as error:
                state, record = _roll_back(error, run, abstract, checkpoints, roll_backs)


def _steps(
    run: Run,
    state: TrainState,
    record: RunRecord,
    train_step: Callable[[TrainState, Any], tuple[TrainState, Metrics]],
    journal: Journal,
    checkpoints: Checkpoints,
    stop: NeverStop,
) -> TrainState:
    """Runs the loop from `state` and its checkpoint's `record` to the last step."""
    config, batches = run.config, run.batches
    sharding, (_, shares) = meshes.batch_sharding(run.mesh), meshes.batch_share(run.mesh)
    step = int(state.step)
    journal.begin(step, record.window, record.skipped, state.params)
    if (broken := journal.broken_rule(step)) is not None:
        raise broken

    def save_now() -> None:
        journal.sync()  # The lines before a checkpoint must be on disk before it is.
        reached = dataclasses.replace(
            record, data=batches.get_state(), window=journal.window(), skipped=journal.skipped
        )
        checkpoints.save(step, state, reached, journal.best.steps())
        stop.saved(step, checkpoints.wait)

    if step < config.train_steps:
        _log.info("Compiling the train step.")
    else:
        _log.info("Nothing to do: the run in %s already has %d steps.", run.model_dir, step)
    pending: tuple[int, Metrics, Tasks] | None = None
    with Profile(config.profile_steps, journal.trace_folder()) as profile:
        while step < config.train_steps and not journal.best.is_over():
            profile.begin(step + 1)
            with jax.profiler.StepTraceAnnotation("train", step_num=step + 1):
                with journal.waiting_for_input():
                    batch = meshes.put_batch(next(batches), sharding, shares)
                state, metrics = train_step(state, batch)
            step += 1
            profile.end(step, metrics)
            if pending is not None:  # One step late, so that the device never waits for the host.
                journal.add(*pending)
            lost: Any = {f"{name}/left_out": pair for name, pair in batches.left_out().items()}
            pending = step, {**metrics, **lost}, batches.tasks()
            save = (
                stop.requested(step)
                or step == config.train_steps
                or step % config.checkpoint_every == 0
                or journal.evaluates(step)
            )
            phase_ends = run.phases and run.phases.phase_ends(step, config.train_steps)
            if save or phase_ends or journal.is_due(step):
                journal.add(*pending)
                pending = None
            if run.phases and phase_ends:
                task_losses.end_phase(run.phases, step, config.train_steps, run.model_dir)
            if save:
                save_now()
            if journal.is_due(step):
                checkpoints.check_writes()
                journal.write(step, state.params)
                if (broken := journal.broken_rule(step)) is not None:
                    if not save:
                        save_now()
                    checkpoints.wait()
                    raise broken
            journal.show_samples(step, state.params)
    return state


def _starting_point(
    run: Run, abstract: TrainState, checkpoints: Checkpoints, warm: WarmParams
) -> tuple[TrainState, RunRecord, list[Evaluator]]:
    """Resumes, else warm-starts, else initialises the weights, and logs which.

    Returns:
      The state, the record of its checkpoint (existing or not), and the evaluators.
    """
    config = run.config
    evaluators: list[Evaluator] = []
    state = None
    if run.evaluators or checkpoints.latest_step() is None:
        state = fresh_state(run.objective, run.optimizer, abstract, config.seed)
        evaluators = [make(state.params) for make in run.evaluators]
        if checkpoints.latest_step() is not None:
            jax.tree.map(lambda leaf: leaf.delete(), state)  # Two states may not fit in memory.
    if (restored := checkpoints.restore_newest(abstract)) is not None:
        state, record = restored
        run.batches.set_state(record.data)
        _log.info("Resuming from the checkpoint of step %d.", int(state.step))
        kept = {name: getattr(record, name) for name in ("skipped", *_KEPT)}
        return state, _record(run, **kept), evaluators
    assert state is not None  # Damaged checkpoints raise.
    origin = ""
    inherited: dict[str, float | None] = dict.fromkeys(
        ("inherited_flops", "inherited_table_4_flops"), 0.0
    )
    if config.init_from is not None:
        source = as_path(config.init_from)
        origin = str(checkpoint_of(source))
        flops = pretraining_flops(source)
        inherited = {
            "inherited_flops": flops.ours,
            "inherited_table_4_flops": flops.table_4,
        }
        params = warm_start(*_warm_source(run, warm))
        state = dataclasses.replace(state, params=warm(state.params, params))
        out = jax.tree.map(lambda leaf: leaf.sharding, abstract.aux)
        carried = jax.jit(
            lambda params: meshes.unbox(init_carried(run.objective, params)), out_shardings=out
        )
        state = dataclasses.replace(state, aux=carried(state.params))
        if config.init_optimizer:
            jax.tree.map(lambda leaf: leaf.delete(), state.opt_state)
            state = dataclasses.replace(state, opt_state=warm_optimizer(source, abstract.opt_state))
    else:
        _log.info("Starting from scratch.")
    record = _record(run, origin=origin, **inherited)
    filled = fill(run.objective, run.batches, run.mesh, config, state, abstract)
    return filled, record, evaluators


def _warm_source(run: Run, warm: WarmParams) -> tuple[Any, ...]:
    """Returns the arguments of `warm_start`."""
    start = run.objective.warm_start
    names = start.new, start.counterparts
    source = as_path(run.config.init_from or "")
    return (source, warm.wanted, run.vocabulary_digest, *names, run.growth)


def fill(
    objective: Objective,
    batches: Batches,
    mesh: jax.sharding.Mesh,
    config: LoopConfig,
    state: TrainState,
    abstract: TrainState,
) -> TrainState:
    """Reads batches until the carried state is ready for the first step; returns the new state."""
    carry = objective.carry
    if carry is None or bool(carry.ready(state.aux)):
        return state
    sharding, (_, shares) = meshes.batch_sharding(mesh), meshes.batch_share(mesh)
    out = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    fill_step = make_fill_step(objective, seed=config.seed, micro_batches=config.micro_batches)
    add = jax.jit(fill_step, donate_argnums=0, out_shardings=out)
    number = 0
    while not bool(carry.ready(state.aux)):
        state = add(state, meshes.put_batch(next(batches), sharding, shares), number)
        number += 1
    _log.info("Read %d batches before the first step to fill the objective's state.", number)
    return state


def _record(run: Run, **fields: Any) -> RunRecord:
    """Returns the record of a checkpoint saved now, with this run's configuration."""
    text = run.files.get("config.gin", "")
    counts = run.objective.diagnostics.is_pretraining
    return RunRecord(
        run.batches.get_state(),
        run.dataset_digest,
        text,
        vocabulary=run.vocabulary_digest,
        manifest=run.manifest,
        choices=run.choices,
        flops_per_step=run.flops_per_step if counts else 0.0,
        table_4_flops_per_step=run.table_4_flops_per_step if counts else 0.0,
        encoder_parameters=run.encoder_parameters,
        **fields,
    )


def _roll_back(
    error: Diverged,
    run: Run,
    abstract: TrainState,
    checkpoints: Checkpoints,
    roll_backs: dict[int, int],
) -> tuple[TrainState, RunRecord]:
    """Restores the newest checkpoint, to continue with the data that comes next, or raises."""
    if run.config.on_divergence != "roll_back":
        raise error
    error.__traceback__ = None  # It references the state, and two states may not fit in memory.
    checkpoints.wait()
    restored = checkpoints.restore_newest(abstract)
    if restored is None:
        raise Diverged(f"{error} There is no checkpoint to roll back to yet.") from error
    state, record = restored
    step = int(state.step)
    roll_backs[step] = roll_backs.get(step, 0) + 1
    if roll_backs[step] > _MAX_ROLL_BACKS:
        raise Diverged(
            f"{error} Rolling back to step {step} {_MAX_ROLL_BACKS} times did not help."
        ) from error
    _log.warning("%s Rolling back to step %d and continuing with other data.", error, step)
    return state, _record(run, **{name: getattr(record, name) for name in _KEPT})


def _peak_flops(mesh: jax.sharding.Mesh) -> float | None:
    """FLOP/s of all devices: from data sheets for accelerators, measured now for CPUs.

    On CPUs it is too low, and MFU too high, while other programs use the cores.
    """
    device = mesh.devices.flat[0]
    if device.platform == "cpu":
        # One product uses all cores of this host, however many virtual devices there are.
        return _measured_flops() * jax.process_count()
    peak = peak_flops(device.device_kind)
    return None if peak is None else peak * mesh.devices.size


@functools.cache
def _measured_flops(size: int = 1024, repeats: int = 5) -> float:
    """Returns the best rate of a float32 matrix product of `size`, in FLOP/s."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((size, size)), jnp.float32)
    product = jax.jit(jnp.matmul)
    product(x, x).block_until_ready()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        product(x, x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2.0 * size**3 / min(seconds)
