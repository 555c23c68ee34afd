"""Estimates the time of a step from its FLOPs, HBM traffic and communication.

    compute      executed FLOPs per device / (peak x EFFICIENCY)
    memory       bytes read and written / (HBM bandwidth x STREAMING)
    collectives  sum of bytes sent / bandwidth of the group's links
    exposed      the part of collectives that the compiler's schedule does not hide
    step         max(compute, memory) + exposed

`exposed` comes from the order of the compiled instructions (`exposed_communication`); `best`, the
maximum of compute, memory and collectives, assumes that everything overlaps. A group on TPUs uses
the links of the torus dimensions that it spans: 16 chips of a v5e:16x16 span one of two dimensions
and send over half of the links, and a permutation to neighbours in one direction over a quarter. A
GPU group within a node uses NVLink; one that spans nodes uses the slower of NVLink and its GPUs'
share of the network.

The estimate is for comparing machines and meshes. It is not a measurement: the two constants are
typical of well-tuned encoders.
"""

import dataclasses

from xlme_jax.tools.planning.collectives import bandwidth
from xlme_jax.tools.planning.compiling import Compiled

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
      exposed: seconds of communication that do not overlap with compute.
      train_steps: steps of the run.
      tokens: token slots per batch, including padding.
      flops: model FLOPs per step, all devices together.
      peak: peak FLOP/s of all devices together.
    """

    compute: float
    memory: float
    collectives: float
    exposed: float
    train_steps: int
    tokens: int
    flops: float
    peak: float

    @property
    def step(self) -> float:
        """Seconds per step if communication overlaps as the program is scheduled."""
        return max(self.compute, self.memory) + self.exposed

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
    topology = compiled.topology
    machine = compiled.topology.machine
    flops = compiled.executed_flops / topology.size
    compute, memory = machine.seconds(flops, compiled.hbm_bytes)
    return Estimate(
        compute=compute,
        memory=memory,
        collectives=sum(c.total / bandwidth(topology, c) for c in compiled.collectives),
        exposed=compiled.exposed,
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
