r"""Exports the encoder of a checkpoint as a Hugging Face folder.

    python -m xlme_jax.export --checkpoint=runs/xlme_base --output=exported/xlme_base

Writes weights (safetensors), config.json, the tokenizer and a model card. Encoders that XLM-R's
classes cannot express come with their own model file; load them with
`AutoModel.from_pretrained(FOLDER, trust_remote_code=True)`. Needs `pip install 'xlme_jax[hf]'`, no
network. docs/guide/huggingface.md lists what is exact.

    python -m xlme_jax.export --checkpoint=runs/xlme_base --output=exported/xlme_base \
        --sentence_transformers --layer=8 --pooling=mean --centre=data/prepared

writes a folder that `SentenceTransformer(FOLDER)` loads, without the layers above that one: its
vectors are those of `Model.encode(texts, layer=8)`, less the mean over training text, of length 1.

    python -m xlme_jax.export --checkpoint=runs/xlme_base --output=exported/xlme_base \
        --push=OWNER/NAME

also uploads the folder to the hub, with huggingface_hub and its login (`hf auth login`); with
--dry_run it only lists what would be uploaded.
"""

import logging
import sys
from typing import TYPE_CHECKING

from absl import flags

from xlme_jax.configuration import command_line
from xlme_jax.storage.paths import as_path
from xlme_jax.validation import shell

if TYPE_CHECKING:
    from xlme_jax.huggingface.sentence_vectors import SentenceOptions

_log = logging.getLogger("xlme_jax.export")
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "MODEL_DIR of a run, or one of its checkpoints/STEP.", required=True
)
_OUTPUT = flags.DEFINE_string("output", None, "Folder to write.", required=True)
_VOCABULARY = flags.DEFINE_string(
    "vocabulary", None, "SentencePiece model (default: the one in the run's DATA_DIR)."
)
_SENTENCES = flags.DEFINE_bool(
    "sentence_transformers", False, "Write a folder that sentence-transformers loads."
)
_LAYER = flags.DEFINE_integer(
    "layer",
    None,
    "--sentence_transformers: the layer that is pooled, 0 for the embeddings; those above it are "
    "dropped.",
    0,
)
_POOLING = flags.DEFINE_enum(
    "pooling", "mean", ["mean", "first"], "--sentence_transformers: mean of all tokens, or <s>."
)
_CENTRE = flags.DEFINE_list(
    "centre",
    [],
    "--sentence_transformers: prepared data, or text files of a language each, whose mean vector "
    "is subtracted; each language counts the same.",
)
_PROMPT = flags.DEFINE_multi_string(
    "prompt", [], "--sentence_transformers: NAME=TEXT to put before sentences, for each name."
)
_DEFAULT_PROMPT = flags.DEFINE_string(
    "default_prompt", None, "--sentence_transformers: name of the prompt of calls that name none."
)
_ONNX = flags.DEFINE_list(
    "onnx",
    [],
    "--sentence_transformers: ONNX programs to add, with weights of type float32, int8 or both.",
)
_PUSH = flags.DEFINE_string(
    "push", None, "Repository of the Hugging Face hub, OWNER/NAME, to upload the folder to."
)
_PRIVATE = flags.DEFINE_bool("private", False, "--push: make a new repository private.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "--push: only list files and sizes.")


def main() -> None:
    """Exports the encoder of --checkpoint to --output, and uploads it with --push."""
    from xlme_jax.huggingface import pushing, writing
    from xlme_jax.huggingface.conversion import as_run

    output = as_path(_OUTPUT.value)
    repository = _PUSH.value
    if repository is None and (_DRY_RUN.value or _PRIVATE.value):
        raise ValueError("--dry_run and --private: only with --push=OWNER/NAME")
    if repository is not None:
        pushing.check(repository, output)
    command = shell.join(["python", "-m", "xlme_jax.export", *sys.argv[1:]])
    sentences = _sentence_options()
    checkpoint = as_run(_CHECKPOINT.value)
    writing.export(checkpoint, _VOCABULARY.value, output, command, sentences)
    _log.info("Written: %s", _OUTPUT.value)
    if repository is not None and _DRY_RUN.value:
        print(pushing.listing(output, repository))
    elif repository is not None:
        print(pushing.push(output, repository, _PRIVATE.value))


def _sentence_options() -> "SentenceOptions | None":
    """Returns how sentences are to be embedded; None without --sentence_transformers.

    Raises:
      ValueError: --layer is missing, or a flag of sentences is given without the flag for them.
    """
    from xlme_jax.huggingface.sentence_vectors import SentenceOptions

    if not _SENTENCES.value:
        for flag in (_LAYER, _POOLING, _CENTRE, _PROMPT, _DEFAULT_PROMPT, _ONNX):
            if flag.present:
                raise ValueError(f"--{flag.name}: only with --sentence_transformers")
        return None
    if _LAYER.value is None:
        raise ValueError(
            "--sentence_transformers needs --layer: no layer suits every encoder. `evaluate "
            "--tasks=tatoeba` prints retrieval by layer; fine-tuned sentence encoders take the last"
        )
    prompts = {}
    for prompt in _PROMPT.value:
        name, equals, text = prompt.partition("=")
        if not (name and equals and text):
            raise ValueError(f"--prompt={prompt}: expected NAME=TEXT, such as 'query=query: '")
        prompts[name] = text
    return SentenceOptions(
        _LAYER.value,
        _POOLING.value,  # type: ignore[arg-type]  # DEFINE_enum checks it.
        tuple(_CENTRE.value),
        prompts,
        _DEFAULT_PROMPT.value,
        tuple(_ONNX.value),  # type: ignore[arg-type]  # SentenceOptions checks it.
    )


if __name__ == "__main__":
    command_line.run_app(main, reads_gin=False)
