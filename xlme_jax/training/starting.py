"""Where a run starts: at its newest checkpoint, at the weights of another run, or from scratch."""

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

import jax

from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.checkpoints.saved import RunRecord, checkpoint_of, pretraining_flops, weights_digest
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.model.flop_conventions import CONVENTIONS
from xlme_jax.objectives.base import Objective, WarmStart, init_carried
from xlme_jax.storage.paths import as_path
from xlme_jax.training import mesh as meshes
from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.run import Batches, Evaluator, Run
from xlme_jax.training.sharded_state import WarmParams, fresh_state
from xlme_jax.training.step import make_fill_step

_log = logging.getLogger(__name__)
# Fields of a checkpoint's record that a run takes over when it continues from the checkpoint.
INHERITED = ("window", "origin", "origin_digest", "inherited_flops")


def starting_point(
    run: Run, abstract: TrainState, checkpoints: Checkpoints
) -> tuple[TrainState, RunRecord, list[Evaluator]]:
    """Restores the newest checkpoint, or initialises the state, from INIT_FROM or at random.

    A restored run's batches are moved to the position of the checkpoint.

    Args:
      run: what to train, how and where.
      abstract: shapes, types and shardings of the run's state.
      checkpoints: the checkpoints in the run's folder.

    Returns:
      The state, the record of a checkpoint of this state (saved or not), and the evaluators.

    Raises:
      ValueError: the weights of INIT_FROM do not fit.
      CheckpointError: all checkpoints are damaged.
    """
    config = run.config
    resumes = checkpoints.latest_step() is not None
    warm = WarmParams(_warm_start(run, resumes), abstract, run.mesh, config.seed)
    if not resumes:
        _check_sources(run, abstract, warm)
        _log.info("Drawing random weights; compiled programs are kept for the next start.")
    evaluators: list[Evaluator] = []
    state = None
    if run.evaluators or not resumes:
        state = fresh_state(run.objective, run.optimizer, abstract, config.seed)
        if run.evaluators:
            _log.info("Evaluating the untrained model, to compare with.")
        evaluators = [make(state.params) for make in run.evaluators]
        if resumes:
            jax.tree.map(lambda leaf: leaf.delete(), state)  # Two states may not fit in memory.
    if (restored := checkpoints.restore_newest(abstract)) is not None:
        state, record = restored
        run.batches.set_state(record.data)
        _log.info("Resuming from the checkpoint of step %d.", int(state.step))
        fields = {name: getattr(record, name) for name in ("skipped", *INHERITED)}
        now = record_now(run, **fields)
        spent = _earlier_flops(record, now.flops_per_step, int(state.step))
        return state, dataclasses.replace(now, inherited_flops=spent), evaluators
    assert state is not None  # Damaged checkpoints raise.
    if config.init_from is None:
        _log.info("Starting from scratch.")
        record = record_now(run, inherited_flops=dict.fromkeys(CONVENTIONS, 0.0))
    else:
        source = as_path(config.init_from)
        checkpoint = checkpoint_of(source)
        record = record_now(
            run,
            origin=str(checkpoint),
            origin_digest=weights_digest(checkpoint),
            inherited_flops=pretraining_flops(source),
        )
        state = _warm_state(run, state, abstract, warm)
    if sources := _carried_sources(run):
        from xlme_jax.training.carried_weights import carried_weights

        weights = carried_weights(sources, abstract.carried)
        state = dataclasses.replace(state, carried={**state.carried, **weights})
    filled = fill(run.objective, run.batches, run.mesh, config, state, abstract)
    return filled, record, evaluators


def _warm_start(run: Run, resumes: bool) -> WarmStart:
    """Returns how INIT_FROM initializes weights: one to one, if it is a run of the same system."""
    start = run.objective.warm_start
    if resumes or run.config.init_from is None or not start.marks:
        return start
    from xlme_jax.checkpoints.warm_start import has_weights

    return WarmStart() if has_weights(as_path(run.config.init_from), start.marks) else start


def _carried_sources(run: Run) -> Mapping[str, tuple[str, str]]:
    """Returns `Carry.sources` of the run's objective."""
    return run.objective.carry.sources if run.objective.carry is not None else {}


