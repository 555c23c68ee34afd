"""Preparing a data set: what is asked for, what is done already, and who does the rest.

`prepare` turns every SeqIO task into shards of token ids, once. It is written to be interrupted: a
finished task is recognised by a fingerprint of all that its shards depend on (source files,
vocabulary, settings) and kept if its files are as they were written; `dataset.json`, which makes a
folder a data set, comes last. So the same command continues what was interrupted, and repairs what
was damaged.

This module holds the settings, the bookkeeping and the pool of worker processes; what these do is
in `encoding`. Neither imports TensorFlow. What touches SeqIO is in `tasks.execution` (which tasks
there are, and running those that are not ours) and `tasks.beam` (the same work on any Apache Beam
runner).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import itertools
import json
import logging
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from xlme_jax.data import cldr, encoding, held_out, overlap, prepared, prepared_format
from xlme_jax.data import workers as worker_pool
from xlme_jax.data.encoding import Job, Unit
from xlme_jax.data.prepared_format import unseal
from xlme_jax.data.prepared_writer import replace_file
from xlme_jax.data.text import DEFAULT_MAX_DOCUMENT_CHARS, DataError, ReadReport
from xlme_jax.data.vocabulary import (
    Vocabulary,
    VocabularyError,
    train_vocabulary,
)
from xlme_jax.sealing import seal

# Below this much (compressed) text a second process costs more to start than it saves.
_BYTES_WORTH_A_WORKER = 2 << 20
_LOCK_FILE = ".prepare.lock"
HELD_OUT_FILE = "held-out.npz"
OVERLAP_FILE = "overlap.json"


@dataclasses.dataclass(frozen=True)
class CldrCorpus:
    """How much text to generate for the embedded corpus.

    Attributes:
      config: Languages and kinds of phrases.
      documents: Training documents per language.
      pairs: Training pairs per language pair.
      validation_documents: Held-out documents per language.
      validation_pairs: Held-out pairs per language pair.
      phrases_per_document: Lines of a document.
    """

    config: cldr.CldrConfig
    documents: int = 2000
    pairs: int = 10_000
    validation_documents: int = 0
    validation_pairs: int = 1000
    phrases_per_document: int = 16

    def documents_per_split(self) -> dict[str, int]:
        """Documents of each language by split."""
        return {"train": self.documents, "validation": self.validation_documents}

    def pairs_per_split(self) -> dict[str, int]:
        """Pairs of each language pair by split."""
        return {"train": self.pairs, "validation": self.validation_pairs}


@dataclasses.dataclass(frozen=True)
class PrepareConfig:
    """What `prepare` makes.

    Attributes:
      output: Folder of the prepared data set.
      tasks: "cldr", "cc100", "bitext", "tfds", tasks of a benchmark ("xnli", see
        `tasks.labelled`), or the names of any registered SeqIO tasks or mixtures.
      vocabulary: SentencePiece model. None: that of `output`, or for `cldr` alone one trained on
        its phrases.
      vocabulary_size: Largest size of the vocabulary trained for `cldr`.
      cldr: The embedded corpus.
      cc100_dir: Folder of `<lang>.txt.xz` files.
      bitext_dir: Folder of pair files.
      languages: Keep to these languages; empty: all found.
      pairs: Keep to these pairs ("en-sw"); empty: all found.
      pivot: Keep to pairs with this language ("en": English-centric).
      tfds: TFDS data sets, "wiki40b/th:1.3.0=th" or "para_crawl/ende:1.2.0=en-de"; see
        `tasks.tfds`.
      modules: Python modules that register further SeqIO tasks.
      eval_dir: Folder with a folder for each benchmark.
      max_length: Longer labelled examples are cut, or split (`featurize`). None: 384 tokens for
        questions, 128 for others.
      stride: Tokens that neighbouring windows of a question's context share.
      max_document_chars: Longer documents are cut.
      max_pair_tokens: Longer pairs (`<s> e </s> f </s>`) are skipped and counted.
      tsv_columns: Columns of TSV pair files, from 0, with text in the first and second language of
        the file's name. None: the first two, which must not be numbers.
      shuffle_pairs: Give training texts partners that do not translate them: a control.
      validation: What of `cc100` and `bitext` forms the split "validation", and is left out of all
        training text: "every:20", "count:1000", "ids:FILE" or "folder:PATH", see `held_out`. Empty:
        nothing.
      check_overlap: Folder of evaluation files; what of them stands in the training text is
        reported and written to `overlap.json`. Empty: no report.
      workers: Processes; 0 decides by the amount of text and the cores.
      runner: Apache Beam runner ("DirectRunner", "DataflowRunner", ...); empty: no Beam.
      runner_options: Further Beam options, as on the command line ("--project=...").
    """

    output: str
    tasks: tuple[str, ...] = ("cldr",)
    vocabulary: str | None = None
    vocabulary_size: int = 1200
    cldr: CldrCorpus | None = None
    cc100_dir: str | None = None
    bitext_dir: str | None = None
    languages: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    pivot: str | None = None
    tfds: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    eval_dir: str | None = None
    max_length: int | None = None
    stride: int = 128
    max_document_chars: int = DEFAULT_MAX_DOCUMENT_CHARS
    max_pair_tokens: int = 510
    tsv_columns: tuple[int, int] | None = None
    shuffle_pairs: bool = False
    validation: str = ""
    check_overlap: str = ""
    workers: int = 0
    runner: str = ""
    runner_options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("tasks", "languages", "pairs", "tfds", "modules", "runner_options"):
            value = getattr(self, field)
            if isinstance(value, str):
                raise ValueError(
                    f"prepare: `{field}` is {value!r}; give a list, such as ({value!r},)"
                )
            object.__setattr__(self, field, tuple(value))
        if not self.output:
            raise ValueError("prepare: `output` is empty; give the folder of the prepared data set")
        if not self.tasks:
            raise ValueError(
                "prepare: `tasks` is empty; name at least one of cldr, cc100, bitext, tfds, or a "
                "benchmark such as xnli"
            )
        if "cldr" in self.tasks and self.cldr is None:
            raise ValueError(
                "prepare: task `cldr` needs the field `cldr`, a CldrCorpus (its languages)"
            )
        if self.tsv_columns is not None:
            object.__setattr__(self, "tsv_columns", _columns(self.tsv_columns))
        if self.validation:
            held_out.check_tasks(self.validation, self.tasks)
        if self.workers < 0:
            raise ValueError(f"prepare: `workers` is {self.workers}; give 0 (automatic) or more")


def _columns(value: Any) -> tuple[int, int]:
    try:
        one, two = (int(column) for column in value)
    except (TypeError, ValueError):
        one = two = -1
    if one == two or min(one, two) < 0:
        raise ValueError(
            f"prepare: `tsv_columns` is {value!r}; give two different columns counted from 0, such "
            "as 1,2"
        )
    return one, two


Rows = list[prepared.TaskInfo]


def prepare(config: PrepareConfig, command: str = "") -> list[prepared.TaskInfo]:
    """Makes, completes or repairs the prepared data set of `config.output`.

    Args:
      config: What to prepare.
      command: The command line that does this, written into the data set.

    Returns:
      The row of every task and split, as written to `dataset.json`.

    Raises:
      ValueError: If something is missing, unreadable or empty; names it and the remedy.
    """
    import_tasks()
    from tasks import execution

    output = Path(config.output)
    vocabulary = resolve_vocabulary(config)
    model = output / prepared_format.VOCABULARY_FILE
    jobs = execution.list_jobs(config, str(model), vocabulary.digest)
    with _alone(output):
        _check_same_vocabulary(output, vocabulary)
        replace_file(model, vocabulary.model)
        shutil.rmtree(output / ".parts", ignore_errors=True)  # of a run that was killed
        rows = _finished(output, jobs)
        pending = [job for job in jobs if job not in rows]
        _say(
            f"{output}: {len(jobs)} tasks, {len(rows)} of them done already, {vocabulary.size:,} "
            "ids"
        )
        _retire(output, jobs, pending)
        rows |= _run(config, str(model), pending)
        table = [rows[job] for job in jobs if rows[job].examples]
        if len(table) < len(jobs):
            _say_empty([job for job in jobs if not rows[job].examples])
        prepared.write_dataset(output, table, model, vocabulary.size, command)
        _write_settings(config, command)
        if config.check_overlap:
            _report_overlap(config, jobs)
        shutil.rmtree(output / ".parts", ignore_errors=True)
    _summarize(table)
    return table


@contextlib.contextmanager
def _alone(output: Path) -> Iterator[None]:
    """Keeps other preparations away from a folder; waits until the one there has ended.

    The system lets go of the lock when its process ends, however that happens.
    """
    output.mkdir(parents=True, exist_ok=True)
    with (output / _LOCK_FILE).open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"{output}: another process is preparing it. Waiting for that to end.")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            _say(f"{output}: no locks here ({error.strerror}). Never prepare it twice at a time.")
        yield


def settings(config: PrepareConfig) -> dict[str, Any]:
    """Returns what of a configuration decides the content of the data set, ready for JSON."""
    content = dataclasses.asdict(config)
    for how in ("output", "check_overlap", "workers", "runner", "runner_options"):
        del content[how]
    # Data sets that were made before these fields existed are what they are without them.
    for field in ("tsv_columns", "shuffle_pairs", "validation"):
        if not content[field]:
            del content[field]
    return json.loads(json.dumps(content))


def is_prepared(config: PrepareConfig) -> bool:
    """Whether `config.output` is complete and of the same settings; reads two small files.

    False too where these are damaged or another file is gone: `prepare` then repairs it.
    """
    output = Path(config.output)
    try:
        written = unseal((output / prepared_format.SETTINGS_FILE).read_bytes())
        prepared.PreparedDataset.load(output)
    except (OSError, ValueError):
        return False
    return written.get("settings") == settings(config)


def _write_settings(config: PrepareConfig, command: str) -> None:
    content = {
        "format": prepared_format.FORMAT,
        "settings": settings(config),
        "command": command,
    }
    replace_file(Path(config.output) / prepared_format.SETTINGS_FILE, seal(content))


def resolve_vocabulary(config: PrepareConfig) -> Vocabulary:
    """Returns the vocabulary that a configuration means; for the embedded corpus it may train one.

    Raises:
      VocabularyError: If none is given where one is needed.
    """
    if config.vocabulary:
        return Vocabulary.load(config.vocabulary)
    if config.tasks == ("cldr",):
        assert config.cldr is not None, "PrepareConfig asks for it"
        return train_cldr_vocabulary(config.cldr, config.vocabulary_size)
    existing = Path(config.output) / prepared_format.VOCABULARY_FILE
    if existing.is_file():
        return Vocabulary.load(existing)
    raise VocabularyError(
        f"prepare: no vocabulary given for the tasks {', '.join(config.tasks)}. Train one first: "
        f"`python -m xlme_jax.train_vocabulary --tasks={','.join(config.tasks)} --size=16000 "
        "--output=vocabulary.model ...`, then pass --vocabulary=vocabulary.model."
    )


def train_cldr_vocabulary(corpus: CldrCorpus, size: int) -> Vocabulary:
    """Trains the small vocabulary of the embedded corpus, on phrases of its training split.

    Every character of this closed corpus gets a piece, without byte fallback (see
    `xlme_jax.data.vocabulary.train_vocabulary`).

    Args:
      corpus: The corpus.
      size: Largest number of ids.

    Returns:
      The vocabulary; smaller than `size` if there are too few different words.
    """
    texts = itertools.chain.from_iterable(
        cldr.documents(corpus.config, language, "train", count=500)
        for language in corpus.config.languages
    )
    return train_vocabulary(
        texts, size, byte_fallback=False, character_coverage=1.0, allow_smaller=True
    )


# --- Held-out data. ---


def held_out_in(config: PrepareConfig) -> held_out.HeldOut | None:
    """What is held out, as `write_held_out` has written it; None if nothing is."""
    if not config.validation:
        return None
    file = os.path.join(config.output, HELD_OUT_FILE)
    return held_out.HeldOut(config.validation, file, tsv_columns=config.tsv_columns)


def find_corpora(config: PrepareConfig) -> held_out.Corpora:
    """Lists the files of which a part is held out; reads no text.

    Raises:
      DataError: A folder or a language is missing.
    """
    return held_out.find_corpora(
        config.cc100_dir if "cc100" in config.tasks else None,
        config.bitext_dir if "bitext" in config.tasks else None,
        config.languages,
        config.pairs,
        config.pivot,
        config.max_document_chars,
        config.tsv_columns,
    )


def write_held_out(config: PrepareConfig) -> None:
    """Makes the file of held-out texts, unless it is there and of the same files."""
    held = held_out_in(config)
    if held is None:
        return
    corpora, rule = find_corpora(config), held.rule
    names, files = list(corpora.names()), corpora.files()
    if rule.kind == "ids":
        files.append(Path(rule.path))
    elif rule.kind == "folder":
        others = held.folder()
        names += others.names()
        files += others.files()
    for file in files:
        if not file.is_file():
            raise DataError(f"prepare: `validation` is {config.validation!r}: no file {file}")
    if held_out.write(dataclasses.replace(held, corpora=corpora), fingerprint(names, files)):
        _say(f"{held.file}: the texts that {config.validation} holds out")


def _say_empty(jobs: Sequence[Job]) -> None:
    """Says which tasks and splits are no part of the data set, since there is nothing in them."""
    for split, why in (
        ("train", "Left out, since their files have no unit in common"),
        (held_out.VALIDATION, "Without a held-out unit"),
    ):
        if names := sorted({job.name for job in jobs if job.split == split}):
            _say(f"{why}: {', '.join(names)}")


# --- Overlap with evaluation text. ---


def _report_overlap(config: PrepareConfig, jobs: Sequence[Job]) -> None:
    """Says and writes which evaluation texts stand in the training text of which task."""
    evaluation = overlap.evaluation_digests(config.check_overlap)
    tasks = [job for job in jobs if job.split == "train" and job.kind != "labelled"]
    with worker_pool.open_bar(desc="overlap", unit="task", total=len(tasks), delay=5) as bar:
        found = overlap.find(evaluation, _training_text(tasks, bar.update))
    content = json.dumps({"folder": config.check_overlap, **found.to_json()}, indent=1) + "\n"
    replace_file(Path(config.output) / OVERLAP_FILE, content.encode())
    for line in found.lines():
        _say(line)


def _training_text(
    jobs: Iterable[Job], done: Callable[[], object]
) -> Iterator[tuple[str, Iterable[tuple[str, ...]]]]:
    """Yields a task and its examples, for each source shard of each job."""
    from tasks import execution

    for job in jobs:
        if not job.reads:
            yield job.name, execution.read_raw_text(job.name)
        for read in job.reads:
            yield job.name, read(ReadReport())
        done()


# --- Bookkeeping: what is done, and what it depended on. ---


def fingerprint(parts: Iterable[object], files: Iterable[Path]) -> str:
    """Returns a digest of settings and of the files' paths, sizes and modification times.

    Times instead of contents: hashing CC-100 would take hours, and a file touched in vain costs one
    task.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{part!r}\n".encode())
    for file in files:
        status = file.stat()
        digest.update(f"{file.name}\t{status.st_size}\t{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _finished(output: Path, jobs: Sequence[Job]) -> dict[Job, prepared.TaskInfo]:
    """The rows of the jobs that need not be done, in the order of the jobs."""

    def row_of(job: Job) -> prepared.TaskInfo | None:
        try:
            row = prepared.finished_task(output, job.name, job.split, job.fingerprint)
        except prepared.PreparedDataError as error:
            _say(f"Task {job.name} ({job.split}) is made again: {error}")
            return None
        return row if row and (row.examples or job.may_be_empty) else None

    rows = {}
    # In threads and with a bar, because all that is there is read. Short checks show no bar.
    with (
        concurrent.futures.ThreadPoolExecutor(min(os.cpu_count() or 1, 16)) as pool,
        worker_pool.open_bar(desc="check", unit="task", total=len(jobs), delay=5) as bar,
    ):
        for job, row in zip(jobs, pool.map(row_of, jobs)):
            bar.update()
            if row:
                rows[job] = row
    return rows


def _complete(output: Path, job: Job, parts: Rows) -> prepared.TaskInfo:
    """Joins the parts of a job; only then it counts as finished, and never if it is empty."""
    row = prepared.merge_parts(output, parts)
    if not row.examples and not job.may_be_empty:
        why = (
            ", ".join(f"{n} skipped: {reason}" for reason, n in row.skipped.items())
            or "the files are empty"
        )
        raise DataError(
            f"prepare: task {job.name} ({'-'.join(job.languages)}, {job.split}) has no text "
            f"({why}). Its source: {', '.join(job.shards)}. Repair or remove it, or leave it out "
            "with --languages or --pairs."
        )
    return row


def _check_same_vocabulary(output: Path, vocabulary: Vocabulary) -> None:
    """VocabularyError if a folder holds data of another vocabulary."""
    file = output / prepared_format.VOCABULARY_FILE
    try:
        # Not from the model's file: that may be what is damaged, and is written again.
        old = unseal((output / prepared_format.DATASET_FILE).read_bytes())["vocabulary"]
        size, digest = old["size"], str(old["sha256"])
    except (OSError, ValueError, KeyError):
        try:
            model = Vocabulary.load(file)
        except VocabularyError:
            return
        size, digest = model.size, model.digest
    if digest != vocabulary.digest:
        if vocabulary.path == os.fspath(file):
            raise VocabularyError(
                f"prepare: {file} is not what was written (SHA-256 differs). Give the model that "
                "it was copied from with --vocabulary."
            )
        raise VocabularyError(
            f"prepare: {output} holds data of another vocabulary ({size} ids, sha256 "
            f"{digest[:12]}) than the one now asked for ({vocabulary.size} ids, sha256 "
            f"{vocabulary.digest[:12]}). Choose another output folder, or delete this one."
        )


def _retire(output: Path, jobs: Sequence[Job], pending: Sequence[Job]) -> None:
    """Says which tasks leave an earlier data set; ends its validity if shards will change."""
    file = output / prepared_format.DATASET_FILE
    try:
        before = {(r["name"], r["split"]) for r in unseal(file.read_bytes())["tasks"]}
    except (OSError, ValueError, KeyError):
        return
    dropped = sorted({name for name, _ in before - {(job.name, job.split) for job in jobs}})
    if dropped:
        _say(f"This command does not name {', '.join(dropped)}: no longer part of the data set.")
    if before & {(job.name, job.split) for job in pending}:
        file.unlink()


# --- Running what is left. ---


def _run(config: PrepareConfig, model: str, jobs: Sequence[Job]) -> dict[Job, prepared.TaskInfo]:
    output = Path(config.output)
    if not jobs:
        return {}
    workers = _worker_count(config, jobs)
    number = sum(len(job.shards) for job in jobs)
    threads = max(1, workers // number)
    # The longest first, so that no worker is left alone with it at the end.
    ordered = sorted(jobs, key=lambda job: (-job.bytes, job.name, job.split))
    units = [Unit(job, i, threads) for job in ordered for i in range(len(job.shards))]
    if config.runner:
        from tasks import beam

        results = beam.run(config, model, units)
    else:
        work = functools.partial(encoding.run_unit, config, model)
        # TensorFlow takes a worker seconds and half a gigabyte, which most have no use for.
        start = None if all(job.reads for job in jobs) else import_tasks
        results = worker_pool.run(work, units, workers, start)
    parts: dict[Job, dict[int, Rows]] = {job: {} for job in jobs}
    rows = {}
    for unit, unit_parts in results:
        parts[unit.job][unit.shard] = unit_parts
        if len(parts[unit.job]) == len(unit.job.shards):
            joined = [row for _, part in sorted(parts.pop(unit.job).items()) for row in part]
            rows[unit.job] = _complete(output, unit.job, joined)
    return rows


def _worker_count(config: PrepareConfig, jobs: Sequence[Job]) -> int:
    if config.workers:
        return config.workers
    return max(1, min(os.cpu_count() or 1, sum(job.bytes for job in jobs) // _BYTES_WORTH_A_WORKER))


def import_tasks() -> None:
    """Imports `tasks`; keeps TensorFlow off accelerators and its messages off the screen."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    logging.getLogger("absl").setLevel(logging.WARNING)
    with _muted():
        import tensorflow as tf

        import tasks  # noqa: F401
    # RuntimeError: the caller has used TensorFlow before, and keeps what it chose then.
    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")


@contextlib.contextmanager
def _muted() -> Iterator[None]:
    """Holds back what C++ writes to stderr; shows it if an exception ends the block."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(kept, held.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


# --- What a person sees. ---


def _summarize(table: Sequence[prepared.TaskInfo]) -> None:
    for kind in prepared_format.KINDS:
        rows = [row for row in table if row.kind == kind]
        if rows:
            examples, tokens = sum(r.examples for r in rows), sum(r.tokens for r in rows)
            _say(f"{kind}: {len(rows)} tasks, {examples:,} texts, {tokens:,} tokens")
    for row in table:
        if row.skipped:
            why = ", ".join(f"{n:,} {reason}" for reason, n in Counter(row.skipped).most_common())
            _say(f"skipped in {row.name} ({row.split}): {why}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
