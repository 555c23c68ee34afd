import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlme_jax.evaluation import encoding
from xlme_jax.evaluation.outcome import Subject

BOS, PAD, EOS = 0, 1, 2


def texts_of_lengths(lengths):
    """Returns texts that differ in their second token."""
    return [
        (BOS, *range(10 + index, 8 + index + length), EOS) for index, length in enumerate(lengths)
    ]


def test_rows_are_a_few_lengths_and_hold_their_text():
    lengths = [encoding.row_length(tokens) for tokens in range(1, 513)]
    assert all(length >= tokens for tokens, length in enumerate(lengths, 1))
    few = [*range(8, 64, 8), *range(64, 128, 16), *range(128, 256, 32), *range(256, 513, 64)]
    assert sorted(set(lengths)) == few
    assert encoding.row_length(9, shortest=32) == 32


@given(
    st.lists(st.integers(2, 90), min_size=1, max_size=60),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1, 64, 200, 4096]),
)
def test_every_text_is_in_one_row_of_its_own(lengths, row_multiple, batch_tokens):
    texts = texts_of_lengths(lengths)
    batches = encoding.batches(texts, row_multiple, batch_tokens)
    held = np.concatenate([batch.texts for batch in batches])
    assert sorted(held) == list(range(len(texts)))
    for batch in batches:
        rows, length = batch.rows["tokens"].shape
        assert rows % row_multiple == 0
        assert rows * length <= batch_tokens or rows == row_multiple
        assert len(batch.texts) == rows or batch is batches[-1]
        assert len(batch.texts) > rows - max(row_multiple, 1) or len(batches) > 1
        for row in range(rows):
            text = texts[batch.texts[min(row, len(batch.texts) - 1)]]
            real = batch.rows["segment_ids"][row] > 0
            assert tuple(batch.rows["tokens"][row][real]) == text
            assert (batch.rows["tokens"][row][~real] == PAD).all()
            assert (batch.rows["positions"][row][real] == np.arange(len(text))).all()
            assert (batch.rows["positions"][row][~real] == 0).all()


def test_little_is_padding():
    rng = np.random.default_rng(0)
    texts = texts_of_lengths(rng.gamma(4, 6, 2000).astype(int) + 4)
    batches = encoding.batches(texts)
    tokens = sum(batch.rows["tokens"].size for batch in batches)
    assert tokens < 1.25 * sum(map(len, texts))
    assert len({batch.rows["tokens"].shape for batch in batches}) < 12


def test_results_come_in_the_order_of_the_texts():
    texts = texts_of_lengths([5, 60, 3, 17, 90, 2, 33])
    first = jax.jit(lambda params, rows: rows["tokens"][:, 1:2] * params)
    found = encoding.embed(first, 3, encoding.batches(texts, 2, 64))
    assert found.tolist() == [[3 * text[1]] for text in texts]
    parts = encoding.run(
        lambda params, rows: {"sum": jnp.sum(rows["segment_ids"], 1)}, None, encoding.batches(texts)
    )
    lengths = {int(i): int(n) for which, part in parts for i, n in zip(which, part["sum"])}
    assert lengths == {index: len(text) for index, text in enumerate(texts)}
    with pytest.raises(ValueError, match="no text"):
        encoding.embed(first, 3, [])


def test_pooling():
    hidden = np.array([[[1.0], [2.0], [6.0], [99.0]], [[4.0], [8.0], [9.0], [9.0]]])
    rows = {
        "tokens": np.array([[BOS, 7, EOS, PAD], [BOS, EOS, PAD, PAD]]),
        "segment_ids": np.array([[1, 1, 1, 0], [1, 1, 0, 0]]),
    }
    expected = {"mean": [[3], [6]], "mean_without_specials": [[2], [0]], "first": [[1], [4]]}
    for pooling, values in expected.items():
        np.testing.assert_array_equal(encoding.pool(hidden, rows, pooling), values)
    half = jnp.asarray(hidden, jnp.bfloat16)
    for pooling in expected:
        assert encoding.pool(half, rows, pooling).dtype == np.float32
    states = [jnp.asarray(hidden), jnp.asarray(2 * hidden)]
    both = encoding.pool_all(lambda params, rows: states, "mean")(None, rows)
    np.testing.assert_array_equal(both, [[[3], [6]], [[6], [12]]])


def test_long_texts_are_cut_and_stay_texts():
    assert encoding.cut((0, 10, 11, 12, 2), 5) == (0, 10, 11, 12, 2)
    assert encoding.cut((0, 10, 11, 12, 13, 2), 5) == (0, 10, 11, 12, 2)


def test_layers_are_counted_as_hidden_states():
    encoder = Subject(None, None, 12)
    assert encoding.choose_layer(None, encoder, "It.layer") == 6
    assert encoding.choose_layer(0, encoder, "It.layer") == 0
    with pytest.raises(ValueError, match=r"It.layer = 13, but the encoder has 12 layers"):
        encoding.choose_layer(13, encoder, "It.layer")