def _check_sources(run: Run, abstract: TrainState, warm: WarmParams) -> None:
    """Raises ValueError if a checkpoint does not fit a new run, before anything is compiled."""
    if sources := _carried_sources(run):
        from xlme_jax.training.carried_weights import check_carried_weights

        check_carried_weights(sources, abstract.carried, run.vocabulary_digest)
    if run.config.init_from is None:
        return
    from xlme_jax.checkpoints.warm_optimizer import check_warm_optimizer
    from xlme_jax.checkpoints.warm_start import check_warm_start

    check_warm_start(**_warm_arguments(run, warm))
    if run.config.init_optimizer:
        source = as_path(run.config.init_from or "")
        check_warm_optimizer(source, abstract.opt_state, run.growth)


def _warm_arguments(run: Run, warm: WarmParams) -> dict[str, Any]:
    """Returns the arguments of `checkpoints.warm_start.warm_start` for a run with INIT_FROM."""
    return {
        "run": as_path(run.config.init_from or ""),
        "abstract_params": warm.checkpoint_shapes,
        "vocabulary": run.vocabulary_digest,
        "may_lack": warm.start.new,
        "counterparts": warm.start.counterparts,
        "growth": run.growth,
    }


def _warm_state(run: Run, state: TrainState, abstract: TrainState, warm: WarmParams) -> TrainState:
    """Returns the state with the weights of `config.init_from`, and carried state from them.

    With `config.init_optimizer` the optimizer's state is read from there too.
    """
    from xlme_jax.checkpoints.warm_optimizer import warm_optimizer
    from xlme_jax.checkpoints.warm_start import warm_start

    params = warm(state.params, warm_start(**_warm_arguments(run, warm)))
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract.carried)
    carried = jax.jit(
        lambda params: meshes.unbox(init_carried(run.objective, params)), out_shardings=shardings
    )
    state = dataclasses.replace(state, params=params, carried=carried(params))
    if run.config.init_optimizer:
        # Two optimizer states may not fit in memory.
        jax.tree.map(lambda leaf: leaf.delete(), state.opt_state)
        source = as_path(run.config.init_from or "")
        opt_state = warm_optimizer(source, abstract.opt_state, run.growth)
        state = dataclasses.replace(state, opt_state=opt_state)
    return state


def fill(
    objective: Objective,
    batches: Batches,
    mesh: jax.sharding.Mesh,
    config: LoopConfig,
    state: TrainState,
    abstract: TrainState,
) -> TrainState:
    """Fills the carried state from batches until it is ready for the first step.

    Returns `state` itself if that is ready, or if the objective carries nothing.

    Args:
      objective: what to train.
      batches: the data, which moves on.
      mesh: the mesh of devices.
      config: the seed and the number of micro-batches.
      state: the state to begin with; its buffers are reused.
      abstract: shapes, types and shardings of the state.
    """
    carry = objective.carry
    if carry is None or bool(carry.ready(state.carried)):
        return state
    sharding = meshes.batch_sharding(mesh)
    _, shares = meshes.batch_share(mesh)
    state_shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    function = make_fill_step(objective, seed=config.seed, micro_batches=config.micro_batches)
    fill_step = jax.jit(function, donate_argnums=0, out_shardings=state_shardings)
    number = 0
    while not bool(carry.ready(state.carried)):
        state = fill_step(state, meshes.put_batch(next(batches), sharding, shares), number)
        number += 1
    _log.info("Read %d batches before the first step to fill the objective's state.", number)
    return state


def record_now(run: Run, **fields: Any) -> RunRecord:
    """Returns the record of a checkpoint that the run would save now.

    Args:
      run: the run.
      **fields: fields of `RunRecord` that do not follow from `run`.
    """
    is_pretraining = run.objective.diagnostics.is_pretraining
    return RunRecord(
        run.batches.get_state(),
        run.dataset_digest,
        run.files.get("config.gin", b"").decode(),
        vocabulary=run.vocabulary_digest,
        manifest=run.manifest,
        choices=run.choices,
        flops_per_step=run.flops_per_step if is_pretraining else dict.fromkeys(CONVENTIONS, 0.0),
        encoder_parameters=run.encoder_parameters,
        **fields,
    )


def _earlier_flops(record: RunRecord, now: Mapping[str, float], step: int) -> dict[str, float]:
    """Returns `inherited_flops` with which FLOPs in all stay as they are if a step now has others.

    Args:
      record: the record of the checkpoint.
      now: FLOPs of a step now, by convention.
      step: step of the checkpoint.
    """
    before = {**now, **record.flops_per_step}
    return {
        name: flops + step * (before.get(name, 0.0) - now.get(name, 0.0))
        for name, flops in record.inherited_flops.items()
    }
