r"""Imports XLM-R, or an export of this project: converts a Hugging Face folder to a MODEL_DIR.

    python -m xlme_jax.import_hf --source=xlm-roberta-base --output=runs/xlmr_base
    python -m xlme_jax.train ... --gin.INIT_FROM="'runs/xlmr_base'"

The folder must contain config.json, model.safetensors (or its shards and their index) and
sentencepiece.bpe.model. Needs `pip install 'xlme_jax[hf]'`, no network. docs/guide/huggingface.md
lists what is converted and how exactly.
"""

import logging

from absl import flags

from xlme_jax.configuration import command_line
from xlme_jax.storage.paths import as_path

_log = logging.getLogger("xlme_jax.import_hf")
_SOURCE = flags.DEFINE_string(
    "source", None, "Hugging Face folder of XLM-R, or of an export.", required=True
)
_OUTPUT = flags.DEFINE_string("output", None, "MODEL_DIR to write.", required=True)
_SCAN_LAYERS = flags.DEFINE_bool(
    "scan_layers",
    True,
    "Encoder.scan_layers of the written run, as in the base and large files of gin_configs/runs. "
    "Runs that start from it may have either.",
)


def main() -> None:
    """Converts the folder of --source to a MODEL_DIR at --output."""
    from xlme_jax.huggingface.importing import import_folder

    output = _OUTPUT.value
    import_folder(as_path(_SOURCE.value), as_path(output), _SCAN_LAYERS.value)
    _log.info("Written: %s. Start from it with --gin.INIT_FROM=\"'%s'\"", output, output)


if __name__ == "__main__":
    command_line.run_app(main, reads_gin=False)
