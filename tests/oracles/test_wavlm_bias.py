"""The gated relative bias and the attention around it equal Hugging Face's `WavLMAttention`.

WavLM (Chen et al. 2022) computes the gate of XLM-E in another form: with a, b the sigmoids of two
projections, each the sum of four outputs of one linear layer shared by the heads, its gate is
a (b c - 1) + 2. That is 1 + g_update + (1 - g_update) w g_reset with g_update = 1 - a, g_reset = b
and w = c. Its projections have a bias, which XLM-E's q.u has not: here it is zero.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import tiny

from xlme_jax.model.encoder import EncoderConfig, SelfAttention
from xlme_jax.model.relative_bias import RelativeBiasTable, distance_buckets, gate_value
from xlme_jax.ops.attention import toeplitz

torch = pytest.importorskip("torch", reason="compares with torch code")
wavlm = pytest.importorskip("transformers.models.wavlm.modeling_wavlm", reason="compares with it")

HIDDEN, HEADS, WIDTH = 24, 3, 8
pytestmark = pytest.mark.usefixtures("float64")


def numpy_of(tensor):
    return tensor.detach().numpy()


def hf_module(num_buckets, max_distance):
    """Returns WavLM's attention with random weights large enough to move the gates."""
    torch.manual_seed(0)
    module = wavlm.WavLMAttention(
        HIDDEN, HEADS, num_buckets=num_buckets, max_distance=max_distance
    ).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)
        module.gru_rel_pos_linear.bias.zero_()
    return module.eval()


def heads(weight):
    """Returns a torch kernel [D_out, D_in] as [D_in, H, K]."""
    return numpy_of(weight).T.reshape(HIDDEN, HEADS, WIDTH)


def our_params(module):
    """Returns its weights under our names."""
    layers = module.q_proj, module.k_proj, module.v_proj
    # gate_a (the first four outputs) is 1 - g_update, and sigmoid(-x) = 1 - sigmoid(x).
    gates = numpy_of(module.gru_rel_pos_linear.weight).reshape(2, 4, WIDTH).sum(1)
    return {
        "qkv": {
            "kernel": np.stack([heads(layer.weight) for layer in layers], axis=1),
            "bias": np.stack([numpy_of(layer.bias).reshape(HEADS, WIDTH) for layer in layers]),
        },
        "out": {
            "kernel": numpy_of(module.out_proj.weight).T.reshape(HEADS, WIDTH, HIDDEN),
            "bias": numpy_of(module.out_proj.bias),
        },
        "gate": {
            "u": -gates[0],
            "v": gates[1],
            "w": numpy_of(module.gru_rel_pos_const).reshape(HEADS),
        },
    }


def our_bias(table, length, num_buckets, max_distance):
    """Returns [H, 2L] from a table [buckets, H]."""
    module = RelativeBiasTable(HEADS, num_buckets, max_distance, jax.nn.initializers.zeros)
    return jax.jit(lambda table: module.apply({"params": {"table": table}}, length))(table)


@pytest.mark.parametrize(
    ("length", "num_buckets", "max_distance"),
    tiny.slow_except(
        {(50, 320, 800), (1, 16, 32)},
        [(length, *sizes) for length in (1, 9, 50) for sizes in ((320, 800), (16, 32))],
    ),
)
def test_attention_equals_wavlm(length, num_buckets, max_distance):
    module = hf_module(num_buckets, max_distance)
    x = np.random.default_rng(length).normal(size=(2, length, HIDDEN))
    with torch.no_grad():
        expected = numpy_of(module(torch.from_numpy(x))[0])
    config = EncoderConfig(hidden_size=HIDDEN, num_heads=HEADS, gate_input="hidden")
    table = numpy_of(module.rel_attn_embed.weight)
    actual, _ = jax.jit(SelfAttention(config, jnp.float64).apply)(
        {"params": our_params(module)},
        x,
        jnp.ones((2, length), jnp.int32),
        our_bias(table, length, num_buckets, max_distance),
    )
    assert actual.dtype == jnp.float64
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_padding_equals_wavlms_key_padding_mask():
    module = hf_module(32, 128)
    x = np.random.default_rng(1).normal(size=(2, 12, HIDDEN))
    segments = np.ones((2, 12), np.int32)
    segments[1, 7:] = 0
    with torch.no_grad():
        expected = numpy_of(module(torch.from_numpy(x), torch.from_numpy(segments))[0])
    config = EncoderConfig(hidden_size=HIDDEN, num_heads=HEADS, gate_input="hidden")
    actual, _ = jax.jit(SelfAttention(config, jnp.float64).apply)(
        {"params": our_params(module)},
        x,
        segments,
        our_bias(numpy_of(module.rel_attn_embed.weight), 12, 32, 128),
    )
    real = segments > 0
    np.testing.assert_allclose(np.asarray(actual)[real], expected[real], rtol=0, atol=1e-11)


