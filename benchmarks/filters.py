"""Measures what each filter of `prepare` costs, on documents in memory.

    python benchmarks/filters.py --text_dir=$DATA/mono

Each filter reads the same documents, the first `--megabytes` of all files together, evenly by
language, in one process; measurements alternate. "read" is what `prepare` does anyway: the files
are read, decompressed and split into documents. Throughput is MB of UTF-8 text per CPU second.
Filters whose package is not installed, and `keep_identified` with a model that is not given
(`--model`), are left out.
"""

import argparse
import collections
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine

from xlme_jax.data.text.reading import ReadReport, discover_documents, read_documents
from xlme_jax.preparation import filters
from xlme_jax.preparation.prepare_config import PrepareConfig

# Usual values, which docs/guide/own_text.md shows.
_SETTINGS: dict[str, Any] = {
    "line_rules": "c4",
    "max_repeated_lines": 0.3,
    "min_characters": 200,
    "min_letters": 0.6,
    "keep_identified": "py3langid",
    "near_duplicates": 0.8,
}
Documents = dict[str, list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text_dir", required=True, help="Folder in CC-100's format.")
    parser.add_argument("--model", help="fastText model to identify languages with.")
    parser.add_argument("--megabytes", type=float, default=15, help="Text that is read.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", default="benchmarks/results/filters.json")
    options = parser.parse_args()
    files = {language: paths[0] for language, paths in discover_documents(options.text_dir).items()}
    share = options.megabytes * 1e6 / len(files)
    documents, seconds_of_reading = _read(files, share)
    size = sum(len(text.encode()) for texts in documents.values() for text in texts)
    ways = _ways(options.model)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    skipped: dict[str, dict[str, int]] = {}
    for _ in range(options.repeats):
        for name, way in ways.items():
            spent, skipped[name] = _apply(way, documents)
            seconds[name].append(round(spent, 3))
        seconds_of_reading.append(_read(files, share)[1][0])
    number = sum(map(len, documents.values()))
    print(f"{len(files)} languages, {size / 1e6:.1f} MB of text, {number:,} documents")
    seconds = {"read": [round(value, 3) for value in seconds_of_reading], **seconds}
    rates = {name: round(size / 1e6 / statistics.median(s), 1) for name, s in seconds.items()}
    for name, rate in rates.items():
        print(f"  {name:32} {rate:8.1f} MB per CPU second  {skipped.get(name, '')}")
    machine.write(
        options.output,
        {
            **machine.describe("numpy", *_packages()),
            **{"languages": len(files), "bytes": size, "documents": number},
            **{"cpu_seconds": seconds, "megabytes_per_second": rates, "skipped": skipped},
        },
    )


def _read(files: dict[str, Path], share: float) -> tuple[Documents, list[float]]:
    """Returns documents of about `share` bytes of each file, and the CPU seconds of reading."""
    documents: Documents = {}
    begin = time.process_time()
    for language, file in files.items():
        texts, size = documents.setdefault(language, []), 0
        for text in read_documents(file):
            texts.append(text)
            size += len(text.encode())
            if size > share:
                break
    return documents, [time.process_time() - begin]


def _ways(model: str | None) -> dict[str, Callable[[str], filters.Stage]]:
    """Returns {name: what makes the stage of a language} of the filters that can be measured."""
    settings = {f"{name}={value}": {name: value} for name, value in _SETTINGS.items()}
    if model:
        settings["keep_identified=fastText model"] = {"keep_identified": model}
    ways = {}
    for name, options in settings.items():
        config = PrepareConfig("-", ("cc100",), options=tuple(options.items()))
        try:
            filters.check(config)
        except ValueError as error:
            print(f"left out: {error}")
            continue

        def stage(language: str, config: PrepareConfig = config) -> filters.Stage:
            return filters.stages(config, filters.DOCUMENTS, [language])

        # Tables and models load once in a process that prepares hours of text.
        collections.deque(stage("en")(iter([("Some text. " * 5,)]), ReadReport()))
        ways[name] = stage
    return ways


def _apply(
    way: Callable[[str], filters.Stage], documents: Documents
) -> tuple[float, dict[str, int]]:
    """Returns the CPU seconds of a filter, and what it counts."""
    report = ReadReport()
    begin = time.process_time()
    for language, texts in documents.items():
        collections.deque(way(language)(zip(texts), report), maxlen=0)
    return time.process_time() - begin, dict(report.skipped)


def _packages() -> list[str]:
    import importlib.util

    return [name for name in ("py3langid", "rensa") if importlib.util.find_spec(name)]


if __name__ == "__main__":
    main()
