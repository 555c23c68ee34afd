"""Trains a run in phases (`Train.phases`), one after the other in the same folder.

Each phase goes on from the checkpoint at the end of the one before, as a run that was stopped and
resumed there. So nothing distinguishes a run that was killed at the begin of a phase from one that
was not, and the configuration of a phase is as free as that of a run: it may have another length of
rows, mask rate, temperature or language, as long as weights and optimizer have the same shapes.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from typing import Any

import jax

from xlme_jax.checkpoints.saved import compare_shapes, newest_record, tree_shapes
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.configuration.phase_config import PhaseConfig
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.data.batches.phased_batches import PhasedBatches, described
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.runs import parts
from xlme_jax.storage.paths import as_path
from xlme_jax.training import loop
from xlme_jax.training import sharded_state as states
from xlme_jax.training.run import PHASES_FILE, NeverStop, Run

_log = logging.getLogger(__name__)
_FIRST = "start"  # The part of a run before the first phase that the configuration names.


@dataclasses.dataclass(frozen=True)
class RunPhase:
    """A phase of a run.

    Attributes:
      run: configuration of the run.
      number: number of the phase, from 0, which is the part before `run.phases[0]`.
      name: its name, for the log and the manifest.
      steps: its steps, counted by the steps that are finished before each.
      config: configuration of a run that is all in this phase.
    """

    run: TrainConfig
    number: int
    name: str
    steps: range
    config: TrainConfig

    @property
    def next(self) -> RunPhase:
        """The next phase. Its data was verified when the run began."""
        return all_of(dataclasses.replace(self.run, verify_data=False))[self.number + 1]

    def batches(
        self, dataset: PreparedDataset, seed: int, process: tuple[int, int]
    ) -> PhasedBatches:
        """Returns the batches of the run from this phase on.

        Args:
          dataset: data of the run.
          seed: seed of the run.
          process: index of this process, and number of processes.
        """
        streams = [
            phase.config.streams_of(_objective(phase, dataset)) for phase in all_of(self.run)
        ]
        return PhasedBatches(dataset, streams, self.number, seed, *process)

    def measured(self, built: parts.Parts) -> tuple[parts.Parts, Any]:
        """Returns the parts of the last phase and its objective's configuration.

        The evaluators of all phases measure as at the end, so that their curves can be read across.
        """
        last = all_of(self.run)[-1]
        objective = _objective(last, built.dataset)
        streams = tuple(last.config.streams_of(objective))
        return built._replace(objective=objective, streams=streams), last.config.objective


def all_of(config: TrainConfig) -> list[RunPhase]:
    """Returns the phases of a run, beginning with the part before those that it names.

    Raises:
      ValueError: `Train.phases` is invalid; names the field and the remedy.
    """
    starts = _starts(config)
    base = dataclasses.replace(config, phases=())
    phases = [RunPhase(config, 0, _FIRST, range(*starts[:2]), base)]
    for number, phase in enumerate(config.phases, start=1):
        streams = {stream.name: stream for stream in (*base.streams, *phase.streams)}
        changed = dataclasses.replace(
            base, objective=phase.objective or base.objective, streams=tuple(streams.values())
        )
        if changed == base:
            raise ValueError(
                f"Phase {phase.name!r} has the objective and the streams of Train: what differs "
                f"has the phase's scope, as in {phase.name}/Masking.rate and @{phase.name}/XLM()."
            )
        steps = range(*starts[number : number + 2])
        phases.append(RunPhase(config, number, phase.name, steps, changed))
    return phases


def phase_at(config: TrainConfig, step: int) -> RunPhase:
    """Returns the phase in which a run goes on after `step` finished steps.

    Raises:
      ValueError: `Train.phases` is invalid; names the field and the remedy.
    """
    phases = all_of(config)
    return next((phase for phase in phases if step in phase.steps), phases[-1])


def newest(config: TrainConfig) -> RunPhase:
    """Returns the phase in which a run goes on from the newest checkpoint in its folder."""
    record = newest_record(as_path(config.model_dir))
    return phase_at(config, 0 if record is None else record[0])


def train(
    phase: RunPhase, run: Run, make_run: Callable[[RunPhase], Run], stop: NeverStop
) -> tuple[TrainState, Run]:
    """Trains a run from a phase to its end.

    Args:
      phase: the phase to begin with.
      run: the inputs of the loop in this phase.
      make_run: function that makes those of another phase.
      stop: the object that is asked after each step whether to end early.

    Returns:
      The final state, and the inputs of the loop in the last phase.

    Raises:
      ValueError: a phase is invalid, or does not fit the weights (before the first step).
    """
    run = _with_description(phase, run)
    while True:
        steps = phase.steps
        later = [
            f"{x.name!r} from {x.steps.start + 1}" for x in all_of(phase.run)[phase.number + 1 :]
        ]
        rest = f"; then {', '.join(later)}" if later else ""
        _log.info("Phase %r: steps %d to %d%s.", phase.name, steps.start + 1, steps.stop, rest)
        state = loop.train(run, stop)
        step = int(state.step)
        if step == phase.run.loop.train_steps or step in phase.steps:
            return state, run  # The end, or an early one.
        del state  # Two states may not fit in memory.
        # Before this phase if its checkpoints were damaged: then an earlier phase goes on.
        phase = phase.next if step == phase.steps.stop else phase_at(phase.run, step)
        run = make_run(phase)


def _starts(config: TrainConfig) -> list[int]:
    """Returns the steps after which the phases begin, 0 first, and TRAIN_STEPS at the end.

    Raises:
      ValueError: a phase begins outside the run or before another one, or names repeat.
    """
    total = config.loop.train_steps
    for phase in config.phases:
        if not isinstance(phase, PhaseConfig):
            raise ValueError(
                f"Train.phases has {phase!r}, which is no phase; bind (@mid/Phase(),)."
            )
    if config.epochs is not None:
        raise ValueError("Train.epochs does not go with Train.phases; give TRAIN_STEPS.")
    names = [_FIRST, *(phase.name for phase in config.phases)]
    if len(set(names)) < len(names):
        raise ValueError(f"Train.phases = {names}: each phase needs a name of its own.")
    starts = [0, *(phase.start(total) for phase in config.phases), total]
    for name, before, start, end in zip(names[1:], starts, starts[1:], starts[2:], strict=False):
        if not before < start < end:
            raise ValueError(
                f"Phase {name!r} begins after step {start:,}; it must be after {before:,}, where "
                f"the phase before begins, and before {end:,}."
            )
    return starts


def _objective(phase: RunPhase, dataset: PreparedDataset) -> Any:
    """Returns the objective of a phase."""
    dtype = phase.config.dtype_on(jax.default_backend())
    return phase.config.objective.build(dataset.vocabulary_size, dtype)


def _with_description(phase: RunPhase, run: Run) -> Run:
    """Returns the inputs of the loop with the description of all phases as a file of the run.

    Raises:
      ValueError: another phase is invalid, or has other weights than `phase`.
    """
    abstract = states.abstract_state(run.objective, run.optimizer, run.mesh)
    description = []
    for other in all_of(dataclasses.replace(phase.run, verify_data=False)):
        built = parts.build(other.config, ())
        streams = described(built.dataset, built.streams)
        bounds = {"start": other.steps.start, "end": other.steps.stop}
        description.append({"name": other.name, **bounds, "streams": streams})
        config = phase.run.optimizer.build(built.settings.train_steps)
        optimizer = built.objective.optimizer(config)
        of_other = states.abstract_state(built.objective, optimizer, run.mesh)
        where = f"Phase {other.name!r}, beside {phase.name!r}"
        remedy = "The phases of a run train the same weights."
        compare_shapes(tree_shapes(of_other.params), abstract.params, where, remedy)
        if tree_shapes(of_other) != tree_shapes(abstract):
            raise ValueError(f"{where}, carries or optimizes something else. {remedy}")
    content = json.dumps(description, indent=1, ensure_ascii=False).encode() + b"\n"
    return dataclasses.replace(run, files={**run.files, PHASES_FILE: content})
