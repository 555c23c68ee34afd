"""Compares fine-tuning and prediction on this machine with Hugging Face's Transformers in PyTorch.

    python benchmarks/finetune_step.py --file=$DATA/eval/xnli/dev-en.tsv

Classification of three classes (XNLI) with an encoder of XLM-R's shape: the train step with dropout
.1 and AdamW, and prediction. "lazy" is ours with
`FineTune.lazy_tokens`. Measurements alternate: each round runs a few steps and predictions of
ours, then the peer's, in a process of their own. The peer is XLMRobertaForSequenceClassification
with PyTorch's fused AdamW in a bare loop, which is all that its Trainer does plus the Trainer's own
work; `torch.compile` is tried with --compile. Both read the same rows, which are full.

With --file, "file" is the prediction of a whole development set whose texts have their own lengths,
tokenized before: ours in the batches of `evaluate`, the peer's by its Trainer's `predict` with
batches of 32 rows that are padded to the longest (needs accelerate). "8 batches" are eight train
steps on such texts, with rows as short as training makes them (`LabelledStream.by_length`); "8
padded" the same with full rows.

On CPUs where /sys/kernel/mm/transparent_hugepage/enabled contains "[madvise]", set
GLIBC_TUNABLES=glibc.malloc.hugetlb=1 for both.
"""

import argparse
import dataclasses
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import machine
import numpy as np

# Hidden size, layers, vocabulary, rows, length.
SHAPES = {
    "192": (192, 3, 8_000, 16, 64),
    "256": (256, 12, 32_768, 16, 128),
    "e5": (384, 12, 250_037, 8, 32),
    "base": (768, 12, 250_002, 32, 128),
}
# Rows of a batch of the peer's Trainer.
ROWS = 32


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default="192,256", help=f"Any of {', '.join(SHAPES)}.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="Steps of each kind per round.")
    parser.add_argument("--compile", action="store_true", help="The peer runs torch.compile.")
    parser.add_argument("--file", help="XNLI's dev-en.tsv.")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--output", default="benchmarks/results/finetune_step.json")
    options = parser.parse_args()
    if options.peer:
        print(json.dumps(peer(SHAPES[options.peer], options)))
        return
    results = machine.describe("jax", "jaxlib", "torch", "transformers") | {
        "shapes": {name: measure(name, options) for name in options.shapes.split(",")}
    }
    machine.write(options.output, results)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns seconds of both by round; prints a table."""
    steps = ours(SHAPES[name], options.file)
    command = [sys.executable, __file__, f"--peer={name}", f"--steps={options.steps}"]
    command += ["--compile"] if options.compile else []
    command += [f"--file={options.file}"] if options.file else []
    alone = {kind: steps.pop(kind) for kind in list(steps) if kind.startswith("8 ")}
    own_lengths: dict[str, list[float]] = {kind: [] for kind in alone}
    seconds: dict[str, list[dict[str, float]]] = {kind: [] for kind in steps}
    for _ in range(options.rounds):
        for kind, step in alone.items():
            own_lengths[kind].append(timed(step, 1))
        own = {kind: timed(step, options.steps) for kind, step in steps.items()}
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        theirs = json.loads(output.splitlines()[-1])
        for kind in steps:
            peer_s = theirs["train" if kind == "lazy" else kind]
            seconds[kind].append({"ours": own[kind], "peer": peer_s})
    hidden, layers, vocabulary, rows, length = SHAPES[name]
    print(f"\nhidden {hidden}, {layers} layers, V {vocabulary:,}, {rows} x {length}")
    print(f"{'':10}{'ours s':>9}{'peer s':>9}{'speed over the peer':>21}")
    table = {}
    for kind, values in own_lengths.items():
        table[kind] = {"seconds": values}
        print(f"{kind:10}{statistics.median(values):9.4f}", flush=True)
    if own_lengths:
        pairs = zip(own_lengths["8 padded"], own_lengths["8 batches"])
        ratio = statistics.median(padded / short for padded, short in pairs)
        table["8 batches"]["speed_over_padded"] = ratio
        print(f"short rows: {ratio:.2f}x of the speed of full rows", flush=True)
    for kind, rounds in seconds.items():
        ours_s, peer_s = (statistics.median(s[side] for s in rounds) for side in ("ours", "peer"))
        ratio = statistics.median(s["peer"] / s["ours"] for s in rounds)
        table[kind] = {"seconds": rounds, "speed_over_peer": ratio}
        print(f"{kind:10}{ours_s:9.4f}{peer_s:9.4f}{ratio:20.2f}x", flush=True)
    return {"shape": SHAPES[name], "table": table}


def timed(step: Callable[[], Any], count: int) -> float:
    """Returns the median seconds of a call, after one that fetches its memory from the system."""
    step()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def inputs(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Returns token ids [rows, length] and labels [rows]."""
    _, _, vocabulary, rows, length = shape
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, vocabulary - 1, (rows, length)).astype(np.int32)
    return tokens, rng.integers(0, 3, rows).astype(np.int32)


