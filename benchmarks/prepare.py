"""Compares the throughput of `prepare` with that of SentencePiece alone.

    python benchmarks/prepare.py --text_dir=mono --vocabulary=vocabulary.model

Three measurements alternate on the same text, each with the same number of processes:

- "encode": SentencePiece encodes lines in memory, 256 lines per call; starting processes and
  reading files are not timed.
- "read and encode": the same, but lines are read from the files, decompressed and decoded: the
  minimum work of any preparation (xz alone takes a fifth of the time).
- "prepare": everything from `PrepareConfig` to `dataset.json`, including the start of the workers,
  but not the import of TensorFlow and SeqIO in the main process.

Processes start with the largest files. Throughput is MB of UTF-8 text per wall second and per CPU
second; the latter depends less on other load. The default text is the embedded corpus.
"""

import argparse
import itertools
import multiprocessing
import resource
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
from xlme_jax.preparation.config import PrepareConfig

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
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", default="benchmarks/results/prepare.json")
    options = parser.parse_args()
    about = machine.describe("sentencepiece", "array_record", "numpy", "seqio", "tensorflow")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        text_dir = Path(options.text_dir or _write_cldr(work / "text", options.megabytes << 20))
        chosen = options.languages.split(",") if options.languages else None
        files = list(itertools.chain.from_iterable(discover_documents(text_dir, chosen).values()))
        model = _vocabulary(options.vocabulary, files, options.size, work / "vocabulary.model")
        found = measure(files, str(model), options.workers, options.repeats, work)
    found["text"] = options.text_dir or "embedded corpus"
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


def measure(
    files: list[Path], model: str, workers: int, repeats: int, work: Path
) -> dict[str, Any]:
    """Runs the three measurements alternately and prints a table; returns the results."""
    lines = tokens = size = 0
    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    for file in files:
        for line in _lines(file):
            lines, size = lines + 1, size + len(line.encode()) + 1
            tokens += len(processor.encode(line))
    api.load_tasks()
    ways: dict[str, Callable[[int], tuple[float, float]]] = {
        "encode": lambda _: _bare(files, model, workers, in_memory=True),
        "read and encode": lambda _: _bare(files, model, workers, in_memory=False),
        "prepare": lambda turn: _prepare(files, model, workers, work / f"out-{turn}"),
    }
    seconds: dict[str, Any] = {name: {"wall": [], "cpu": []} for name in ways}
    for turn in range(repeats):
        for name, way in ways.items():
            wall, cpu = way(turn)
            seconds[name]["wall"].append(round(wall, 3))
            seconds[name]["cpu"].append(round(cpu, 3))
    print(f"{len(files)} files, {size / 1e6:.1f} MB of text, {lines:,} lines, {workers} processes")
    for name, spent in seconds.items():
        rates = [size / 1e6 / statistics.median(spent[clock]) for clock in ("wall", "cpu")]
        print(f"  {name:16} {rates[0]:6.2f} MB/s  {rates[1]:6.2f} MB per CPU second")
    share = {
        f"prepare / {name}, by {clock} time": round(
            statistics.median(
                a / b for a, b in zip(seconds[name][clock], seconds["prepare"][clock])
            ),
            3,
        )
        for name in ("encode", "read and encode")
        for clock in ("wall", "cpu")
    }
    for name, value in share.items():
        print(f"  {name}: {value:.1%}")
    counts = {"files": len(files), "bytes": size, "lines": lines, "tokens": tokens}
    ids = Vocabulary.load(model).size
    return {**counts, "vocabulary": ids, "workers": workers, "seconds": seconds, "share": share}


def _bare(files: list[Path], model: str, workers: int, in_memory: bool) -> tuple[float, float]:
    """Returns wall and CPU seconds of encoding the files' lines in separate processes."""
    context = multiprocessing.get_context("spawn")
    shares: list[list[Path]] = [[] for _ in range(workers)]
    for file in sorted(files, key=lambda file: -file.stat().st_size):
        min(shares, key=lambda share: sum(f.stat().st_size for f in share)).append(file)
    ready, results = context.Barrier(workers + 1), context.Queue()
    processes = [
        context.Process(target=_encode, args=(share, model, in_memory, ready, results))
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


def _encode(files: list[Path], model: str, in_memory: bool, ready: Any, results: Any) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    texts = [_lines(file) for file in files]
    if in_memory:
        texts = [iter(list(lines)) for lines in texts]
    ready.wait()
    begin = time.process_time()
    for lines in texts:
        while batch := list(itertools.islice(lines, _BATCH)):
            processor.encode(batch, num_threads=1)
    results.put(time.process_time() - begin)


def _prepare(files: list[Path], model: str, workers: int, output: Path) -> tuple[float, float]:
    """Returns wall and CPU seconds of preparing the files."""
    texts = output.with_name(f"{output.name}-text")
    texts.mkdir()
    for file in files:
        (texts / file.name).symlink_to(file.resolve())
    languages = tuple(strip_compression(file.name).removesuffix(".txt") for file in files)
    config = PrepareConfig(
        str(output),
        tasks=("cc100",),
        vocabulary=model,
        cc100_dir=str(texts),
        languages=languages,
        workers=workers,
    )
    begin, cpu = time.monotonic(), _cpu_seconds()
    api.prepare(config)
    return time.monotonic() - begin, _cpu_seconds() - cpu


def _cpu_seconds() -> float:
    """Returns CPU seconds of this process and its finished children."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main()
