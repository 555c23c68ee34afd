"""Counts the shapes of batches of training and of translating, and their padding.

    python benchmarks/translate_shapes.py --data_dir=data/laptop --direction=en-fr

Reads the pairs of a prepared data set (docs/real_text.md prepares it) as training does, and its
held-out sources as `translate` does. A shape is compiled once, however many batches have it
(tests/e2e/test_split_translators.py). Padding is the share of tokens.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import machine
import numpy as np

import xlme_jax
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.data.batches.pipeline import make_iterator
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.evaluation import encoding
from xlme_jax.evaluation.retrieval import RetrievalProbe

_MODEL = (
    "INIT_FROM=None",
    "Translate.pretrained=@VECO()",
    "VECO.encoder=@Encoder()",
    "Encoder.relative_bias='none'",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data_dir", required=True, help="Prepared data.")
    parser.add_argument("--direction", default="en-fr")
    parser.add_argument("--gin_file", default="gin_configs/finetune/laptop_translate.gin")
    parser.add_argument(
        "--batches", type=int, default=200, help="Batches whose padding is counted."
    )
    parser.add_argument("--sentences", type=int, default=2000, help="Read of each task.")
    parser.add_argument("--output", default="benchmarks/results/translate_shapes.json")
    options = parser.parse_args()
    config = configuration(options)
    dataset = PreparedDataset.load(config.data_dir)
    found = {
        "train": training(config, dataset, options.batches),
        "translate": translating(config, dataset, options),
    }
    for name, row in found.items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in row.items()))
    machine.write(options.output, machine.describe("numpy", "grain") | found)


def configuration(options: argparse.Namespace) -> TrainConfig:
    """Returns the configuration of the run."""
    languages = tuple(options.direction.split("-"))
    own = (
        f"DATA_DIR={options.data_dir!r}",
        f"LANGUAGES={languages!r}",
        f"DIRECTIONS={(options.direction,)!r}",
    )
    return xlme_jax.load_config(options.gin_file, [*_MODEL, *own]).train


def training(config: TrainConfig, dataset: PreparedDataset, batches: int) -> dict[str, Any]:
    """Returns shapes and padding of training batches."""
    iterator = make_iterator(dataset, config.streams, config.loop.seed)
    padding, shapes = [], set()
    for _ in range(batches):
        (segments,) = (batch["segment_ids"] for batch in next(iterator).values())
        padding.append(float(np.mean(segments == 0)))
        shapes.add(segments.shape)
    return {"batches": batches, "shapes": len(shapes), "padding": round(np.mean(padding), 3)}


def translating(
    config: TrainConfig, dataset: PreparedDataset, options: argparse.Namespace
) -> dict[str, Any]:
    """Returns shapes and padding of batches of held-out sources."""
    texts = held_out(dataset, options, config.objective.encoder.max_length)
    batches = encoding.batches(texts)
    tokens = sum(map(len, texts))
    size = sum(batch.rows["tokens"].size for batch in batches)
    given = [texts[start : start + 32] for start in range(0, len(texts), 32)]
    by_order = sum(len(batch) * max(map(len, batch)) for batch in given)
    return {
        "sentences": len(texts),
        "median tokens": statistics.median(map(len, texts)),
        "most tokens": max(map(len, texts)),
        "batches": len(batches),
        "shapes": len({batch.rows["tokens"].shape for batch in batches}),
        "padding": round(1 - tokens / size, 3),
        "padding in batches of 32 unsorted": round(1 - tokens / by_order, 3),
    }


def held_out(
    dataset: PreparedDataset, options: argparse.Namespace, limit: int
) -> Sequence[tuple[int, ...]]:
    """Returns the sources of all held-out pairs of the direction."""
    source, target = options.direction.split("-")
    probe = RetrievalProbe(max_pairs=options.sentences, length=limit)
    return [
        pair[one.languages.index(source)]
        for one in probe.candidates(dataset).values()
        if {source, target} == set(one.languages)
        for pair in one.pairs
    ]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
