"""Measures the cost of safety measures: memory of a long run, time of guards and digests."""

import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from fault_runs import Runs, last_line

from xlme_jax.checkpoints import digests
from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.checkpoints.saved import RunRecord
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.xlme import XLMEConfig
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states
from xlme_jax.training.optimizer import OptimizerConfig
from xlme_jax.training.step import (
    StepValues,
    _number_rows,
    _real_tokens,
    accumulate,
    make_train_step,
    weighted_loss,
)

_WARM_UP = 0.2  # Share of steps until caches are filled.
_LARGEST_GROWTH = 0.03  # Maximum growth after the warm-up as a share of the median.
_PAGE = os.sysconf("SC_PAGE_SIZE")


def run_soak(runs: Runs, seconds: float = 0.5) -> dict[str, Any]:
    """Measures resident memory over a long run with checkpoints and evaluations.

    Args:
      runs: the work folder.
      seconds: time between two measurements.

    Returns:
      {"curve": [(seconds, step, MB)], "growth MB": slope of a fitted line x steps, ...}.
    """
    runs.forget("soak")
    command = runs.start("soak", CHECKPOINT_EVERY=100, Loop__log_every=50, Loop__evaluate_every=250)
    curve: list[tuple[float, int, float]] = []
    begin = time.monotonic()
    while command.process.poll() is None:
        try:
            pages = int(Path(f"/proc/{command.process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            break
        now = round(time.monotonic() - begin, 1)
        curve.append((now, last_line(command.model_dir), round(pages * _PAGE / 1e6, 1)))
        time.sleep(seconds)
    command.finish()
    steady = np.array([row for row in curve if _WARM_UP * runs.steps <= row[1] < runs.steps])
    slope, _ = np.polyfit(steady[:, 1], steady[:, 2], 1)
    growth, median = slope * runs.steps * (1 - _WARM_UP), float(np.median(steady[:, 2]))
    table = {
        "steps": runs.steps,
        "median MB": median,
        "largest MB": float(steady[:, 2].max()),
        "largest / median": round(float(steady[:, 2].max()) / median, 4),
        "growth MB": round(float(growth), 1),
        "growth / median": round(float(growth) / median, 4),
        "points": len(steady),
    }
    for name, value in table.items():
        print(f"  {name}: {value}")
    return {
        "curve": curve,
        **table,
        "verdict": f"memory grew by {100 * growth / median:.1f}% after the first fifth",
        "passed": bool(growth / median <= _LARGEST_GROWTH),
    }


def run_overhead(
    work: Path, repeats: int, hidden: int, layers: int, vocabulary: int, rows: int, length: int
) -> dict[str, Any]:
    """Measures seconds of a step with and without its guard, and of digests, at a realistic size.

    Args:
      work: folder for a checkpoint.
      repeats: number of steps of each kind, alternating.
      hidden: width.
      layers: layers of the discriminator; the generator has a third as many.
      vocabulary: vocabulary size.
      rows: rows per stream.
      length: tokens per row.
    """
    encoder = EncoderConfig(
        num_layers=layers,
        hidden_size=hidden,
        num_heads=hidden // 64,
        ffn_size=4 * hidden,
        max_length=length,
    )
    generator = EncoderConfig(**{**vars(encoder), "num_layers": layers // 3})
    objective = XLMEConfig(generator, encoder).build(vocabulary, jnp.float32)
    optimizer = OptimizerConfig().build(125_000)
    mesh = meshes.make_mesh(meshes.MeshConfig(), jax.devices()[:1])
    with states.sharding_rules(mesh):
        abstract = states.abstract_state(objective, optimizer, mesh)
        guarded = make_train_step(objective, optimizer, seed=0)
        steps = {
            "guarded": _compiled(guarded, abstract),
            "unguarded": _compiled(_unguarded(objective, optimizer), abstract),
        }
        batch = _batch(objective.streams, rows, length, vocabulary)
        seconds, state = _interleaved(steps, objective, optimizer, abstract, batch, repeats)
        seconds |= _checkpoint_seconds(work / "overhead", state)
    step, bare = (statistics.median(seconds[name]["wall"]) for name in ("guarded", "unguarded"))

    def cost(kind: str) -> float:
        """Returns the cost in percent, a median over pairs of consecutive steps.

        Other load on the machine slows both steps of a pair equally.
        """
        pairs = zip(seconds["guarded"][kind], seconds["unguarded"][kind])
        return 100 * (statistics.median(a / b for a, b in pairs) - 1)

    every = 1000
    percent = {
        "guard, of a step (wall)": cost("wall"),
        "guard, of a step (CPU time)": cost("cpu"),
        **{
            f"{name}, every {every} steps": 100 * seconds[name] / (every * step)
            for name in ("digests of arrays", "digests of files", "save")
        },
    }
    print(f"  step: {step:.3f} s guarded, {bare:.3f} s unguarded")
    for name, value in percent.items():
        print(f"  {name}: {value:.3f}%")
    total = percent["guard, of a step (CPU time)"] + sum(
        percent[f"digests of {what}, every {every} steps"] for what in ("arrays", "files")
    )
    return {
        "parameters": sum(int(np.prod(x.shape)) for x in jax.tree.leaves(abstract.params)),
        "seconds": seconds,
        "percent": percent,
        "verdict": f"guard and digests cost {total:.2f}% of the time",
        "passed": total < 2,
    }


def _unguarded(objective: Any, optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    """Returns the step of `make_train_step` without its guard against non-finite values."""
    loss_and_gradient = jax.value_and_grad(weighted_loss(objective), has_aux=True)

    def train_step(state: Any, batch: Any) -> tuple[Any, Any]:
        rng = jax.random.fold_in(jax.random.key(0), state.step + 1)
        batch = {name: _number_rows(rows) for name, rows in batch.items()}
        values = StepValues(state.carried, objective.totals(batch), {}, rng)
        gradient, _, metrics = accumulate(loss_and_gradient, state.params, batch, values, 1)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics["grad_norm"] = (optax.global_norm(gradient), jnp.ones(()))
        metrics["tokens_per_step"] = (_real_tokens(batch), jnp.ones(()))
        return type(state)(state.step + 1, params, state.carried, opt_state), metrics

    return train_step


def _compiled(step: Callable[..., Any], abstract: Any) -> Callable[..., Any]:
    out = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    return jax.jit(step, donate_argnums=0, out_shardings=(out, None))


def _batch(streams: Any, rows: int, length: int, vocabulary: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    ones = np.ones((rows, length), np.int32)
    return {
        stream: {
            "tokens": jnp.asarray(rng.integers(5, vocabulary - 1, ones.shape), jnp.int32),
            "segment_ids": jnp.asarray(ones),
            "positions": jnp.asarray(ones.cumsum(1) - 1, jnp.int32),
        }
        for stream in streams
    }


def _interleaved(
    steps: dict[str, Callable[..., Any]],
    objective: Any,
    optimizer: Any,
    abstract: Any,
    batch: Any,
    repeats: int,
) -> tuple[dict[str, Any], Any]:
    """Runs steps alternately; returns {name: {"wall", "cpu": seconds of each}} and a state."""
    seconds: dict[str, Any] = {name: {"wall": [], "cpu": []} for name in steps}
    current = {name: states.fresh_state(objective, optimizer, abstract, 0) for name in steps}
    losses: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 1):
        for name, step in steps.items():
            wall, cpu = time.perf_counter(), time.process_time()
            current[name], metrics = jax.block_until_ready(step(current[name], batch))
            losses[name].append(float(metrics["loss"][0]))
            if repeat:  # The first step compiles.
                seconds[name]["wall"].append(round(time.perf_counter() - wall, 4))
                seconds[name]["cpu"].append(round(time.process_time() - cpu, 4))
    # Both compute the same step; only rounding differs between the two programs.
    np.testing.assert_allclose(*losses.values(), rtol=1e-4)
    return seconds, current["guarded"]


def _checkpoint_seconds(folder: Path, state: Any) -> dict[str, float]:
    """Returns seconds of a save and of its digests, for the second of two saves."""
    shutil.rmtree(folder, ignore_errors=True)
    checkpoints = Checkpoints(folder, keep=2)
    seconds: dict[str, float] = {}
    for number in (1, 2):
        begin = time.perf_counter()
        digests.tree_digests(state)
        seconds["digests of arrays"] = time.perf_counter() - begin
        begin = time.perf_counter()
        checkpoints.save(number, state, RunRecord({}, "", ""))
        checkpoints.wait()
        seconds["save"] = time.perf_counter() - begin
    checkpoints.close()
    newest = folder / "checkpoints" / "2"
    begin = time.perf_counter()
    digests.seal_files(newest)
    seconds["digests of files"] = time.perf_counter() - begin
    shutil.rmtree(folder)
    return {name: round(value, 4) for name, value in seconds.items()}
