r"""Trains a SentencePiece vocabulary: `python -m xlme_jax.train_vocabulary --help`.

For example, 16,000 ids for the languages of CC-100 files and pair files::

    python -m xlme_jax.train_vocabulary --tasks=cc100,bitext --cc100_dir=mono --bitext_dir=pairs \
        --size=16000 --output=vocabulary.model

Languages are sampled with p ∝ n^alpha, n being their bytes. The default, 0.7, is that of training:
pieces then go where the training tokens are. XLM-R's vocabulary was sampled with 0.3, which gives
small languages more pieces and every language longer rows; with a few hundred megabytes or less it
hardly matters, since small languages are taken whole either way.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from xlme_jax.configuration import source_flags

flags.adopt_module_key_flags(source_flags)

_SIZE = flags.DEFINE_integer("size", 16_000, "Ids, those of <pad> and <mask> included.", 8)
_OUTPUT = flags.DEFINE_string("output", "vocabulary.model", "File to write.")
_ALPHA = flags.DEFINE_float("alpha", 0.7, "Exponent of the sampling over languages.", 0.0, 1.0)
_BUDGET = flags.DEFINE_integer(
    "sample_bytes", None, "Text to train on; default: 1,500 bytes for each id (16k ids: 24 MB).", 1
)
_SEED = flags.DEFINE_integer("seed", 0, "Which of the texts are sampled.")
_BYTE_FALLBACK = flags.DEFINE_bool(
    "byte_fallback", True, "Spell rare characters in UTF-8 bytes (256 ids); else they are unknown."
)
_COVERAGE = flags.DEFINE_float(
    "character_coverage", 0.9995, "Share of the text's characters with an id of their own.", 0.98, 1
)
_ALLOW_SMALLER = flags.DEFINE_bool(
    "allow_smaller", False, "Accept fewer ids where the text does not support --size."
)


def _check_output(file: Path) -> None:
    """Raises an error before the training that would be for nothing."""
    if file.is_dir():
        raise ValueError(
            f"--output={file} is a folder; name a file in it, such as {file / 'v.model'}"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(file.parent, os.W_OK):
        raise ValueError(f"--output={file}: its folder cannot be written to; choose another.")


def main(argv: Sequence[str]) -> None:
    """Trains and writes the vocabulary."""
    from xlme_jax import api
    from xlme_jax.data import vocabulary
    from xlme_jax.preparation import vocabulary_text

    if len(argv) > 1:
        raise ValueError(f"Unknown argument {argv[1]!r}; flags are written --name=value.")
    if not flags.FLAGS["tasks"].present and not flags.FLAGS.gin_file:
        raise ValueError(
            "--tasks is missing: name the text to train on, such as --tasks=cc100,bitext with "
            "--cc100_dir and --bitext_dir, or --tasks=cldr for the embedded corpus."
        )
    _check_output(Path(_OUTPUT.value))
    start = time.monotonic()
    texts = api.find_text(source_flags.configuration(output="."))
    languages = vocabulary_text.languages_of(texts)
    print(f"{len(languages)} languages: {' '.join(languages)}", file=sys.stderr)
    budget = _BUDGET.value or 1500 * _SIZE.value
    sample = vocabulary_text.sample_text(texts, budget, _ALPHA.value, _SEED.value)
    trained = vocabulary.train_vocabulary(
        vocabulary_text.progress_bar(sample),
        _SIZE.value,
        byte_fallback=_BYTE_FALLBACK.value,
        character_coverage=_COVERAGE.value,
        allow_smaller=_ALLOW_SMALLER.value,
    )
    vocabulary.write_vocabulary(trained, _OUTPUT.value)
    seconds = time.monotonic() - start
    print(f"{_OUTPUT.value}: {trained.size} ids, {seconds:.0f} s", file=sys.stderr)


def run() -> None:
    """Entry point: user errors are one line, without a traceback."""
    from xlme_jax.configuration import command_line

    command_line.run_app(main)


if __name__ == "__main__":
    run()
