"""Counts the barriers and collectives of hosts in a run of several processes, for `growth.py`."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from growth_data import write_data

ROOT = Path(__file__).parent.parent
# The train command, which prints the calls of its loop and those before each of its steps.
COUNTED = """
import collections, importlib, json, sys
import jax
from jax.experimental import multihost_utils
from absl import flags
from xlme_jax.configuration import command_line
from xlme_jax.runs import assembly
from xlme_jax.training import loop
counts, by_step = collections.Counter(), []
for name in ("sync_global_devices", "broadcast_one_to_all", "process_allgather"):
    def counted(*a, _name=name, _call=getattr(multihost_utils, name), **k):
        counts[_name] += 1
        return _call(*a, **k)
    setattr(multihost_utils, name, counted)
class Client:
    def __init__(self, client):
        self._client = client
    def __getattr__(self, name):
        if name == "wait_at_barrier":
            counts[name] += 1
        return getattr(self._client, name)
assembled, added = assembly.assemble, loop.Journal.add
def assemble(*a, **k):
    from jax._src import distributed
    jax.devices()
    distributed.global_state.client = Client(distributed.global_state.client)
    return assembled(*a, **k)
def add(*a):
    by_step.append(counts.total())
    return added(*a)
def trained(*a, _train=loop.train, **k):
    counts.clear()
    state = _train(*a, **k)
    print("COUNTED", json.dumps([counts.total(), by_step]), flush=True)
    return state
assembly.assemble, loop.Journal.add, loop.train = assemble, add, trained
sys.argv[0] = "train"
command_line.run_app(importlib.import_module("xlme_jax.train").main)
"""


def barriers(size: int) -> dict[str, float]:
    """Counts barriers and other collectives of the host in runs of `size` processes."""
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data"
        data.mkdir()
        write_data(data, 20, 3)
        (one, by_step), (three, _) = (
            _counted(Path(name), f"every{every}", size, every) for every in (12, 4)
        )
    return {
        "calls a step": (by_step[10] - by_step[2]) / 8,
        "calls a checkpoint": (three - one) / 2,
        "calls of the loop with one checkpoint": one,
    }


def _counted(folder: Path, name: str, size: int, every: int) -> tuple[int, list[int]]:
    """Returns the calls of process 0 in the loop of a tiny run, and those before each step."""
    with socket.socket() as server:
        server.bind(("localhost", 0))
        port = server.getsockname()[1]
    values = {
        "MODEL_DIR": repr(str(folder / name)),
        "DATA_DIR": repr(str(folder / "data")),
        "TRAIN_STEPS": 12,
        "CHECKPOINT_EVERY": every,
        "Train.vocab_size": None,
        **{f"Encoder.{k}": v for k, v in _TINY.items()},
        **{f"{s}.{k}": v for s in _STREAMS for k, v in (("rows", 8), ("length", 32))},
        "Optimizer.warmup_steps": 1,
        "Loop.log_every": 100,
    }
    flags = [f"--gin.{key}={value}" for key, value in values.items()]
    command = [sys.executable, "-c", COUNTED, "--gin_file=gin_configs/models/xlme.gin", *flags]
    where = [f"--coordinator_address=localhost:{port}", f"--num_processes={size}"]
    cache = {"JAX_ENABLE_COMPILATION_CACHE": "true", "JAX_COMPILATION_CACHE_DIR": str(folder)}
    environment = {**os.environ, **cache, "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [*command, *where, f"--process_id={number}"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(size)
    ]
    outputs = [process.communicate()[0] for process in processes]
    lines = [line for line in outputs[0].splitlines() if line.startswith("COUNTED")]
    assert lines, outputs[0]
    return json.loads(lines[0].removeprefix("COUNTED "))


_STREAMS: Sequence[str] = ("monolingual/TextStream", "bitext/PairStream")
_TINY = {
    "scan_layers": False,
    "remat": False,
    "num_layers": 1,
    "hidden_size": 32,
    "num_heads": 2,
    "ffn_size": 64,
    "max_length": 32,
}
