"""Estimates the time of a step from its FLOPs, HBM traffic and communication.

    compute      executed FLOPs per device / (peak x EFFICIENCY)
    memory       bytes read and written / (HBM bandwidth x STREAMING)
    collectives  sum of bytes sent / bandwidth of the group's links
    step         max(compute, memory) + collectives

`step` assumes that communication does not overlap with anything; `best`, the maximum of the three,
assumes that it overlaps completely. A group on TPUs uses the links of the torus dimensions that it
spans: 16 chips of a v5e:16x16 span one of two dimensions and send over half of the links. A GPU
group within a node uses NVLink; one that spans nodes uses the slower of NVLink and its GPUs' share
of the network.

The estimate is for comparing machines and meshes. It is not a measurement: the two constants are
typical of well-tuned encoders.
"""

import dataclasses

from xlme_jax.planning.collectives import Collective
from xlme_jax.planning.compiling import Compiled
from xlme_jax.planning.machines import GPUS_A_NODE, Topology

EFFICIENCY = 0.6
STREAMING = 0.8
# Fraction of a device's memory to keep free for prefetched batches, the runtime and fragmentation;
# on GPUs also for NCCL and the CUDA context.
HEADROOM = 0.08
_SECONDS_A_DAY = 86_400


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Estimated times of one step, in seconds, and derived rates.

    Attributes:
      compute: seconds of matrix products.
      memory: seconds of HBM reads and writes.
      collectives: seconds of communication.
      train_steps: steps of the run.
      tokens: token slots per batch, including padding.
      flops: model FLOPs per step, all devices together.
      peak: peak FLOP/s of all devices together.
    """

    compute: float
    memory: float
    collectives: float
    train_steps: int
    tokens: int
    flops: float
    peak: float

    @property
    def step(self) -> float:
        """Seconds per step if communication does not overlap with anything."""
        return max(self.compute, self.memory) + self.collectives

    @property
    def best(self) -> float:
        """Seconds per step if everything overlaps."""
        return max(self.compute, self.memory, self.collectives)

    @property
    def tokens_per_second(self) -> float:
        """Token slots per second, including padding."""
        return self.tokens / self.step

    @property
    def days(self) -> float:
        """Days of the run, without compilation, evaluation and checkpoints."""
        return self.train_steps * self.step / _SECONDS_A_DAY

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization: FLOPs without recomputation over peak FLOPs, in [0, 1]."""
        return self.flops / self.step / self.peak


def estimate(compiled: Compiled) -> Estimate:
    """Returns the estimated times of a step that compiled without running out of memory."""
    topology, machine = compiled.topology, compiled.topology.machine
    return Estimate(
        compute=compiled.executed_flops / topology.size / (machine.flops * EFFICIENCY),
        memory=compiled.hbm_bytes / (machine.hbm_bandwidth * STREAMING),
        collectives=sum(c.total / bandwidth(topology, c) for c in compiled.collectives),
        train_steps=compiled.config.loop.train_steps,
        tokens=compiled.tokens,
        flops=compiled.model_flops,
        peak=machine.flops * topology.size,
    )


def fits(compiled: Compiled) -> bool:
    """Returns whether the step fits into a device's memory with HEADROOM to spare."""
    memory = compiled.memory
    limit = compiled.topology.machine.hbm * (1 - HEADROOM)
    return memory.temporary is not None and memory.total <= limit


def bandwidth(topology: Topology, collective: Collective) -> float:
    """Returns the bytes per second that each device can send to the others of its group."""
    machine, group = topology.machine, collective.group
    if machine.platform != "cuda":
        dims = sorted(topology.dims, reverse=True)
        spanned, reach = 0, 1
        while reach < len(group) and spanned < len(dims):
            reach *= dims[spanned]
            spanned += 1
        return machine.link_bandwidth * max(spanned, 1) / len(dims)
    nodes = {device // GPUS_A_NODE for device in group}
    if len(nodes) == 1:
        return machine.link_bandwidth
    # In a ring over nodes, a node sends through the network cards of its GPUs in the group.
    return min(machine.link_bandwidth, machine.network_bandwidth * len(group) / len(nodes))
