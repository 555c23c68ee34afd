r"""Exports the encoder of a checkpoint as a Hugging Face folder.

    python -m xlme_jax.export --checkpoint=runs/xlme_base --output=exported/xlme_base

Writes weights (safetensors), config.json, the tokenizer and a model card. Encoders that XLM-R's
classes cannot express come with their own model file; load them with
`AutoModel.from_pretrained(FOLDER, trust_remote_code=True)`. Needs `pip install 'xlme_jax[hf]'`, no
network. docs/huggingface.md lists what is exact.
"""

import logging
import shlex
import sys

from absl import flags

from xlme_jax.configuration import command_line
from xlme_jax.huggingface import writing
from xlme_jax.storage.paths import as_path

_log = logging.getLogger("xlme_jax.export")
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "MODEL_DIR of a run, or one of its checkpoints/STEP.", required=True
)
_OUTPUT = flags.DEFINE_string("output", None, "Folder to write.", required=True)
_VOCABULARY = flags.DEFINE_string(
    "vocabulary", None, "SentencePiece model (default: the one in the run's DATA_DIR)."
)


def main() -> None:
    """Parses the flags and exports the encoder."""
    command = shlex.join(["python", "-m", "xlme_jax.export", *sys.argv[1:]])
    writing.export(_CHECKPOINT.value, _VOCABULARY.value, as_path(_OUTPUT.value), command)
    _log.info("Written: %s", _OUTPUT.value)


if __name__ == "__main__":
    command_line.run_app(main, reads_gin=False)
