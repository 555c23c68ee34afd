"""The modern encoder has the hidden states of transformers' ModernBERT, segment by segment."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers import tiny

from xlme_jax.model.electra import MaskedLM
from xlme_jax.model.modern_encoder import ModernEncoderConfig
from xlme_jax.ops.vocabulary_head import padded_size

torch = pytest.importorskip("torch", reason="compares with torch code")
transformers = pytest.importorskip("transformers", reason="compares with Hugging Face's ModernBERT")
pytestmark = pytest.mark.usefixtures("float64")

VOCAB = 50
# transformers rounds the angles of rotations to float32.
ANGLES = 2e-6
SHAPES = {
    "local and global layers": ModernEncoderConfig(
        hidden_size=32,
        num_layers=3,
        num_heads=2,
        ffn_size=24,
        max_length=64,
        global_every=2,
        window=6,
    ),
    "all layers global": ModernEncoderConfig(
        hidden_size=24,
        num_layers=2,
        num_heads=3,
        ffn_size=40,
        max_length=64,
        global_every=1,
        rope_theta=500.0,
    ),
    "every third layer global, silu": ModernEncoderConfig(
        hidden_size=48,
        num_layers=4,
        num_heads=2,
        ffn_size=16,
        max_length=64,
        window=2,
        activation="silu",
        local_rope_theta=100.0,
    ),
}


def _theirs(config):
    """Returns transformers' model of a configuration, with weights of a size that shows errors."""
    kinds = [
        "sliding_attention" if index % config.global_every else "full_attention"
        for index in range(config.num_layers)
    ]
    thetas = zip(
        ("sliding_attention", "full_attention"), (config.local_rope_theta, config.rope_theta)
    )
    model = transformers.ModernBertModel(
        transformers.ModernBertConfig(
            vocab_size=VOCAB,
            pad_token_id=None,
            hidden_size=config.hidden_size,
            intermediate_size=config.ffn_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            hidden_activation=config.activation,
            layer_types=kinds,
            rope_parameters={
                kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas
            },
            local_attention=config.window,
            attn_implementation="eager",
        )
    ).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = parameter.data * (parameter.ndim == 1) + 0.2 * noise
    return model.eval()


def _as_ours(model, config):
    """Returns weights of `MaskedLM`, from transformers'."""
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    heads = config.num_heads, config.hidden_size // config.num_heads

    def layer(index):
        prefix = f"layers.{index}."
        qkv = weights[f"{prefix}attn.Wqkv.weight"].T.reshape(config.hidden_size, 3, *heads)
        wi = weights[f"{prefix}mlp.Wi.weight"].T.reshape(config.hidden_size, 2, config.ffn_size)
        out = weights[f"{prefix}attn.Wo.weight"].T.reshape(*heads, config.hidden_size)
        ours = {
            "qkv": {"kernel": qkv},
            "out": {"kernel": out},
            "ffn_norm": {"scale": weights[f"{prefix}mlp_norm.weight"]},
            "wi": {"kernel": wi},
            "wo": {"kernel": weights[f"{prefix}mlp.Wo.weight"].T},
        }
        if index:
            ours["attention_norm"] = {"scale": weights[f"{prefix}attn_norm.weight"]}
        return ours

    table = np.zeros((padded_size(VOCAB), config.hidden_size))
    table[:VOCAB] = weights["embeddings.tok_embeddings.weight"]
    encoder = {
        "embedding_norm": {"scale": weights["embeddings.norm.weight"]},
        "final_norm": {"scale": weights["final_norm.weight"]},
        **{f"layer_{index}": layer(index) for index in range(config.num_layers)},
    }
    return {"tokens": {"embedding": table}, "encoder": encoder}


@pytest.mark.parametrize("shape", tiny.slow_except({"local and global layers"}, SHAPES))
def test_packed_segments_have_the_states_of_modernbert(shape):
    config = SHAPES[shape]
    theirs = _theirs(config)
    lengths = 17, 9, 12
    rng = np.random.default_rng(0)
    segments = [rng.integers(0, VOCAB, length) for length in lengths]
    rows = {
        "tokens": np.concatenate([*segments, [1, 1]])[None],
        "segment_ids": np.repeat([1, 2, 3, 0], [*lengths, 2])[None],
        "positions": np.concatenate([*map(np.arange, lengths), [0, 0]])[None],
    }
    rows = {name: array.astype(np.int32) for name, array in rows.items()}
    model = MaskedLM(config, VOCAB, config.hidden_size, np.float64)

    @jax.jit
    def encode(params, rows, at):
        variables = {"params": params}
        states = model.apply(variables, rows, all_layers=True, method=MaskedLM.encode)
        return states, model.apply(variables, rows, at=at, method=MaskedLM.encode)

    places = np.array([[3, 20, 37]], np.int32)
    states, with_at = encode(_as_ours(theirs, config), rows, places)
    start = 0
    for segment in segments:
        with torch.no_grad():
            output = theirs(torch.tensor(segment)[None], output_hidden_states=True)
        end = start + len(segment)
        np.testing.assert_allclose(
            states[-1][0, start:end], output.last_hidden_state[0], rtol=ANGLES, atol=ANGLES
        )
        for ours, expected in zip(states[:-1], output.hidden_states):
            np.testing.assert_allclose(ours[0, start:end], expected[0], rtol=ANGLES, atol=ANGLES)
        start = end
    np.testing.assert_allclose(with_at[0], states[-1][0, places[0]], rtol=1e-9, atol=1e-9)


def test_the_window_is_seen():
    """Without it, states differ."""
    config = SHAPES["local and global layers"]
    wide = dataclasses.replace(config, window=64)
    rows = {name: np.ones((1, 20), np.int32) for name in ("tokens", "segment_ids", "positions")}
    rows["tokens"] = np.arange(20, dtype=np.int32)[None]
    models = [MaskedLM(c, VOCAB, config.hidden_size, np.float64) for c in (config, wide)]

    @jax.jit
    def encode(params):
        return [m.apply({"params": params}, rows, method=MaskedLM.encode) for m in models]

    narrow, whole = encode(_as_ours(_theirs(config), config))
    assert np.abs(narrow - whole).max() > 1e-4
