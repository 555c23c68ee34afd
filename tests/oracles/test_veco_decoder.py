"""The decoder's view equals Hugging Face's XLM-R decoder with cross-attention, weights copied.

Its layers equal VECO's decoder layers: causal self-attention, cross-attention and feed-forward,
each followed by residual and normalisation. Rows have one segment and padding at the end.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import tiny
from test_electra import hf_dense, hf_norm, numpy_of

from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.veco import VecoConfig
from xlme_jax.ops.vocabulary_head import padded_size

torch = pytest.importorskip("torch", reason="compares with torch code")
transformers = pytest.importorskip("transformers", reason="compares with Hugging Face's XLM-R")
pytestmark = pytest.mark.usefixtures("float64")

VOCAB, HIDDEN, HEADS, LAYERS, LENGTH, SOURCE, ROWS = 61, 24, 3, 2, 10, 7, 3
CONFIG = EncoderConfig(
    hidden_size=HIDDEN,
    num_heads=HEADS,
    num_layers=LAYERS,
    ffn_size=40,
    max_length=16,
    relative_bias="none",
    layer_norm_eps=1e-5,
    dropout=0.0,
    attention_dropout=0.0,
)
# XLM-R's positions begin behind the id of its padding.
OFFSET = 2


@pytest.fixture(scope="module")
def theirs():
    """Returns a decoder with random weights."""
    torch.manual_seed(0)
    model = transformers.XLMRobertaForCausalLM(
        transformers.XLMRobertaConfig(
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=CONFIG.ffn_size,
            max_position_embeddings=CONFIG.max_length + OFFSET,
            type_vocab_size=1,
            layer_norm_eps=CONFIG.layer_norm_eps,
            pad_token_id=1,
            is_decoder=True,
            add_cross_attention=True,
            attn_implementation="eager",
        )
    )
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(mean=0.1, std=0.3)
        model.roberta.embeddings.token_type_embeddings.weight.zero_()
    return model


def projections(*layers):
    """Returns kernels [D, n, H, K] and biases [n, H, K] of n projections."""
    shape = (HEADS, HIDDEN // HEADS)
    kernels = [numpy_of(layer.weight).T.reshape(HIDDEN, *shape) for layer in layers]
    biases = [numpy_of(layer.bias).reshape(shape) for layer in layers]
    if len(layers) == 1:
        return {"kernel": kernels[0], "bias": biases[0]}
    return {"kernel": np.stack(kernels, axis=1), "bias": np.stack(biases)}


def out(layer):
    kernel = numpy_of(layer.weight).T.reshape(HEADS, HIDDEN // HEADS, HIDDEN)
    return {"kernel": kernel, "bias": numpy_of(layer.bias)}


def encoder_layer(layer):
    own = layer.attention
    return {
        "attention": {
            "qkv": projections(own.self.query, own.self.key, own.self.value),
            "out": out(own.output.dense),
        },
        "attention_norm": hf_norm(own.output.LayerNorm),
        "ffn": {"wi": hf_dense(layer.intermediate.dense), "wo": hf_dense(layer.output.dense)},
        "ffn_norm": hf_norm(layer.output.LayerNorm),
    }


def cross_layer(layer):
    cross = layer.crossattention
    return {
        "q": projections(cross.self.query),
        "kv": projections(cross.self.key, cross.self.value),
        "out": out(cross.output.dense),
        "norm": hf_norm(cross.output.LayerNorm),
    }


def ours(model):
    """Returns its weights under our names."""
    roberta, head = model.roberta, model.lm_head
    pad = padded_size(VOCAB) - VOCAB
    words = numpy_of(roberta.embeddings.word_embeddings.weight)
    positions = numpy_of(roberta.embeddings.position_embeddings.weight)
    layers = list(enumerate(roberta.encoder.layer))
    params = {
        "tokens": {"embedding": np.pad(words, [(0, pad), (0, 0)], constant_values=3.0)},
        "positions": {"embedding": positions[OFFSET:]},
        "encoder": {
            "embedding_norm": hf_norm(roberta.embeddings.LayerNorm),
            **{f"layer_{i}": encoder_layer(layer) for i, layer in layers},
        },
        "head": {
            "dense": hf_dense(head.dense),
            "norm": hf_norm(head.layer_norm),
            "bias": np.pad(numpy_of(head.bias), (0, pad)),
        },
        "cross": {f"layer_{i}": cross_layer(layer) for i, layer in layers},
    }
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), params)


def batch():
    """Returns texts of 10, 6 and 3 tokens and source states of lengths 7, 5 and 2."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(4, VOCAB, (ROWS, LENGTH))
    real = np.arange(LENGTH) < np.array([[10], [6], [3]])
    tokens[~real] = 1
    states = rng.normal(size=(ROWS, SOURCE, HIDDEN))
    rows = {
        "tokens": tokens,
        "segment_ids": real.astype(np.int32),
        "positions": np.where(real, np.arange(LENGTH), 0),
    }
    read = np.arange(SOURCE) < np.array([[7], [5], [2]])
    return {k: jnp.asarray(v, jnp.int32) for k, v in rows.items()}, states, read.astype(np.int32)


