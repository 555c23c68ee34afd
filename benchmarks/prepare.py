"""Compares the throughput of `prepare` with that of SentencePiece alone.

    python benchmarks/prepare.py --text_dir=mono --vocabulary=vocabulary.model --workers=1,2 --beam

Measurements alternate on the same text, each with the same number of processes:

- "encode": SentencePiece encodes lines in memory into lists, as by default, 256 lines per call;
  starting processes and reading files are not timed.
- "encode to arrays": the same with whole documents and arrays, its fastest way.
- "read and encode": as "encode", but lines are read from the files, decompressed and decoded: the
  minimum work of any preparation.
- "prepare": everything from `PrepareConfig` to `dataset.json`, including the start of the workers,
  but not the import of TensorFlow and SeqIO in the main process.
- "prepare on Beam" (`--beam`): the same on Beam's local runner with worker processes. Its CPU time
  is that of the processes that have ended in time to be counted, so only wall time is compared.

Processes start with the largest files. Throughput is MB of UTF-8 text per wall second and per CPU
second; the latter depends less on other load. The default text is the embedded corpus.
"""

import argparse
import dataclasses
import functools
import itertools
import multiprocessing
import re
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import machine
import sentencepiece

from xlme_jax import api
from xlme_jax.data import cldr
from xlme_jax.data.text.decompression import read_blocks, strip_compression
from xlme_jax.data.text.reading import discover_documents
from xlme_jax.data.vocabulary import Vocabulary, train_vocabulary, write_vocabulary
from xlme_jax.preparation.prepare_config import PrepareConfig

_BATCH = 256
_CLDR_LANGUAGES = ("en", "ru", "zh", "de", "sw", "th", "ar", "hi")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text_dir", help="Folder of <lang>.txt[.xz] files in CC-100's format.")
    parser.add_argument("--languages", default="", help="Languages, such as en,sw (default: all).")
    parser.add_argument("--vocabulary", help="SentencePiece model (default: train one).")
    parser.add_argument("--size", type=int, default=16_000, help="Size of the trained vocabulary.")
    parser.add_argument("--megabytes", type=int, default=100, help="Size of the embedded corpus.")
    parser.add_argument("--workers", default="1,2", help="Numbers of processes, the fewest first.")
    parser.add_argument("--beam", action="store_true", help="Also measure Beam's local runner.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", default="benchmarks/results/prepare.json")
    options = parser.parse_args()
    machine.keep_bytecode()
    about = machine.describe("sentencepiece", "array_record", "numpy", "seqio", "tensorflow")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        text_dir = Path(options.text_dir or _write_cldr(work / "text", options.megabytes << 20))
        chosen = options.languages.split(",") if options.languages else None
        files = list(itertools.chain.from_iterable(discover_documents(text_dir, chosen).values()))
        model = _vocabulary(options.vocabulary, files, options.size, work / "vocabulary.model")
        workers = [int(number) for number in options.workers.split(",")]
        setting = Setting(files, str(model), work)
        found = measure(setting, workers, options.repeats, options.beam)
    machine.write(options.output, {**about, **found})


