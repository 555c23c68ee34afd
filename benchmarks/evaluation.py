"""Measures the cost of evaluating a frozen encoder relative to forward passes of the same tokens.

    python benchmarks/evaluation.py --data=$DATA/eval

Evaluates Tatoeba (36 languages x 1,000 pairs, repeated from the available languages) and gold word
alignments at every layer of a random encoder. Measurements alternate, and medians are reported:
each round runs the evaluation once, then forward passes that return only the last layer. "same
rows" uses the batches of the evaluation, including padding; "no padding" has the same number of
real tokens in full rows of the texts' mean length. Compilation is reported separately, and so are
reading and tokenization, which run once for any number of checkpoints.
"""

import argparse
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import machine
import numpy as np

from xlme_jax.data.benchmarks.parallel_sets import TATOEBA_36, TATOEBA_CODES
from xlme_jax.data.text.lines import read_lines
from xlme_jax.data.vocabulary import Vocabulary, train_vocabulary
from xlme_jax.evaluation import encoding
from xlme_jax.evaluation.alignment import WordAlignment
from xlme_jax.evaluation.outcome import Subject, subject_of
from xlme_jax.evaluation.tatoeba import Tatoeba
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.xlme import XLMConfig
from xlme_jax.training import mesh


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="Folder with tatoeba and wordalign.")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--languages", type=int, default=36)
    parser.add_argument("--pairs", type=int, default=1000, help="Pairs per language.")
    parser.add_argument("--corpora", default="", help="Corpora of wordalign (default: all).")
    parser.add_argument("--vocabulary", type=int, default=16_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", default="benchmarks/results/evaluation.json")
    options = parser.parse_args()
    results = machine.describe("jax", "jaxlib", "numpy") | {"options": vars(options), "tasks": {}}
    corpora = tuple(filter(None, options.corpora.split(",")))
    with tempfile.TemporaryDirectory() as folder:
        texts = repeat_tatoeba(Path(options.data) / "tatoeba", Path(folder), options)
        vocabulary = train_vocabulary(texts, options.vocabulary, allow_smaller=True)
        subject, params = random_encoder(vocabulary, options)
        print(f"{'':12}{'real tokens':>12}{'padding':>9}{'':14}{'wall s':>9}{'CPU s':>9}")
        for name, settings in (
            ("tatoeba", Tatoeba(folder)),
            ("wordalign", WordAlignment(str(Path(options.data) / "wordalign"), corpora)),
        ):
            results["tasks"][name] = measure(name, settings, subject, params, options.rounds)
    machine.write(options.output, results)


def repeat_tatoeba(source: Path, folder: Path, options: argparse.Namespace) -> list[str]:
    """Writes `options.languages` x `options.pairs`, repeating data; returns the texts."""
    available = sorted(path.name.split(".")[1][:3] for path in source.glob("tatoeba.*-eng.eng"))
    texts = []
    for index, code in enumerate(TATOEBA_36[: options.languages]):
        original, copy = available[index % len(available)], TATOEBA_CODES[code]
        for own, name in ((original, copy), ("eng", "eng")):
            lines = read_lines(str(source / f"tatoeba.{original}-eng.{own}"))
            lines = (lines * -(-options.pairs // len(lines)))[: options.pairs]
            (folder / f"tatoeba.{copy}-eng.{name}").write_text("\n".join(lines) + "\n")
            texts += lines
    return texts


def random_encoder(vocabulary: Vocabulary, options: argparse.Namespace) -> tuple[Subject, Any]:
    """Returns an untrained encoder of this size with XLM-E's gated relative bias."""
    config = EncoderConfig(
        hidden_size=options.hidden,
        num_layers=options.layers,
        num_heads=max(options.hidden // 64, 1),
        ffn_size=4 * options.hidden,
    )
    accelerator = jax.default_backend() != "cpu"
    objective = XLMConfig(encoder=config).build(
        vocabulary.size, jnp.bfloat16 if accelerator else jnp.float32
    )
    params = jax.jit(objective.init)(jax.random.key(0))
    return subject_of(objective, vocabulary), mesh.unbox(params)


def measure(name: str, settings: Any, subject: Subject, params: Any, rounds: int) -> dict[str, Any]:
    """Returns seconds of the evaluation and of forward passes, by round."""
    recorded: list[dict[str, np.ndarray]] = []
    start = time.perf_counter()
    with Recording(recorded):
        evaluate = settings.build(subject)
    reading = time.perf_counter() - start
    forward = jax.jit(lambda params, rows: subject.encode(params, rows)[-1])
    real = sum(int((rows["segment_ids"] > 0).sum()) for rows in recorded)
    padded = sum(rows["tokens"].size for rows in recorded)
    runs: dict[str, Callable[[], Any]] = {
        "evaluation": lambda: evaluate(params),
        "same rows": lambda: passes(forward, params, recorded),
        "no padding": lambda: passes(forward, params, full_rows(recorded, real)),
    }
    first = {kind: timed(run)["wall"] for kind, run in runs.items()}
    times: dict[str, list[dict[str, float]]] = {kind: [] for kind in runs}
    for _ in range(rounds):
        for kind, run in runs.items():
            times[kind].append(timed(run))
    table = {}
    for kind, values in times.items():
        wall, cpu = (statistics.median(s[clock] for s in values) for clock in ("wall", "cpu"))
        table[kind] = {"rounds": values, "first": first[kind]}
        head = f"{name:12}{real:12,}{padded / real - 1:9.1%}" if kind == "evaluation" else ""
        print(f"{head:33}  {kind:12}{wall:9.2f}{cpu:9.2f}", flush=True)
    ratios = {
        kind: {
            clock: statistics.median(
                ours[clock] / theirs[clock]
                for ours, theirs in zip(times["evaluation"], times[kind])
            )
            for clock in ("wall", "cpu")
        }
        for kind in ("same rows", "no padding")
    }
    for kind, ratio in ratios.items():
        shown = f"evaluation / {kind}"
        print(f"{'':33}  {shown:26} {ratio['wall']:.2f} of wall, {ratio['cpu']:.2f} of CPU time")
    return {
        "real tokens": real,
        "padded tokens": padded,
        "reading and tokenizing": reading,
        "seconds": table,
        "ratios": ratios,
    }


class Recording:
    """Context manager that records the rows of all batches made in it."""

    def __init__(self, recorded: list[dict[str, np.ndarray]]):
        self.recorded, self.batches = recorded, encoding.batches

    def __enter__(self) -> None:
        def batches(*arguments: Any, **options: Any) -> list[encoding.Batch]:
            made = self.batches(*arguments, **options)
            self.recorded += [batch.rows for batch in made]
            return made

        encoding.batches = batches

    def __exit__(self, *_: Any) -> None:
        encoding.batches = self.batches


def full_rows(recorded: list[dict[str, np.ndarray]], real: int) -> list[dict[str, np.ndarray]]:
    """Returns batches of `real` tokens without padding, in rows of the texts' mean length."""
    texts = sum(len(rows["tokens"]) for rows in recorded)
    tokens = np.concatenate([rows["tokens"][rows["segment_ids"] > 0] for rows in recorded])
    length = max(round(real / texts), 1)
    rows = encoding.BATCH_TOKENS // length
    batches = []
    for start in range(0, real, rows * length):
        chunk = np.resize(tokens[start : start + rows * length], (rows, length))
        positions = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
        batches.append(
            {"tokens": chunk, "segment_ids": np.ones_like(chunk), "positions": positions}
        )
    return batches


def passes(forward: Any, params: Any, batches: list[dict[str, np.ndarray]]) -> None:
    """Runs only forward passes, dispatched as far ahead as in the evaluation."""
    pending = []
    for rows in batches:
        pending.append(forward(params, rows))
        if len(pending) > 2:
            jax.block_until_ready(pending.pop(0))
    jax.block_until_ready(pending)


def timed(run: Callable[[], Any]) -> dict[str, float]:
    """Returns wall and CPU seconds of a call."""
    wall, cpu = time.perf_counter(), _cpu()
    run()
    return {"wall": time.perf_counter() - wall, "cpu": _cpu() - cpu}


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
