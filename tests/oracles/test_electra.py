"""Encoder, MLM head and RTD head equal Hugging Face's ELECTRA on copied weights.

Without relative bias and with absolute positions, the encoder is ELECTRA's: embeddings are
normalised, then projected if their width differs; layers are post-LN with erf GELU. ELECTRA's token
type embeddings are set to zero. Each row is one segment and padding.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import tiny

from xlme_jax.model.electra import Discriminator, MaskedLM
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.xlme import detection_loss
from xlme_jax.ops.vocabulary_head import num_chunks, padded_size

torch = pytest.importorskip("torch", reason="compares with torch code")
transformers = pytest.importorskip("transformers", reason="compares with Hugging Face's ELECTRA")

VOCAB, HIDDEN, HEADS, LAYERS, LENGTH, ROWS = 61, 24, 3, 2, 10, 4
pytestmark = pytest.mark.usefixtures("float64")

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


def numpy_of(tensor):
    return tensor.detach().numpy()


def hf_model(kind, embedding_size):
    """Returns a Hugging Face model with random weights."""
    torch.manual_seed(0)
    model = kind(
        transformers.ElectraConfig(
            vocab_size=VOCAB,
            embedding_size=embedding_size,
            hidden_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=CONFIG.ffn_size,
            hidden_act="gelu",
            max_position_embeddings=CONFIG.max_length,
            layer_norm_eps=CONFIG.layer_norm_eps,
            pad_token_id=1,
        )
    )
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(mean=0.1, std=0.3)
        model.electra.embeddings.token_type_embeddings.weight.zero_()
    return model


def hf_dense(layer):
    return {"kernel": numpy_of(layer.weight).T, "bias": numpy_of(layer.bias)}


def hf_norm(layer):
    return {"scale": numpy_of(layer.weight), "bias": numpy_of(layer.bias)}


def layer_params(layer):
    attention, shape = layer.attention, (HEADS, HIDDEN // HEADS)
    projections = attention.self.query, attention.self.key, attention.self.value
    kernels = [numpy_of(p.weight).T.reshape(HIDDEN, *shape) for p in projections]
    out = hf_dense(attention.output.dense)
    return {
        "attention": {
            "qkv": {
                "kernel": np.stack(kernels, axis=1),
                "bias": np.stack([numpy_of(p.bias).reshape(shape) for p in projections]),
            },
            "out": {"kernel": out["kernel"].reshape(*shape, HIDDEN), "bias": out["bias"]},
        },
        "attention_norm": hf_norm(attention.output.LayerNorm),
        "ffn": {"wi": hf_dense(layer.intermediate.dense), "wo": hf_dense(layer.output.dense)},
        "ffn_norm": hf_norm(layer.output.LayerNorm),
    }


def shared_params(model):
    """Returns tables and encoder of a Hugging Face model under our names."""
    electra = model.electra
    encoder = {f"layer_{i}": layer_params(layer) for i, layer in enumerate(electra.encoder.layer)}
    encoder["embedding_norm"] = hf_norm(electra.embeddings.LayerNorm)
    if hasattr(electra, "embeddings_project"):
        encoder["projection"] = hf_dense(electra.embeddings_project)
    return {
        "tokens": {"embedding": pad(numpy_of(electra.embeddings.word_embeddings.weight))},
        "positions": {"embedding": numpy_of(electra.embeddings.position_embeddings.weight)},
        "encoder": encoder,
    }


def pad(table):
    """Adds padding rows as in our tables; their values must not matter."""
    rows = padded_size(VOCAB) - VOCAB
    return np.pad(table, [(0, rows)] + [(0, 0)] * (table.ndim - 1), constant_values=3.0)


def batch():
    """Returns rows of one segment each, two of them padded, and distinct real slots to predict."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(4, VOCAB, (ROWS, LENGTH))
    segments = np.ones((ROWS, LENGTH), np.int32)
    segments[1, 7:], segments[3, 4:] = 0, 0
    tokens[segments == 0] = 1
    positions = np.array([rng.permutation(4)[:3] for _ in range(ROWS)])
    rows = {
        "tokens": tokens,
        "segment_ids": segments,
        "positions": np.broadcast_to(np.arange(LENGTH), (ROWS, LENGTH)) * segments,
    }
    return rows, positions, rng.integers(4, VOCAB, positions.shape)


def hf_inputs(rows):
    return {
        "input_ids": torch.from_numpy(rows["tokens"]),
        "attention_mask": torch.from_numpy(rows["segment_ids"]),
    }


def masked_lm(embedding_size):
    """Returns Hugging Face's model, ours and the weights."""
    model = hf_model(transformers.ElectraForMaskedLM, embedding_size)
    head = model.generator_predictions
    params = shared_params(model) | {
        "head": {
            "dense": hf_dense(head.dense),
            "norm": hf_norm(head.LayerNorm),
            "bias": pad(numpy_of(model.generator_lm_head.bias)),
        }
    }
    return model, MaskedLM(CONFIG, VOCAB, embedding_size, jnp.float64), params


