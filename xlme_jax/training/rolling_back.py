"""Goes on from the newest checkpoint after a run has diverged (`Loop.on_divergence`)."""

import logging

from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.checkpoints.saved import RunRecord
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.training.journal import Diverged
from xlme_jax.training.run import Run
from xlme_jax.training.starting import INHERITED, record_now

_log = logging.getLogger(__name__)
_MAX_ROLL_BACKS = 3  # To the same checkpoint.


def roll_back(
    error: Diverged,
    run: Run,
    abstract: TrainState,
    checkpoints: Checkpoints,
    roll_backs: dict[int, int],
) -> tuple[TrainState, RunRecord]:
    """Restores the newest checkpoint without skipped updates, to continue with the next data.

    Args:
      error: why the run diverged.
      run: the run.
      abstract: shapes, types and shardings of the run's state.
      checkpoints: the checkpoints in the run's folder.
      roll_backs: {step: how often the run has rolled back to it}; is updated.

    Returns:
      The state, and the record of a checkpoint of this state at the present position in the data.

    Raises:
      Diverged: `config.on_divergence` is not "roll_back", there is no such checkpoint, or rolling
        back to it did not help.
    """
    if run.config.on_divergence != "roll_back":
        raise error
    error.__traceback__ = None  # It references the state, and two states may not fit in memory.
    checkpoints.wait()
    restored = checkpoints.roll_back(abstract)
    if restored is None:
        raise Diverged(f"{error} There is no checkpoint to roll back to.") from error
    state, record = restored
    step = int(state.step)
    roll_backs[step] = roll_backs.get(step, 0) + 1
    if roll_backs[step] > _MAX_ROLL_BACKS:
        raise Diverged(
            f"{error} Rolling back to step {step} {_MAX_ROLL_BACKS} times did not help."
        ) from error
    _log.warning("%s Rolling back to step %d and continuing with other data.", error, step)
    return state, record_now(run, **{name: getattr(record, name) for name in INHERITED})
