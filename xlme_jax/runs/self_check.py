"""Checks on this machine that all implementations of attention compute the same."""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.xlme import XLMEConfig
from xlme_jax.ops.implementations import Heads, Rows, implementations
from xlme_jax.runs import attention_choice
from xlme_jax.runs.attention_choice import automatic_encoders, with_attention
from xlme_jax.tools.tuning import attention_candidates, attention_measurement, choosing
from xlme_jax.tools.tuning.choosing import Candidate
from xlme_jax.training import manifest
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states
from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.optimizer import OptimizerConfig

_STEPS = 4
_VOCABULARY = 1024


class CheckReport(NamedTuple):
    """The result of the checks.

    Attributes:
      text: a page with devices, versions, times and deviations, for people.
      passed: whether every implementation works and trains like the first one.
    """

    text: str
    passed: bool


class _Shape(NamedTuple):
    """Attention to check: its heads, its rows, and implementations besides the device's own."""

    heads: Heads
    rows: Rows
    more: Mapping[str, Candidate] = types.MappingProxyType({})


def check() -> CheckReport:
    """Compares the implementations of attention, alone and in train steps of a tiny model.

    Returns:
      The report; errors of an implementation are in it.
    """
    device = jax.local_devices()[0]
    parts = [_machine(device)]
    passed = True
    for shape in _shapes(device.platform):
        choice = attention_measurement.measure(shape.heads, shape.rows, device, shape.more)
        passed &= not any(row.problem for row in choice.measured)
        limit = attention_measurement.bound(shape.heads, shape.rows)
        head = f"{_described(shape)}; deviations up to {limit:.1e} are allowed"
        parts.append(f"{head}\n{choosing.table(choice)}")
    text, reproduced = _training(device)
    parts.append(text)
    passed = passed and reproduced
    verdict = "passed" if passed else "FAILED"
    return CheckReport("\n".join([f"xlme_jax self-check: {verdict}", *parts]), passed)


def _machine(device: Any) -> str:
    """Returns lines with code, devices and versions of this machine."""
    start = manifest.describe_start("python -m xlme_jax.selfcheck")
    facts = manifest.flat({k: x for k, x in start.items() if k != "packages"})
    packages = ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin", "flax", "numpy")
    versions = {name: start["packages"][name] for name in packages if name in start["packages"]}
    lines = {**facts, "runtime": " ".join(device.client.platform_version.split()), **versions}
    return "\n".join(f"  {name}: {value}" for name, value in lines.items()) + "\n"


def _shapes(platform: str) -> list[_Shape]:
    """Returns the attention to check: rows that fill an accelerator, or few on CPUs.

    On CPUs the kernels of accelerators are checked too, interpreted.
    """
    if platform == "cpu":
        heads = Heads(2, 16, "gated", 0.1, "float32")
        kernels = {
            f"{kind} kernel": attention_candidates.interpreted(kind, heads.dropout, block=16)
            for kind in ("gpu", "tpu")
        }
        return [_Shape(heads, {"interpreted": (2, 24)}, kernels)]
    base = Heads(12, 64, "gated", 0.1, "bfloat16")
    return [
        _Shape(base, {"rows": (32, 512)}),
        _Shape(dataclasses.replace(base, bias="none", dropout=0.0), {"rows": (32, 512)}),
        _Shape(Heads(4, 32, "plain", 0.0, "float32"), {"rows": (8, 200)}),
    ]


def _described(shape: _Shape) -> str:
    """Returns a description of a shape."""
    heads = shape.heads
    rows = ", ".join(f"{count} x {length}" for count, length in shape.rows.values())
    return (
        f"Attention of {heads.count} heads of {heads.width}, rows {rows}, {heads.dtype}, bias "
        f"{heads.bias}, dropout {heads.dropout}"
    )


def _training(device: Any) -> tuple[str, bool]:
    """Trains a tiny model with each implementation; returns a table, and whether all agree."""
    mesh = meshes.make_mesh(meshes.MeshConfig())
    dtype = jnp.float32 if device.platform == "cpu" else jnp.bfloat16
    length = 32 if device.platform == "cpu" else 256
    config = _model(length)
    encoder = next(iter(automatic_encoders(config).values()))
    heads = attention_choice.heads_per_device(encoder, mesh, dtype)
    names = implementations(device.platform, device.device_kind, heads)
    rows = 8 * meshes.batch_shards(mesh)
    bound = choosing.tolerance(dtype, rows * length)
    lines = []
    passed = True
    expected = np.zeros(0)
    for name in names:
        chosen = dict.fromkeys(automatic_encoders(config), name)
        try:
            losses = _losses(with_attention(config, chosen), mesh, dtype, rows, length)
        except Exception as error:  # Compilers and drivers raise errors of any type.
            lines.append(f"  {name:16}failed: {type(error).__name__}: {str(error)[:200]}")
            passed = False
            continue
        expected = expected if expected.size else losses
        difference = float(np.abs(losses / expected - 1).max())
        correct = bool(np.isfinite(losses).all()) and difference <= bound
        passed &= correct
        columns = " ".join(f"{loss:9.4f}" for loss in losses)
        verdict = "correct" if correct else "WRONG"
        lines.append(f"  {name:16}{columns}{difference:12.1e}  {verdict}")
    head = (
        f"Train steps of a tiny XLM-E, rows {rows} x {length}, {np.dtype(dtype).name}: losses, and "
        f"the largest relative difference from xla, up to {bound:.1e}"
    )
    return "\n".join([head, *lines]) + "\n", passed


def _model(length: int) -> XLMEConfig:
    """Returns a tiny XLM-E without translation pairs, for rows of `length` tokens."""
    encoder = EncoderConfig(
        hidden_size=128, num_layers=2, num_heads=2, ffn_size=256, max_length=length
    )
    return XLMEConfig(generator=encoder, discriminator=encoder, translation_pairs=False)


def _losses(config: Any, mesh: Any, dtype: Any, rows: int, length: int) -> np.ndarray:
    """Returns the loss of each step from random weights on one batch: float64[_STEPS]."""
    objective = config.build(_VOCABULARY, dtype)
    optimizer = objective.optimizer(OptimizerConfig(learning_rate=1e-3, warmup_steps=1).build(1000))
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, _VOCABULARY - 1, (rows, length)).astype(np.int32)
    places = np.arange(length, dtype=np.int32)
    cut = length // 3  # Two texts a row.
    row = {
        "segment_ids": 1 + (places >= cut),
        "positions": np.where(places < cut, places, places - cut),
    }
    batch = {"tokens": tokens} | {
        name: np.tile(x.astype(np.int32), (rows, 1)) for name, x in row.items()
    }
    with states.sharding_rules(mesh):
        abstract = states.abstract_state(objective, optimizer, mesh)
        state = states.fresh_state(objective, optimizer, abstract, 0)
        step = states.compile_step(objective, optimizer, abstract, LoopConfig(1000))
        placed = meshes.put_batch({"monolingual": batch}, meshes.batch_sharding(mesh))
        losses = []
        for _ in range(_STEPS):
            state, metrics = step(state, placed)
            losses.append(metrics["loss"])
    return np.array([float(total) / float(count) for total, count in losses])
