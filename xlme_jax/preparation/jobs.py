"""Lists the work of `prepare`: one job per task and split, with a fingerprint of its result."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from xlme_jax.data import prepared
from xlme_jax.data.prepared import format as prepared_format
from xlme_jax.data.text import held_out
from xlme_jax.data.text.reading import DataError, joint_listing
from xlme_jax.preparation import dropping, filters, sources, tokenizing
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.preparation.source_types import Shard, TextTask
from xlme_jax.preparation.sources import SeqioTasks
from xlme_jax.preparation.tokenizing import Job
from xlme_jax.storage.buckets import keep_listings
from xlme_jax.storage.paths import as_path

HELD_OUT_FILE = "held-out.npz"
_log = logging.getLogger(__name__)


def list_jobs(
    config: PrepareConfig,
    vocabulary_digest: str,
    load_seqio: Callable[[], SeqioTasks],
    evaluation_digest: str = "",
) -> list[Job]:
    """Returns one job per task and split, in the order of the configuration.

    With `validation`, writes the file of held-out texts first, unless the file is up to date: jobs
    depend on it.

    Args:
      config: The configuration.
      vocabulary_digest: SHA-256 of the vocabulary.
      load_seqio: See `sources.find_tasks`.
      evaluation_digest: Digest of the text that `exclude_overlap` removes.

    Raises:
      ValueError: A folder or language is missing, or a task cannot be prepared.
    """
    with keep_listings(), joint_listing():
        held_out_text = held_out_in(config)
        if held_out_text:
            _write_held_out(config, held_out_text)
        tasks: dict[str, TextTask] = {}
        for name in config.tasks:
            for task in _in_order(sources.find_tasks(config, name, held_out_text, load_seqio)):
                tasks.setdefault(task.task, task)
        jobs = [
            _job(config, task, split, vocabulary_digest, evaluation_digest)
            for task in tasks.values()
            for split in task.splits
            if split in ("train", "validation")
        ]
    if not jobs:
        raise DataError(
            f"prepare: {', '.join(config.tasks)} has no split train or validation, so there is "
            "nothing to prepare; name other tasks"
        )
    if config.options:
        filters.check_tasks(config, {job.kind for job in jobs})
        languages = {language for job in jobs for language in job.languages if not job.benchmark}
        for sentence in filters.warnings(config, languages):
            _log.warning("%s", sentence)
    return jobs


def _in_order(tasks: Iterable[TextTask]) -> list[TextTask]:
    """Returns the tasks mixture by mixture, in the order of the mixtures' first tasks.

    The tasks of a mixture are sorted by name.
    """
    mixtures: dict[str, list[TextTask]] = {}
    for task in tasks:
        mixtures.setdefault(task.mixture, []).append(task)
    return [task for mixture in mixtures.values() for task in sorted(mixture, key=_name)]


def _name(task: TextTask) -> str:
    return task.task


def _job(
    config: PrepareConfig,
    task: TextTask,
    split: str,
    vocabulary_digest: str,
    evaluation_digest: str,
) -> Job:
    """Returns the job of a split of a task.

    Raises:
      ValueError: A setting needs text, but SeqIO yields tokens.
    """
    kind = task.kind
    shards = task.splits[split]
    in_order = filters.needs_order(config, kind)
    if in_order:
        shards = filters.in_order(config, shards)
    need_text = filters.reading_text(config, kind, split)
    if need_text and any(shard.encode for shard in shards):
        raise ValueError(
            f"prepare: the SeqIO task {task.task} yields tokens, but text is needed for "
            f"{', '.join(need_text)}; leave out the task, or these settings"
        )
    shard_bytes = tuple(sum(file.stat().st_size for file in shard.files) for shard in shards)
    names = tuple(shard.name for shard in shards)
    files = [file for shard in shards for file in shard.files]
    content = _fingerprinted(config, task, split, shards, vocabulary_digest, evaluation_digest)
    return Job(
        task.task,
        split,
        kind,
        task.languages,
        shards=names,
        bytes=sum(shard_bytes),
        fingerprint=fingerprint(content, files),
        may_be_empty=dropping.may_leave_nothing(config, kind)
        or (
            (split == held_out.VALIDATION or not config.pairs)
            and all(shard.may_be_empty for shard in shards)
        ),
        benchmark=task.benchmark,
        origins=task.origins,
        shard_bytes=shard_bytes,
        in_order=in_order,
        reads=tuple(shard.read for shard in shards),
        encodes=tuple(shard.encode for shard in shards if shard.encode),
        has_columns=task.has_columns,
    )


def _fingerprinted(
    config: PrepareConfig,
    task: TextTask,
    split: str,
    shards: Sequence[Shard],
    vocabulary_digest: str,
    evaluation_digest: str,
) -> list[object]:
    """Returns everything but files that the prepared data of a job depends on.

    Another order or representation would cause all earlier data sets to be prepared again.

    Args:
      config: The configuration.
      task: The task.
      split: The split of the task.
      shards: Its shards, in the order in which they are read.
      vocabulary_digest: SHA-256 of the vocabulary.
      evaluation_digest: Digest of the text that `exclude_overlap` removes.
    """
    kind = task.kind
    limits: dict[str, object] = {
        "monolingual": config.max_document_chars,
        "bitext": config.max_pair_tokens,
        "labelled": (config.max_length, config.stride),
    }
    content: list[object] = [
        prepared_format.FORMAT,
        prepared.PAGE_TOKENS,
        tokenizing.PART_TEXTS[kind],
        vocabulary_digest,
        task.task,
        split,
        task.languages,
        limits[kind],
        tuple(shard.name for shard in shards),
        *(shard.key for shard in shards),
    ]
    if kind == "bitext" and config.max_length_ratio is not None:
        content.append(config.max_length_ratio)
    content += filters.fingerprint(config, kind)
    if filters.excludes_evaluation_text(config, kind, split):
        content += ["without evaluation text", evaluation_digest]
    return content


def fingerprint(parts: Iterable[object], files: Iterable[Path]) -> str:
    """Returns a digest of settings and of the files' names, sizes and modification times.

    Modification times replace contents because hashing CC-100 would take hours, while touching a
    file only causes its task to run again.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{part!r}\n".encode())
    for file in files:
        status = file.stat()
        digest.update(f"{file.name}\t{status.st_size}\t{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


# --- Held-out data ---


def held_out_in(config: PrepareConfig) -> held_out.HeldOutText | None:
    """Returns the held-out data, whose file is in the output folder; None without `validation`."""
    if not config.validation:
        return None
    file = os.path.join(config.output, HELD_OUT_FILE)
    return held_out.HeldOutText(config.validation, file, tsv_columns=config.tsv_columns)


def _write_held_out(config: PrepareConfig, held_out_text: held_out.HeldOutText) -> None:
    """Writes the file of held-out texts unless it is up to date.

    Raises:
      DataError: A file is missing or damaged, or an id is unknown.
    """
    corpora = sources.find_corpora(config)
    rule = held_out_text.rule
    names = list(corpora.names())
    files = corpora.files()
    if rule.kind == "ids":
        files.append(as_path(rule.path))
    elif rule.kind == "folder":
        folder_corpora = held_out_text.folder_corpora()
        names += folder_corpora.names()
        files += folder_corpora.files()
    for file in files:
        if not file.is_file():
            raise DataError(
                f"prepare: `validation` is {config.validation!r}, but there is no file {file}; fix "
                "the path"
            )
    if held_out.write(
        dataclasses.replace(held_out_text, corpora=corpora), fingerprint(names, files)
    ):
        _log.info("%s: texts held out by %s", held_out_text.file, config.validation)
