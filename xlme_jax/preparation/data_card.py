"""Writes the data card of a prepared data set: markdown beside `dataset.json`.

The header has the form that the Hugging Face hub expects in the README of a data set
(huggingface.co/docs/hub/datasets-cards). All counts come from `dataset.json`, and the names of the
source files from the jobs of the command.
"""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from xlme_jax.data import languages
from xlme_jax.data.prepared import PreparedDataset, TaskInfo
from xlme_jax.data.prepared.format import DATA_CARD_FILE, DATASET_FILE, unseal_rows
from xlme_jax.preparation.source_types import Origin
from xlme_jax.preparation.tokenizing import Job
from xlme_jax.storage.files import replace_file

UNKNOWN_LICENCE = "licence: not known to this project; see the source"
_MOST_ROWS = 1000  # Of a table; a multi-way folder has 100,000 pairs of languages.
_MOST_FILES = 3  # Named of a task.
# Numbers of examples that the hub has a category for.
_SIZES = (
    *((1e3, "1K"), (1e4, "10K"), (1e5, "100K"), (1e6, "1M"), (1e7, "10M"), (1e8, "100M")),
    *((1e9, "1B"), (1e10, "10B"), (1e11, "100B"), (1e12, "1T")),
)
# Licences that the hub has a name for; CC has several versions of each.
_CREATIVE_COMMONS = re.compile(r"cc(?:0|-by(?:-nc)?(?:-sa|-nd)?)-\d\.\d")
_LICENCES = ("odc-by", "mit", "apache-2.0")


def write(output: Path, jobs: Iterable[Job]) -> None:
    """Writes the card of the data set in a folder, after `dataset.json` was written there.

    Args:
      output: Folder of the data set.
      jobs: All jobs of the command, which name the source files and their corpora.
    """
    content, _ = unseal_rows((output / DATASET_FILE).read_bytes())
    dataset = PreparedDataset.load(output)
    jobs_of = {(job.name, job.split): job for job in jobs}
    jobs_of_tasks = [jobs_of[task.name, task.split] for task in dataset.tasks]
    parts = [
        "\n".join(_header(dataset.tasks, [job.origins for job in jobs_of_tasks])),
        f"# Prepared text in {_counted(len(_tags(dataset.tasks)), 'language')}",
        _summary(dataset.tasks),
        _languages(dataset.tasks),
        _sources(dataset.tasks, jobs_of_tasks),
        _licences(jobs_of_tasks),
        _skipped(dataset.tasks, content.get("dropped", [])),
        _made(dataset, content),
    ]
    card = "\n\n".join(part for part in parts if part) + "\n"
    replace_file(output / DATA_CARD_FILE, card.encode())


def _header(tasks: Sequence[TaskInfo], origins: Sequence[tuple[Origin, ...]]) -> Iterator[str]:
    """Yields the lines of the YAML header.

    Codes of languages are quoted, because YAML would parse `no` as a boolean.

    Args:
      tasks: Rows of the data set.
      origins: Corpora of the text of each task.
    """
    tags = _tags(tasks)
    by_tag = {tag: languages.find(tag) for tag in tags}
    codes = sorted({language.code if language else tag for tag, language in by_tag.items()})
    yield "---"
    yield "language:"
    yield from (f"- {json.dumps(code)}" for code in codes)
    if codes != tags:  # A tag names a script that is not the usual one of its language.
        yield "language_bcp47:"
        for tag, language in by_tag.items():
            if language and tag != language.code:
                tag = f"{language.code}-{language.script}"
            yield f"- {json.dumps(tag)}"
    yield f"license: {_hub_licence(origins)}"
    yield f"multilinguality: {'multilingual' if len(codes) > 1 else 'monolingual'}"
    yield "size_categories:"
    yield f"- {_size(sum(task.examples for task in tasks))}"
    kinds = {task.kind for task in tasks}
    if goals := [goal for kind, goal in _GOALS.items() if kind in kinds]:
        yield "task_categories:"
        yield from (f"- {goal}" for goal in goals)
    yield "tags:"
    yield "- xlme_jax"
    yield "---"


_GOALS = {"monolingual": "fill-mask", "bitext": "translation"}


def _hub_licence(origins: Sequence[tuple[Origin, ...]]) -> str:
    """Returns the hub's name of the licence of all text.

    Returns "other" if there are several licences, or this module knows no name of the hub for it.
    """
    licences = {origin.licence for of_task in origins for origin in of_task or [Origin("")]}
    name = licences.pop().lower().replace(" ", "-").replace("odc-by-1.0", "odc-by")
    is_known = name in _LICENCES or _CREATIVE_COMMONS.fullmatch(name)
    return name if is_known and not licences else "other"


def _size(examples: int) -> str:
    """Returns the hub's category of a number of examples, such as "1K<n<10K"."""
    previous = ""
    for limit, name in _SIZES:
        if examples < limit:
            return f"{previous}<n<{name}" if previous else f"n<{name}"
        previous = name
    return f"n>{previous}"


def _tags(tasks: Iterable[TaskInfo]) -> list[str]:
    """Returns the tags of the languages of all tasks, sorted."""
    return sorted({tag for task in tasks for tag in task.tags})


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# --- Sections ---

_UNITS = {"monolingual": "documents", "bitext": "pairs", "labelled": "labelled examples"}


