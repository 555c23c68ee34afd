"""Update rules besides the papers' AdamW (`training.optimizer.AdamW`).

They share the fields of `Optimizer`: learning rate, clipping, decay and its mask, b1, b2 and eps.
"""

import dataclasses
import math
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from xlme_jax.training.optimizer import AdamW, OptimizerConfig, names_in
from xlme_jax.validation.fields import check_below_one

_HEADS = MuonDimensionNumbers((-3,), (-2, -1))
_STACKED_HEADS = MuonDimensionNumbers((-4,), (-2, -1))  # Queries, keys and values along axis -3.
_DENSE = MuonDimensionNumbers((-2,), (-1,))
# {module of a layer: input and output axes of its kernel}. All other axes number matrices.
_MATRICES = {
    "q": _HEADS,
    "kv": _STACKED_HEADS,
    "qkv": _STACKED_HEADS,
    "out": MuonDimensionNumbers((-3, -2), (-1,)),
    "wi": _DENSE,
    "wo": _DENSE,
}


@dataclasses.dataclass(frozen=True)
class StableAdamW(AdamW):
    """AdamW whose steps shrink where gradients outgrow their second moments.

    Wortsman et al. 2023, "Stable and Low-Precision Training for Large-Scale Vision-Language Models"
    (Algorithm 2): each array's learning rate, with its decay, is divided by max(1, RMS), where RMS
    is the root mean square of gradient / sqrt(second moment). It is the update clipping of Shazeer
    and Stern 2018, "Adafactor" (Sec. 6), in AdamW. The state is that of AdamW.

    Layers of a stack (`Encoder.scan_layers`) have an RMS each. The RMS reads whole arrays, so that
    `FineTune.lazy_tokens` is refused.
    """

    by_entry: ClassVar[bool] = False

    def updates(self, config: OptimizerConfig) -> tuple[optax.GradientTransformation, ...]:
        """See `AdamW.updates`; the first one adds the decay too, the second does nothing."""
        adam, decay = super().updates(config)

        def shrunk(
            path: tuple[Any, ...], update: jax.Array, gradient: jax.Array, variance: jax.Array
        ) -> jax.Array:
            ratios = jnp.square(gradient) / jnp.maximum(variance, config.eps**2)
            axes = tuple(range("layers" in names_in(path), update.ndim))
            return update / jnp.maximum(1.0, jnp.sqrt(ratios.mean(axes, keepdims=True)))

        def update(gradient: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
            updates, state = adam.update(gradient, state, params)
            updates, _ = decay.update(updates, decay.init(params), params)
            variances = optax.tree.bias_correction(state.nu, config.b2, state.count)
            with_path = jax.tree_util.tree_map_with_path
            return with_path(shrunk, updates, gradient, variances), state

        # The decay is added above; its state is empty.
        added = optax.GradientTransformation(decay.init, lambda updates, state, _: (updates, state))
        return optax.GradientTransformation(adam.init, update), added


@dataclasses.dataclass(frozen=True)
class Muon(AdamW):
    """Momentum that is made orthogonal for the matrices of layers, and AdamW for the rest.

    Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks": five
    Newton-Schulz iterations (`optax.contrib.scale_by_muon`) bring the singular values of a matrix's
    Nesterov momentum near 1. As in Liu et al. 2025, "Muon is Scalable for LLM Training" (Eq. 4),
    the result is scaled by `rms` sqrt(max(inputs, outputs)), so that updates are as large as
    AdamW's, and one learning rate and decay serve both.

    Matrices are the kernels of attention and FFN in the layers of encoders and decoders: query, key
    and value [D, heads K] each, output [heads K, D], and both of the FFN. Each layer of a stack has
    its own. Embeddings, heads and their dense layers, projections, relative biases, gates, biases
    and normalisation have AdamW. The state of a matrix is one momentum, half of AdamW's.

    Attributes:
      momentum: decay of the momentum.
      rms: root mean square of a matrix's update at a learning rate of 1.
    """

    moments: ClassVar[str] = "muon"
    momentum: float = 0.95
    rms: float = 0.2

    def __post_init__(self) -> None:
        check_below_one(self, "Muon", "momentum")
        if self.rms <= 0:
            raise ValueError(f"Muon.rms = {self.rms} must be positive.")

    def updates(self, config: OptimizerConfig) -> tuple[optax.GradientTransformation, ...]:
        """See `AdamW.updates`.

        Raises:
          ValueError: `init` of the first one gets weights without matrices.
        """
        adam, decay = super().updates(config)

        def scaled(update: jax.Array, axes: MuonDimensionNumbers) -> jax.Array:
            sizes = [math.prod(update.shape[axis] for axis in side) for side in axes]
            return self.rms * math.sqrt(max(sizes)) * update

        orthogonal = optax.chain(
            scale_by_muon(beta=self.momentum, weight_dimension_numbers=_dimensions),
            optax.stateless(lambda updates, _: jax.tree.map(scaled, updates, _dimensions(updates))),
        )
        return optax.partition({"muon": orthogonal, "adam": adam}, _labels), decay


def _matrix(path: tuple[Any, ...]) -> MuonDimensionNumbers | None:
    """Returns the axes of a parameter that is a matrix of a layer; None for others."""
    names = names_in(path)
    if names[-1] != "kernel" or not any(name.startswith("layer") for name in names):
        return None
    return _MATRICES.get(names[-2])


def _dimensions(matrices: Any) -> Any:
    """Returns the axes of each array of a tree that has matrices alone."""
    return jax.tree_util.tree_map_with_path(lambda path, _: _matrix(path), matrices)


def _labels(params: Any) -> Any:
    """Returns "muon" for each matrix and "adam" for each other parameter, boxed or not."""
    labels = jax.tree_util.tree_map_with_path(
        lambda path, _: "adam" if _matrix(path) is None else "muon",
        params,
        is_leaf=lambda node: isinstance(node, nn.meta.AxisMetadata),
    )
    if "muon" not in jax.tree.leaves(labels):
        raise ValueError(
            "Optimizer.update_rule = @Muon(): no weight is a matrix of a layer "
            f"({', '.join(_MATRICES)}); set Optimizer.update_rule = @AdamW()."
        )
    return labels
