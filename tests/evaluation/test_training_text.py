import jax.numpy as jnp
import numpy as np
import pytest

from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.prepared.writer import BitextWriter, MonolingualWriter, write_dataset
from xlme_jax.evaluation import encoding
from xlme_jax.evaluation.training_text import EncodedSample, TrainingText

VOCABULARY_SIZE = 400
BOS, EOS = 0, 2


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Writes en-fr pairs, 5 el-en pairs, and running text in fr and, without pairs, sw."""
    folder = tmp_path_factory.mktemp("prepared")
    rows = []
    with BitextWriter(folder, "a", ("en", "fr"), VOCABULARY_SIZE) as writer:
        for i in range(60):
            writer.add([BOS, 10 + i, EOS, 100 + i, 100 + i, EOS])
        rows.append(writer.close())
    with BitextWriter(folder, "b", ("el", "en"), VOCABULARY_SIZE) as writer:
        for i in range(5):
            writer.add([BOS, 200 + i, EOS, 80 + i, EOS])
        rows.append(writer.close())
    for name, first in (("fr", 300), ("sw", 350)):
        with MonolingualWriter(folder, name, (name,), VOCABULARY_SIZE) as writer:
            for i in range(40):
                writer.add([BOS, *range(first, first + i), EOS])
            rows.append(writer.close())
    (folder / "source.model").write_bytes(b"model")
    write_dataset(folder, rows, folder / "source.model", VOCABULARY_SIZE)
    return TrainingText(PreparedDataset.load(folder))


def test_texts_are_sides_of_pairs_where_there_are_any(text):
    assert text.languages == {"en", "fr", "el", "sw"}
    french = text.texts("fr", 20, 64)
    assert len(set(french)) == 20 and french == text.texts("fr", 20, 64)
    assert all(one[0] == BOS and one[-1] == EOS and one[1] == one[2] >= 100 for one in french)
    assert all(one[1] < 160 for one in french)
    # As many of each task, as far as they go.
    english = [one[1] for one in text.texts("en", 20, 64)]
    assert sorted(token for token in english if token >= 80) == [80, 81, 82, 83, 84]
    assert len(english) == 20
    assert len(text.texts("en", 1_000, 64)) == 65


def test_running_text_is_cut_into_pieces_like_sentences(text):
    pieces = text.texts("sw", 12, 16)
    assert 1 < len(pieces) <= 12
    for piece in pieces:
        assert piece[0] == BOS and piece[-1] == EOS and 3 <= len(piece) <= 16
        assert all(350 <= token < 400 for token in piece[1:-1])


def test_pairs_come_in_the_order_that_is_asked_for(text):
    pairs = text.pairs("fr", "en", 15, 64)
    assert len(pairs) == 15
    assert all(source[1] - 100 == target[1] - 10 for source, target in pairs)
    assert {target[1] for _, target in text.pairs("el", "en", 99, 64)} == {80, 81, 82, 83, 84}
    assert text.pairs("fr", "el", 15, 64) == text.pairs("sw", "en", 15, 64) == []


def test_languages_of_older_data_are_found_in_every_spelling(tmp_path):
    with BitextWriter(tmp_path, "a", ("eng_Latn", "swh_Latn"), VOCABULARY_SIZE) as writer:
        writer.add([BOS, 10, EOS, 100, EOS])
        rows = [writer.close()]
    (tmp_path / "source.model").write_bytes(b"model")
    write_dataset(tmp_path, rows, tmp_path / "source.model", VOCABULARY_SIZE)
    text = TrainingText(PreparedDataset.load(tmp_path))
    assert text.languages == {"en", "sw"}
    for english, swahili in (("en", "sw"), ("eng", "swa"), ("eng_Latn", "sw_KE")):
        assert text.texts(swahili, 1, 64) == [(BOS, 100, EOS)]
        assert text.pairs(swahili, english, 1, 64) == [((BOS, 100, EOS), (BOS, 10, EOS))]
        sample = EncodedSample(text, [(swahili, english)], 64, encoding.batches)
        fitted = sample.fit(first_token, table())
        assert fitted.centres(("swh", "en")) is not None and fitted.rotations.keys() == {
            ("sw", "en")
        }


def first_token(params, rows):
    return jnp.asarray(params)[rows["tokens"][:, 1]][:, None]


def table():
    return np.random.default_rng(0).normal(size=(VOCABULARY_SIZE, 6)).astype(np.float32)


def test_means_and_rotations_are_of_the_encoder_that_is_asked(text):
    weights = table()

    def pooled(params, rows):
        weight = (rows["segment_ids"] > 0)[..., None]
        mean = (params[rows["tokens"]] * weight).sum(axis=1) / weight.sum(axis=1)
        return jnp.stack([mean, 2 * mean], axis=1)

    wanted = [("fr", "en"), ("sw", "en"), ("en", "de")]
    sample = EncodedSample(text, wanted, 64, encoding.batches, texts=30, pairs=40)
    # Nothing is known of German.
    assert sample.fit(pooled, weights).means.keys() == {"fr", "en", "sw"}
    fitted = sample.fit(pooled, weights)
    expected = np.mean(
        [weights[list(one)].mean(axis=0) for one in text.texts("fr", 30, 64)], axis=0
    )
    np.testing.assert_allclose(fitted.means["fr"], [expected, 2 * expected], atol=1e-6)
    assert fitted.rotations.keys() == {("fr", "en")}
    assert fitted.rotations["fr", "en"].shape == (2, 6, 6)
    np.testing.assert_allclose(sample.fit(pooled, -weights).means["fr"], -fitted.means["fr"])
    none = np.zeros((2, 5, 6), np.float32)
    assert set(fitted.search(("sw", "en"), none, none)) == {
        "raw", "centred", "centred_transductive", "csls", "centred_csls",
    }  # fmt: skip
    assert set(fitted.search(("en", "de"), none, none)) == {"raw", "centred_transductive", "csls"}


def test_what_no_readout_needs_is_not_read(text):
    def pooled(params, rows):
        raise AssertionError

    for sample in (
        EncodedSample(text, [("fr", "en")], 64, encoding.batches, ("raw", "csls")),
        EncodedSample(None, [("fr", "en")], 64, encoding.batches),
    ):
        assert not sample.fit(pooled, None).means