def _write_cldr(folder: Path, size: int) -> Path:
    """Writes about `size` bytes of documents of the embedded corpus, uncompressed."""
    folder.mkdir()
    config = cldr.CldrConfig(_CLDR_LANGUAGES)
    for language in _CLDR_LANGUAGES:
        documents = list(cldr.documents(config, language, "train", 2000))
        text = ("\n\n".join(documents) + "\n\n").encode()
        # Repeating the text is fine, as SentencePiece is not faster on repeated lines.
        repeats = max(size // len(_CLDR_LANGUAGES) // len(text), 1)
        (folder / f"{language}.txt").write_bytes(text * repeats)
    return folder


def _vocabulary(given: str | None, files: list[Path], size: int, path: Path) -> Path:
    if given:
        return Path(given)
    sample = itertools.chain.from_iterable(itertools.islice(_lines(file), 5000) for file in files)
    write_vocabulary(train_vocabulary(sample, size, allow_smaller=True), path)
    return path


def _lines(file: Path) -> Iterator[str]:
    """Yields the non-empty lines of a file with the minimum work in Python."""
    rest = b""
    for block in read_blocks(file):
        *lines, rest = (rest + block).split(b"\n")
        yield from (line.decode() for line in lines if line)
    if rest:
        yield rest.decode()


def _documents(file: Path) -> Iterator[str]:
    """Yields the documents of a file."""
    yield from re.split(r"\n\s*\n", b"".join(read_blocks(file)).decode())


# How each measurement of SentencePiece alone reads a file.
_READ = {"encode": _lines, "encode to arrays": _documents, "read and encode": _lines}


@dataclasses.dataclass(frozen=True)
class Setting:
    """Files of text, the vocabulary that encodes them, and a folder for outputs."""

    files: list[Path]
    model: str
    work: Path


def measure(setting: Setting, workers: list[int], repeats: int, beam: bool) -> dict[str, Any]:
    """Runs all measurements alternately and prints a table; returns the results."""
    lines = tokens = size = 0
    processor = sentencepiece.SentencePieceProcessor(model_file=setting.model)
    for file in setting.files:
        for line in _lines(file):
            lines, size = lines + 1, size + len(line.encode()) + 1
            tokens += len(processor.encode(line))
    ways: dict[str, Callable[[int], tuple[float, float]]] = {
        **{name: functools.partial(_bare, setting, name) for name in _READ},
        "prepare": functools.partial(_prepare, setting, ""),
        **(
            {"prepare on Beam": functools.partial(_prepare, setting, "DirectRunner")}
            if beam
            else {}
        ),
    }
    seconds: dict[int, Any] = {
        number: {name: {"wall": [], "cpu": []} for name in ways} for number in workers
    }
    for _ in range(repeats):
        for number, (name, way) in itertools.product(workers, ways.items()):
            wall, cpu = way(number)
            seconds[number][name]["wall"].append(round(wall, 3))
            seconds[number][name]["cpu"].append(round(cpu, 3))
    print(f"{len(setting.files)} files, {size / 1e6:.1f} MB of text, {lines:,} lines")
    return {
        "files": len(setting.files),
        **{"bytes": size, "lines": lines, "tokens": tokens},
        "vocabulary": Vocabulary.load(setting.model).size,
        "runs": [_report(number, seconds[number], size) for number in workers],
        "speed_up": _report_speed_up(seconds, workers),
    }


def _report(workers: int, seconds: dict[str, Any], size: int) -> dict[str, Any]:
    """Prints and returns the results of one number of processes."""
    print(f"processes: {workers}")
    for name, spent in seconds.items():
        rates = [size / 1e6 / statistics.median(spent[clock]) for clock in ("wall", "cpu")]
        print(f"  {name:16} {rates[0]:6.2f} MB/s  {rates[1]:6.2f} MB per CPU second")
    share = {}
    for ours, clocks in (("prepare", ("wall", "cpu")), ("prepare on Beam", ("wall",))):
        for name, clock in itertools.product(_READ if ours in seconds else (), clocks):
            ratio = _median_ratio(seconds[name][clock], seconds[ours][clock])
            share[f"{ours} / {name}, by {clock} time"] = ratio
            print(f"  {ours} / {name}, by {clock} time: {ratio:.1%}")
    return {"workers": workers, "seconds": seconds, "share": share}


def _report_speed_up(seconds: dict[int, Any], workers: list[int]) -> dict[str, float]:
    """Prints and returns the wall time with the fewest processes over that with the most."""
    found = {}
    for name in seconds[workers[0]] if len(workers) > 1 else ():
        few, many = (seconds[number][name]["wall"] for number in (workers[0], workers[-1]))
        found[name] = _median_ratio(few, many)
        print(f"  {name}: {workers[-1]} processes are {found[name]:.2f} times {workers[0]}")
    return found


def _median_ratio(above: list[float], below: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(above, below)), 3)


def _bare(setting: Setting, name: str, workers: int) -> tuple[float, float]:
    """Returns wall and CPU seconds of encoding the files' texts in separate processes."""
    context = multiprocessing.get_context("spawn")
    shares: list[list[Path]] = [[] for _ in range(workers)]
    for file in sorted(setting.files, key=lambda file: -file.stat().st_size):
        min(shares, key=lambda share: sum(f.stat().st_size for f in share)).append(file)
    ready, results = context.Barrier(workers + 1), context.Queue()
    processes = [
        context.Process(target=_encode, args=(share, setting.model, name, ready, results))
        for share in shares
    ]
    for process in processes:
        process.start()
    ready.wait()
    begin = time.monotonic()
    cpu = sum(results.get() for _ in processes)
    wall = time.monotonic() - begin
    for process in processes:
        process.join()
    return wall, cpu


def _encode(files: list[Path], model: str, name: str, ready: Any, results: Any) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    texts = [_READ[name](file) for file in files]
    if name != "read and encode":
        texts = [iter(list(found)) for found in texts]
    kind: Any = "numpy" if name == "encode to arrays" else int
    ready.wait()
    begin = time.process_time()
    for found in texts:
        while batch := list(itertools.islice(found, _BATCH)):
            processor.encode(batch, num_threads=1, return_type=kind)
    results.put(time.process_time() - begin)


def _prepare(setting: Setting, runner: str, workers: int) -> tuple[float, float]:
    """Returns wall and CPU seconds of preparing the files."""
    output = Path(tempfile.mkdtemp(dir=setting.work))
    texts = output / "text"
    texts.mkdir()
    for file in setting.files:
        (texts / file.name).symlink_to(file.resolve())
    names = (strip_compression(file.name).removesuffix(".txt") for file in setting.files)
    config = PrepareConfig(
        str(output / "data"),
        tasks=("cc100",),
        vocabulary=setting.model,
        cc100_dir=str(texts),
        languages=tuple(names),
        workers=workers,
        runner=runner,
        runner_options=(f"--direct_num_workers={workers}", "--direct_running_mode=multi_processing")
        if runner
        else (),
    )
    begin, cpu = time.monotonic(), _cpu_seconds()
    api.prepare(config)
    spent = time.monotonic() - begin, _cpu_seconds() - cpu
    shutil.rmtree(output)
    return spent


def _cpu_seconds() -> float:
    """Returns CPU seconds of this process and its finished children."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main()
