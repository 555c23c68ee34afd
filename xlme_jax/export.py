r"""Exports the encoder of a checkpoint as a Hugging Face folder.

    python -m xlme_jax.export --checkpoint=runs/xlme_base --output=exported/xlme_base

Writes weights (safetensors), config.json, the tokenizer and a model card. Encoders that XLM-R's
classes cannot express come with their own model file; load them with
`AutoModel.from_pretrained(FOLDER, trust_remote_code=True)`. Needs `pip install 'xlme_jax[hf]'`, no
network. docs/guide/huggingface.md lists what is exact.

    python -m xlme_jax.export --checkpoint=runs/xlme_base --output=exported/xlme_base \
        --push=OWNER/NAME

also uploads the folder to the hub, with huggingface_hub and its login (`hf auth login`); with
--dry_run it only lists what would be uploaded.
"""

import logging
import shlex
import sys

from absl import flags

from xlme_jax.configuration import command_line
from xlme_jax.storage.paths import as_path

_log = logging.getLogger("xlme_jax.export")
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "MODEL_DIR of a run, or one of its checkpoints/STEP.", required=True
)
_OUTPUT = flags.DEFINE_string("output", None, "Folder to write.", required=True)
_VOCABULARY = flags.DEFINE_string(
    "vocabulary", None, "SentencePiece model (default: the one in the run's DATA_DIR)."
)
_PUSH = flags.DEFINE_string(
    "push", None, "Repository of the Hugging Face hub, OWNER/NAME, to upload the folder to."
)
_PRIVATE = flags.DEFINE_bool("private", False, "--push: make a new repository private.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "--push: only list files and sizes.")


def main() -> None:
    """Exports the encoder of --checkpoint to --output, and uploads it with --push."""
    from xlme_jax.huggingface import pushing, writing

    output, repository = as_path(_OUTPUT.value), _PUSH.value
    if repository is None and (_DRY_RUN.value or _PRIVATE.value):
        raise ValueError("--dry_run and --private: only with --push=OWNER/NAME")
    if repository is not None:
        pushing.check(repository, output)
    command = shlex.join(["python", "-m", "xlme_jax.export", *sys.argv[1:]])
    writing.export(_CHECKPOINT.value, _VOCABULARY.value, output, command)
    _log.info("Written: %s", _OUTPUT.value)
    if repository is not None and _DRY_RUN.value:
        print(pushing.listing(output, repository))
    elif repository is not None:
        print(pushing.push(output, repository, _PRIVATE.value))


if __name__ == "__main__":
    command_line.run_app(main, reads_gin=False)