def _summary(tasks: Sequence[TaskInfo]) -> str:
    """Returns two sentences with the examples and tokens of each kind of task."""
    counts = []
    for kind, unit in _UNITS.items():
        if of_kind := [task for task in tasks if task.kind == kind]:
            examples = sum(task.examples for task in of_kind)
            tokens = sum(task.tokens for task in of_kind)
            counts.append(f"{examples:,} {unit} ({tokens:,} tokens)")
    return (
        f"Token shards for xlme_jax: {', '.join(counts)}. `{DATASET_FILE}` has all counts and the "
        "SHA-256 of all files."
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in markdown, with at most `_MOST_ROWS` rows; cells may have any text."""
    lines = [head, ["---"] * len(head), *rows[:_MOST_ROWS]]
    text = "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)
    more = len(rows) - _MOST_ROWS
    if more > 0:
        text += f"\n\nand {more:,} more, which `{DATASET_FILE}` lists."
    return text


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _languages(tasks: Sequence[TaskInfo]) -> str:
    """Returns the section with a row for each language."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for task in tasks:
        for tag in task.tags:
            counts[tag][task.kind] += task.examples
            counts[tag]["tokens"] += task.tokens if task.kind == "monolingual" else 0
    rows = [
        (
            tag,
            languages.english_name(tag),
            languages.script(tag),
            *(f"{counts[tag][column]:,}" for column in (*_UNITS, "tokens")),
        )
        for tag in sorted(counts)
    ]
    head = ("tag", "language", "script", *_UNITS.values(), "tokens of documents")
    return "## Languages\n\n" + _table(head, rows)


def _sources(tasks: Sequence[TaskInfo], jobs: Sequence[Job]) -> str:
    """Returns the section with a row for each task and split."""
    rows = [
        (
            task.name,
            task.split,
            " and ".join(task.tags),
            f"{task.examples:,}",
            f"{task.tokens:,}",
            ", ".join(origin.name for origin in job.origins) or "unknown",
            _files(job.shards),
            f"{job.bytes:,}",
        )
        for task, job in zip(tasks, jobs)
    ]
    head = ("task", "split", "languages", "examples", "tokens", "distribution", "files", "bytes")
    return (
        f'## Sources\n\nText of the split "validation" is not trained on.\n\n{_table(head, rows)}'
    )


def _files(shards: Sequence[str]) -> str:
    """Returns the names of the first shards, each file with the folder that it is in."""
    names = [
        " + ".join("/".join(PurePath(file).parts[-2:]) for file in shard.split(" + "))
        for shard in shards[:_MOST_FILES]
    ]
    more = len(shards) - len(names)
    return ", ".join(names) + (f" and {more:,} more" if more else "")


def _licences(jobs: Sequence[Job]) -> str:
    """Returns the section with the licence and citation of each distribution."""
    unknown = Origin("unknown distribution")
    counts = collections.Counter(origin for job in jobs for origin in job.origins or [unknown])
    lines = []
    for origin, count in sorted(counts.items(), key=lambda item: item[0].name):
        facts = [f"{origin.name}, {_counted(count, 'task')}: "]
        facts.append(f"licence: {origin.licence}." if origin.licence else f"{UNKNOWN_LICENCE}.")
        if origin.citation:
            facts.append(f" Citation: {origin.citation}.")
        if origin.url:
            facts.append(f" <{origin.url}>")
        lines.append("- " + "".join(facts))
    return "## Licences and citations\n\n" + "\n".join(lines)


def _skipped(tasks: Sequence[TaskInfo], dropped: Sequence[Mapping[str, Any]]) -> str:
    """Returns the section on skipped texts, dropped tasks and unread files, with the reasons."""
    rows = [
        (task.name, task.split, reason, f"{count:,}")
        for task in tasks
        for reason, count in sorted(task.skipped.items())
    ]
    rows += [
        (entry["task"], entry["split"], f"the whole task: {entry['reason']}", _count(entry))
        for entry in dropped
        if "task" in entry
    ]
    text = _table(("task", "split", "reason", "left out"), rows) if rows else "Nothing."
    files: dict[str, list[int]] = collections.defaultdict(list)
    for entry in dropped:
        if "file" in entry:
            files[entry["reason"]].append(entry["bytes"])
    lines = [
        (reason, f"{len(sizes):,}", f"{sum(sizes):,}") for reason, sizes in sorted(files.items())
    ]
    if lines:
        text += "\n\nFiles that were not read:\n\n" + _table(("reason", "files", "bytes"), lines)
    return f"## Left out\n\n{text}"


def _count(entry: Mapping[str, Any]) -> str:
    """Returns the size of a dropped task, such as "12 pairs"; "" if it is not known."""
    numbers = (f"{entry[unit]:,} {unit}" for unit in _UNITS.values() if unit in entry)
    return next(numbers, "")


def _made(dataset: PreparedDataset, content: Mapping[str, Any]) -> str:
    command = f"```bash\n{dataset.command}\n```\n\n" if dataset.command else ""
    vocabulary = content["vocabulary"]
    return (
        f"## How it was made\n\n{command}"
        f"- Checksum of the data set: `{dataset.digest}`\n"
        f"- Vocabulary: {vocabulary['size']:,} ids, SHA-256 `{vocabulary['sha256']}`\n"
        "- `python -m xlme_jax.prepare --verify --output=FOLDER` compares all files with their "
        "SHA-256."
    )
