"""Hidden states of a frozen encoder equal Hugging Face's, layer by layer.

A copied encoder's `output_hidden_states` are the reference for the layer convention: 0 is the
embeddings, k the output of layer k. XTREME's code drops the embeddings first and then takes index
7, which is `hidden_states[8]` here; XLM-Align's indexes `hidden_states` directly, like this
project.
"""

import functools

import jax
import numpy as np
import pytest
from helpers import tiny
from test_electra import CONFIG, LAYERS, VOCAB, close, masked_lm, numpy_of

from xlme_jax.evaluation import encoding
from xlme_jax.evaluation.alignment import _aligner
from xlme_jax.model.electra import MaskedLM

torch = pytest.importorskip("torch", reason="compares with torch code")
transformers = pytest.importorskip("transformers", reason="compares with Hugging Face's ELECTRA")
pytestmark = pytest.mark.usefixtures("float64")


class Subject:
    """The copied encoder as the subject of evaluations."""

    num_layers = LAYERS
    default_layer = LAYERS // 2
    restarts = False

    def __init__(self, ours):
        self.ours = ours

    @functools.partial(jax.jit, static_argnums=0)
    def encode(self, params, rows):
        return self.ours.apply({"params": params}, rows, all_layers=True, method=MaskedLM.encode)


def texts(count=9, ends=1):
    """Returns texts `<s> x </s>` or, with two ends, `<s> e </s> f </s>`, of 3 to 16 tokens."""
    rng = np.random.default_rng(0)

    def words():
        return rng.integers(4, VOCAB, rng.integers(1, 7)).tolist()

    return [(0, *(token for _ in range(ends) for token in (*words(), 2))) for _ in range(count)]


def hidden_states(model, text):
    """Returns Hugging Face's states of one text: [layers + 1, n, D]."""
    with torch.no_grad():
        found = model(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states
    return np.stack([numpy_of(layer)[0] for layer in found])


@pytest.mark.parametrize("embedding_size", tiny.slow_except({12}, [CONFIG.hidden_size, 12]))
def test_states_of_all_layers_in_batches(embedding_size):
    model, ours, params = masked_lm(embedding_size)
    subject, found = Subject(ours), texts()
    batches = encoding.batches(found, batch_tokens=16)
    assert len(batches) > 2
    for chosen, layers in encoding.run(subject.encode, params, batches):
        assert len(layers) == LAYERS + 1
        for row, index in enumerate(chosen):
            expected = hidden_states(model, found[index])
            actual = np.stack([layer[row, : len(found[index])] for layer in layers])
            close(actual, expected, 1e-13)


@pytest.mark.parametrize("pooling", tiny.slow_except({"mean_without_specials"}, encoding.POOLINGS))
def test_pooled_states_of_all_layers(pooling):
    model, ours, params = masked_lm(CONFIG.hidden_size)
    found = texts()
    pooled = jax.jit(encoding.pool_all(Subject(ours).encode, pooling))
    actual = encoding.embed(pooled, params, encoding.batches(found, batch_tokens=64))
    part = {"mean": slice(None), "mean_without_specials": slice(1, -1), "first": slice(1)}[pooling]
    expected = [hidden_states(model, text)[:, part].mean(axis=1) for text in found]
    # Pooled in float32 whatever the encoder computes in.
    close(actual, np.stack(expected), 1e-6)


def test_layers_are_counted_as_in_hidden_states():
    """XTREME's layer k is hidden_states[k + 1]."""
    model, ours, params = masked_lm(CONFIG.hidden_size)
    (text,) = texts(1)
    pooled = jax.jit(encoding.pool_all(Subject(ours).encode, "first"))
    actual = encoding.embed(pooled, params, encoding.batches([text]))[0]
    with torch.no_grad():
        output = model.electra(input_ids=torch.tensor([text]), output_hidden_states=True)
    without_embeddings = output.hidden_states[-LAYERS:]
    for layer in range(LAYERS):
        close(actual[layer + 1], numpy_of(without_embeddings[layer])[0, 0], 1e-6)
    close(actual[-1], numpy_of(output.last_hidden_state)[0, 0], 1e-6)
    embeddings = numpy_of(model.electra.embeddings(input_ids=torch.tensor([text])))
    close(actual[0], embeddings[0, 0], 1e-6)


def torch_links(hidden, source, target):
    """Aligns one pair in torch, float64.

    Returns:
      The links, and the places that float32 cannot decide, because the two largest values of
      their row or column differ by a few roundings.
    """
    plan = (hidden[1 : 1 + source] @ hidden[2 + source : 2 + source + target].T).clamp(min=1e-6)
    for _ in range(2):
        columns = plan / plan.sum(dim=0, keepdim=True)
        plan = columns / columns.sum(dim=1, keepdim=True)
    forward = torch.nn.functional.one_hot(plan.argmax(dim=1), target)
    backward = torch.nn.functional.one_hot(columns.argmax(dim=0), source)
    close_rows, close_columns = _too_close(plan, 1), _too_close(columns, 0)
    unclear = (close_rows[:, None] | close_columns[None]).nonzero().tolist()
    links = (forward * backward.T).nonzero().tolist()
    return {tuple(link) for link in links}, {tuple(place) for place in unclear}


def _too_close(values, dim):
    """Returns whether the two largest values along `dim` differ by at most 4 float32 roundings."""
    if values.shape[dim] == 1:
        return torch.zeros(values.shape[1 - dim], dtype=torch.bool)
    largest, second = values.topk(2, dim=dim).values.unbind(dim)
    return (largest - second) / largest < 4 * torch.finfo(torch.float32).eps


@pytest.mark.slow
def test_links_of_all_layers():
    """Compares word alignment with torch on Hugging Face's states, by pair and layer."""
    model, ours, params = masked_lm(CONFIG.hidden_size)
    found = texts(ends=2)
    agreed = undecided = 0
    align = jax.jit(_aligner(Subject(ours), None))
    for chosen, links in encoding.run(align, params, encoding.batches(found, batch_tokens=64)):
        for index, layers in zip(chosen, links["transport"]):
            text = found[index]
            source = text.index(2) - 1
            states = torch.from_numpy(hidden_states(model, text))
            for layer, linked in enumerate(layers):
                expected, unclear = torch_links(states[layer], source, len(text) - source - 3)
                actual = {(i - 1, j - source - 2) for i, j in enumerate(linked) if j >= 0}
                assert actual - unclear == expected - unclear
                agreed += len(expected - unclear)
                undecided += len(expected & unclear)
    assert agreed > 40 and undecided < agreed


@pytest.mark.slow
def test_comparison_fails_for_another_model():
    """The comparison above fails with another model's weights."""
    model, ours, params = masked_lm(CONFIG.hidden_size)
    with torch.no_grad():
        model.electra.encoder.layer[1].attention.self.key.weight.mul_(1.5)
    (text,) = texts(1)
    rows = encoding.fill_rows([text], 1, 16)
    layers = Subject(ours).encode(params, rows)
    actual = np.stack([np.asarray(layer[0, : len(text)]) for layer in layers])
    expected = hidden_states(model, text)
    close(actual[:2], expected[:2], 1e-13)
    assert np.abs(actual[2] - expected[2]).max() > 1e-6
