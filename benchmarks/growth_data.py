"""Costs of languages, translation pairs and hosts, for `growth.py`."""

import contextlib
import itertools
import json
import logging
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from xlme_jax.data import prepared
from xlme_jax.data.batches import pair_sampling
from xlme_jax.data.batches.pair_layouts import Translations
from xlme_jax.data.batches.pipeline import make_iterator
from xlme_jax.data.batches.robust_sampling import RobustSampling
from xlme_jax.data.batches.streams import PairStream, TextStream
from xlme_jax.data.prepared import shared
from xlme_jax.data.prepared.format import FileInfo
from xlme_jax.evaluation import results
from xlme_jax.evaluation.outcome import Outcome, Result
from xlme_jax.preparation import dropping
from xlme_jax.studies.reports.run_page import _pair_weights
from xlme_jax.training import task_losses
from xlme_jax.vocabularies import allocation

ROOT = Path(__file__).parent.parent
VOCABULARY = 64_000
_A_FILE = 25_000  # Tasks in a shared file, about as many as `shared` puts there.
Costs = dict[str, float]


def _cpu(costs: Costs, name: str, call: Callable[[], Any]) -> Any:
    start = time.process_time()
    result = call()
    costs[f"{name}, CPU s"] = time.process_time() - start
    return result


# --- Data sets. ---


def write_data(folder: Path, pairs: int, texts: int = 1, languages: int = 0) -> None:
    """Writes small tasks in shared files, as `prepare` leaves them.

    Args:
      folder: of the data set.
      pairs: tasks of pairs, of 10 to 59 pairs each.
      texts: tasks of running text.
      languages: languages of the pairs; by default as few as have so many pairs.
    """
    languages = languages or int((1 + np.sqrt(1 + 8 * pairs)) / 2) + 1
    codes = [f"l{number:03}" for number in range(languages)]
    couples = itertools.islice(itertools.combinations(codes, 2), pairs)
    tasks = (_records("bitext", f"{a}-{b}", (a, b)) for a, b in couples)
    names = (f"text{number:03}" for number in range(texts))
    running = (_records("monolingual", name, (name.replace("text", "l"),)) for name in names)
    rows = [*_written(folder, tasks), *_written(folder, running)]
    (folder / "drawn.model").write_bytes(b"no tokenizer: these tokens were drawn")
    prepared.write_dataset(folder, rows, folder / "drawn.model", VOCABULARY)


def _written(folder: Path, tasks: Iterator[Any]) -> Iterator[prepared.TaskInfo]:
    while some := list(itertools.islice(tasks, _A_FILE)):
        yield from shared.write_shared(folder, some)


def _records(kind: str, name: str, languages: tuple[str, ...]) -> Any:
    """Returns a task, its records and their lengths; the content repeats every 64 tasks."""
    number = sum(map(ord, name)) % 64
    sizes, records = _EXAMPLES[number] if kind == "bitext" else _PAGES[number]
    count, tokens = len(sizes), int(sizes.sum())
    file = FileInfo("drawn", count, tokens, 0, "0" * 64)
    task = prepared.TaskInfo(
        *(name, kind, "train", languages, count, tokens, int(sizes.min()), int(sizes.max())),
        shards=(file,),
        lengths=file if kind == "bitext" else None,
        fingerprint="0" * 64,
    )
    return task, records, sizes.astype("<u2") if kind == "bitext" else None


