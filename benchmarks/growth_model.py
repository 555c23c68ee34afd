"""Costs of a model of one size, for `growth.py`: step, start, memory, checkpoint, evaluation, plan.

The base is hidden 128, 6+2 layers (XLM-E with gated bias), V 8,192, 1,024 tokens in rows of 64.
Longer rows keep the number of tokens of a batch.
"""

import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import train_step

from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.checkpoints.saved import RunRecord
from xlme_jax.configuration import loading
from xlme_jax.tools.planning import compiling
from xlme_jax.tools.planning.machines import parse_topology
from xlme_jax.training import mesh as meshes
from xlme_jax.training import state as states
from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.optimizer import OptimizerConfig

ROOT = Path(__file__).parent.parent
HIDDEN, DEEP, VOCABULARY, TOKENS, LENGTH = 128, 6, 8_192, 1_024, 64
_STEPS = 125_000  # Of the schedules; a few are run.
_REPEATS = 5


def measure(row: str, size: int, small: bool) -> dict[str, float]:
    """Returns the costs of a model; `row` says which of its sizes is `size`."""
    sizes = {"width": HIDDEN, "layers": DEEP, "vocabulary": VOCABULARY, "length": LENGTH}
    if small:
        sizes = {"width": 32, "layers": 1, "vocabulary": 256, "length": 16}
    sizes[row] = size
    tokens, length, deep = 64 if small else TOKENS, sizes["length"], sizes["layers"]
    shape = sizes["width"], deep, max(deep // 3, 1), sizes["vocabulary"], tokens // length, length
    objective, batch = train_step.objective_and_batch(shape, "gated")
    optimizer = OptimizerConfig().build(_STEPS)
    mesh = meshes.make_mesh(meshes.MeshConfig())
    costs: dict[str, float] = {}
    with states.sharding_rules(mesh):
        abstract = states.abstract_state(objective, optimizer, mesh)
        step = states.compile_step(objective, optimizer, abstract, LoopConfig(_STEPS))
        batch = meshes.put_batch(batch, meshes.batch_sharding(mesh))
        costs["trace and compile the step, CPU s"], compiled = _timed(
            lambda: step.lower(abstract, batch).compile()  # type: ignore[attr-defined]
        )
        memory = compiled.memory_analysis()
        state = states.fresh_state(objective, optimizer, abstract, 0)
        seconds = []
        for _ in range(_REPEATS + 1):
            taken, (state, _) = _timed(
                lambda state=state: jax.block_until_ready(compiled(state, batch))
            )
            seconds.append(taken)
        costs["step, CPU s"] = statistics.median(seconds[1:])
        costs["temporaries of the step, bytes"] = memory.temp_size_in_bytes
        costs["state, bytes"] = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        costs |= _evaluation(objective, state, batch)
        costs |= _checkpoint(state, abstract)
    costs["peak memory of the process, MB"] = _peak()
    return costs


def devices(size: int) -> dict[str, float]:
    """Plans a small run on `size` virtual CPU devices, a row of each stream for each."""
    tiny = {"num_layers": 2, "hidden_size": 64, "num_heads": 2, "ffn_size": 128, "max_length": 32}
    values = {
        "MODEL_DIR": "''",
        "DATA_DIR": "''",
        "Train.vocab_size": 8_192,
        **{f"Encoder.{name}": value for name, value in tiny.items()},
        **{f"{name}.rows": size for name in ("monolingual/TextStream", "bitext/PairStream")},
        **{f"{name}.length": 32 for name in ("monolingual/TextStream", "bitext/PairStream")},
    }
    bindings = [f"{name} = {value}" for name, value in values.items()]
    config = loading.load([str(ROOT / "gin_configs/models/xlme.gin")], bindings, "Train")
    topology = parse_topology(f"cpu:{size}")
    found = compiling.devices_of(topology)
    seconds, compiled = _timed(lambda: compiling.compile_step(config, topology, found))
    return {
        "plan, CPU s": seconds,
        "memory of a device, bytes": compiled.memory.total,
        "sent by a device, bytes": sum(one.total for one in compiled.collectives),
        "peak memory of the process, MB": _peak(),
    }


def _evaluation(objective: Any, state: Any, batch: Any) -> dict[str, float]:
    """Encodes the rows of the batch, as evaluations of frozen encoders do."""
    rows = batch["monolingual"]
    encode = jax.jit(lambda params: objective.encoder.encode(params, rows, None))
    jax.block_until_ready(encode(state.params))
    seconds = [
        _timed(lambda: jax.block_until_ready(encode(state.params)))[0] for _ in range(_REPEATS)
    ]
    return {"evaluate, hidden states of all layers, CPU s": statistics.median(seconds)}


def _checkpoint(state: Any, abstract: Any) -> dict[str, float]:
    """Saves and restores the state."""
    with tempfile.TemporaryDirectory() as folder:
        record = RunRecord({}, "", "")
        with Checkpoints(Path(folder), 1) as checkpoints:
            saving, _ = _timed(lambda: (checkpoints.save(1, state, record), checkpoints.wait()))
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        with Checkpoints(Path(folder), 1) as checkpoints:
            restoring, _ = _timed(lambda: checkpoints.restore_newest(abstract))
    return {
        "save a checkpoint, CPU s": saving,
        "restore it, CPU s": restoring,
        "checkpoint, bytes": size,
        "checkpoint, files": len(files),
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = call()
    return time.process_time() - start, result
