"""Turns raw text into a prepared data set: `python -m xlme_jax.prepare --help`.

The embedded corpus, which also trains its vocabulary::

    python -m xlme_jax.prepare --tasks=cldr --languages=en,ru,zh --output=data/cldr

CC-100 files and pair files, after `python -m xlme_jax.train_vocabulary`::

    python -m xlme_jax.prepare --tasks=cc100,bitext --cc100_dir=mono --bitext_dir=pairs \
        --vocabulary=vocabulary.model --output=data/mine --workers=8

Interrupted, it goes on where it was when the same command is run again. `--runner=...` runs it on Apache Beam.
"""

from __future__ import annotations

import os
import sys

from absl import app, flags, logging

from xlme_jax.data import cldr
from xlme_jax.data.preparation import CldrCorpus, PrepareConfig

_OUTPUT = flags.DEFINE_string("output", None, "Folder of the prepared data set.")
_TASKS = flags.DEFINE_list(
    "tasks", ["cldr"], "cldr, cc100, bitext, tfds, or SeqIO tasks and mixtures by name."
)
_VOCABULARY = flags.DEFINE_string(
    "vocabulary", None, "SentencePiece model; `cldr` trains one if none is given."
)
_VOCABULARY_SIZE = flags.DEFINE_integer(
    "vocabulary_size", 1200, "Largest size of the vocabulary for cldr.", 8
)
_CC100_DIR = flags.DEFINE_string(
    "cc100_dir", os.environ.get("CC100_DIR"), "Folder of <lang>.txt.xz files."
)
_BITEXT_DIR = flags.DEFINE_string(
    "bitext_dir", os.environ.get("BITEXT_DIR"), "Folder of pair files."
)
_LANGUAGES = flags.DEFINE_list(
    "languages", [], "Keep to these languages (default: all; cldr: en,ru,zh)."
)
_PAIRS = flags.DEFINE_list("pairs", [], "Keep to these pairs, such as en-sw (default: all).")
_PIVOT = flags.DEFINE_string("pivot", None, "Keep to pairs with this language, such as en.")
_TFDS = flags.DEFINE_list(
    "tfds", [], "TFDS data sets, such as wiki40b/sw=sw or para_crawl/ende=en-de."
)
_MODULES = flags.DEFINE_list("modules", [], "Python modules that register further SeqIO tasks.")
_KINDS = flags.DEFINE_list("cldr_kinds", list(cldr.KINDS), "Kinds of cldr phrases.")
_DOCUMENTS = flags.DEFINE_integer(
    "cldr_documents", 2000, "Training documents per cldr language.", 0
)
_CLDR_PAIRS = flags.DEFINE_integer(
    "cldr_pairs", 10_000, "Training pairs per cldr language pair.", 0
)
_VALIDATION = flags.DEFINE_integer(
    "cldr_validation_pairs", 1000, "Held-out pairs per cldr language pair.", 0
)
_MAX_PAIR = flags.DEFINE_integer("max_pair_tokens", 510, "Longer pairs are skipped and counted.", 5)
_MAX_DOCUMENT = flags.DEFINE_integer("max_document_chars", 100_000, "Longer documents are cut.", 1)
_WORKERS = flags.DEFINE_integer("workers", 0, "Worker processes; 0 decides by itself.", 0)
_RUNNER = flags.DEFINE_string(
    "runner", "", "Apache Beam runner, such as DirectRunner or DataflowRunner."
)
_RUNNER_OPTIONS = flags.DEFINE_list(
    "runner_options", [], "Further Beam options, such as --project=mine."
)


def config_from_flags() -> PrepareConfig:
    """Builds the configuration that the plain flags describe.

    Raises:
      ValueError: If a value makes no sense.
    """
    corpus = None
    if "cldr" in _TASKS.value:
        corpus = CldrCorpus(
            cldr.CldrConfig(
                tuple(_LANGUAGES.value) or ("en", "ru", "zh"), kinds=tuple(_KINDS.value)
            ),
            documents=_DOCUMENTS.value,
            pairs=_CLDR_PAIRS.value,
            validation_pairs=_VALIDATION.value,
        )
    return PrepareConfig(
        output=_OUTPUT.value or "",
        tasks=tuple(_TASKS.value),
        vocabulary=_VOCABULARY.value,
        vocabulary_size=_VOCABULARY_SIZE.value,
        cldr=corpus,
        cc100_dir=_CC100_DIR.value,
        bitext_dir=_BITEXT_DIR.value,
        languages=tuple(_LANGUAGES.value),
        pairs=tuple(_PAIRS.value),
        pivot=_PIVOT.value,
        tfds=tuple(_TFDS.value),
        modules=tuple(_MODULES.value),
        max_document_chars=_MAX_DOCUMENT.value,
        max_pair_tokens=_MAX_PAIR.value,
        workers=_WORKERS.value,
        runner=_RUNNER.value,
        runner_options=tuple(_RUNNER_OPTIONS.value),
    )


def import_quietly() -> None:
    """Imports TensorFlow on the CPU only, without its start-up messages; worker processes inherit the settings."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    logging.set_verbosity(logging.WARNING)


def main(argv: list[str]) -> int:
    """Prepares; errors in the input are said in a line, without a traceback."""
    from xlme_jax.data import preparation

    import_quietly()
    try:
        if len(argv) > 1:
            raise ValueError(
                f"prepare: unexpected argument {argv[1]!r}; write flags as --name=value"
            )
        preparation.prepare(config_from_flags())
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    app.run(main)
