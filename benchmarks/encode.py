"""Compares `Model.encode` on this machine with Transformers and mean pooling in PyTorch.

    python benchmarks/encode.py --file=$DATA/mono/en.txt.xz

Both turn the same texts into vectors, tokenization included: lines of a file, so that lengths are
those of natural text. Ours is one call with all texts, which it sorts into batches of few shapes.
The peer is the exported encoder, read by `AutoModel` and its tokenizer, with batches of 32 texts
that are padded to the longest, as the README of every sentence encoder has it: in the order of the
file ("as given"), and sorted by length first ("sorted"). Weights are random. Measurements
alternate: each round encodes all texts with ours, then with the peer, in a process of its own; both
have encoded them once before. The vectors are compared.

"xlm" is exported as XLM-R, Transformers' own class; "xlme" has XLM-E's relative bias, and its model
file comes with the export.
"""

import argparse
import dataclasses
import json
import lzma
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import numpy as np

# Hidden size, layers, vocabulary.
SHAPES = {"tiny": (64, 2, 500), "192": (192, 3, 8_000), "256": (256, 12, 32_768)}
SYSTEMS = {"xlm": "Encoder.num_layers", "xlme": "discriminator/Encoder.num_layers"}
LENGTH = 512
ROWS = 32
ORDERS = ("as given", "sorted")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", required=True, help="Text, one to a line; may be .xz.")
    parser.add_argument("--texts", type=int, default=1000, help="Lines to read.")
    parser.add_argument("--shapes", default="192,256", help=f"Any of {', '.join(SHAPES)}.")
    parser.add_argument("--systems", default="xlm,xlme", help=f"Any of {', '.join(SYSTEMS)}.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--output", default="benchmarks/results/encode.json")
    options = parser.parse_args()
    texts = read(Path(options.file), options.texts)
    if options.peer:
        print(json.dumps(peer(Path(options.peer), texts)))
        return
    results = machine.describe("jax", "jaxlib", "torch", "transformers") | {
        "texts": len(texts),
        "encoders": [
            measure(system, shape, texts, options)
            for shape in options.shapes.split(",")
            for system in options.systems.split(",")
        ],
    }
    machine.write(options.output, results)


def read(file: Path, count: int) -> list[str]:
    """Returns the first lines of a file that are not blank."""
    content = file.read_bytes()
    content = lzma.decompress(content) if file.suffix == ".xz" else content
    lines = (line.strip() for line in content.decode().split("\n"))
    return [line for line in lines if line][:count]


def measure(
    system: str, shape: str, texts: list[str], options: argparse.Namespace
) -> dict[str, Any]:
    """Returns seconds of both by round; prints a table."""
    with tempfile.TemporaryDirectory() as folder:
        model = write(Path(folder), system, SHAPES[shape], texts)
        lengths = [min(len(ids) + 2, LENGTH) for ids in model.vocabulary.encode_batch(texts)]

        def encode() -> np.ndarray:
            return model.encode(texts, layer=model.num_layers)

        vectors = encode()
        command = [sys.executable, __file__, f"--peer={folder}", f"--file={options.file}"]
        command += [f"--texts={options.texts}"]
        rounds = []
        for _ in range(options.rounds):
            own = timed(encode)
            output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            rounds.append({"ours": own} | json.loads(output.splitlines()[-1]))
        difference = np.abs(vectors - np.load(Path(folder) / "vectors.npy")).max()
    hidden, layers, vocabulary = SHAPES[shape]
    print(f"\n{system}, hidden {hidden}, {layers} layers, V {vocabulary:,}")
    print(
        f"{len(texts)} texts, {sum(lengths):,} tokens; median {statistics.median(lengths):g}, "
        f"longest {max(lengths)}; largest difference of the vectors {difference:.1e}"
    )
    print(f"{'':10}{'tokens/s':>12}{'speed of ours over it':>24}{'by CPU time':>13}")
    table = {}
    for name in ("ours", *ORDERS):
        speed = sum(lengths) / statistics.median(one[name]["wall"] for one in rounds)
        ratios = {
            clock: statistics.median(one[name][clock] / one["ours"][clock] for one in rounds)
            for clock in ("wall", "cpu")
        }
        table[name] = {"tokens_per_second": speed, "speed_of_ours": ratios}
        print(f"{name:10}{speed:12,.0f}{ratios['wall']:23.2f}x{ratios['cpu']:12.2f}x", flush=True)
    return {
        "system": system,
        "shape": SHAPES[shape],
        "tokens": sum(lengths),
        "seconds": rounds,
        "table": table,
        "largest_difference": float(difference),
    }


