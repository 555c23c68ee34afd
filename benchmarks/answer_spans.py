"""Measures how many answers can be recovered exactly from tokens, by benchmark and language.

    python benchmarks/answer_spans.py --data=$DATA/eval [--vocabulary=FILE.model]

By default, a vocabulary is trained on the contexts. An answer is recovered if the labels of one of
its windows select exactly its characters.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import machine

from xlme_jax.data.benchmarks.catalogue import benchmark
from xlme_jax.data.benchmarks.examples import QuestionExample
from xlme_jax.data.benchmarks.featurize import encode, lost_answers
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.data.vocabulary import Vocabulary, train_vocabulary

BENCHMARKS = ("xquad", "mlqa", "tydiqa")
Sets = dict[tuple[str, str, str], list[QuestionExample]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="Folder with xquad, mlqa and tydiqa.")
    parser.add_argument("--vocabulary", help="A .model file (default: trained on the contexts).")
    parser.add_argument("--size", type=int, default=16_000, help="Size of the trained vocabulary.")
    parser.add_argument("--max_length", type=int, default=384)
    parser.add_argument("--stride", type=int, default=128)
    parser.add_argument("--limit", type=int, help="Read only the first examples of each set.")
    parser.add_argument("--output", default="benchmarks/results/answer_spans.json")
    flags = parser.parse_args()

    sets = read(Path(flags.data), flags.limit)
    if flags.vocabulary:
        vocabulary = Vocabulary.load(flags.vocabulary)
    else:
        contexts = dict.fromkeys(e.context for examples in sets.values() for e in examples)
        vocabulary = train_vocabulary(contexts, flags.size, allow_smaller=True)
    results = {
        "/".join(key): measure(vocabulary, key[0], examples, flags.max_length, flags.stride)
        for key, examples in sets.items()
    }
    print(f"{'set':<28} {'answers':>8} {'exact':>8}  lost")
    for name, found in results.items():
        lost = ", ".join(f"{n} {reason}" for reason, n in found["reasons"].items())
        print(f"{name:<28} {found['answers']:>8,} {found['exact']:>8.2%}  {lost}")
    least = min(results, key=lambda name: results[name]["exact"])
    print(f"least: {least}, {results[least]['exact']:.2%}")
    about = {
        "vocabulary": {"size": vocabulary.size, "sha256": vocabulary.digest},
        "trained on": "other text" if flags.vocabulary else "the contexts",
    }
    machine.write(flags.output, {**machine.describe("sentencepiece"), **about, "results": results})


def read(data: Path, limit: int | None) -> Sets:
    """Reads all available sets, as {(benchmark, split, language): examples}."""
    sets: Sets = {}
    for name in BENCHMARKS:
        if not (data / name).is_dir():
            continue
        for split, languages in benchmark(name).available(data / name).items():
            for language in languages:
                examples = benchmark(name).read(data / name, split, language, ReadReport())
                sets[name, split, language] = [
                    e for e in examples[:limit] if isinstance(e, QuestionExample)
                ]
    return sets


def measure(
    vocabulary: Vocabulary,
    name: str,
    examples: list[QuestionExample],
    max_length: int,
    stride: int,
) -> dict[str, Any]:
    """Returns the share of exactly recovered answers and why the others are not."""
    start = time.perf_counter()
    rows = encode(
        vocabulary,
        benchmark(name),
        examples,
        max_length,
        stride=stride,
        report=ReadReport(),
        training=False,
    )
    seconds = time.perf_counter() - start
    lost = lost_answers(examples, rows)
    reasons: dict[str, int] = {}
    for reason, _ in lost.values():
        reasons[reason] = reasons.get(reason, 0) + 1
    gold = {e.id: e.context[slice(*e.span)] for e in examples if e.span}
    return {
        "answers": len(gold),
        "exact": 1 - len(lost) / max(len(gold), 1),
        "windows": len(rows),
        "seconds": round(seconds, 3),
        "reasons": reasons,
    }


if __name__ == "__main__":
    main()
