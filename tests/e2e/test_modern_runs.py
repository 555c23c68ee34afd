"""Runs with the modern encoder are resumed with the same bits; it is refused where it cannot go."""

import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import runs, tiny
from helpers.random_weights import random_weights
from helpers.runs import assert_same_bits

from xlme_jax.model import flops
from xlme_jax.model.electra import MaskedLM
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.model.modern_encoder import ModernEncoderConfig

BINDINGS = {"objective": "modern_xlm", "TRAIN_STEPS": 8, "CHECKPOINT_EVERY": 4}
SMALL = ModernEncoderConfig(
    hidden_size=8, num_layers=2, num_heads=2, ffn_size=6, max_length=16, global_every=2, window=4
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_data):
    """Returns MODEL_DIR and the state of a finished run."""
    model_dir = tmp_path_factory.mktemp("modern")
    return model_dir, runs.run(model_dir, tiny_data, **BINDINGS)


@pytest.mark.slow
def test_a_resumed_run_has_the_same_bits(tmp_path, tiny_data, finished):
    model_dir, state = finished
    shutil.copytree(model_dir, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "checkpoints" / "8")
    assert_same_bits(runs.run(tmp_path / "copy", tiny_data, **BINDINGS), state)


@pytest.mark.slow
def test_a_later_phase_has_longer_rows_and_another_theta(tmp_path, tiny_data):
    phase = {
        "Train__phases": runs._Gin("(@long/Phase(),)"),
        "long/Phase__name": "long",
        "long/Phase__start_step": 4,
        "long/Phase__objective": runs._Gin("@long/XLM()"),
        "long/Phase__streams": runs._Gin("(@monolingual/long/TextStream(),)"),
        "long/ModernEncoder__rope_theta": 1e6,
        "monolingual/long/TextStream__length": 64,
        "monolingual/long/TextStream__rows": 4,
        "ModernEncoder__max_length": 64,
    }
    state = runs.run(tmp_path, tiny_data, **BINDINGS, **phase)
    assert int(state.step) == 8


def test_only_layers_without_a_window_have_a_gate(tmp_path, tiny_data):
    objective = runs.load(tmp_path, tiny_data, **BINDINGS).objective.build(tiny.VOCABULARY)
    layers = jax.eval_shape(objective.init, jax.random.key(0))["encoder"]
    gates = {name for name, layer in layers.items() if "gate" in layer}
    assert gates == {"layer_0"} and "layer_1" in layers


@pytest.mark.parametrize("remat", tiny.slow_except(["products"], [True, "products"]))
def test_recomputing_layers_changes_no_gradient(remat):
    rows = {name: jnp.ones((2, 12), jnp.int32) for name in ("tokens", "segment_ids", "positions")}
    rows["tokens"] = jnp.arange(24, dtype=jnp.int32).reshape(2, 12) % 20

    def gradient(**fields):
        model = MaskedLM(runs.dataclasses.replace(SMALL, **fields), 20, 8)
        init = functools.partial(model.init, method=MaskedLM.encode)
        weights = random_weights(init, jax.random.key(0), rows)
        return jax.jit(
            jax.grad(lambda w: jnp.sum(model.apply(w, rows, method=MaskedLM.encode) ** 3))
        )(weights)

    for recomputed, kept in zip(*map(jax.tree.leaves, (gradient(remat=remat), gradient()))):
        np.testing.assert_allclose(recomputed, kept, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("scan_layers", True, "ModernEncoder.scan_layers must be False"),
        ("pre_norm", False, "ModernEncoder.pre_norm must be True"),
        ("window", 0, "ModernEncoder.window"),
        ("num_heads", 256, "cannot be rotated in pairs"),
        ("activation", "relu", "ModernEncoder.activation"),
        ("dropout", 1.0, "ModernEncoder.dropout = 1.0"),
    ],
)
def test_wrong_fields_are_named(field, value, message):
    with pytest.raises(ValueError, match=message):
        ModernEncoderConfig(**{field: value})


def test_a_decoder_is_refused(tmp_path, tiny_data):
    encoder = {"VECO__encoder": runs._Gin("@ModernEncoder()"), "ModernEncoder__num_layers": 1}
    config = runs.load(tmp_path, tiny_data, objective="veco", **encoder)
    objective = config.objective.build(tiny.VOCABULARY)
    weights = random_weights(objective.init, jax.random.key(0))
    rows = {name: jnp.ones((1, 8), jnp.int32) for name in ("tokens", "segment_ids", "positions")}
    states = jnp.zeros((1, 8, config.objective.encoder.hidden_size))
    with pytest.raises(ValueError, match="does not decode"):
        jax.eval_shape(objective.decode, weights, rows, states, rows["segment_ids"])


def test_gated_layers_of_two_thirds_the_width_have_the_flops_of_others():
    """3 matrices of width F cost what 2 of 1.5 F do."""
    gated = ModernEncoderConfig(num_layers=4, ffn_size=2048)
    assert flops.encoder(gated, 128) == flops.encoder(EncoderConfig(num_layers=4), 128)