def timed(function: Callable[[], Any]) -> dict[str, float]:
    """Returns the seconds of a call, and the CPU time of all threads in it."""
    start, cpu = time.perf_counter(), time.process_time()
    function()
    return {"wall": time.perf_counter() - start, "cpu": time.process_time() - cpu}


def write(folder: Path, system: str, shape: tuple[int, ...], texts: list[str]) -> Any:
    """Writes a run with random weights and its export; returns the loaded model."""
    import jax.numpy as jnp
    import optax

    import xlme_jax
    from xlme_jax.checkpoints.checkpoints import Checkpoints
    from xlme_jax.checkpoints.saved import RunRecord
    from xlme_jax.data.vocabulary import train_vocabulary, write_vocabulary
    from xlme_jax.huggingface import writing
    from xlme_jax.training import mesh as meshes
    from xlme_jax.training import sharded_state as states

    hidden, layers, size = shape
    run = folder / "run"
    vocabulary = train_vocabulary(texts, size, allow_smaller=True)
    run.mkdir()
    write_vocabulary(vocabulary, run / "vocabulary.model")
    overrides = {
        "MODEL_DIR": run,
        "DATA_DIR": run,
        SYSTEMS[system]: layers,
        "Encoder.hidden_size": hidden,
        "Encoder.num_heads": max(hidden // 64, 1),
        "Encoder.ffn_size": 4 * hidden,
        "Encoder.max_length": LENGTH,
    }
    # Read by no encoding, but a run has them.
    for stream in ("monolingual/TextStream", "bitext/PairStream"):
        overrides |= {f"{stream}.rows": 1, f"{stream}.length": LENGTH}
    config = xlme_jax.load_config(f"gin_configs/models/{system}.gin", overrides)
    objective = config.train.objective.build(vocabulary.size)
    mesh = meshes.make_mesh(config.train.mesh)
    with states.sharding_rules(mesh):
        abstract = states.abstract_state(objective, optax.identity(), mesh)
        state = states.fresh_state(objective, optax.identity(), abstract, 0)
        with Checkpoints(run, keep=1) as checkpoints:
            record = RunRecord({}, "", config.text, vocabulary=vocabulary.digest)
            checkpoints.save(1, dataclasses.replace(state, step=jnp.int32(1)), record)
    writing.export(str(run), None, folder / "exported", "benchmarks/encode.py")
    return xlme_jax.load(run)


def peer(folder: Path, texts: list[str]) -> dict[str, dict[str, float]]:
    """Returns the peer's seconds by order; writes its vectors."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    exported = folder / "exported"
    tokenizer = AutoTokenizer.from_pretrained(exported, trust_remote_code=True)
    model = AutoModel.from_pretrained(exported, trust_remote_code=True).eval()

    def encode(order: list[int]) -> np.ndarray:
        found = []
        for start in range(0, len(order), ROWS):
            chosen = [texts[index] for index in order[start : start + ROWS]]
            rows = tokenizer(
                chosen, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt"
            )
            with torch.inference_mode():
                hidden = model(rows["input_ids"], attention_mask=rows["attention_mask"])
            mask = rows["attention_mask"][:, :, None]
            found.append((hidden.last_hidden_state * mask).sum(1) / mask.sum(1))
        return np.concatenate(found)[np.argsort(order)]

    given = list(range(len(texts)))
    orders = {"as given": given, "sorted": sorted(given, key=lambda index: -len(texts[index]))}
    assert tuple(orders) == ORDERS
    np.save(folder / "vectors.npy", encode(given))
    encode(orders["sorted"])
    return {name: timed(lambda order=order: encode(order)) for name, order in orders.items()}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
