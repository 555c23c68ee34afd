"""Prepares a data set: finds the tasks, skips finished ones and runs the others in workers.

`prepare` converts every task into shards of token ids. It may be interrupted at any time. A
fingerprint of everything that the shards of a task depend on (source files, vocabulary, settings)
identifies a finished task, which is kept if its files are intact. `dataset.json`, which makes the
folder a data set, is written last. So the same command resumes an interrupted run and repairs
damaged files.

Worker processes and the workers of any Apache Beam runner (`beam_parts`) run `tokenizing`.
TensorFlow is imported only if `sources.needs_seqio` is true.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from xlme_jax.data import cldr, prepared
from xlme_jax.data.prepared import format as prepared_format
from xlme_jax.data.prepared.finished import record_tasks, recorded_tasks, remove_unused
from xlme_jax.data.prepared.format import unseal_rows
from xlme_jax.data.prepared.shared import share
from xlme_jax.data.prepared.writer import merge_parts, write_dataset
from xlme_jax.data.text import held_out
from xlme_jax.data.text.reading import DataError, ReadReport
from xlme_jax.data.vocabulary import (
    Vocabulary,
    VocabularyError,
    train_vocabulary,
)
from xlme_jax.preparation import (
    data_card,
    dropping,
    evaluation_index,
    evaluation_overlap,
    first_records,
    sources,
    tokenizing,
)
from xlme_jax.preparation import workers as worker_pool
from xlme_jax.preparation.evaluation_overlap import EvaluationDigests
from xlme_jax.preparation.jobs import list_jobs
from xlme_jax.preparation.prepare_config import (
    CldrCorpus,
    PrepareConfig,
    settings,
    write_settings,
)
from xlme_jax.preparation.tokenizing import Job, Unit
from xlme_jax.storage import locks
from xlme_jax.storage.files import remove_folder, remove_partial, replace_file
from xlme_jax.storage.paths import as_path

# With less (compressed) text per worker, starting another process costs more than it saves.
_BYTES_WORTH_A_WORKER = 2 << 20
LOCK_FILE = ".prepare.lock"
OVERLAP_FILE = "overlap.json"
_log = logging.getLogger(__name__)


Rows = list[prepared.TaskInfo]


def prepare(
    config: PrepareConfig, load_seqio: Callable[[], sources.SeqioTasks], command: str = ""
) -> list[prepared.TaskInfo]:
    """Creates, completes or repairs the prepared data set in `config.output`.

    Args:
      config: The configuration.
      load_seqio: Function that imports and returns `tasks.as_source`; called here and in workers if
        a task needs SeqIO.
      command: Command line, recorded in the data set.

    Returns:
      The row of every task and split, as written to `dataset.json`.

    Raises:
      ValueError: A setting is invalid, or a file is missing, unreadable or empty. The message says
        which one, and what to do.
    """
    sources.check(config)
    output = as_path(config.output)
    vocabulary = resolve_vocabulary(config)
    model = output / prepared_format.VOCABULARY_FILE
    evaluation = None
    evaluation_digest = ""
    if config.check_overlap:
        evaluation = evaluation_overlap.evaluation_digests(config.check_overlap)
        evaluation_digest = _write_evaluation_text(config, evaluation)
    jobs = list_jobs(config, vocabulary.digest, load_seqio, evaluation_digest)
    output.mkdir(parents=True, exist_ok=True)
    waiting = f"{output}: another process is preparing it. Waiting for it to finish."
    with locks.hold(output / LOCK_FILE, lambda: _log.info(waiting)):
        _check_same_vocabulary(output, vocabulary)
        # Files and parts that a killed run left.
        remove_partial(output)
        remove_folder(output / prepared_format.PARTS_FOLDER)
        replace_file(model, vocabulary.model)
        rows = _finished(output, jobs)
        pending = [job for job in jobs if job not in rows]
        _log.info(
            f"{output}: {len(jobs)} part{'s' * (len(jobs) != 1)}, {len(rows)} finished before, "
            f"{vocabulary.size:,} ids in the vocabulary. A part is a language or a pair of "
            "languages of one source, or its held-out text."
        )
        _retire_earlier(output, jobs, pending, _changed_settings(config))
        rows |= _run(config, load_seqio, str(model), pending)
        empty = [job for job in jobs if not rows[job].examples]
        _log_empty([job for job in empty if not dropping.is_filtered(config, rows[job])])
        shared = share(output, [rows[job] for job in jobs])
        record_tasks(output, shared)
        table, dropped = dropping.drop(config, shared)
        dropped += dropping.unread_files(jobs, rows)
        # Removed before `dataset.json` is written, so that a card never describes another data set.
        (output / prepared_format.DATA_CARD_FILE).unlink(missing_ok=True)
        write_dataset(output, table, model, vocabulary.size, command, dropped)
        remove_unused(output, shared)
        data_card.write(output, jobs)
        write_settings(config, command)
        problem = _report_overlap(config, evaluation, jobs) if evaluation else ""
        remove_folder(output / prepared_format.PARTS_FOLDER)
    _summarize(table)
    for line in dropping.summary_lines(dropped):
        _log.info(line)
    if sentence := first_records.unchecked(job.languages for job in jobs if job.has_columns):
        _log.warning("%s", sentence)
    if problem:
        raise DataError(f"{output}: the data set is complete, but {problem}")
    return table


def resolve_vocabulary(config: PrepareConfig) -> Vocabulary:
    """Returns the vocabulary of a configuration; trains one for the embedded corpus if necessary.

    Raises:
      VocabularyError: No vocabulary is given although the tasks need one.
    """
    if config.vocabulary:
        return Vocabulary.load(config.vocabulary)
    if config.tasks == ("cldr",):
        assert config.cldr is not None, "PrepareConfig checks this"
        return train_cldr_vocabulary(config.cldr, config.vocabulary_size)
    existing = as_path(config.output) / prepared_format.VOCABULARY_FILE
    if existing.is_file():
        return Vocabulary.load(existing)
    raise VocabularyError(
        f"prepare: no vocabulary given for the tasks {', '.join(config.tasks)}. Train one first: "
        f"`python -m xlme_jax.train_vocabulary --tasks={','.join(config.tasks)} --size=16000 "
        "--output=vocabulary.model ...`, then pass --vocabulary=vocabulary.model."
    )


def train_cldr_vocabulary(corpus: CldrCorpus, size: int) -> Vocabulary:
    """Trains a small vocabulary on phrases of the embedded corpus's training split.

    Every character of this closed corpus gets a piece, without byte fallback (see
    `xlme_jax.data.vocabulary.train_vocabulary`).

    Args:
      corpus: The corpus.
      size: Largest number of ids.

    Returns:
      The vocabulary; smaller than `size` if there are too few distinct words.
    """
    texts = itertools.chain.from_iterable(
        cldr.documents(corpus.config, language, "train", count=500)
        for language in corpus.config.languages
    )
    return train_vocabulary(
        texts, size, byte_fallback=False, character_coverage=1.0, allow_smaller=True
    )


def _log_empty(jobs: Sequence[Job]) -> None:
    """Logs the names of tasks and splits that are omitted because they are empty."""
    for split, why in (
        ("train", "Skipped tasks, whose files have no unit in common"),
        (held_out.VALIDATION, "Tasks without held-out units"),
    ):
        if names := sorted({job.name for job in jobs if job.split == split}):
            _log.info(f"{why}: {', '.join(names)}")


# --- Overlap with evaluation text ---


def _write_evaluation_text(config: PrepareConfig, evaluation: EvaluationDigests) -> str:
    """Writes the evaluation text that workers remove from training text, with `exclude_overlap`.

    Returns:
      Digest of the evaluation text; "" without `exclude_overlap`, where no file is written.

    Raises:
      DataError: An evaluation file could not be read, so that its text would not be removed.
    """
    if not config.exclude_overlap:
        return ""
    if problem := evaluation.problem():
        raise DataError(f"prepare: `exclude_overlap` is set, but {problem}")
    index = evaluation.index()
    index.write(evaluation_index.file_of(config.output))
    return index.digest()


def _report_overlap(
    config: PrepareConfig, evaluation: EvaluationDigests, jobs: Sequence[Job]
) -> str:
    """Logs and writes which evaluation texts occur in the training text of which task.

    The training text is compared as it was before `exclude_overlap` removed documents and pairs.

    Returns:
      An error if not all evaluation files could be read, else "".
    """
    training = [job for job in jobs if job.split == "train" and job.kind != "labelled"]
    with worker_pool.open_bar(desc="overlap", unit="task", total=len(training), delay=5) as bar:
        overlaps = evaluation_overlap.count_overlap(
            evaluation, _training_text(training, bar.update)
        )
    report = {"folder": config.check_overlap, "excluded": config.exclude_overlap}
    content = json.dumps({**report, **overlaps.to_json()}, indent=1) + "\n"
    replace_file(as_path(config.output) / OVERLAP_FILE, content.encode())
    lines = evaluation.origins(), overlaps.lines(), evaluation.warnings()
    for line in itertools.chain.from_iterable(lines):
        _log.info(line)
    return evaluation.problem()


def _training_text(
    jobs: Iterable[Job], done: Callable[[], object]
) -> Iterator[tuple[str, Iterable[tuple[str, ...]]]]:
    """Yields (name of the task, examples) of each source shard of each job.

    Args:
      jobs: Jobs of training text.
      done: Function that is called after each job.
    """
    for job in jobs:
        for read in job.reads:
            yield job.name, read(ReadReport())
        done()


# --- Finished tasks ---


def _finished(output: Path, jobs: Sequence[Job]) -> dict[Job, prepared.TaskInfo]:
    """Returns {finished job: its row} of the jobs whose files are intact, in order.

    Logs why jobs with damaged files are prepared again.
    """
    fingerprints = {(job.name, job.split): job.fingerprint for job in jobs}
    rows, problems = recorded_tasks(output, fingerprints)
    for problem in problems:
        _log.info(f"Tasks that no other file lists are prepared again: {problem}")
    files = prepared_format.stored_files(file for row in rows.values() for file in row.files)
    # In threads and with a bar, because all finished files are read. Short checks show no bar.
    with worker_pool.open_bar(desc="check", unit="file", total=len(files), delay=5) as bar:
        damage = prepared_format.content_problems(output, files, report_file=bar.update)
    bad = {
        key: [file.file for file in row.files if file.file in damage] for key, row in rows.items()
    }
    for file, problem in damage.items():
        names = [f"{name} ({split})" for (name, split), in_row in bad.items() if file in in_row]
        who = f"Task {names[0]} is" if len(names) == 1 else f"{len(names)} tasks that share it are"
        _log.info(f"{who} prepared again: {problem}")
    finished = {}
    for job in jobs:
        key = job.name, job.split
        if key in rows and not bad[key] and (rows[key].examples or job.may_be_empty):
            finished[job] = rows[key]
    return finished


def _complete(output: Path, job: Job, parts: Rows) -> prepared.TaskInfo:
    """Merges the parts of a job, which marks it as finished.

    Raises:
      DataError: The job has no text although it must.
    """
    row = merge_parts(output, parts)
    if not row.examples and not job.may_be_empty:
        why = (
            ", ".join(f"{n} skipped: {reason}" for reason, n in row.skipped.items())
            or "the files are empty"
        )
        raise DataError(
            f"prepare: task {job.name} ({'-'.join(job.languages)}, {job.split}) has no text "
            f"({why}). Its source: {', '.join(job.shards)}. Repair or remove it, or exclude it "
            "with --languages or --pairs."
        )
    return row


def _check_same_vocabulary(output: Path, vocabulary: Vocabulary) -> None:
    """Raises VocabularyError if a folder contains data of another vocabulary."""
    file = output / prepared_format.VOCABULARY_FILE
    try:
        # `dataset.json` has the digest, because the model file itself may be damaged.
        content, _ = unseal_rows((output / prepared_format.DATASET_FILE).read_bytes())
        old = content["vocabulary"]
        size = old["size"]
        digest = str(old["sha256"])
    except (OSError, ValueError, KeyError):
        try:
            model = Vocabulary.load(file)
        except VocabularyError:
            return
        size, digest = model.size, model.digest
    if digest != vocabulary.digest:
        if vocabulary.path == os.fspath(file):
            raise VocabularyError(
                f"prepare: {file} is damaged (SHA-256 differs). Pass the model that it was copied "
                "from with --vocabulary."
            )
        raise VocabularyError(
            f"prepare: {output} contains data of another vocabulary ({size} ids, sha256 "
            f"{digest[:12]}) than the one given ({vocabulary.size} ids, sha256 "
            f"{vocabulary.digest[:12]}). Choose another output folder, or delete this one."
        )


def _retire_earlier(
    output: Path, jobs: Sequence[Job], pending: Sequence[Job], changed: Mapping[str, str]
) -> None:
    """Logs the tasks of an earlier data set that this command does not name.

    If a task of the earlier data set will be prepared again, its `dataset.json` is deleted. A
    warning says so if settings have changed, because runs on the earlier data cannot resume then.

    Args:
      output: Folder of the data set.
      jobs: All jobs.
      pending: Jobs that will be prepared.
      changed: `_changed_settings` of the command.
    """
    file = output / prepared_format.DATASET_FILE
    try:
        earlier = {(row["name"], row["split"]) for row in unseal_rows(file.read_bytes())[1]}
    except (OSError, ValueError, KeyError):
        return
    dropped = sorted({name for name, _ in earlier - {(job.name, job.split) for job in jobs}})
    if dropped:
        _log.info(f"Not named by this command, so dropped from the data set: {', '.join(dropped)}")
    if earlier & {(job.name, job.split) for job in pending}:
        if changed:
            listed = ", ".join(f"{name} {change}" for name, change in changed.items())
            _log.warning(
                f"{output} becomes another data set ({listed}): runs on the one that it was cannot "
                "resume. Another --output keeps both."
            )
        file.unlink()


def _changed_settings(config: PrepareConfig) -> dict[str, str]:
    """Returns {setting: "BEFORE -> NOW"} of the data set in `output`; {} if none is known."""
    try:
        before = prepared_format.unseal(
            (as_path(config.output) / prepared_format.SETTINGS_FILE).read_bytes()
        )["settings"]
    except (OSError, ValueError, KeyError):
        return {}
    now = settings(config)
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    return {name: f"{before.get(name)!r} -> {now.get(name)!r}" for name in changed}


# --- Running jobs ---


def _run(
    config: PrepareConfig,
    load_seqio: Callable[[], sources.SeqioTasks],
    model: str,
    jobs: Sequence[Job],
) -> dict[Job, prepared.TaskInfo]:
    """Runs jobs in worker processes or on Beam.

    Args:
      config: The configuration.
      load_seqio: Function that imports `tasks.as_source`.
      model: Path of the vocabulary.
      jobs: Jobs that are not finished.

    Returns:
      {job: its row}, for all jobs.

    Raises:
      ValueError: A file is damaged or malformed, a job has no text, or a worker died.
    """
    output = as_path(config.output)
    if not jobs:
        return {}
    workers = worker_count(config, sum(job.bytes for job in jobs))
    number = sum(job.units for job in jobs)
    threads = max(1, workers // number)
    # The longest first, so that it does not run alone at the end.
    ordered = sorted(jobs, key=lambda job: (-job.bytes, job.name, job.split))
    units = [Unit(job, i, threads) for job in ordered for i in range(job.units)]
    if config.runner:
        from xlme_jax.preparation import on_beam

        on_beam.check(config.runner)
        from xlme_jax.preparation import beam_parts  # Here because apache-beam is optional.

        results = beam_parts.run(config, model, units)
    else:
        work = functools.partial(tokenizing.run_unit, config, model)
        # TensorFlow costs a worker seconds and half a gigabyte, and most do not need it.
        start = load_seqio if sources.needs_seqio(config) else None
        results = worker_pool.run(work, units, workers, start, size_of=_bytes_of)
    parts: dict[Job, dict[int, Rows]] = {job: {} for job in jobs}
    rows = {}
    for unit, unit_parts in results:
        parts[unit.job][unit.shard] = unit_parts
        if len(parts[unit.job]) == unit.job.units:
            joined = [row for _, part in sorted(parts.pop(unit.job).items()) for row in part]
            rows[unit.job] = _complete(output, unit.job, joined)
    return rows


def _bytes_of(unit: Unit) -> int:
    """Returns the size of the source files of a unit of work."""
    return sum(unit.job.shard_bytes[shard] for shard in unit.shards)


def worker_count(config: PrepareConfig, size: int) -> int:
    """Returns the number of worker processes: `config.workers`, or a number for `size` bytes."""
    if config.workers:
        return config.workers
    return max(1, min(os.cpu_count() or 1, size // _BYTES_WORTH_A_WORKER))


# --- Messages ---


def _summarize(table: Sequence[prepared.TaskInfo]) -> None:
    """Logs the totals of each kind of task, and what was skipped in each task."""
    for kind in prepared_format.KINDS:
        rows = [row for row in table if row.kind == kind]
        if rows:
            examples, tokens = sum(r.examples for r in rows), sum(r.tokens for r in rows)
            held_out = sum(r.examples for r in rows if r.split != "train")
            noun = "languages" if prepared_format.KINDS[kind] == 1 else "pairs of languages"
            _log.info(
                f"{kind}: {noun}: {len({r.tags for r in rows})}, texts: {examples:,}, of which "
                f"{held_out:,} held out, tokens: {tokens:,}"
            )
    for row in table:
        if row.skipped:
            why = ", ".join(f"{n:,} {reason}" for reason, n in Counter(row.skipped).most_common())
            unit = {"monolingual": "lines", "bitext": "pairs"}.get(row.kind, "examples")
            _log.info(f"skipped {unit} of {row.name} ({row.split}): {why}")
    for row in table:
        if row.kind == "bitext" and any(
            reason.startswith("longer than ") for reason in row.skipped
        ):
            _log.info("--max_pair_tokens sets the length of the longest pairs that stay")
            break