def texts(file: str, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Returns random token ids of as many tokens as the pairs of sentences of a file have."""
    from xlme_jax.data.text.lines import read_lines
    from xlme_jax.data.vocabulary import train_vocabulary

    _, _, vocabulary, _, length = shape
    pairs = [line.split("\t")[:2] for line in read_lines(file)]
    pieces = train_vocabulary([side for pair in pairs for side in pair], 8_000, allow_smaller=True)
    sizes = [min(len(pieces.encode(" ".join(pair))) + 4, length) for pair in pairs]
    rng = np.random.default_rng(0)
    return [tuple(rng.integers(5, vocabulary - 1, size).tolist()) for size in sizes]


def ours(shape: tuple[int, ...], file: str | None) -> dict[str, Callable[[], Any]]:
    """Returns a train step and predictions, which compile at their first call."""
    import jax
    import jax.numpy as jnp
    from steps import TrainStep

    from xlme_jax.evaluation import encoding
    from xlme_jax.model.encoder import EncoderConfig
    from xlme_jax.objectives.finetune import STREAM, FineTuneConfig
    from xlme_jax.objectives.xlme import XLMConfig
    from xlme_jax.training import sharded_state as states

    hidden, layers, vocabulary, rows, length = shape
    encoder = EncoderConfig(
        hidden_size=hidden,
        num_layers=layers,
        num_heads=max(hidden // 64, 1),
        ffn_size=4 * hidden,
        max_length=length,
        relative_bias="none",
    )
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    config = FineTuneConfig("xnli", XLMConfig(encoder))
    objective = config.build(vocabulary, dtype)
    lazy = dataclasses.replace(config, lazy_tokens=True).build(vocabulary, dtype)
    tokens, labels = inputs(shape)
    positions = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    batch = {"tokens": tokens, "segment_ids": np.ones_like(tokens), "positions": positions}
    batches = {STREAM: {**batch, "labels": labels[:, None]}}
    train, train_lazily = TrainStep(objective, batches), TrainStep(lazy, batches)
    predict_rows = jax.jit(objective.predict)

    def predict() -> None:
        with states.sharding_rules(train.mesh):
            jax.block_until_ready(predict_rows(train.state.params, batch))

    steps: dict[str, Callable[[], Any]] = {
        "train": train,
        "lazy": train_lazily,
        "predict": predict,
    }
    if file:
        rows = encoding.batches(texts(file, shape))

        def predict_file() -> None:
            with states.sharding_rules(train.mesh):
                for _ in encoding.run(predict_rows, train.state.params, rows):
                    pass

        steps["file"] = predict_file
        steps |= train_on_texts(train, texts(file, shape), len(tokens), length)
    return steps


def train_on_texts(
    train: Any, texts: Sequence[tuple[int, ...]], rows: int, length: int
) -> dict[str, Callable[[], Any]]:
    """Returns eight train steps on the first texts: with short rows, and with full ones."""
    from xlme_jax.data.batches.packing import SHORTEST_LABELLED, row_length
    from xlme_jax.evaluation import encoding
    from xlme_jax.objectives.finetune import STREAM

    some = sorted(texts[: 8 * rows], key=len)
    labels = np.zeros((rows, 1), np.int32)
    steps = {}
    for kind in ("8 batches", "8 padded"):
        batches = []
        for start in range(0, len(some), rows):
            own = some[start : start + rows]
            short = min(row_length(len(own[-1]), SHORTEST_LABELLED), length)
            filled = encoding.fill_rows(own, rows, short if kind == "8 batches" else length)
            batches.append(train.put({STREAM: {**filled, "labels": labels}}))
        steps[kind] = functools.partial(lambda batches: [train(b) for b in batches], batches)
    return steps


def peer(shape: tuple[int, ...], options: argparse.Namespace) -> dict[str, float]:
    """Returns the median seconds of the peer's train step and predictions."""
    import torch
    from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification

    hidden, layers, vocabulary, _, length = shape
    config = XLMRobertaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(hidden // 64, 1),
        intermediate_size=4 * hidden,
        max_position_embeddings=length + 2,
        num_labels=3,
    )
    model: Any = XLMRobertaForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    run = torch.compile(model) if options.compile else model
    tokens, labels = (torch.from_numpy(array).long() for array in inputs(shape))
    mask = torch.ones_like(tokens)

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        run(input_ids=tokens, attention_mask=mask, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def predict() -> None:
        with torch.inference_mode():
            run(input_ids=tokens, attention_mask=mask)

    steps: dict[str, Callable[[], Any]] = {"train": train, "predict": predict}
    if options.file:
        examples = [{"input_ids": tokens} for tokens in texts(options.file, shape)]
        steps["file"] = functools.partial(trainer(run).predict, examples)
    found = {}
    for name, step in steps.items():
        model.train(name == "train")
        found[name] = timed(step, options.steps)
    return found


def padded(texts: Sequence[Sequence[int]], value: int) -> Any:
    """Returns a tensor [n, longest]."""
    import torch

    tensors = [torch.tensor(text) for text in texts]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)


def trainer(model: Any) -> Any:
    """Returns Hugging Face's Trainer of a model, which pads batches to their longest row."""
    from transformers import Trainer, TrainingArguments

    def collate(examples: list[dict[str, Any]]) -> dict[str, Any]:
        tokens = padded([example["input_ids"] for example in examples], 1)
        return {"input_ids": tokens, "attention_mask": (tokens != 1).long()}

    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_eval_batch_size=ROWS,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
    )
    return Trainer(model=model, args=arguments, data_collator=collate)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
