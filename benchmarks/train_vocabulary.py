"""Compares `train_vocabulary` with SentencePiece's trainer on the same sampled text.

    python benchmarks/train_vocabulary.py --text_dir=mono --size=8000 --sample_bytes=4000000

Two commands alternate, each a process of its own from start to end:

- "spm_train": SentencePiece's trainer reads the sample from a file, as its command does.
- "train_vocabulary": `python -m xlme_jax.train_vocabulary`, which finds the files of each language,
  decompresses and samples them, and trains on the sample without writing it.

Both train with the same options on the same sentences in the same order, and the benchmark fails if
the pieces or their scores differ.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine

from xlme_jax import api
from xlme_jax.data.vocabulary import Vocabulary, sentences
from xlme_jax.preparation import vocabulary_text
from xlme_jax.preparation.prepare_config import PrepareConfig

_BARE = """
import sys, sentencepiece
text, prefix, size = sys.argv[1:]
sentencepiece.SentencePieceTrainer.train(
    input=text, model_prefix=prefix, model_type="unigram", vocab_size=int(size) - 2,
    hard_vocab_limit=False, normalization_rule_name="nmt_nfkc", unk_id=0, bos_id=1, eos_id=2,
    pad_id=-1, max_sentence_length=4192, byte_fallback=True, character_coverage=0.9995,
    num_threads=16, minloglevel=2)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text_dir", required=True, help="Folder of <lang>.txt[.xz] files.")
    parser.add_argument("--languages", default="", help="Languages, such as en,sw (default: all).")
    parser.add_argument("--size", type=int, default=8000)
    parser.add_argument("--sample_bytes", type=int, default=4_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", default="benchmarks/results/train_vocabulary.json")
    options = parser.parse_args()
    machine.keep_bytecode()
    about = machine.describe("sentencepiece", "numpy")
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    machine.write(options.output, {**about, **found})


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Runs both commands alternately and prints a table; returns the results."""
    languages = tuple(options.languages.split(",")) if options.languages else ()
    counts = _write_sample(options, languages, work / "sample.txt")
    ours = [
        *("-m", "xlme_jax.train_vocabulary", "--tasks=cc100", f"--cc100_dir={options.text_dir}"),
        *(f"--size={options.size}", f"--sample_bytes={options.sample_bytes}", "--allow_smaller"),
        f"--output={work / 'ours.model'}",
        *([f"--languages={options.languages}"] if languages else []),
    ]
    bare = ["-c", _BARE, str(work / "sample.txt"), str(work / "bare"), str(options.size)]
    commands = {"spm_train": bare, "train_vocabulary": ours}
    seconds: dict[str, Any] = {name: {"wall": [], "cpu": []} for name in commands}
    _run(["-c", "import xlme_jax.train_vocabulary"])  # Compiles the modules.
    for _ in range(options.repeats):
        for name, command in commands.items():
            wall, cpu = _run(command)
            seconds[name]["wall"].append(round(wall, 3))
            seconds[name]["cpu"].append(round(cpu, 3))
        _check_equal(work / "bare.model", work / "ours.model")
    print(
        f"{counts['languages']} languages, {counts['bytes'] / 1e6:.1f} MB in "
        f"{counts['sentences']:,} sentences, {options.size:,} ids"
    )
    for name, spent in seconds.items():
        wall, cpu = (statistics.median(spent[clock]) for clock in ("wall", "cpu"))
        print(f"  {name:16} {wall:7.1f} s, {cpu:7.1f} CPU seconds")
    share = {
        f"spm_train / train_vocabulary, by {clock} time": round(
            statistics.median(
                a / b for a, b in zip(*(seconds[name][clock] for name in commands), strict=True)
            ),
            3,
        )
        for clock in ("wall", "cpu")
    }
    for name, value in share.items():
        print(f"  {name}: {value:.1%}")
    return {**counts, "vocabulary": options.size, "seconds": seconds, "share": share}


def _write_sample(
    options: argparse.Namespace, languages: tuple[str, ...], file: Path
) -> dict[str, int]:
    """Writes the sentences that `train_vocabulary` trains on; returns their counts."""
    config = PrepareConfig(".", ("cc100",), cc100_dir=options.text_dir, languages=languages)
    texts = api.find_text(config)
    lines = list(sentences(vocabulary_text.sample_text(texts, options.sample_bytes, alpha=0.7)))
    file.write_text("\n".join(lines) + "\n")
    size = file.stat().st_size
    found = vocabulary_text.languages_of(texts)
    return {"languages": len(found), "sentences": len(lines), "bytes": size}


def _run(arguments: list[str]) -> tuple[float, float]:
    """Returns wall and CPU seconds of a Python process."""
    begin, cpu = time.monotonic(), _cpu_seconds()
    subprocess.run([sys.executable, *arguments], check=True, stderr=subprocess.DEVNULL)
    return time.monotonic() - begin, _cpu_seconds() - cpu


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _check_equal(bare: Path, ours: Path) -> None:
    """Raises RuntimeError unless two models have the same pieces and scores."""
    if Vocabulary.load(bare).scored_pieces() != Vocabulary.load(ours).scored_pieces():
        raise RuntimeError("the two vocabularies differ")


if __name__ == "__main__":
    main()
