"""Compares runs with different vocabularies on the same held-out text, in bits per character.

    python benchmarks/vocabulary_size.py runs/a runs/b ...

Losses per token of two vocabularies cannot be compared. For every language, the MLM loss of the
validation split of its running text is multiplied by tokens per character, in bits; characters are
those of the text that the tokens decode to. Masked tokens are predicted from all others, so this is
a pseudo-likelihood, for comparisons at one masking rate. Retrieval is the mean accuracy over
languages and directions at the best layer, from the results of `xlme_jax.evaluate` in each run.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import machine
import numpy as np

from xlme_jax.checkpoints.saved import pretraining_flops
from xlme_jax.data.prepared import PreparedDataset, TaskInfo
from xlme_jax.data.token_ids import EOS_ID
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation import results
from xlme_jax.evaluation.held_out_losses import HeldOut
from xlme_jax.runs import evaluating, trained
from xlme_jax.training import mesh as meshes
from xlme_jax.training import state as states


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", help="MODEL_DIR of each run.")
    parser.add_argument("--readout", default="centred", help="Readout of retrieval.")
    parser.add_argument("--output", default="benchmarks/results/vocabulary_size.json")
    options = parser.parse_args()
    content = machine.describe("jax", "sentencepiece") | {"runs": {}}
    for run in options.runs:
        row = measure(run) | retrieval(Path(run), options.readout)
        content["runs"][Path(run).name] = row
        print(
            f"{Path(run).name:16} {row['vocabulary']:7,} ids  {row['flops']:.3g} FLOPs  "
            + "  ".join(f"{lang} {bits:.3f}" for lang, bits in row["bits_per_character"].items())
            + "".join(f"  {name} {row[name]:.3f}" for name in SETS if name in row)
        )
    machine.write(options.output, content)


SETS = ("held_out_retrieval", "tatoeba")


def measure(run: str) -> dict[str, Any]:
    """Returns the bits per character of each language's held-out text, and their mean."""
    mesh = meshes.make_mesh(meshes.MeshConfig())
    with states.sharding_rules(mesh):
        loaded = trained.load(run, None, mesh)
        context = evaluating.held_out_losses(loaded, mesh).context
        found: dict[str, dict[str, float]] = {}
        for task in context.dataset.tasks:
            if task.split == "validation" and task.kind == "monolingual":
                losses = HeldOut(max_rows=None, tasks=(task.name,)).build(context)(loaded.params)
                loss = losses["monolingual/mlm_loss"]
                rate = tokens_per_character(context.dataset, task, loaded.vocabulary)
                found[task.languages[0]] = {
                    "mlm_loss": loss,
                    "tokens_per_character": rate,
                    "bits_per_character": loss * rate / math.log(2),
                }
    bits = {language: row["bits_per_character"] for language, row in sorted(found.items())}
    return {
        "vocabulary": loaded.vocabulary.size,
        "flops": pretraining_flops(Path(run)).ours,
        "languages": found,
        "bits_per_character": bits | {"mean": float(np.mean(list(bits.values())))},
    }


def tokens_per_character(dataset: PreparedDataset, task: TaskInfo, vocabulary: Vocabulary) -> float:
    """Returns the tokens of a task's text per character, special tokens left out."""
    [ids] = dataset.read_text(task, np.array([0]), task.tokens)
    return int(np.sum(ids > EOS_ID)) / len(vocabulary.decode(ids.tolist()))


def retrieval(run: Path, readout: str) -> dict[str, float]:
    """Returns the mean accuracy of each set at its best layer, from `results.json` of a run."""
    found: dict[str, float] = {}
    for file in run.glob("evaluation/*/results.json"):
        for row in results.read(file).results:
            if (
                row.task in SETS
                and row.language == "mean"
                and row.metric == "accuracy"
                and row.readout == readout
                and row.system == "model"
            ):
                found[row.task] = max(found.get(row.task, 0), row.value)
    return found


if __name__ == "__main__":
    main()
