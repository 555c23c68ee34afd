"""Says which training commands a machine is too small for, by memory and by FLOPs."""

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
# Bytes per parameter: float32 weights, gradients, and Adam's two moments.
_BYTES = 16
# FLOP/s of a core of a CPU, at most, in products of matrices.
_CORE_FLOPS = 2e11
# Most days that a run may take at the machine's peak.
_DAYS = 30


@dataclasses.dataclass(frozen=True)
class HostDevices:
    """The devices of a machine, taken together.

    Attributes:
      name: number and kind of the devices.
      memory: bytes of all devices together; 0 if unknown.
      flops: peak FLOP/s of all devices together; None if unknown.
    """

    name: str
    memory: int
    flops: float | None


def this_machine() -> HostDevices:
    """Returns the devices that JAX has here."""
    first, *more_devices = jax.local_devices()
    count = 1 + len(more_devices)
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
      commands: shell commands; of commands joined by &&, the first counts. Only commands
        of `xlme_jax.train` are looked at. Their gin files must give the size of the model, which
        those of a fine-tuning do not.
      machine: the devices of the machine.
    """
    reasons = {command: _reason(command, machine) for command in dict.fromkeys(commands)}
    return {command: reason for command, reason in reasons.items() if reason}


def _reason(command: str, machine: HostDevices) -> str:
    """Returns why a machine is too small for a command; "" if it is not, or does not train."""
    words = shlex.split(command.split(" && ")[0])
    if words[:3] != _TRAIN:
        return ""
    files: list[str] = []
    bindings: list[str] = []
    for flag in command_line.gin_flags(words[3:]):
        name, value = flag.split("=", 1)
        if name == "--gin_file":
            files.append(value)
        else:
            bindings.append(value)
    # The size does not depend on the checkpoint to start from, which may not exist yet.
    config = loading.load(files, [*bindings, "INIT_FROM = None"], "Train")
    parameters, flops = _size(config)
    state_bytes = parameters * _BYTES
    size = f"{parameters / 1e6:,.0f}M parameters"
    if machine.memory and state_bytes > machine.memory:
        return (
            f"{size} with gradients and Adam's moments take {state_bytes / 2**30:,.0f} GiB; "
            f"{machine.name} have {machine.memory / 2**30:,.0f}"
        )
    if machine.flops and flops > _DAYS * 86_400 * machine.flops:
        days = flops / machine.flops / 86_400
        return f"{size}, {flops:.2g} FLOPs: at least {days:,.0f} days on {machine.name}"
    return ""


def _size(config: TrainConfig) -> tuple[int, float]:
    """Returns the number of parameters and the FLOPs of a run, with `Train.vocab_size` ids."""
    vocabulary = config.vocab_size or 0
    objective = config.objective.build(vocabulary, jnp.float32)
    boxed = jax.eval_shape(objective.init, jax.random.key(0))
    shapes = {x.name: (x.rows, x.length) for x in config.streams_of(objective)}
    steps = config.loop.train_steps
    return (
        count_parameters(boxed, vocabulary),
        steps * sum(objective.diagnostics.flops(shapes).values()),
    )
