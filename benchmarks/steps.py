"""A compiled train step on one batch, as benchmarks repeat it."""

from collections.abc import Mapping
from typing import Any

import jax

from xlme_jax.training import mesh
from xlme_jax.training import sharded_state as states
from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.optimizer import OptimizerConfig

_STEPS = 125_000  # Of the schedules; no more than a few are run.


class TrainStep:
    """Trains on the same batch at each call, on all devices, and waits for the end.

    Args:
      objective: the system.
      batch: {stream: arrays}.
      tracked: {stream: number of tasks} whose losses the step sums.
    """

    def __init__(self, objective: Any, batch: Any, tracked: Mapping[str, int] | None = None):
        optimizer = OptimizerConfig().build(_STEPS)
        self.mesh = mesh.make_mesh(mesh.MeshConfig())
        with states.sharding_rules(self.mesh):
            abstract = states.abstract_state(objective, optimizer, self.mesh)
            self.state = states.fresh_state(objective, optimizer, abstract, 0)
            self._compiled = states.compile_step(
                objective, optimizer, abstract, LoopConfig(_STEPS), {}, tracked or {}
            )
            self._batch = self.put(batch)

    def put(self, batch: Any) -> Any:
        """Returns a batch on the devices."""
        return mesh.put_batch(batch, mesh.batch_sharding(self.mesh))

    def __call__(self, batch: Any = None) -> Any:
        """Returns the metrics of a step; `batch` is one from `put`, by default the first one."""
        with states.sharding_rules(self.mesh):
            self.state, metrics = self._compiled(self.state, batch or self._batch)
            return jax.block_until_ready(metrics)
