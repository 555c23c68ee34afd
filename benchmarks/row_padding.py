"""Counts the padding of rows that hold one text each, and the shapes that are compiled.

    python benchmarks/row_padding.py --file=$DATA/eval/xnli/dev-en.tsv

Fine-tuning draws batches of `--rows` pairs of the file: in full rows; in rows as long as the
longest pair of the batch; and with `LabelledStream.by_length`. Prediction reads the whole file.
Nothing is computed, so this takes seconds. `evaluation.py` prints the padding of frozen
evaluations.
"""

import argparse
import sys
from pathlib import Path

import machine
import numpy as np
from finetune_step import texts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", required=True, help="XNLI's dev-en.tsv.")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--by_length", type=int, default=8)
    parser.add_argument("--windows", type=int, default=500, help="Of `by_length` batches.")
    parser.add_argument("--output", default="benchmarks/results/row_padding.json")
    options = parser.parse_args()
    from xlme_jax.data.batches.row_lengths import SHORTEST_LABELLED, row_length
    from xlme_jax.evaluation import encoding

    read = texts(options.file, (0, 0, 8_000, 0, options.length))
    sizes = np.array([len(text) for text in read])
    shape = options.windows, options.by_length, options.rows
    drawn = np.random.default_rng(0).choice(sizes, shape)
    ordered = np.sort(drawn.reshape(options.windows, -1)).reshape(shape)
    arms = {"full rows": np.full(drawn.shape[:2], options.length)}
    for name, batches in (("rows of the batch", drawn), ("sorted by length", ordered)):
        longest = batches.max(axis=2)
        lengths = [row_length(int(n), SHORTEST_LABELLED) for n in longest.ravel()]
        arms[name] = np.minimum(lengths, options.length)
    found = {}
    for name, lengths in arms.items():
        padding = 1 - drawn.sum() / (lengths.sum() * options.rows)
        found[f"fine-tuning, {name}"] = (padding, len(np.unique(lengths)))
    rows = [batch.rows["tokens"] for batch in encoding.batches(read)]
    padding = 1 - sizes.sum() / sum(tokens.size for tokens in rows)
    found["prediction"] = (padding, len({tokens.shape for tokens in rows}))
    for name, (padding, shapes) in found.items():
        print(f"{name:32}{padding:7.1%} padding{shapes:4} shapes")
    results = {"options": vars(options), "padding and shapes": found}
    machine.write(options.output, machine.describe("numpy") | results)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
