"""Searches for a mesh, micro-batches and remat that fit a topology and are fast.

Compiling takes minutes, so a cost model chooses which candidate to compile next. The compiler's
results for earlier candidates calibrate the cost model.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

import jax
from jax.sharding import AbstractMesh, AxisType

from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.tools.planning.collectives import Collective, bandwidth
from xlme_jax.tools.planning.compiling import Compiled, build_objective, compile_step, stream_shapes
from xlme_jax.tools.planning.estimate import HEADROOM, estimate, fits
from xlme_jax.tools.planning.machines import EFFICIENCY, Topology
from xlme_jax.training import mesh as meshes
from xlme_jax.training.sharded_state import init_state

_MAX_TENSOR = 8
Remat = Literal[False, True, "products"]


@dataclasses.dataclass(frozen=True)
class MeshCandidate:
    """Values of the settings that the search may change.

    Attributes:
      data: size of the mesh axis of data parallelism.
      fsdp: size of the mesh axis that shards weights and optimizer state.
      tensor: size of the mesh axis of tensor parallelism.
      micro_batches: micro-batches per step.
      remat: what encoders recompute, as `Encoder.remat`.
      encoder: name of the encoders' configuration in gin files.
    """

    data: int
    fsdp: int
    tensor: int
    micro_batches: int
    remat: Remat
    encoder: str = "Encoder"

    def bindings(self) -> list[str]:
        """Returns the settings as gin bindings."""
        return [
            f"Mesh.data = {self.data}",
            f"Mesh.fsdp = {self.fsdp}",
            f"Mesh.tensor = {self.tensor}",
            f"Loop.micro_batches = {self.micro_batches}",
            f"{self.encoder}.remat = {self.remat!r}",
        ]

    def flags(self) -> str:
        """Returns the settings as command-line flags."""
        return " ".join(f"--gin.{binding.replace(' = ', '=')}" for binding in self.bindings())


@dataclasses.dataclass(frozen=True)
class Plan:
    """Result of planning a configuration for a topology.

    Attributes:
      given: the given configuration, compiled.
      tried: (candidate, its compiled configuration), in order of compilation.
      best: (candidate, compiled configuration) with the fastest estimate of all that fit; the
        candidate is None for the given configuration. None if nothing fits.
    """

    given: Compiled
    tried: tuple[tuple[MeshCandidate, Compiled], ...] = ()
    best: tuple[MeshCandidate | None, Compiled] | None = None

    @property
    def fits(self) -> bool:
        """Whether the given configuration or a candidate fits."""
        return self.best is not None


def plan(
    load: Callable[[Sequence[str]], TrainConfig],
    topology: Topology,
    devices: list[Any],
    suggest: str,
    compilations: int,
) -> Plan:
    """Compiles a configuration for a topology and, depending on `suggest`, candidates.

    Args:
      load: loads the configuration with additional gin bindings.
      topology: the accelerators.
      devices: `compiling.devices_of(topology)`.
      suggest: when to search: "always", "never", or "auto" (the configuration does not fit).
      compilations: maximum number of candidates to compile.
    """
    config = load([])
    compiled = compile_step(config, topology, devices)
    if suggest == "never" or (suggest == "auto" and fits(compiled)):
        return without_search(compiled)
    costs = CostModel(config, topology)

    def compile_candidate(candidate: MeshCandidate) -> Compiled:
        return compile_step(load(candidate.bindings()), topology, devices)

    return search(costs, compiled, compile_candidate, compilations)


def without_search(compiled: Compiled) -> Plan:
    """Returns the plan of a compiled configuration without a search."""
    return Plan(compiled, best=(None, compiled) if fits(compiled) else None)


def search(
    costs: "CostModel",
    first_compiled: Compiled,
    compile_candidate: Callable[[MeshCandidate], Compiled],
    compilations: int,
) -> Plan:
    """Searches for the fastest candidate that fits, and returns the plan.

    Each iteration compiles the candidate that is predicted to be the fastest of those that are
    predicted to fit, and calibrates the cost model with its actual memory. If none is predicted to
    fit and none has fit yet, the candidate with the lowest predicted memory is compiled. The search
    ends when no candidate is predicted to be faster than the best one by at least 2%.

    Args:
      costs: the cost model; it is calibrated in place.
      first_compiled: the given configuration, compiled.
      compile_candidate: compiles the configuration of a candidate.
      compilations: maximum number of candidates to compile.
    """
    first = costs.candidate_of(first_compiled)
    done: dict[MeshCandidate, Compiled] = {first: first_compiled}
    costs.correct(first, first_compiled)
    best: tuple[MeshCandidate | None, Compiled] | None = (
        (None, first_compiled) if fits(first_compiled) else None
    )
    limit = costs.topology.machine.hbm * (1 - HEADROOM)
    tried = []
    for _ in range(compilations):
        best_seconds = costs.seconds(best[0] or first) if best else math.inf
        open_ = [candidate for candidate in costs.candidates() if candidate not in done]
        hopeful = [
            candidate
            for candidate in open_
            if costs.bytes(candidate) <= limit and costs.seconds(candidate) < 0.98 * best_seconds
        ]
        if hopeful:
            candidate = min(hopeful, key=costs.seconds)
        elif best is None and open_:
            candidate = min(open_, key=costs.bytes)
        else:
            break
        compiled = done[candidate] = compile_candidate(candidate)
        tried.append((candidate, compiled))
        costs.correct(candidate, compiled)
        if fits(compiled) and (best is None or estimate(compiled).step < estimate(best[1]).step):
            best = candidate, compiled
    return Plan(first_compiled, tuple(tried), best)


class CostModel:
    """Cost model of candidates: memory and time.

    Memory is the sum of state, batch and gradients, known from shapes, and of activations, which
    are estimated and then scaled by the compiler's results. Time is the sum of matrix products and
    three kinds of communication: gradients between replicas, weights within fsdp groups and
    activations within tensor groups.
    """

    def __init__(self, config: TrainConfig, topology: Topology):
        self.topology = topology
        self._config = config
        objective = build_objective(config, topology.machine.platform)
        self._shapes = stream_shapes(config, objective)
        self._flops = sum(objective.diagnostics.flops(self._shapes).values())
        optimizer = objective.optimizer(config.optimizer.build(config.loop.train_steps))
        init = functools.partial(init_state, objective, optimizer, config.loop.seed)
        self._boxed = jax.eval_shape(init)
        self._scale: dict[Remat, float] = {}
        self._state = functools.cache(self._state_bytes)

    def candidates(self) -> Iterator[MeshCandidate]:
        """Yields all candidates that divide rows and heads evenly."""
        size = self.topology.size
        heads = math.gcd(*(encoder.num_heads for encoder in self._encoders()))
        rows = math.gcd(*(rows for rows, _ in self._shapes.values()))
        for fsdp in _powers(size):
            for tensor in _powers(min(_MAX_TENSOR, size)):
                if size % (fsdp * tensor) or heads % tensor:
                    continue
                data = size // fsdp // tensor
                if rows % (data * fsdp):
                    continue
                for micro in _powers(rows // (data * fsdp)):
                    for remat in get_args(Remat):
                        yield MeshCandidate(data, fsdp, tensor, micro, remat, self._encoder_name())

    def candidate_of(self, compiled: Compiled) -> MeshCandidate:
        """Returns the candidate with the settings of a compiled configuration.

        If the encoders differ in remat, the candidate has none.
        """
        kinds = {encoder.remat for encoder in self._encoders()}
        remat = kinds.pop() if len(kinds) == 1 else False
        micro = compiled.config.loop.micro_batches
        data, fsdp, tensor = (compiled.mesh[axis] for axis in meshes.AXES)
        return MeshCandidate(data, fsdp, tensor, micro, remat, self._encoder_name())

    def correct(self, candidate: MeshCandidate, compiled: Compiled) -> None:
        """Calibrates the activation memory with the compiler's result for a candidate."""
        activations = compiled.memory.total - self._fixed(candidate)
        self._scale[candidate.remat] = max(activations, 0) / self._activations(candidate)

    def bytes(self, candidate: MeshCandidate) -> float:
        """Returns the predicted memory per device, in bytes."""
        scale = self._scale.get(candidate.remat, max(self._scale.values(), default=1.0))
        return self._fixed(candidate) + scale * self._activations(candidate)

    def seconds(self, candidate: MeshCandidate) -> float:
        """Returns the predicted seconds per step; only meaningful for comparing candidates."""
        size, machine = self.topology.size, self.topology.machine
        recomputes = candidate.remat is True
        executed = self._flops * (4 / 3 if recomputes else 1)
        executed *= 1.01 if candidate.remat == "products" else 1
        compute = executed / size / (machine.flops * EFFICIENCY)
        # Smaller micro-batches lower the utilization.
        compute *= 1 + 0.01 * (candidate.micro_batches - 1)
        return compute + self._communication_seconds(candidate)

    def _communication_seconds(self, candidate: MeshCandidate) -> float:
        """Returns the predicted seconds per step in which a device sends."""
        data, fsdp, tensor = candidate.data, candidate.fsdp, candidate.tensor
        weights, _ = self._state(1, 1, 1)
        summed = 2 * weights / fsdp / tensor * (1 - 1 / data)
        # Weights are gathered in the forward and backward pass and for recomputation, and gradients
        # are scattered, all in half precision.
        passes = (4 if candidate.remat is True else 3) * candidate.micro_batches
        gathered = passes * weights / 2 / tensor * (1 - 1 / fsdp)
        shared = 0.0
        if tensor > 1:
            mixed = sum(encoder.num_layers * encoder.hidden_size for encoder in self._encoders())
            tokens = self._tokens() / data / fsdp
            shared = 4 * 2 * 2 * mixed * tokens * (1 - 1 / tensor)
        # Bytes sent, difference of the indices of consecutive devices of a group, and its size.
        sent = ((summed, fsdp * tensor, data), (gathered, tensor, fsdp), (shared, 1, tensor))
        return sum(
            count / self._bandwidth(stride, members) for count, stride, members in sent if count
        )

    def _bandwidth(self, stride: int, members: int) -> float:
        """Returns the bytes per second that a device can send to a group.

        Args:
          stride: difference of the indices of consecutive devices of the group.
          members: number of devices of the group.
        """
        group = tuple(range(0, stride * members, stride))
        return bandwidth(self.topology, Collective("all-gather", group, 0.0, 1, "", ""))

    def _encoder_name(self) -> str:
        """Returns the name of the encoders' configuration in gin files."""
        return type(self._encoders()[0]).__name__.removesuffix("Config")

    def _encoders(self) -> list[EncoderConfig]:
        """Returns the encoders of the objective."""
        objective = self._config.objective
        values = (getattr(objective, field.name) for field in dataclasses.fields(objective))
        return [value for value in values if isinstance(value, EncoderConfig)]

    def _tokens(self) -> int:
        """Returns the token slots of a batch, over all streams."""
        return sum(rows * length for rows, length in self._shapes.values())

    def _state_bytes(self, data: int, fsdp: int, tensor: int) -> tuple[int, int]:
        """Returns the bytes per device of the weights and of the rest of the state."""
        sizes = (data, fsdp, tensor)
        mesh: Any = AbstractMesh(sizes, meshes.AXES, axis_types=(AxisType.Auto,) * len(sizes))
        leaves = jax.tree.map(
            lambda leaf, sharding: (
                math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            ),
            meshes.unbox(self._boxed),
            meshes.shardings(self._boxed, mesh),
        )
        weights = sum(jax.tree.leaves(leaves.params))
        return weights, sum(jax.tree.leaves(leaves)) - weights

    def _fixed(self, candidate: MeshCandidate) -> float:
        """Returns the bytes of state, batch and gradients, which are known from shapes."""
        weights, moments = self._state(candidate.data, candidate.fsdp, candidate.tensor)
        gradients = weights * (2 if candidate.micro_batches > 1 else 1)
        batch = 12 * self._tokens() / candidate.data / candidate.fsdp
        return weights + moments + gradients + batch

    def _activations(self, candidate: MeshCandidate) -> float:
        """Returns the uncalibrated bytes of activations, proportional to the micro-batch size."""
        parts = candidate.data * candidate.fsdp * candidate.micro_batches
        total = 0.0
        for encoder in self._encoders():
            # A layer has 17 arrays of its width in bfloat16; recomputation keeps one of them, or
            # ten, the results of its products.
            tokens = self._tokens() / parts
            layer = 34 * encoder.hidden_size * tokens / candidate.tensor**0.5
            saved = 2 * encoder.hidden_size * tokens * (10 if candidate.remat == "products" else 1)
            alive = 2 * layer + encoder.num_layers * saved
            total += alive if candidate.remat else encoder.num_layers * layer
        return total


def _powers(limit: int) -> Iterator[int]:
    """Yields 1, 2, 4, ... up to `limit`."""
    value = 1
    while value <= limit:
        yield value
        value *= 2
