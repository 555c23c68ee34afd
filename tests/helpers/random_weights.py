"""Random weights in the shapes of a model, without compiling its initialisation."""

import jax
import numpy as np
from flax.core import meta


def random_weights(init, *arguments, seed=0, noise=0.1, spread=0.3):
    """Returns float32 weights with the shapes of `init(*arguments)`; no value is neutral.

    Scales and biases have the standard deviation `noise`, and all others `spread`.
    """
    rng = np.random.default_rng(seed)

    def draw(path, shape):
        name = getattr(path[-1], "key", None)
        mean, deviation = (
            (float(name == "scale"), noise) if name in ("scale", "bias") else (0, spread)
        )
        # Not `jnp.asarray`, which compiles a program for each shape.
        return jax.device_put(rng.normal(mean, deviation, shape.shape).astype(np.float32))

    return jax.tree_util.tree_map_with_path(draw, meta.unbox(jax.eval_shape(init, *arguments)))
