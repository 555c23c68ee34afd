"""Prints the batch that a step of a run reads, and what a checkpoint predicts of it.

    python -m xlme_jax.inspect --gin_file=gin_configs/runs/quickstart.gin --step=100
    python -m xlme_jax.inspect --gin_file=runs/quickstart/config.gin --checkpoint=runs/quickstart

docs/guide/runs.md has an example. Colours are off with NO_COLOR=1, and where output is no terminal.
"""

import logging

from absl import flags

from xlme_jax import api
from xlme_jax.configuration import command_line
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.paths import as_path

_log = logging.getLogger("xlme_jax.inspect")
_STEP = flags.DEFINE_integer(
    "step", None, "Number of the step, from 1 (default: the one after the checkpoint's, or 1)."
)
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "MODEL_DIR of a run, or one of its checkpoints, whose weights predict."
)
_ROWS = flags.DEFINE_integer(
    "rows", 4, "Most rows of each stream, those of more languages first; 0 for all.", 0
)
_OUTPUT = flags.DEFINE_string("output", None, "HTML file to write as well.")


def main() -> None:
    """Prints the batch of --step, and writes it as a page to --output."""
    from xlme_jax.studies.reports import batch_text

    config = api.load_config(flags.FLAGS.gin_file, flags.FLAGS.gin_bindings)
    batch = api.inspect_batch(config, step=_STEP.value, checkpoint=_CHECKPOINT.value)
    print(batch.text(_ROWS.value or None, batch_text.has_colors()), end="")
    if _OUTPUT.value:
        replace_file(as_path(_OUTPUT.value), batch.html(_ROWS.value or None).encode())
        _log.info("Page: %s", _OUTPUT.value)


if __name__ == "__main__":
    command_line.run_app(main)
