"""The gate of the relative position bias."""

import jax
import numpy as np

from xlme_jax.model.relative_bias import gate_value


def test_the_gate_of_cpus_has_the_values_and_gradients_of_others(monkeypatch):
    rng = np.random.default_rng(0)
    q, u, v, w = (rng.normal(size=size) for size in ((2, 5, 3, 4), (3, 4), (3, 4), (3,)))

    def compute():
        def value(*arrays):
            return (gate_value(*arrays) * np.arange(30.0).reshape(2, 5, 3)).sum()

        return jax.tree.leaves(jax.jit(jax.value_and_grad(value, range(4)))(q, u, v, w))

    here = compute()
    monkeypatch.setattr("xlme_jax.model.relative_bias.compile_platform", lambda: "tpu")
    for found, expected in zip(here, compute(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
