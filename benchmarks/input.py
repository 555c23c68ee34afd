"""Measures the speed of the input pipeline: packed tokens per second from thousands of tasks.

    python benchmarks/input.py

Writes a prepared data set to a temporary folder: `--tasks` language pairs and 100 languages of
random tokens, with log-normal sizes as in real corpora (median `--pairs` pairs, sigma 2: the
largest task is about a thousand times the median). Then it measures, each in a separate process:

- opening: seconds from `PreparedDataset.load` to the first batch, after dropping the files from the
  page cache (`posix_fadvise`). Imports are reported separately.
- throughput: batches of the training pipeline with its prefetching threads, after `--warm_up`
  batches, for bitext and text together and for each alone; real tokens without padding. It
  alternates with an upper bound: ArrayRecord alone reads the same number of records from the same
  shards, which are already open, in file order, without checks, packing or layout. The bound is
  skipped if the limit on open files is too low.

`--cores` limits the cores of each process; `--open_files` is like `ulimit -n`.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
import numpy as np

from xlme_jax.data.prepared.writer import BitextWriter, MonolingualWriter, write_dataset

_VOCABULARY = 64_000
_LANGUAGES = 100


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=3000, help="Number of bitext tasks.")
    parser.add_argument("--pairs", type=int, default=150, help="Median pairs per task.")
    parser.add_argument("--rows", type=int, default=128, help="Rows per stream.")
    parser.add_argument("--length", type=int, default=512, help="Tokens per row.")
    parser.add_argument("--warm_up", type=int, default=60, help="Batches before measuring.")
    parser.add_argument("--batches", type=int, default=60, help="Batches per measurement.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--open_files", type=int, help="Limit on open files (ulimit -n).")
    parser.add_argument("--data", help="Folder of the data set; written if missing.")
    parser.add_argument("--output", default="benchmarks/results/input.json")
    parser.add_argument("--child", choices=["open", "read"], help=argparse.SUPPRESS)
    parser.add_argument("--streams", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        found = _open(options) if options.child == "open" else _read(options)
        print(json.dumps(found))
        return
    about = machine.describe("grain", "array_record", "numpy")
    with tempfile.TemporaryDirectory() as folder:
        options.data = options.data or folder
        sizes = write(Path(options.data), options.tasks, options.pairs)
        results = {"opening": _child("open", "bitext,text", options)}
        for streams in ("bitext,text", "bitext", "text"):
            results[streams] = _child("read", streams, options)
    _print(results)
    setting = {"open_files": options.open_files, "cores used": options.cores}
    setting |= {"rows": options.rows, "length": options.length}
    machine.write(options.output, {**about, "data": sizes, **setting, "results": results})


# --- Data set. ---


def write(directory: Path, tasks: int, pairs: int) -> dict[str, int]:
    """Writes the data set unless it exists; returns its sizes by name."""
    from xlme_jax.data import prepared

    if not (directory / "dataset.json").is_file():
        begin, rng, rows = time.monotonic(), np.random.default_rng(0), []
        for number in range(tasks):
            count = max(int(rng.lognormal(np.log(pairs), 2.0)), 4)
            bitext = BitextWriter(directory, f"pair{number:04}", ["en", "fr"], _VOCABULARY)
            lengths = np.clip(rng.lognormal(np.log(42), 0.5, count), 6, 400).astype(int)
            bitext.add_many(_examples(rng, lengths, sides=2), lengths)
            rows.append(bitext.close())
        for number in range(_LANGUAGES):
            count = max(int(rng.lognormal(np.log(200), 1.5)), 4)
            text = MonolingualWriter(directory, f"text{number:03}", ["en"], _VOCABULARY)
            lengths = np.clip(rng.lognormal(np.log(300), 1, count), 10, 5000).astype(int)
            text.add_many(_examples(rng, lengths, sides=1), lengths)
            rows.append(text.close())
        model = directory / "drawn.model"
        model.write_bytes(b"no tokenizer: these tokens were drawn")
        write_dataset(directory, rows, model, _VOCABULARY)
        print(f"Wrote the data set in {time.monotonic() - begin:.0f} s.")
    rows = prepared.PreparedDataset.load(directory).tasks
    examples = [row.examples for row in rows if row.kind == "bitext"]
    return {
        "bitext tasks": len(examples),
        "text tasks": len(rows) - len(examples),
        "pairs": sum(examples),
        "smallest task, pairs": min(examples),
        "median task, pairs": int(np.median(examples)),
        "largest task, pairs": max(examples),
        "tokens": sum(row.tokens for row in rows),
        "bytes": sum(file.bytes for row in rows for file in row.files),
    }


def _examples(rng: np.random.Generator, lengths: np.ndarray, sides: int) -> np.ndarray:
    """Returns random token ids of consecutive examples, with a skewed distribution as in text."""
    ids = (4 + (_VOCABULARY - 5) * rng.random(lengths.sum()) ** 3).astype(np.int32)
    ends = np.cumsum(lengths)
    ids[ends - lengths], ids[ends - 1] = 0, 2
    if sides == 2:
        ids[ends - 1 - lengths // 2] = 2
    return ids


# --- Measurements, each in a separate process. ---


def _child(what: str, streams: str, options: argparse.Namespace) -> Any:
    skipped = ("child", "streams", "output")
    given = {name: value for name, value in vars(options).items() if name not in skipped}
    arguments = [f"--{name}={value}" for name, value in given.items() if value is not None]

    def limit() -> None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
        if options.open_files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (options.open_files,) * 2)

    command = [sys.executable, __file__, f"--child={what}", f"--streams={streams}", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, preexec_fn=limit)
    return json.loads(done.stdout)


def _iterator(options: argparse.Namespace) -> tuple[Any, Any]:
    from xlme_jax.data.batches.pipeline import make_iterator
    from xlme_jax.data.batches.streams import PairStream, TextStream
    from xlme_jax.data.prepared import PreparedDataset

    classes = {"bitext": PairStream, "text": TextStream}
    dataset = PreparedDataset.load(options.data)
    streams = [
        classes[name](name, options.rows, options.length) for name in options.streams.split(",")
    ]
    return dataset, make_iterator(dataset, streams, seed=0)


def _open(options: argparse.Namespace) -> dict[str, float]:
    """Returns seconds to the first batch, from disk and from the page cache."""
    begin = time.monotonic()
    import xlme_jax.data.batches.pipeline  # noqa: F401

    found = {"imports": round(time.monotonic() - begin, 3)}
    for what in ("first batch, files not in memory", "first batch, files in memory"):
        if "not" in what:
            for path in Path(options.data).rglob("*"):
                if path.is_file():
                    with path.open("rb") as file:
                        os.fsync(file.fileno())
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        begin = time.monotonic()
        _, batches = _iterator(options)
        opened = time.monotonic() - begin
        next(batches)
        found[what] = round(time.monotonic() - begin, 3)
        found[what.replace("first batch", "of these, opening")] = round(opened, 3)
        batches.close()
    return {**found, **_memory()}


def _read(options: argparse.Namespace) -> dict[str, Any]:
    """Returns tokens per second of the pipeline and of ArrayRecord alone, alternating."""
    dataset, batches = _iterator(options)
    for _ in range(options.warm_up):
        next(batches)
    # `_ArrayRecordAlone` keeps all of its shards open, in addition to those of the pipeline.
    room = resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 2 * len(dataset.tasks) + 500
    alone = _ArrayRecordAlone(dataset) if room else None
    pipeline: dict[str, list[float]] = {"wall": [], "cpu": []}
    limit: dict[str, list[float]] = {"wall": [], "cpu": []}
    filled, memory, files = [], _memory(), len(os.listdir("/proc/self/fd"))
    for _ in range(options.repeats):
        taken, tokens, clock = [], 0, _Clock()
        for _ in range(options.batches):
            batch = next(batches)
            tokens += sum(int((rows["segment_ids"] > 0).sum()) for rows in batch.values())
            taken.append(batches.tasks())
        clock.stop(pipeline, tokens)
        filled.append(tokens / (options.batches * len(batch) * options.rows * options.length))
        if alone:
            orders = [alone.order(tasks, options.length) for tasks in taken]
            clock = _Clock()
            clock.stop(limit, sum(map(alone.read, orders)))
    batches.close()
    return {
        "tokens a second": pipeline,
        "tokens a second, ArrayRecord alone": limit,
        "filled": round(statistics.median(filled), 4),
        "open files": files,
        **memory,
    }


class _Clock:
    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def stop(self, rates: dict[str, list[float]], tokens: int) -> None:
        """Appends tokens per wall second and per CPU second."""
        rates["wall"].append(round(tokens / (time.monotonic() - self._wall)))
        rates["cpu"].append(round(tokens / (time.process_time() - self._cpu)))


class _ArrayRecordAlone:
    """Reader of as many records as the pipeline reads, from the same shards, without processing."""

    def __init__(self, dataset: Any):
        self._dataset, self._readers = dataset, {}
        self._rng = np.random.default_rng(1)
        self._width = 4 if dataset.vocabulary_size > 1 << 16 else 2

    def order(self, tasks: Any, length: int) -> list[tuple[Any, list[int], int]]:
        """Returns (reader, sorted record indices, tokens used of each or 0 for all) per task."""
        from array_record.python import array_record_module

        found = []
        for counts in tasks.values():
            for name, count in counts.items():
                task = self._dataset.task(name)
                shard = task.shards[0]
                if name not in self._readers:
                    path = str(self._dataset.directory / shard.file)
                    options = "readahead_buffer_size:0"
                    self._readers[name] = array_record_module.ArrayRecordReader(path, options)
                records = sorted(self._rng.integers(0, shard.records, count).tolist())
                wanted = length - 1 if task.kind == "monolingual" else 0
                found.append((self._readers[name], records, wanted))
        return found

    def read(self, order: list[tuple[Any, list[int], int]]) -> int:
        """Reads the records; returns the number of tokens that training rows would use."""
        tokens = 0
        for reader, records, wanted in order:
            for record in records:
                size = len(reader.read([record])[0]) // self._width
                tokens += min(size, wanted) if wanted else size
        return tokens


def _memory() -> dict[str, float]:
    return {"peak memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3}


def _print(results: dict[str, Any]) -> None:
    for name, value in results["opening"].items():
        print(f"  {name}: {value:.2f}")
    for streams, found in results.items():
        if streams != "opening":
            for what in ("tokens a second", "tokens a second, ArrayRecord alone"):
                if not found[what]["wall"]:
                    continue
                wall, cpu = (statistics.median(found[what][clock]) for clock in ("wall", "cpu"))
                print(f"  {streams:12} {what:36} {wall:12,.0f}   per CPU second {cpu:12,.0f}")
            print(f"  {streams:12} filled {found['filled']:.1%}, {found['peak memory, MB']:.0f} MB")


if __name__ == "__main__":
    main()