def mlm_labels(positions, targets):
    labels = np.full((ROWS, LENGTH), -100)
    np.put_along_axis(labels, positions, targets, axis=1)
    return torch.from_numpy(labels)


def close(actual, expected, relative):
    """Checks that the largest difference is at most `relative` times the largest value."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= relative * np.abs(expected).max()


@pytest.mark.parametrize("embedding_size", tiny.slow_except({12}, [HIDDEN, 12]))
def test_hidden_states_of_every_layer(embedding_size):
    model, ours, params = masked_lm(embedding_size)
    rows, _, _ = batch()
    with torch.no_grad():
        expected = model(**hf_inputs(rows), output_hidden_states=True).hidden_states
    encode = functools.partial(ours.apply, all_layers=True, method=MaskedLM.encode)
    actual = jax.jit(encode)({"params": params}, rows)
    real = rows["segment_ids"] > 0
    assert len(actual) == len(expected) == LAYERS + 1
    for one, other in zip(actual, expected):
        close(np.asarray(one)[real], numpy_of(other)[real], 1e-13)


@pytest.mark.parametrize("embedding_size", tiny.slow_except({12}, [HIDDEN, 12]))
def test_mlm_logits(embedding_size):
    model, ours, params = masked_lm(embedding_size)
    rows, _, _ = batch()

    def logits(module):
        hidden = module.encode(rows)
        hidden, bias = module.head(hidden.reshape(-1, HIDDEN))
        return (hidden @ module.tables()[0].T + bias)[:, :VOCAB].reshape(ROWS, LENGTH, VOCAB)

    actual = jax.jit(nn.apply(logits, ours))({"params": params})
    with torch.no_grad():
        expected = numpy_of(model(**hf_inputs(rows)).logits)
    real = rows["segment_ids"] > 0
    close(np.asarray(actual)[real], expected[real], 1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("embedding_size", [HIDDEN, 12])
def test_mlm_loss_and_gradients(embedding_size):
    """The tied matrix is both input and output table; its gradient must contain both parts."""
    model, ours, params = masked_lm(embedding_size)
    rows, positions, targets = batch()
    loss = model(**hf_inputs(rows), labels=mlm_labels(positions, targets)).loss
    loss.backward()

    def our_loss(params):
        uniforms = jnp.zeros((*positions.shape, num_chunks(VOCAB), 2))
        prediction = ours.apply({"params": params}, rows, positions, targets, uniforms)
        return prediction.loss.mean()

    actual, gradient = jax.jit(jax.value_and_grad(our_loss))(params)
    np.testing.assert_allclose(actual, loss.item(), rtol=1e-13)
    table = gradient["tokens"]["embedding"]
    word = model.electra.embeddings.word_embeddings.weight
    assert word is model.generator_lm_head.weight
    assert np.abs(table[VOCAB:]).max() == 0
    close(table[:VOCAB], numpy_of(word.grad), 1e-13)
    bias = numpy_of(model.generator_lm_head.bias.grad)
    close(gradient["head"]["bias"][:VOCAB], bias, 1e-13)
    positions_grad = numpy_of(model.electra.embeddings.position_embeddings.weight.grad)
    close(gradient["positions"]["embedding"], positions_grad, 1e-13)
    for index, layer in enumerate(model.electra.encoder.layer):
        for name, other in (("wi", layer.intermediate.dense), ("wo", layer.output.dense)):
            one = gradient["encoder"][f"layer_{index}"]["ffn"][name]["kernel"]
            close(one, numpy_of(other.weight.grad).T, 1e-13)


@pytest.mark.parametrize("embedding_size", [HIDDEN])
def test_discriminator_logits_loss_and_gradients(embedding_size):
    model = hf_model(transformers.ElectraForPreTraining, embedding_size)
    head = model.discriminator_predictions
    prediction = hf_dense(head.dense_prediction)
    params = shared_params(model) | {
        "head": {
            "dense": hf_dense(head.dense),
            "kernel": prediction["kernel"][:, 0],
            "bias": prediction["bias"][0],
        }
    }
    ours = Discriminator(CONFIG, VOCAB, "none", "dense", jnp.float64)
    rows, _, _ = batch()
    labels = np.random.default_rng(1).integers(0, 2, (ROWS, LENGTH))
    expected = model(**hf_inputs(rows), labels=torch.from_numpy(labels))
    expected.loss.backward()
    real = rows["segment_ids"] > 0

    def loss(params):
        logits = ours.apply({"params": params}, rows, (None, None))
        return detection_loss(logits, labels == 1, real, real.sum())[0], logits

    (actual, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    close(np.asarray(logits)[real], numpy_of(expected.logits)[real], 1e-13)
    # Theirs casts the labels, and with them the loss, to float32.
    np.testing.assert_allclose(actual, expected.loss.item(), rtol=1e-6)
    word = numpy_of(model.electra.embeddings.word_embeddings.weight.grad)
    close(gradient["tokens"]["embedding"][:VOCAB], word, 1e-13)
    close(gradient["head"]["kernel"], numpy_of(head.dense_prediction.weight.grad)[0], 1e-13)