def test_gate_equals_wavlms_form():
    """Checks the identity of the two forms to 1e-15."""
    rng = np.random.default_rng(2)
    q, c = rng.normal(size=(2, 6, HEADS, WIDTH)), rng.normal(size=HEADS)
    u, v = rng.normal(size=(2, HEADS, WIDTH))
    a, b = (1 / (1 + np.exp(-np.einsum("blhk,hk->blh", q, p))) for p in (-u, v))
    np.testing.assert_allclose(gate_value(q, u, v, c), a * (b * c - 1) + 2, rtol=1e-14)


def paper_attention(x, params, table, num_buckets, max_distance):
    """Computes XLM-E's Eqs. 6 to 8 and the gate per query and key, on one row [L, D]."""

    def sigmoid(value):
        return 1 / (1 + math.exp(-value))

    def bucket(distance):
        half, exact = num_buckets // 2, num_buckets // 4
        size = abs(distance)
        if size >= exact:
            scaled = math.log(size / exact) / math.log(max_distance / exact) * (half - exact)
            size = min(exact + int(scaled), half - 1)
        return size + (half if distance > 0 else 0)

    length = len(x)
    output = np.zeros((length, HIDDEN)) + params["out"]["bias"]
    for head in range(HEADS):
        q, k, v = (
            x @ params["qkv"]["kernel"][:, i, head] + params["qkv"]["bias"][i, head]
            for i in range(3)
        )
        u, reset_vector = params["gate"]["u"], params["gate"]["v"]
        w = params["gate"]["w"][head]
        for i in range(length):
            update, reset = sigmoid(q[i] @ u), sigmoid(q[i] @ reset_vector)
            scores = []
            for j in range(length):
                d = table[bucket(j - i), head]
                candidate = w * reset * d
                r = d + update * d + (1 - update) * candidate
                scores.append(q[i] @ k[j] / math.sqrt(WIDTH) + r)
            weights = np.exp(np.array(scores) - max(scores))
            mixed = weights / weights.sum() @ v
            output[i] += mixed @ params["out"]["kernel"][head]
    return output


def test_query_gate_equals_the_papers_equations():
    rng = np.random.default_rng(3)
    length, num_buckets, max_distance = 11, 8, 16
    params = our_params(hf_module(32, 128))
    for name in ("u", "v"):
        params["gate"][name] = rng.normal(size=WIDTH)
    table = rng.normal(size=(num_buckets, HEADS))
    x = rng.normal(size=(2, length, HIDDEN))
    expected = [paper_attention(row, params, table, num_buckets, max_distance) for row in x]
    config = EncoderConfig(hidden_size=HIDDEN, num_heads=HEADS, gate_input="query")
    actual, _ = jax.jit(SelfAttention(config, jnp.float64).apply)(
        {"params": params},
        x,
        jnp.ones((2, length), jnp.int32),
        our_bias(table, length, num_buckets, max_distance),
    )
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_table_is_laid_out_by_key_minus_query():
    table = np.random.default_rng(4).normal(size=(16, HEADS))
    bias = toeplitz(our_bias(table, 9, 16, 32))
    buckets = distance_buckets(9, 16, 32)
    for i in range(9):
        for j in range(9):
            np.testing.assert_array_equal(bias[:, i, j], table[buckets[(j - i) % 18]])
