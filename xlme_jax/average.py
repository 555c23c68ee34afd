"""Averages the weights of a run's last checkpoints, which often beats the last one.

    python -m xlme_jax.average --checkpoint=runs/xlme_base --last=5 --output=runs/xlme_base_mean

The output is the MODEL_DIR of an ordinary run, for `evaluate`, `export` and INIT_FROM. The run must
have kept that many checkpoints (`Loop.keep_checkpoints`, `Loop.keep_every`).
"""

import logging

from absl import flags

from xlme_jax.configuration import command_line
from xlme_jax.runs import averaging
from xlme_jax.storage.paths import as_path

_log = logging.getLogger("xlme_jax.average")
_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "MODEL_DIR of a run.", required=True)
_LAST = flags.DEFINE_integer("last", 5, "Number of checkpoints, the newest ones.", 1)
_OUTPUT = flags.DEFINE_string("output", None, "MODEL_DIR to write.", required=True)
_VOCABULARY = flags.DEFINE_string(
    "vocabulary", None, "SentencePiece model (default: the one in the run's DATA_DIR)."
)


def main() -> None:
    """Writes the average of the last checkpoints of --checkpoint to --output."""
    run, output = as_path(_CHECKPOINT.value), as_path(_OUTPUT.value)
    _log.info("Written: %s", averaging.average(run, _LAST.value, output, _VOCABULARY.value))


if __name__ == "__main__":
    command_line.run_app(main, reads_gin=False)
