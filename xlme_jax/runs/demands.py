"""Which training commands a machine is too small for: by memory, and by FLOPs."""

import dataclasses
import os
import shlex
from collections.abc import Iterable

import jax
import jax.numpy as jnp

from xlme_jax.configuration import command_line, loading
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.training.model_info import count_parameters
from xlme_jax.training.peak import peak_flops

_TRAIN = ["python", "-m", "xlme_jax.train"]
# Float32 weights, Adam's two moments, and gradients.
_BYTES = 16
# No core of a CPU multiplies matrices faster.
_CORE_FLOPS = 2e11
# What takes longer at the machine's peak is no run for it.
_DAYS = 30


@dataclasses.dataclass(frozen=True)
class HostDevices:
    """Devices of a machine together.

    Attributes:
      name: what they are.
      memory: their bytes.
      flops: FLOP/s, at most; None if unknown.
    """

    name: str
    memory: int
    flops: float | None


def this_machine() -> HostDevices:
    """Returns the devices that JAX has here."""
    first, *rest = jax.local_devices()
    count = 1 + len(rest)
    if first.platform == "cpu":
        cores = len(os.sched_getaffinity(0))
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return HostDevices(f"{cores} CPU cores", memory, cores * _CORE_FLOPS)
    peak = peak_flops(first.device_kind)
    memory = (first.memory_stats() or {}).get("bytes_limit", 0)
    name = f"{count} x {first.device_kind}"
    return HostDevices(name, count * memory, None if peak is None else count * peak)


def too_large(commands: Iterable[str], machine: HostDevices) -> dict[str, str]:
    """Returns {command: why the machine is too small for it}.

    Args:
      commands: shell commands; of several that are joined, the first counts. Only trainings are
        looked at whose size their gin files give: that of a fine-tuning is its checkpoint's.
      machine: the machine.
    """
    reasons = {command: _reason(command, machine) for command in dict.fromkeys(commands)}
    return {command: reason for command, reason in reasons.items() if reason}


def _reason(command: str, machine: HostDevices) -> str:
    words = shlex.split(command.split(" && ")[0])
    if words[:3] != _TRAIN:
        return ""
    files: list[str] = []
    bindings: list[str] = []
    for flag in command_line.gin_flags(words[3:]):
        name, value = flag.split("=", 1)
        (files if name == "--gin_file" else bindings).append(value)
    # Sizes do not depend on what it starts from, which may not be there yet.
    config = loading.load(files, [*bindings, "INIT_FROM = None"], "Train")
    parameters, flops = _size(config)
    needed = parameters * _BYTES
    size = f"{parameters / 1e6:,.0f}M parameters"
    if machine.memory and needed > machine.memory:
        return (
            f"{size} with gradients and Adam's moments take {needed / 2**30:,.0f} GiB; "
            f"{machine.name} have {machine.memory / 2**30:,.0f}"
        )
    if machine.flops and flops > _DAYS * 86_400 * machine.flops:
        days = flops / machine.flops / 86_400
        return f"{size}, {flops:.2g} FLOPs: at least {days:,.0f} days on {machine.name}"
    return ""


def _size(config: TrainConfig) -> tuple[int, float]:
    """Returns the parameters and the FLOPs of a run whose gin files give its vocabulary."""
    vocabulary = config.vocab_size or 0
    objective = config.objective.build(vocabulary, jnp.float32)
    boxed = jax.eval_shape(objective.init, jax.random.key(0))
    shapes = {x.name: (x.rows, x.length) for x in config.streams_of(objective)}
    steps = config.loop.train_steps
    return (
        count_parameters(boxed, vocabulary),
        steps * sum(objective.diagnostics.flops(shapes).values()),
    )