def run(model, rows, states, read):
    """Returns their hidden states, embeddings first, and logits."""
    with torch.no_grad():
        output = model(
            input_ids=torch.tensor(np.asarray(rows["tokens"]), dtype=torch.long),
            attention_mask=torch.tensor(np.asarray(rows["segment_ids"])),
            encoder_hidden_states=torch.tensor(states),
            encoder_attention_mask=torch.tensor(read),
            output_hidden_states=True,
            use_cache=False,
        )
    return [numpy_of(x) for x in output.hidden_states], numpy_of(output.logits)


@pytest.mark.parametrize("scan", tiny.slow_except({True}, [False, True]))
def test_hidden_states_and_logits(theirs, scan):
    rows, states, read = batch()
    expected, logits = run(theirs, rows, states, read)
    params = ours(theirs)
    if scan:
        for part in ("encoder", "cross"):
            tree = params[part]
            layers = [tree.pop(f"layer_{i}") for i in range(LAYERS)]
            tree["layers"] = jax.tree.map(lambda *x: np.stack(x), *layers)
    encoder = dataclasses.replace(CONFIG, scan_layers=scan)
    objective = VecoConfig(encoder).build(VOCAB, jnp.float64)
    hidden = jax.jit(objective.decode)(params, rows, states, read)
    real = np.asarray(rows["segment_ids"]) > 0
    np.testing.assert_allclose(hidden[real], expected[-1][real], rtol=0, atol=1e-11)
    found = jax.jit(objective.logits)(params, hidden)
    assert found.shape == logits.shape
    np.testing.assert_allclose(found[real], logits[real], rtol=0, atol=1e-10)


@pytest.mark.slow
def test_gradients_of_a_loss(theirs):
    """Compares gradients of cross-attention, encoder weights and source states."""
    rows, states, read = batch()
    params = ours(theirs)
    weight = np.random.default_rng(1).normal(size=(ROWS, LENGTH, HIDDEN))
    weight[np.asarray(rows["segment_ids"]) == 0] = 0
    objective = VecoConfig(CONFIG).build(VOCAB, jnp.float64)

    def loss(params, states):
        return (objective.decode(params, rows, states, read) * weight).sum()

    found, for_states = jax.jit(jax.grad(loss, argnums=(0, 1)))(params, states)
    source = torch.tensor(states, requires_grad=True)
    output = theirs.roberta(
        input_ids=torch.tensor(np.asarray(rows["tokens"]), dtype=torch.long),
        attention_mask=torch.tensor(np.asarray(rows["segment_ids"])),
        encoder_hidden_states=source,
        encoder_attention_mask=torch.tensor(read),
        use_cache=False,
    ).last_hidden_state
    theirs.zero_grad()
    (output * torch.tensor(weight)).sum().backward()
    np.testing.assert_allclose(for_states, source.grad.numpy(), rtol=0, atol=1e-10)
    for index, layer in enumerate(theirs.roberta.encoder.layer):
        cross = layer.crossattention.self
        kernel = found["cross"][f"layer_{index}"]["kv"]["kernel"]
        for n, projection in enumerate((cross.key, cross.value)):
            expected = projection.weight.grad.numpy().T
            np.testing.assert_allclose(
                np.asarray(kernel[:, n]).reshape(HIDDEN, HIDDEN), expected, rtol=0, atol=1e-9
            )
        expected = layer.intermediate.dense.weight.grad.numpy().T
        kernel = found["encoder"][f"layer_{index}"]["ffn"]["wi"]["kernel"]
        np.testing.assert_allclose(kernel, expected, rtol=0, atol=1e-9)
