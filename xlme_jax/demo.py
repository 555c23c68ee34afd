"""Serves a page on this machine on which a trained model reads what is typed.

    python -m xlme_jax.demo --checkpoint=runs/quickstart

It shows which words look replaced, what is behind masks, which sentences are translations of each
other, and which of their words. Needs `pip install 'xlme_jax[demo]'`; docs/guide/demo.md has more.
"""

from absl import flags

from xlme_jax import api
from xlme_jax.configuration import command_line

_CHECKPOINT = flags.DEFINE_string(
    "checkpoint",
    None,
    "MODEL_DIR of a run, or one of its checkpoints/STEP; or a Hugging Face folder.",
    required=True,
)
_VOCABULARY = flags.DEFINE_string(
    "vocabulary", None, "SentencePiece model (default: the one in the run's DATA_DIR)."
)
_LAYER = flags.DEFINE_integer(
    "layer",
    None,
    "Layer for translations and alignment that the page begins with (default: that of "
    "trained sentence vectors, or the middle one).",
    0,
)
_PORT = flags.DEFINE_integer("port", 8000, "Port of 127.0.0.1; 0 for any free one.", 0, 65535)


def main() -> None:
    """Loads the model and serves the page."""
    from xlme_jax.tools.serving import server

    model = api.load(_CHECKPOINT.value, vocabulary=_VOCABULARY.value)
    server.serve(model, _PORT.value, _LAYER.value)


if __name__ == "__main__":
    command_line.run_app(main, reads_gin=False)
