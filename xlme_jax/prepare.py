r"""Turns raw text into a prepared data set: `python -m xlme_jax.prepare`.

The data of a training configuration, made with the flags of `xlme_jax.train`::

    python -m xlme_jax.prepare --gin_file=gin_configs/runs/quickstart.gin --gin.DATA_DIR="'data'"

Without gin, the embedded corpus (it trains its own vocabulary) or files, after
`python -m xlme_jax.train_vocabulary`::

    python -m xlme_jax.prepare --tasks=cldr --languages=en,ru,zh --output=data/cldr
    python -m xlme_jax.prepare --tasks=cc100,bitext --cc100_dir=mono --bitext_dir=pairs \
        --vocabulary=vocabulary.model --output=data/mine --workers=8

Labelled examples to fine-tune on, from the official files of a benchmark::

    python -m xlme_jax.prepare --tasks=xnli --eval_dir=eval --max_length=128 \
        --vocabulary=vocabulary.model --output=data/xnli

Every 20th unit of files becomes the split "validation", and its text is left out of all training
text; `--check_overlap` reports which evaluation texts stand in what is left::

    python -m xlme_jax.prepare --tasks=cc100,bitext --cc100_dir=mono --bitext_dir=multiway \
        --validation=every:20 --check_overlap=eval --vocabulary=vocabulary.model --output=data/mine

Flags on the command line come before those of the gin file. Interrupted, the same command goes on
where it was; where files are damaged or gone, it makes those tasks again. `--runner=DirectRunner`
(or DataflowRunner, FlinkRunner, SparkRunner with their `--runner_options`) does the same work on
Apache Beam. What is on the disk is checked, and nothing made, by::

    python -m xlme_jax.prepare --verify --output=data/mine
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from absl import flags

from xlme_jax import api
from xlme_jax.configuration import source_flags
from xlme_jax.data import prepared
from xlme_jax.data.benchmarks import labelled_rows
from xlme_jax.preparation.config import PrepareConfig

flags.adopt_module_key_flags(source_flags)
flags.DEFINE_string("output", "", "Folder of the prepared data set.")
flags.DEFINE_string(
    "vocabulary", None, "SentencePiece model; cldr alone trains one if none is given."
)
flags.DEFINE_integer("vocabulary_size", 1200, "Largest size of the vocabulary for cldr.", 8)
flags.DEFINE_integer("max_pair_tokens", 510, "Longer pairs are skipped and counted.", 5)
flags.DEFINE_integer(
    "max_length",
    None,
    "Longer labelled examples are cut or split (default: 384 tokens for questions, else 128).",
    8,
)
flags.DEFINE_integer("stride", 128, "Tokens that windows of a question's context share.", 0)
flags.DEFINE_integer("max_document_chars", 100_000, "Longer documents are cut.", 1)
flags.DEFINE_bool(
    "shuffle_pairs", False, "Give training texts partners that do not translate them: a control."
)
flags.DEFINE_integer("workers", 0, "Worker processes; 0 decides by the amount of text.", 0)
flags.DEFINE_string("runner", "", "Apache Beam runner, such as DirectRunner; empty: no Beam.")
flags.DEFINE_list("runner_options", [], "Further Beam options, such as --project=mine.")
flags.DEFINE_string(
    "check_overlap", "", "Folder of evaluation files to look for in the training text."
)
_VERIFY = flags.DEFINE_bool("verify", False, "Only check that the files are as they were written.")


def main(argv: Sequence[str]) -> None:
    """Prepares, or verifies."""
    if len(argv) > 1:
        raise ValueError(f"Unknown argument {argv[1]!r}; flags are written --name=value.")
    config = source_flags.configuration()
    if _VERIFY.value:
        dataset = prepared.PreparedDataset.load(config.output)
        size = dataset.verify()
        print(f"{len(dataset.files())} files, {size / 1e9:.3f} GB, all as written")
    else:
        api.prepare(config, _command(config))


def _command(config: PrepareConfig) -> str:
    """The command that is running, as it can be typed again from the same folder."""
    words = ["python", "-m", "xlme_jax.prepare", *sys.argv[1:]]
    # Folders that came from the environment, which another day may lack.
    if not flags.FLAGS.gin_file:
        for name, folder, used in (
            ("cc100", config.cc100_dir, "cc100" in config.tasks),
            ("bitext", config.bitext_dir, "bitext" in config.tasks),
            ("eval", config.eval_dir, any(map(labelled_rows.find_benchmark, config.tasks))),
        ):
            if used and folder and not flags.FLAGS[f"{name}_dir"].value:
                words.append(f"--{name}_dir={folder}")
    return shlex.join(words)


def run() -> None:
    """Entry point: user errors are one line, without a traceback."""
    from xlme_jax.configuration import command_line

    command_line.run_app(main)


if __name__ == "__main__":
    run()
