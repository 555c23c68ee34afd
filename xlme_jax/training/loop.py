"""The train loop: it feeds batches to the compiled step, logs, evaluates and saves checkpoints.

`training.step` has the step itself. Objectives are used only through `objectives.base.Objective`.
"""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Any

import jax

from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.checkpoints.saved import RunRecord
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.model.flop_conventions import OURS
from xlme_jax.objectives.base import Metrics
from xlme_jax.storage.files import replace_file
from xlme_jax.training import mesh as meshes
from xlme_jax.training import task_losses
from xlme_jax.training.journal import Diverged, Journal
from xlme_jax.training.peak import mesh_peak_flops
from xlme_jax.training.profiling import Profile
from xlme_jax.training.progress import Throughput
from xlme_jax.training.run import NEVER, NeverStop, Run, Tasks
from xlme_jax.training.sharded_state import abstract_state, compile_step, sharding_rules
from xlme_jax.training.starting import starting_point

_log = logging.getLogger(__name__)


def train(run: Run, stop: NeverStop = NEVER) -> TrainState:
    """Trains to the end of `run.steps`, or until the run stops improving (`Run.best`).

    Training begins at the newest checkpoint in `model_dir`, else with the weights of
    `config.init_from`, else with fresh weights.

    Args:
      run: what to train, how and where.
      stop: the object that is asked after each step whether to end early.

    Returns:
      The final state.

    Raises:
      Stopped: `stop` requested the end; the state is saved.
      Diverged: too many updates in a row were skipped, and rolling back is off or did not help.
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
        state, record, evaluators = starting_point(run, abstract, checkpoints)
        if int(state.step) < run.steps.start:  # Later checkpoints are damaged.
            return state
        # A run that is rejected, or has all its steps, leaves the folder as it is.
        if jax.process_index() == 0 and int(state.step) < run.steps.stop:
            for name, content in run.files.items():
                replace_file(run.model_dir / name, content)
        stop.saved(int(state.step), checkpoints.wait)
        meter = Throughput(
            flops_per_step=run.flops_per_step.get(OURS),
            peak_flops_per_second=mesh_peak_flops(run.mesh),
        )
        journal = Journal(run, evaluators, meter)
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
                from xlme_jax.training.rolling_back import roll_back

                state, record = roll_back(error, run, abstract, checkpoints, roll_backs)


def _steps(
    run: Run,
    state: TrainState,
    record: RunRecord,
    train_step: Callable[[TrainState, Any], tuple[TrainState, Metrics]],
    journal: Journal,
    checkpoints: Checkpoints,
    stop: NeverStop,
) -> TrainState:
    """Runs steps until the last one, or until the run stops improving; returns the final state.

    Args:
      run: what to train, how and where.
      state: the state to begin with; its buffers are given to the first step.
      record: the record of that state's checkpoint.
      train_step: the compiled step.
      journal: the log.
      checkpoints: the checkpoints of the run.
      stop: the object that is asked after each step whether to end early.

    Raises:
      Stopped: `stop` requested the end; the state is saved.
      Diverged: too many updates in a row were skipped.
      RuleNotMet: a stop rule ended the run; the state is saved.
    """
    config, batches = run.config, run.batches
    sharding = meshes.batch_sharding(run.mesh)
    _, shares = meshes.batch_share(run.mesh)
    step = int(state.step)
    journal.begin(step, record.window, record.skipped, state.params)
    if (broken := journal.broken_rule(step)) is not None:
        raise broken

    def save_now() -> None:
        # First, because a resumed run does not write the lines before its checkpoint again.
        journal.sync()
        reached = dataclasses.replace(
            record, data=batches.get_state(), window=journal.window(), skipped=journal.skipped
        )
        checkpoints.save(step, state, reached, journal.best.steps())
        stop.saved(step, checkpoints.wait)

    if step < run.steps.stop:
        _log.info("Compiling the train step.")
    else:
        _log.info("Nothing to do: the run in %s already has %d steps.", run.model_dir, step)
    start, began = step, time.monotonic()
    pending: tuple[int, Metrics, Tasks] | None = None
    with Profile(config.profile_steps, journal.trace_folder()) as profile:
        while step < run.steps.stop and not journal.best.is_over():
            profile.begin(step + 1)
            with jax.profiler.StepTraceAnnotation("train", step_num=step + 1):
                with journal.waiting_for_input():
                    batch = meshes.put_batch(next(batches), sharding, shares)
                state, metrics = train_step(state, batch)
            step += 1
            profile.end(step, metrics)
            if step == start + 1:
                jax.block_until_ready(metrics)
                line = next(s for s in range(step, config.train_steps + 1) if journal.is_due(s))
                text = "Step %d done: %.0f s with compiling; the next line is that of step %d."
                _log.info(text, step, time.monotonic() - began, line)
            if pending is not None:  # One step late, so that the device never waits for the host.
                journal.add(*pending)
            left_out: Any = {f"{name}/left_out": pair for name, pair in batches.left_out().items()}
            pending = step, {**metrics, **left_out}, batches.tasks()
            saves = (
                stop.requested(step)
                or step == run.steps.stop
                or step % config.checkpoint_every == 0
                or journal.evaluates(step)
            )
            phase_ends = run.phases and run.phases.phase_ends(step, config.train_steps)
            # These read the sums of the metrics, so the newest step must be among them.
            if saves or phase_ends or journal.is_due(step):
                journal.add(*pending)
                pending = None
            if run.phases and phase_ends:
                task_losses.end_phase(run.phases, step, config.train_steps, run.model_dir)
            if saves:
                save_now()
            if journal.is_due(step):
                checkpoints.check_writes()
                journal.write(step, state.params)
                if (broken := journal.broken_rule(step)) is not None:
                    if not saves:
                        save_now()
                    checkpoints.wait()
                    raise broken
            journal.show_samples(step, state.params)
    return state
