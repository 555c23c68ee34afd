"""Creates the state of a run on a mesh, with its shapes and shardings, and the compiled step."""

import collections
import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from xlme_jax.checkpoints.state import TrainState
from xlme_jax.objectives.base import Metrics, Objective, Params, WarmStart, init_carried
from xlme_jax.training import mesh as meshes
from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.step import Points, make_train_step

# The `init_state` functions of the latest runs of this process. They are looked up by the identity
# of objective and optimizer, because objectives need not be hashable.
_INITS: collections.deque[functools.partial[TrainState]] = collections.deque(maxlen=2)


def init_state(
    objective: Objective, optimizer: optax.GradientTransformation, seed: int
) -> TrainState:
    """Returns the state at step 0, its arrays boxed with logical axis names."""
    params = objective.init(_init_rng(seed))
    carried = init_carried(objective, params)
    return TrainState(jnp.zeros((), jnp.int32), params, carried, optimizer.init(params))


def _init_rng(seed: int) -> jax.Array:
    """Returns the key of the initial weights; the keys of the steps are folded in from 1."""
    return jax.random.fold_in(jax.random.key(seed), 0)


def _init(
    objective: Objective, optimizer: optax.GradientTransformation, seed: int
) -> Callable[[], TrainState]:
    """Returns `init_state` with its arguments: one object for a run, so that JAX traces it once."""
    for init in _INITS:
        if init.args[0] is objective and init.args[1] is optimizer and init.args[2] == seed:
            return init
    init = functools.partial(init_state, objective, optimizer, seed)
    _INITS.append(init)
    return init


def boxed_state(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    mesh: jax.sharding.Mesh,
    seed: int = 0,
) -> TrainState:
    """Returns a run's state with shapes and types for arrays, boxed with logical axis names."""
    with sharding_rules(mesh):
        state: TrainState = jax.eval_shape(_init(objective, optimizer, seed))
    return state


def abstract_state(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    mesh: jax.sharding.Mesh,
    seed: int = 0,
) -> TrainState:
    """Returns a run's state with shapes, types and shardings for arrays; computes no array."""
    state: TrainState = _sharded(boxed_state(objective, optimizer, mesh, seed), mesh)
    return state


def _sharded(boxed: Any, mesh: jax.sharding.Mesh) -> Any:
    """Returns a boxed tree without boxes, with shapes, types and shardings for arrays."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        meshes.unbox(boxed),
        meshes.shardings(boxed, mesh),
    )


class WarmParams:
    """Merges the weights of a checkpoint with fresh ones, for a warm start.

    Args:
      start: how the checkpoint initializes weights; also an attribute.
      abstract: shapes, types and shardings of the run's state.
      mesh: the run's mesh.
      seed: seed of the run.
    """

    def __init__(self, start: WarmStart, abstract: TrainState, mesh: jax.sharding.Mesh, seed: int):
        self.start, self._abstract, self._mesh = start, abstract, mesh
        template = start.template
        self._init = functools.partial(template, _init_rng(seed)) if template else None

    @functools.cached_property
    def checkpoint_shapes(self) -> Params:
        """Shapes, types and shardings of the weights that are read from the checkpoint."""
        if self._init is None:
            return self._abstract.params
        with sharding_rules(self._mesh):
            params: Params = _sharded(jax.eval_shape(self._init), self._mesh)
        return params

    def __call__(self, fresh: Params, restored: Params) -> Params:
        """Returns the weights of the run.

        Args:
          fresh: the random weights of the run.
          restored: those weights of `checkpoint_shapes` that the checkpoint has.
        """
        if self._init is None:
            return _merged(fresh, restored)
        init = self._init
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self._abstract.params)

        def derive(fresh: Params, restored: Params) -> Params:
            return _merged(fresh, self.start.derive(_merged(meshes.unbox(init()), restored)))

        return jax.jit(derive, out_shardings=shardings)(fresh, restored)


def _merged(params: Params, replacements: Params) -> Params:
    """Returns a copy of the nested dictionaries `params` with the leaves of `replacements`."""
    return {
        name: _merged(value, replacements.get(name, {}))
        if isinstance(value, dict)
        else replacements.get(name, value)
        for name, value in params.items()
    }


@contextlib.contextmanager
def sharding_rules(mesh: jax.sharding.Mesh) -> Iterator[None]:
    """Returns a context in which linen's logical constraints take effect on a mesh.

    The context sets the mesh with `jax.set_mesh`, because under a plain `with mesh:` linen drops
    the constraints silently.
    """
    with jax.set_mesh(mesh), nn.logical_axis_rules(meshes.LOGICAL_AXIS_RULES):
        yield


def fresh_state(
    objective: Objective, optimizer: optax.GradientTransformation, abstract: TrainState, seed: int
) -> TrainState:
    """Returns the state at step 0, each array created with its sharding of `abstract`.

    So no device ever holds a whole array that is to be split.
    """
    init = _init(objective, optimizer, seed)
    boxed = jax.eval_shape(init)
    leaves = [leaf.sharding for leaf in jax.tree.leaves(abstract)]
    shardings = jax.tree.unflatten(jax.tree.structure(boxed), leaves)
    state: TrainState = meshes.unbox(jax.jit(init, out_shardings=shardings)())
    return state


def check_compiler_options(config: LoopConfig) -> None:
    """Raises ValueError if XLA does not know one of the compiler options."""
    if not config.compiler_options:
        return
    try:
        jax.jit(lambda: 0, compiler_options=config.xla_options()).lower().compile()
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(
            f"Loop.compiler_options = {config.compiler_options}: {error}. Use options that XLA "
            f"has on {jax.default_backend()}."
        ) from error


def compile_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    abstract: TrainState,
    config: LoopConfig,
    weights: Mapping[str, Points] = types.MappingProxyType({}),
    task_counts: Mapping[str, int] = types.MappingProxyType({}),
) -> Callable[[TrainState, Any], tuple[TrainState, Metrics]]:
    """Returns `training.step.make_train_step`, jitted for the devices of the run.

    The function is compiled at its first call. It donates the old state, which is lost by a call.

    Args:
      objective: what to train.
      optimizer: turns gradients into updates.
      abstract: shapes, types and shardings of the state.
      config: the seed, the number of micro-batches and the compiler options.
      weights: {stream: schedule of the weight of its losses}.
      task_counts: {stream: number of tasks}, for streams whose losses are also summed by task.
    """
    make_step = functools.partial(
        make_train_step,
        optimizer=optimizer,
        seed=config.seed,
        micro_batches=config.micro_batches,
        weights=weights,
        task_counts=task_counts,
    )
    step = make_step(objective)
    if objective.lazy_tokens:
        from xlme_jax.training.row_updates import lazy_step

        step = lazy_step(objective, make_step)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    devices: Any = abstract.step.sharding.device_set
    options: dict[str, Any] = {**config.xla_options()}
    if all(device.platform == "cpu" for device in devices):
        # Without this, XLA copies both of Adam's moments in each step before it changes them.
        options.setdefault("xla_cpu_copy_insertion_use_region_analysis", True)
    return jax.jit(
        step, donate_argnums=0, out_shardings=(shardings, None), compiler_options=options or None
    )
