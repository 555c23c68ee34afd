"""Averages the weights of a run's last checkpoints, which often beats the last one, or of runs.

    python -m xlme_jax.average --checkpoint=runs/xlme_base --last=5 --output=runs/xlme_base_mean
    python -m xlme_jax.average --checkpoint=runs/branch_a,runs/branch_b --output=runs/merged

The output is the MODEL_DIR of an ordinary run, for `evaluate`, `export` and INIT_FROM. A run must
have kept that many checkpoints (`Loop.keep_checkpoints`, `Loop.keep_every`). Several runs need one
model and one data set, and a common past for their mean to be of use, as branches of one trunk
have (`BRANCH_FROM`).
"""

import logging

from absl import flags

from xlme_jax.configuration import command_line
from xlme_jax.storage.paths import as_path

_log = logging.getLogger("xlme_jax.average")
_CHECKPOINT = flags.DEFINE_list(
    "checkpoint",
    None,
    "MODEL_DIR of a run; or of several, or checkpoints of theirs, whose results are averaged.",
    required=True,
)
_LAST = flags.DEFINE_integer("last", 5, "Number of checkpoints of one run, the newest ones.", 1)
_WEIGHTS = flags.DEFINE_list(
    "weights", [], "Share of each checkpoint in the mean (default: equal ones)."
)
_OUTPUT = flags.DEFINE_string("output", None, "MODEL_DIR to write.", required=True)
_VOCABULARY = flags.DEFINE_string(
    "vocabulary", None, "SentencePiece model (default: the one in the run's DATA_DIR)."
)


def main() -> None:
    """Writes the average of the checkpoints that --checkpoint names to --output."""
    from xlme_jax.checkpoints.saved import checkpoint_of
    from xlme_jax.runs import averaging

    runs = [as_path(name) for name in _CHECKPOINT.value]
    if len(runs) > 1:
        checkpoints = [checkpoint_of(run) for run in runs]
    else:
        checkpoints = averaging.last_checkpoints(runs[0], _LAST.value)
    try:
        weights = [float(weight) for weight in _WEIGHTS.value]
    except ValueError:
        raise ValueError(f"--weights={','.join(_WEIGHTS.value)} must be numbers.") from None
    output = as_path(_OUTPUT.value)
    mean = averaging.average(checkpoints, output, _VOCABULARY.value, weights)
    _log.info("Written: %s", mean)


if __name__ == "__main__":
    command_line.run_app(main, reads_gin=False)
