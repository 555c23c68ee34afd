r"""Prepares a data set from raw text: `python -m xlme_jax.prepare`.

To prepare the data of a training configuration, pass the gin flags of `xlme_jax.train`::

    python -m xlme_jax.prepare --gin_file=gin_configs/runs/quickstart.gin --gin.DATA_DIR="'data'"

Without gin, name the tasks. The embedded corpus trains its own vocabulary; for files, run
`python -m xlme_jax.train_vocabulary` first::

    python -m xlme_jax.prepare --tasks=cldr --languages=en,ru,zh --output=data/cldr
    python -m xlme_jax.prepare --tasks=cc100,bitext --cc100_dir=mono --bitext_dir=pairs \
        --vocabulary=vocabulary.model --output=data/mine --workers=8

Public corpora are taken as downloaded (docs/guide/own_text.md); `--explain` only prints what each
file was recognised as, or without --dir the list of those that are known::

    python -m xlme_jax.prepare --explain --dir=fineweb-2,nllb
    python -m xlme_jax.prepare --tasks=text --dir=fineweb-2,nllb --languages=en,sw \
        --vocabulary=vocabulary.model --output=data/mine

Labelled examples for fine-tuning come from the official files of a benchmark::

    python -m xlme_jax.prepare --tasks=xnli --eval_dir=eval --max_length=128 \
        --vocabulary=vocabulary.model --output=data/xnli

`--validation` moves units of the files to the split "validation" and removes their text from all
training text; `--check_overlap` reports evaluation texts that occur in the training text, and
`--exclude_overlap` removes the documents and pairs that have them::

    python -m xlme_jax.prepare --tasks=cc100,bitext --cc100_dir=mono --bitext_dir=multiway \
        --validation=every:20 --check_overlap=eval --vocabulary=vocabulary.model --output=data/mine

Pairs may come from several folders and be filtered (docs/guide/own_text.md); `dataset.json`
counts what is skipped, by reason::

    python -m xlme_jax.prepare --tasks=text --dir=ccmatrix,ccaligned --bitext_merge=first \
        --min_score=1.06 --deduplicate --max_length_ratio=3 --min_pairs=50000 \
        --vocabulary=vocabulary.model --output=data/mine

Parquet, Arrow (`save_to_disk`), JSON Lines and CSV files have text in columns
(docs/guide/own_text.md)::

    python -m xlme_jax.prepare --tasks=table,table_pairs --table_dir=wikipedia --text_column=text \
        --table_pairs_dir=opus100 --vocabulary=vocabulary.model --output=data/mine

Less of it, and cleaner (docs/guide/own_text.md)::

    python -m xlme_jax.prepare --tasks=table --table_dir=hplt --shards='10_*' --where='score>=.8' \
        --max_documents=1000000 --near_duplicates=.8 --keep_identified=py3langid \
        --vocabulary=vocabulary.model --output=data/mine

Before that, `--inspect` measures the same text: documents, lines and pairs, lengths, duplicates,
evaluation text (`--check_overlap`), tokens per character (`--vocabulary`) and texts in another
language (`--identify`). It prints a table and writes `inspect.tsv` and `inspect.png` alone::

    python -m xlme_jax.prepare --inspect --tasks=cc100,bitext --cc100_dir=mono --bitext_dir=pairs \
        --output=inspected

Flags on the command line override the gin file. After an interruption, the same command resumes,
and it prepares tasks again whose files are damaged or missing. `--runner=DirectRunner` (or
DataflowRunner, FlinkRunner, SparkRunner with their `--runner_options`) does the same work on Apache
Beam. To check the files of a data set without changing them::

    python -m xlme_jax.prepare --verify --output=data/mine
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from absl import flags

from xlme_jax import api
from xlme_jax.configuration import source_flags, worker_flags
from xlme_jax.data import prepared
from xlme_jax.data.benchmarks import labelled_rows
from xlme_jax.preparation import folder_source, sources
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.preparation.source_types import setting
from xlme_jax.storage.paths import as_path
from xlme_jax.validation import shell

_FIRST_STEPS = 8_500  # About 40 minutes on 2 CPU cores.

flags.adopt_module_key_flags(source_flags)
flags.adopt_module_key_flags(worker_flags)
flags.DEFINE_string("output", "", "Folder of the prepared data set.")
flags.DEFINE_string(
    "vocabulary", None, "SentencePiece model (default: that of the output; cldr alone trains one)."
)
flags.DEFINE_integer("vocabulary_size", 1200, "Largest size of the vocabulary trained for cldr.", 8)
flags.DEFINE_integer("max_pair_tokens", 510, "Longer pairs are skipped and counted.", 5)
flags.DEFINE_integer(
    "max_length",
    None,
    "Longer labelled examples are truncated or split (default: 384 tokens for questions, 128 "
    "otherwise).",
    8,
)
flags.DEFINE_integer(
    "stride", 128, "Tokens shared by neighboring windows of a question's context.", 0
)
flags.DEFINE_integer("max_document_chars", 100_000, "Longer documents are split.", 1)
flags.DEFINE_bool(
    "deduplicate",
    False,
    "Skip a pair of texts that occurs before in any file of its languages, compared as held-out "
    "text is. The files of a pair of languages are then the work of one worker, which keeps 8 "
    "bytes a pair.",
)
flags.DEFINE_float(
    "max_length_ratio",
    None,
    "Skip pairs with a text of more than this many times the tokens of the other, such as 3.",
    1.0,
)
flags.DEFINE_integer(
    "min_pairs",
    0,
    "Drop languages with fewer training pairs than this, over all partners that stay and after the "
    "other filters, from the tasks of pairs.",
    0,
)
flags.DEFINE_bool(
    "shuffle_pairs", False, "Mismatch training pairs, as a control without translations."
)
flags.DEFINE_string(
    "check_overlap",
    "",
    "Folder of evaluation files; reports their texts in the training text. Fails at the end if a "
    "file could not be read.",
)
flags.DEFINE_bool(
    "exclude_overlap",
    False,
    "Remove documents and pairs with text of --check_overlap from training text, and count them.",
)
_INSPECT = flags.DEFINE_bool(
    "inspect", False, "Only measure the text: a table and a picture in the output folder."
)
_INSPECT_TEXTS = flags.DEFINE_integer(
    "inspect_texts",
    200_000,
    "inspect: most documents or pairs to read of a task, evenly from its files.",
    1,
)
_IDENTIFY = flags.DEFINE_bool(
    "identify", False, "inspect: report texts in another language than their file's, by py3langid."
)
_EXPLAIN = flags.DEFINE_bool(
    "explain",
    False,
    "Only print what each file of --dir was recognised as, or which other task may read it; "
    "without --dir, the public distributions that --tasks=text recognises, each with a file of it.",
)
_VERIFY = flags.DEFINE_bool("verify", False, "Only check the files of the data set.")


def main() -> None:
    """Prepares a data set, inspects raw text, or verifies an existing data set."""
    if flags.FLAGS.gin_file:
        from xlme_jax.configuration import loading
        from xlme_jax.huggingface.conversion import as_run

        loading.convert_init_from(as_run)
    # --explain writes nothing, but a configuration must have an output folder.
    fixed = {"output": "."} if _EXPLAIN.value else {}
    config = source_flags.configuration(**fixed)
    if _EXPLAIN.value:
        print("\n".join(folder_source.explain(config)))
    elif _INSPECT.value:
        _inspect(config)
    elif _VERIFY.value:
        dataset = prepared.PreparedDataset.load(config.output)
        size = dataset.verify()
        print(f"{len(dataset.files())} files, {size / 1e9:.3f} GB, all as written")
    else:
        table = api.prepare(config, _command(config))
        if command := _next_command(config.output, table):
            print(f"Next: {command}")


def _next_command(output: str, table: Sequence[prepared.TaskInfo]) -> str:
    """Returns the command that trains on a data set; "" for one that no shipped run fits as it is.

    Args:
      output: folder of the data set.
      table: its tasks.
    """
    if flags.FLAGS.gin_file:
        if flags.FLAGS["output"].present:
            return ""
        given = [word for word in sys.argv[1:] if word.startswith("--gin")]
        return shell.join(["python", "-m", "xlme_jax.train", *given])
    kinds = {(row.kind, row.split) for row in table if row.examples}
    if ("monolingual", "train") not in kinds:
        return ""
    words = ["--gin_file=gin_configs/runs/laptop_xlm.gin", f"--gin.DATA_DIR={output}"]
    words.append(f"--gin.MODEL_DIR=runs/{as_path(output).name}")
    words.append(f"--gin.TRAIN_STEPS={_FIRST_STEPS}")  # Those of docs/guide/own_text.md.
    has_pairs = ("bitext", "train") in kinds
    if not has_pairs:
        words += ["--gin.XLM.translation_pairs=False", "--gin.Train.stop_rules=()"]
    held_out = {kind for kind, split in kinds if split == "validation"}
    if "monolingual" not in held_out or (has_pairs and "bitext" not in held_out):
        words.append("--gin.Train.evaluators=()")
    elif not has_pairs:
        words.append("--gin.Train.evaluators=(@HeldOut(),)")
    return shell.join(["python", "-m", "xlme_jax.train", *words])


def _inspect(config: PrepareConfig) -> None:
    """Measures the raw text; prints a table, and writes it and a picture into the output folder.

    Raises:
      ValueError: at the end, if evaluation files could not be read.
    """
    from xlme_jax.studies.reports import corpora

    contents = api.inspect_text(config, _INSPECT_TEXTS.value, _IDENTIFY.value)
    print(corpora.summary(contents))
    corpora.write(as_path(config.output), contents)
    print(f"{config.output}: {corpora.TABLE}, {corpora.PICTURE}", file=sys.stderr)
    if any(content.unread for content in contents):
        raise ValueError(
            f"{config.check_overlap}: some evaluation files could not be read (see above), so "
            "their overlap is unknown; convert them to files of lines, or move them elsewhere"
        )


def _command(config: PrepareConfig) -> str:
    """Returns the running command, such that it can be run again from the same folder."""
    words = ["python", "-m", "xlme_jax.prepare", *sys.argv[1:]]
    # Folders may come from environment variables, which may be unset later: add them as flags.
    if not flags.FLAGS.gin_file:
        folders = [(s.option, setting(config, s.option)) for s in sources.chosen(config)]
        if any(map(labelled_rows.find_benchmark, config.tasks)):
            folders.append(("eval_dir", config.eval_dir))
        words += [
            f"--{option}={folder}"
            for option, folder in folders
            if folder and not flags.FLAGS[option].value
        ]
    return shell.join(words)


if __name__ == "__main__":
    from xlme_jax.configuration import command_line

    command_line.run_app(main)
