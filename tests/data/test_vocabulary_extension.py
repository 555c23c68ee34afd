"""Extended vocabularies: ids, scores and parts, against a segmentation by hand."""

import io
import itertools
import random

import numpy as np
import pytest
import sentencepiece

from xlme_jax.data import vocabulary_extension
from xlme_jax.data.vocabulary import Vocabulary, VocabularyError, train_vocabulary

NEW = {"ψ": -9.0, "▁ψομα": -8.0, "gcat": -7.5, "▁catsgi": -99.0, "ατψ": -6.5}


@pytest.fixture(scope="module", params=[True, False], ids=["bytes", "unknown"])
def old(request):
    rng = random.Random(0)
    syllables = ["the", "cat", "sat", "ing", "ομα", "ατ", "c", "s"]
    words = ["".join(rng.choices(syllables, k=3)) for _ in range(200)]
    lines = [" ".join(rng.choices(words, k=8)) for _ in range(800)]
    size = 330 if request.param else 74
    made = train_vocabulary(lines, size, byte_fallback=request.param, allow_smaller=True)
    assert not NEW.keys() & made.scored_pieces().keys()
    return made


@pytest.fixture(scope="module")
def new(old):
    return vocabulary_extension.extend(old, NEW)


def segmented(text, scores):
    """Returns the best segmentation of a text into known pieces; None for a character without."""
    best = [(0.0, [])]
    for end in range(1, len(text) + 1):
        found = [(best[end - 1][0] - 1e6, [*best[end - 1][1], None])]
        for start in range(end):
            if (piece := text[start:end]) in scores:
                found.append((best[start][0] + scores[piece], [*best[start][1], piece]))
        best.append(max(found, key=lambda one: one[0]))
    return best[-1][1]


def test_old_ids_and_scores_stay_and_new_ones_follow(old, new):
    assert new.size == old.size + len(NEW)
    ids = range(old.size - 1)
    assert [new.id_to_piece(i) for i in ids] == [old.id_to_piece(i) for i in ids]
    assert [new.id_to_piece(old.size - 1 + i) for i in range(len(NEW))] == list(NEW)
    assert (new.mask_id, new.id_to_piece(new.mask_id)) == (new.size - 1, "<mask>")
    least = min(old.scored_pieces().values())
    expected = {**old.scored_pieces(), **{x: max(score, least) for x, score in NEW.items()}}
    assert new.scored_pieces() == pytest.approx(expected, rel=1e-6)


def test_text_without_new_pieces_has_the_old_tokens(old, new):
    lines = ["the sat thesat", "satthe ing", "ομαατ the"]
    assert new.encode_batch(lines) == old.encode_batch(lines)
    assert new.encode("ψομα ψ") != old.encode("ψομα ψ")
    ids = new.encode("ψομα ψ")
    assert max(ids) >= old.size - 1
    assert new.decode(ids) == "ψομα ψ"


def test_the_parent_is_known(old, new):
    assert vocabulary_extension.parent(new) == (old.digest, old.size)
    assert vocabulary_extension.parent(old) is None
    again = vocabulary_extension.extend(new, {"zz": -9.0})
    assert vocabulary_extension.parent(again) == (new.digest, new.size)
    assert vocabulary_extension.extend(old, NEW).digest == new.digest


def test_parts_are_the_best_segmentation_by_old_scores(old, new):
    pieces = old.scored_pieces()
    for piece, parts in zip(NEW, vocabulary_extension.decompositions(list(NEW), old), strict=True):
        expected = []
        for part in segmented(piece, pieces):
            if part is not None:
                expected.append(old.piece_to_id(part))
            elif "<0x00>" in [old.id_to_piece(i) for i in range(4, 20)]:
                expected += [old.piece_to_id(f"<0x{byte:02X}>") for byte in "ψ".encode()]
            else:
                expected.append(old.unk_id)
        assert parts == expected
    assert "▁" in new.id_to_piece(old.size)  # Not every part begins a word, but this one does.


def test_rows_are_those_of_the_parts(old, new):
    rows, sources = vocabulary_extension.row_sources(new, old)
    by_row = {
        row: [source for _, source in group]
        for row, group in itertools.groupby(zip(rows.tolist(), sources.tolist()), lambda x: x[0])
    }
    assert sorted(by_row) == list(range(new.size))
    assert all(by_row[i] == [i] for i in range(old.size - 1))
    assert by_row[new.mask_id] == [old.mask_id]
    parts = vocabulary_extension.decompositions(list(NEW), old)
    assert [by_row[old.size - 1 + i] for i in range(len(NEW))] == parts
    assert (rows.dtype, sources.dtype) == (np.int32, np.int32)


def test_an_old_piece_is_not_added_again(old):
    piece = next(iter(old.scored_pieces()))
    with pytest.raises(VocabularyError, match="already has the piece"):
        vocabulary_extension.extend(old, {piece: -1.0})


def test_other_kinds_of_models_are_refused():
    output = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on the mat"] * 20),
        model_writer=output,
        model_type="bpe",
        vocab_size=30,
        hard_vocab_limit=False,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        minloglevel=2,
    )
    with pytest.raises(VocabularyError, match="not a unigram model"):
        vocabulary_extension.extend(Vocabulary(output.getvalue()), {"zz": -1.0})
