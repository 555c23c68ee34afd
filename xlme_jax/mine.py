r"""Mines hard negatives: adds a third side to the pairs of a prepared data set.

    python -m xlme_jax.mine --checkpoint=runs/e5 --data=data/contrast --output=data/contrast_mined

The negative of a pair is the target of another pair of the same task that the encoder puts nearest
to the source. Left out, and counted, are translations of the source, and targets that the encoder
takes for one (--relative_margin, --max_score: those of sentence-transformers'
`mine_hard_negatives`). `gin_configs/finetune/contrast_mined.gin` trains on the data set.
"""

import logging
import sys

from absl import flags

from xlme_jax.configuration import command_line
from xlme_jax.evaluation.encoding import POOLINGS
from xlme_jax.huggingface.conversion import as_run
from xlme_jax.runs import mining
from xlme_jax.training import host_memory, peers
from xlme_jax.training.stopping import say
from xlme_jax.validation import shell

_log = logging.getLogger("xlme_jax.mine")
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint",
    None,
    "MODEL_DIR of a run, or one of its checkpoints/STEP; or a Hugging Face folder, which is "
    "converted once. Its vocabulary must be that of --data.",
    required=True,
)
_DATA = flags.DEFINE_string("data", None, "Prepared data set with pairs.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "Folder of the data set to write.", required=True)
_RELATIVE_MARGIN = flags.DEFINE_float(
    "relative_margin",
    0.05,
    "Share of the pair's score by which that of a negative must be below it.",
)
_MAX_SCORE = flags.DEFINE_float(
    "max_score", None, "Largest score of a negative (default: no limit)."
)
_RANGE_MAX = flags.DEFINE_integer(
    "range_max", 50, "Number of nearest targets to choose from, translations included."
)
_LAYER = flags.DEFINE_integer(
    "layer", None, "Layer that is pooled (default: that of Contrast, or the last one).", 0
)
_POOLING = flags.DEFINE_enum(
    "pooling", None, list(POOLINGS), "How it is pooled (default: as Contrast does, or mean)."
)
_SCORE = flags.DEFINE_enum(
    "score",
    "cosine",
    ["cosine", "margin"],
    "What is compared: cosines, or their ratio margins (Artetxe and Schwenk 2019).",
)


def main() -> None:
    """Writes the data set of --data with negatives to --output."""
    host_memory.keep_freed()
    peers.check_single()
    peers.check_devices(say)
    settings = mining.Mining(
        _RELATIVE_MARGIN.value,
        _MAX_SCORE.value,
        _RANGE_MAX.value,
        _LAYER.value,
        _POOLING.value,  # type: ignore[arg-type]  # DEFINE_enum checks it.
        _SCORE.value,  # type: ignore[arg-type]
    )
    command = shell.join(["python", "-m", "xlme_jax.mine", *sys.argv[1:]])
    mining.mine(as_run(_CHECKPOINT.value), _DATA.value, _OUTPUT.value, settings, command)
    _log.info("Written: %s", _OUTPUT.value)


if __name__ == "__main__":
    command_line.run_app(main, reads_gin=False)
