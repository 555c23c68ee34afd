r"""Trains a SentencePiece vocabulary: `python -m xlme_jax.train_vocabulary`.

For example, to train 16,000 ids for the languages of CC-100 files and pair files::

    python -m xlme_jax.train_vocabulary --tasks=cc100,bitext --cc100_dir=mono --bitext_dir=pairs \
        --size=16000 --output=vocabulary.model

Languages are sampled with p ∝ n^alpha, where n is the bytes of a language. The default, 0.7, is
that of training, so pieces are allocated in proportion to training tokens. XLM-R's vocabulary was
sampled with 0.3, which gives small languages more pieces and every language longer rows. With a few
hundred megabytes or less, alpha hardly matters, since small languages are used completely.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from absl import flags

from xlme_jax.configuration import source_flags
from xlme_jax.preparation import sources
from xlme_jax.storage.paths import as_path, is_bucket

flags.adopt_module_key_flags(source_flags)

_SIZE = flags.DEFINE_integer("size", 16_000, "Number of ids, including <pad> and <mask>.", 8)
_OUTPUT = flags.DEFINE_string("output", "vocabulary.model", "File to write.")
_ALPHA = flags.DEFINE_float(
    "alpha", 0.7, "Exponent of the sampling over languages (p ∝ bytes^alpha).", 0.0, 1.0
)
_BUDGET = flags.DEFINE_integer(
    "sample_bytes", None, "Bytes of text to train on (default: 1,500 per id; 16k ids: 24 MB).", 1
)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the sampling.")
_BYTE_FALLBACK = flags.DEFINE_bool(
    "byte_fallback", True, "Encode rare characters as UTF-8 bytes (256 ids) instead of <unk>."
)
_COVERAGE = flags.DEFINE_float(
    "character_coverage", 0.9995, "Share of the text's characters with their own id.", 0.98, 1
)
_ALLOW_SMALLER = flags.DEFINE_bool(
    "allow_smaller", False, "Accept fewer ids if the text does not support --size."
)


def _check_output(file: Path) -> None:
    """Raises ValueError if the file cannot be written, before training starts."""
    if file.is_dir():
        raise ValueError(
            f"--output={file} is a folder; give a file in it, such as {file / 'v.model'}"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    if not is_bucket(file) and not os.access(file.parent, os.W_OK):
        raise ValueError(
            f"--output={file}: its folder is not writable; fix its permissions or choose another."
        )


def main() -> None:
    """Trains and writes the vocabulary."""
    from xlme_jax import api
    from xlme_jax.data import vocabulary
    from xlme_jax.preparation import vocabulary_text

    if not flags.FLAGS["tasks"].present and not flags.FLAGS.gin_file:
        raise ValueError(
            f"--tasks is missing; name the text to train on: {sources.describe()}, such as "
            "--tasks=cc100,bitext with --cc100_dir and --bitext_dir, or SeqIO tasks."
        )
    _check_output(as_path(_OUTPUT.value))
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


if __name__ == "__main__":
    from xlme_jax.configuration import command_line

    command_line.run_app(main)