def _examples(rng: np.random.Generator, sizes: np.ndarray) -> tuple[np.ndarray, list[bytes]]:
    ids = (4 + (VOCABULARY - 5) * rng.random(sizes.sum()) ** 3).astype("<u2")
    ends = np.cumsum(sizes)
    ids[ends - sizes], ids[ends - 1], ids[ends - 1 - sizes // 2] = 0, 2, 2
    return sizes, [ids[a:b].tobytes() for a, b in zip(ends - sizes, ends)]


_RNG = np.random.default_rng(0)
_EXAMPLES = [_examples(_RNG, _RNG.integers(8, 60, _RNG.integers(10, 60))) for _ in range(64)]
_PAGES = [_examples(_RNG, np.full(4, prepared.PAGE_TOKENS)) for _ in range(64)]


def main() -> None:
    """Writes a data set: `python growth_data.py FOLDER PAIRS`."""
    write_data(Path(sys.argv[1]), int(sys.argv[2]))


# --- Pairs. ---


def pairs(size: int, small: bool) -> Costs:
    """Starts a run on `size` tasks of pairs: from `dataset.json` to the first batch, and beyond."""
    costs: Costs = {}
    rows = 8 if small else 128
    with tempfile.TemporaryDirectory() as name, _opened_files() as opened:
        folder = Path(name)
        # In another process, whose memory is not counted here.
        subprocess.run([sys.executable, __file__, folder, str(size)], check=True)
        costs["dataset.json, bytes"] = (folder / "dataset.json").stat().st_size
        costs["files of the data set"] = len(list(folder.iterdir()))
        before, opened[:] = _peak(), []
        start, wall = time.process_time(), time.monotonic()
        dataset = _cpu(costs, "read dataset.json", lambda: prepared.PreparedDataset.load(folder))
        _cpu(costs, "verify all checksums", dataset.verify)
        streams = [PairStream("bitext", rows, 256)]
        batches = _cpu(
            costs, "weights and order", lambda: make_iterator(dataset, streams, 0, prefetch=0)
        )
        _cpu(costs, "share of pairs that are too long", batches.expected_left_out)
        _cpu(costs, "first batch", lambda: next(batches))
        costs["start to first batch, CPU s"] = time.process_time() - start
        costs["start to first batch, s"] = time.monotonic() - wall
        costs["files opened until then"] = len(opened)
        costs["memory for it, MB"] = _peak() - before
        _cpu(costs, "ten more batches", lambda: [next(batches) for _ in range(10)])
        _cpu(costs, "counts of the batch by task", batches.tasks)
        costs["position in a checkpoint, bytes"] = len(json.dumps(batches.get_state()))
        batches.close()
        tasks = [task for task in dataset.tasks if task.kind == "bitext"]
        codes, counts = pair_sampling.count_matrix((t.languages, t.examples) for t in tasks)
        sinkhorn = pair_sampling.entropic
        _cpu(costs, "Sinkhorn weights of pairs", lambda: sinkhorn(codes, counts, 0.7))
        corner = pair_sampling.linear_programme
        _cpu(costs, "linear programme of Fan et al.", lambda: corner(codes, counts, 0.7))
        _cpu(costs, "find rare languages", lambda: dropping.rare_languages(dataset.tasks, 100))
        costs |= _robust(dataset, rows, folder)
    return costs


def _robust(dataset: Any, rows: int, folder: Path) -> Costs:
    """Changes the weights of all tasks once by their losses (`PairStream.robust`)."""
    costs: Costs = {}
    settings = RobustSampling(updates=1)
    streams = [PairStream("bitext", rows, 256, robust=settings)]
    batches = make_iterator(dataset, streams, 0, prefetch=0)
    next(batches)
    (count,) = batches.task_counts().values()
    losses = np.random.default_rng(0).random(count), np.ones(count)
    _cpu(costs, "losses of a step by task", lambda: batches.observe({"bitext": {"loss": losses}}))
    logging.disable()
    _cpu(costs, "new weights by loss", lambda: task_losses.end_phase(batches, 5, 10, folder))
    state = json.dumps(batches.get_state())
    costs["position with losses by task, bytes"] = len(state)
    report = _cpu(costs, "report of weights", lambda: _pair_weights(folder / "pair_weights.json"))
    costs["report of weights, bytes"] = len(report)
    batches.close()
    return costs


# --- Languages. ---


def languages(size: int, small: bool) -> Costs:
    """Computes what has an entry for each language, or each pair of languages."""
    costs: Costs = {}
    rng = np.random.default_rng(0)
    codes = [f"l{number:03}" for number in range(size)]
    counts = np.triu(np.outer(*[rng.lognormal(5, 1, size)] * 2).astype(int) + 1.0, 1)
    counts += counts.T
    _cpu(costs, "Sinkhorn weights, all pairs", lambda: pair_sampling.entropic(codes, counts, 0.7))
    pieces = 20 if small else 500
    curves = {code: [(pieces * n, -100.0 / n) for n in (1, 2, 4, 8)] for code in codes}
    weights = allocation.shares(dict.fromkeys(codes, 1.0), 0.7, 0.7)

    def pieces_of(code: str, number: int) -> dict[str, float]:
        own = range(curves[code][number][0])  # A tenth is shared by all.
        return {f"{n}" if n % 10 == 0 else f"{code}{n}": -float(n) for n in own}

    _cpu(
        costs,
        "VoCap's allocation",
        lambda: allocation.allocate(curves, weights, 4 * pieces * size, pieces_of),
    )
    outcome = Outcome(
        tuple(
            Result("tatoeba", f"{code}-en", "accuracy", 0.5, layer=layer, setting=setting)
            for code in codes
            for layer in range(13)
            for setting in ("mean", "first")
        ),
        {},
    )
    header = results.Header("command", "run/checkpoints/1", 1, 0)
    with tempfile.TemporaryDirectory() as name:
        write = lambda: results.write(outcome, name, header)  # noqa: E731
        path = _cpu(costs, "write 26 results a language", write)
        costs["results.json, bytes"] = path.stat().st_size
        _cpu(costs, "read and collect them", lambda: results.aggregate([path]))
        data = Path(name) / "data"
        data.mkdir()
        write_data(data, 4 * size, size, languages=size)
        dataset = prepared.PreparedDataset.load(data)
        named = tuple(sorted({code for task in dataset.tasks for code in task.languages}))
        streams = [
            TextStream("text", 64, 256),
            PairStream("pairs", 64, 256, layout=Translations(named)),
        ]
        batches = make_iterator(dataset, streams, 0, prefetch=0)
        _cpu(costs, "first batch with languages", lambda: next(batches))
        batches.close()
    return costs


# --- Hosts. ---


def hosts(size: int, small: bool) -> Costs:
    """Reads one host's share of the same global batches, 256 rows of text and of pairs each."""
    rows, count = (8, 3) if small else (256, 40)
    costs: Costs = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder, 20 if small else 4_000, 20)
        dataset = prepared.PreparedDataset.load(folder)
        costs["verified at the start, bytes"] = dataset.verify(0, size)
        streams = [
            TextStream("text", rows, 256),
            PairStream("pairs", rows, 256),
        ]
        tokens = 0
        with _opened_files() as opened:
            batches = make_iterator(dataset, streams, 0, size // 2, size, prefetch=0)
            next(batches)  # Reads the lengths of all pairs.
            before, start = _read_bytes(), time.process_time()
            for _ in range(count):
                batch = next(batches)
                tokens += sum(int((own["segment_ids"] > 0).sum()) for own in batch.values())
            costs["a batch, CPU s"] = (time.process_time() - start) / count
            costs["a batch, bytes read"] = (_read_bytes() - before) / count
            costs["a batch, tokens delivered"] = tokens / count
            costs["shards and lengths opened"] = len(set(opened))
            batches.close()
    return costs


@contextlib.contextmanager
def _opened_files() -> Iterator[list[str]]:
    """Yields a list that gets the path of each file of data that is opened."""
    found: list[str] = []
    folder = tempfile.gettempdir()

    def note(event: str, arguments: Any) -> None:
        if event == "open" and str(arguments[0]).startswith(folder):
            found.append(str(arguments[0]))

    # ArrayRecord opens files outside of Python.
    from array_record.python import array_record_module

    original = array_record_module.ArrayRecordReader

    def open_shard(path: str, *arguments: Any) -> Any:
        found.append(path)
        return original(path, *arguments)

    array_record_module.ArrayRecordReader = open_shard
    sys.addaudithook(note)
    yield found
    array_record_module.ArrayRecordReader = original


def _read_bytes() -> int:
    """Returns the bytes that this process has read from files, cached or not."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(lines[0].removeprefix("rchar: "))


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


MEASURES: dict[str, Callable[[int, bool], Costs]] = {
    "pairs": pairs,
    "languages": languages,
    "hosts": hosts,
}

if __name__ == "__main__":
    main()
