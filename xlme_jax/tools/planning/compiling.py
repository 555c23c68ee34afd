"""Ahead-of-time compilation of the train step for accelerators that are not attached."""

import contextlib
import dataclasses
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.configuration.values import ConfigError
from xlme_jax.data.batches.streams import items_per_step
from xlme_jax.objectives.base import Objective, RunFacts
from xlme_jax.tools.planning.collectives import Collective, find_collectives
from xlme_jax.tools.planning.counting import matmul_flops
from xlme_jax.tools.planning.exposed_communication import exposed_seconds
from xlme_jax.tools.planning.hlo import Program
from xlme_jax.tools.planning.machines import GPUS_A_NODE, Machine, Topology
from xlme_jax.tools.planning.traffic import Transfer, find_transfers
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states
from xlme_jax.training.model_info import bytes_per_device

_log = logging.getLogger(__name__)
_INSTALL = {"tpu": "pip install 'xlme_jax[tpu]'", "cuda": "pip install 'xlme_jax[cuda13]'"}
_LARGEST = 100  # Transfers to keep.
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclasses.dataclass(frozen=True)
class MemoryUse:
    """Memory per device, in bytes.

    Attributes:
      params: parameters.
      optimizer: optimizer state and the rest of the train state.
      batch: the batch of one step.
      temporary: gradients, activations, gathered weights and other buffers of the step; None if
        the compiler ran out of memory.
      code: generated code.
      total: the sum.
    """

    params: int
    optimizer: int
    batch: int
    temporary: int | None
    code: int
    total: int


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A train step compiled for a topology.

    Attributes:
      config: the run's configuration.
      topology: the accelerators.
      mesh: size of each mesh axis.
      memory: memory per device.
      model_flops: FLOPs per step on all devices by formula (`Diagnostics.flops`).
      executed_flops: FLOPs per step of all matrix products on all devices, with recomputation.
      tokens: token slots per batch, including padding.
      collectives: communication per step; empty if the compiler ran out of memory.
      exposed: seconds per step that a device waits for links (`exposed_communication`).
      hbm_bytes: HBM bytes read and written per device and step; 0 if the compiler ran out of
        memory.
      transfers: the instructions with the largest HBM traffic.
      compiler_flops: FLOPs per device from XLA's cost analysis, which counts loop bodies once; None
        if unavailable.
      unknown_loops: number of loops with an unknown trip count, which are counted once.
    """

    config: TrainConfig
    topology: Topology
    mesh: dict[str, int]
    memory: MemoryUse
    model_flops: float
    executed_flops: float
    tokens: int
    collectives: tuple[Collective, ...] = ()
    exposed: float = 0.0
    hbm_bytes: int = 0
    transfers: tuple[Transfer, ...] = ()
    compiler_flops: float | None = None
    unknown_loops: int = 0


def devices_of(topology: Topology) -> list[Any]:
    """Returns the devices to compile for; they need not be attached.

    Raises:
      ConfigError: the compiler is not installed or does not know the topology, or JAX has already
        started with too few CPU devices.
    """
    machine = topology.machine
    if machine.platform == "cpu":
        return _cpu_devices(topology.size)
    try:
        with _quiet():
            if machine.platform == "tpu":
                # By default, the two TensorCores of a v4 chip are two devices.
                options: dict[str, Any] = {}
                if machine.name == "v4":
                    options["chip_config_name"] = "megacore"
                if topology.size == 1:
                    options["chips_per_host_bounds"] = (1, 1, 1)
                description = topologies.get_topology_desc(topology.name, "tpu", **options)
            else:
                description = topologies.get_topology_desc(
                    machine.name,
                    "cuda",
                    topology=f"{topology.nodes}x1x{min(topology.size, GPUS_A_NODE)}",
                    target_config=gpu_target(machine),
                )
    except Exception as error:  # The type varies: missing plugins raise RuntimeError or KeyError.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"--topology={topology.name}: cannot compile for it ({reason}). Install the compiler "
            f"with {_INSTALL[machine.platform]} and use a shape that {machine.name} supports."
        ) from error
    assert len(description.devices) == topology.size, description.devices
    return list(description.devices)


def _cpu_devices(count: int) -> list[Any]:
    """Returns virtual CPU devices.

    Raises:
      ConfigError: JAX has already started with fewer devices.
    """
    with contextlib.suppress(RuntimeError):  # Raised if JAX has already started.
        jax.config.update("jax_num_cpu_devices", count)
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise ConfigError(
            f"--topology=cpu:{count}: JAX has already started with {len(devices)} CPU devices; "
            "pass this topology first, or alone."
        )
    return list(devices[:count])


def gpu_target(machine: Machine) -> str:
    """Returns XLA's description of a GPU, a stream_executor.GpuTargetConfigProto as text."""
    assert machine.target is not None
    (major, minor), cores, l2, shared, clock = machine.target
    return f"""
gpu_device_info {{
  name: "NVIDIA {machine.name.upper()}" device_vendor: "NVIDIA Corporation"
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  core_count: {cores} clock_rate_ghz: {clock} fpus_per_core: {64 if major == 8 else 128}
  device_memory_size: {machine.hbm} memory_bandwidth: {int(machine.hbm_bandwidth)}
  l2_cache_size: {l2} device_address_bits: 64
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: {shared}
  shared_memory_per_block_optin: {shared - 1024}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  driver_version: "13.0.0" runtime_version: "12.8.0" compile_time_toolkit_version: "12.8.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "NVIDIA {machine.name.upper()}"
"""


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A train step before it is compiled for a topology.

    Attributes:
      program: the traced step, in StableHLO.
      config: the run's configuration.
      topology: the accelerators.
      mesh: size of each mesh axis.
      sizes: bytes per device of parameters, optimizer and batch, as in `MemoryUse`.
      numbers: `model_flops`, `executed_flops` and `tokens`, as in `Compiled`.
    """

    program: jax.stages.Lowered
    config: TrainConfig
    topology: Topology
    mesh: dict[str, int]
    sizes: dict[str, int]
    numbers: dict[str, Any]

    @property
    def options(self) -> dict[str, Any]:
        """Compiler options: the options of the run, and for GPUs two more.

        GPU autotuning is off, as it times kernels on the device. Matrix products use cuBLAS:
        without autotuning, XLA's own kernels have tiles of a fixed size, which do not suit all
        shapes.
        """
        options: dict[str, Any] = {**self.config.loop.xla_options()}
        if self.topology.machine.platform == "cuda":
            options |= {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
        return options


def compile_step(config: TrainConfig, topology: Topology, devices: list[Any]) -> Compiled:
    """Compiles the train step of a configuration, without data or attached devices.

    Args:
      config: the run's configuration; its vocabulary size must be set.
      topology: the accelerators.
      devices: `devices_of(topology)`.

    Raises:
      ValueError: `train` would reject the configuration too; the message names the field.
    """
    return compile_lowered(lower_step(config, topology, devices))


def lower_step(config: TrainConfig, topology: Topology, devices: list[Any]) -> Lowered:
    """Traces and lowers the train step without compiling it; takes seconds.

    The arguments and the errors are those of `compile_step`.
    """
    objective = build_objective(config, topology.machine.platform)
    mesh = meshes.make_mesh(config.mesh, devices)
    shapes = stream_shapes(config, objective)
    _check_run(config, objective, mesh, shapes)
    optimizer = objective.optimizer(config.optimizer.build(config.loop.train_steps))
    batch = _abstract_batch(config, objective, mesh)
    with states.sharding_rules(mesh):
        abstract = states.abstract_state(objective, optimizer, mesh, config.loop.seed)
        step: Any = states.compile_step(objective, optimizer, abstract, config.loop)
        traced = step.trace(abstract, batch)
        with _without_locations():
            program = traced.lower()
    params = bytes_per_device(abstract.params)
    sizes = {
        "params": params,
        "optimizer": bytes_per_device(abstract) - params,
        "batch": bytes_per_device(batch),
    }
    numbers = {
        "model_flops": sum(objective.diagnostics.flops(shapes).values()),
        "executed_flops": matmul_flops(traced.jaxpr),
        "tokens": sum(rows * length for rows, length in shapes.values()),
    }
    return Lowered(program, config, topology, dict(mesh.shape), sizes, numbers)


def _check_run(
    config: TrainConfig,
    objective: Objective,
    mesh: jax.sharding.Mesh,
    shapes: Mapping[str, tuple[int, int]],
) -> None:
    """Checks what `train` checks of a mesh and of an objective before it compiles a step.

    Args:
      config: the run's configuration.
      objective: its objective.
      mesh: the mesh of the topology.
      shapes: {stream: (rows, length) of a batch}.

    Raises:
      ValueError: rows cannot be divided, or the objective refuses the run.
    """
    rows = {name: rows for name, (rows, _) in shapes.items()}
    meshes.check_divisible(rows, mesh, config.loop.micro_batches)
    lengths = {name: length for name, (_, length) in shapes.items()}
    items = items_per_step(config.streams_of(objective))
    steps, by_entry = config.loop.train_steps, config.optimizer.update_rule.by_entry
    objective.check(RunFacts(lengths, items, train_steps=steps, updates_by_entry=by_entry))


def compile_lowered(lowered: Lowered) -> Compiled:
    """Compiles a step that `lower_step` returned.

    If the compiler runs out of memory, the result has no `MemoryUse.temporary`.

    Raises:
      ConfigError: the compiler refuses `Loop.compiler_options`.
    """
    config, topology, numbers = lowered.config, lowered.topology, lowered.numbers
    parts = config.loop.micro_batches
    _log.info(
        "Compiling for %s, mesh %s, Loop.micro_batches = %d.", topology.name, lowered.mesh, parts
    )
    try:
        with _quiet():
            compiled: Any = lowered.program.compile(lowered.options)
    except jax.errors.JaxRuntimeError as error:
        if "compile option" in str(error) and config.loop.compiler_options:
            raise ConfigError(f"Loop.compiler_options on {topology.name}: {error}.") from error
        memory = MemoryUse(**lowered.sizes, temporary=None, code=0, total=_out_of_memory(error))
        return Compiled(config, topology, lowered.mesh, memory, **numbers)
    program = Program(compiled.as_text())
    transfers = find_transfers(program)
    collectives = find_collectives(program, topology.size)
    hbm_bytes = sum(transfer.total for transfer in transfers)
    busy = topology.machine.seconds(numbers["executed_flops"] / topology.size, hbm_bytes)
    costs = compiled.cost_analysis() or {}
    return Compiled(
        config,
        topology,
        lowered.mesh,
        _memory_use(lowered.sizes, compiled.memory_analysis()),
        **numbers,
        collectives=tuple(collectives),
        exposed=exposed_seconds(program, topology, collectives, transfers, max(busy)),
        hbm_bytes=hbm_bytes,
        transfers=tuple(transfers[:_LARGEST]),
        compiler_flops=costs.get("flops"),
        unknown_loops=program.unknown_loops,
    )


def _memory_use(sizes: Mapping[str, int], stats: Any) -> MemoryUse:
    """Returns the memory of a program.

    Args:
      sizes: `Lowered.sizes`.
      stats: XLA's analysis of the program's memory.
    """
    total = (
        stats.argument_size_in_bytes
        + stats.output_size_in_bytes
        - stats.alias_size_in_bytes
        + stats.temp_size_in_bytes
        + stats.generated_code_size_in_bytes
    )
    return MemoryUse(
        **sizes,
        temporary=stats.temp_size_in_bytes,
        code=stats.generated_code_size_in_bytes,
        total=total,
    )


def _abstract_batch(
    config: TrainConfig, objective: Objective, mesh: jax.sharding.Mesh
) -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
    """Returns {stream: {array: its shape, type and sharding}} of a batch, without data."""
    sharding = meshes.batch_sharding(mesh)
    return {
        stream.name: {
            name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding)
            for name, shape in stream.array_shapes().items()
        }
        for stream in config.streams_of(objective)
    }


def build_objective(config: TrainConfig, platform: str) -> Objective:
    """Returns the objective as built on a platform, without prepared data.

    Raises:
      ConfigError: Train.vocab_size is not set.
    """
    if config.vocab_size is None:
        raise ConfigError(
            "Train.vocab_size is None, and planning reads no data to infer it from: set it to the "
            "number of vocabulary pieces, such as --gin.Train.vocab_size=250_002."
        )
    return config.objective.build(config.vocab_size, config.dtype_on(platform))


def stream_shapes(config: TrainConfig, objective: Objective) -> dict[str, tuple[int, int]]:
    """Returns {stream: (rows, length)} for the streams that the objective reads."""
    streams = config.streams_of(objective)
    return {stream.name: (stream.rows, stream.length) for stream in streams}


def _out_of_memory(error: Exception) -> int:
    """Returns the bytes that the compiler needs according to its out-of-memory error.

    Raises any other error again.
    """
    used = re.search(r"Used ([\d.]+)([KMGT]?)i?B? of [\d.]+[KMGT]?i?B? hbm", str(error))
    if "RESOURCE_EXHAUSTED" not in str(error) or used is None:
        raise error
    return int(float(used[1]) * _UNITS[used[2]])


@contextlib.contextmanager
def _without_locations() -> Iterator[None]:
    """Leaves source locations out of programs, so that they are the same in any folder."""
    name = "jax_traceback_in_locations_limit"
    limit = getattr(jax.config, name)
    jax.config.update(name, 0)
    try:
        yield
    finally:
        jax.config.update(name, limit)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Discards stderr, where compilers warn about the missing hosts."""
    if os.environ.get("XLME_TRACEBACK"):
        yield
        return
    with tempfile.TemporaryFile() as sink:
        saved = os.dup(2)
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
