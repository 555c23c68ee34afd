"""Rows, segments, tokens and draws of a batch."""

import numpy as np
import pytest
from helpers import made_batches

from xlme_jax.data.batches.pair_layouts import Sides, Translations
from xlme_jax.data.batches.streams import PairStream
from xlme_jax.data.token_ids import IGNORED
from xlme_jax.studies.reports import batch_rows


def test_a_row_has_its_segments_tokens_and_padding():
    first, second, padding = made_batches.stream().row(0)
    assert [token.piece for token in first.tokens] == ["<s>", "▁the", "▁cat", "s", "▁sat", "</s>"]
    assert [token.column for token in second.tokens] == [6, 7, 8, 9]
    assert (first.number, second.number, padding) == (1, 2, 2)
    assert first.label == "en"
    cat, wrong = first.tokens[2], second.tokens[1]
    assert (cat.is_masked, cat.read, cat.verdict.piece, cat.verdict.kind) == (
        *(True, "<mask>", "▁dog"),
        "found",
    )
    prediction = cat.predictions["generator"]
    assert prediction == batch_rows.PredictedToken("▁dog", 0.25, 0.5)
    assert not wrong.is_masked and wrong.verdict.kind == "false alarm" and not wrong.predictions
    assert second.tokens[2].verdict.kind == "original"  # The sample is the original.
    assert [len(run) for run in first.runs] == [1, 4, 1]
    marked = [token.marked for token in (*first.tokens[1:5], *second.tokens[1:3])]
    assert marked == [" the", " [cat]", "s", " sat", " שלום?", " [עולם]"]


def test_what_is_read_in_place_of_a_masked_token_is_marked():
    reading = made_batches.reading(with_model=False)
    read = reading.tokens.copy()
    read[0, 2], read[0, 8] = 10, 9
    first, second, _ = made_batches.stream(reading=reading._replace(tokens=read)).row(0)
    assert first.tokens[2].marked == " [cat>dog]"
    assert second.tokens[2].marked == " [עולם=]"
    assert batch_rows.notes([first, second]) is None
    pieces = [*made_batches.PIECES[:5], "▁", *made_batches.PIECES[6:]]
    first, *_ = made_batches.stream(pieces, reading=reading).row(0)
    assert first.tokens[2].marked == " [▁]"  # A space of its own.


def test_notes_are_of_masked_and_called_tokens():
    head, rows = batch_rows.notes(made_batches.stream().row(0))
    assert head[3:] == [
        *("generator", "probability", "of original"),
        *("discriminator reads", "P(replaced)", "verdict"),
    ]
    assert rows[0] == [
        *("2", "▁cat", "<mask>", "▁dog", "25.0%", "50.0%"),
        *("▁dog", "90.0%", "found"),
    ]
    assert rows[1][:6] == ["7", "▁שלום", "▁שלום", "", "", ""] and rows[1][-1] == "false alarm"
    assert rows[2][-1] == "original" and len(rows) == 3


def test_a_replaced_token_that_is_not_called_is_missed():
    reading = made_batches.reading()
    quiet = reading.detection._replace(probability=np.zeros((1, 12)))
    first, *_ = made_batches.stream(reading=reading._replace(detection=quiet)).row(0)
    assert first.tokens[2].verdict.kind == "missed"


def test_facts_are_counted():
    facts = made_batches.stream().facts
    assert facts == {
        "rows": "1 of 12 tokens",
        "padding": "16.7%",
        "segments": "2",
        "masked": "2 of 10 real tokens, 20.0%",
        "replaced": "1, 10.0%",
    }
    bare = made_batches.stream(reading=None)
    assert list(bare.facts) == ["rows", "padding", "segments"]
    assert not any(token.is_masked for token in bare.row(0)[0].tokens)


def test_tasks_are_counted_against_their_shares():
    drawn = ["news", "en", "en", "en", "en"]
    found = made_batches.stream(drawn=drawn, shares={"news": 0.25, "en": 0.7, "sw": 0.05}).draws()
    assert found == [("en", 0.7, 0.8, 4), ("news", 0.25, 0.2, 1), ("sw", 0.05, 0.0, 0)]


PAIRS = {"en-fr": ("en", "fr"), "corpus": ("en", "sw")}


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        ({}, [["en-fr"], ["corpus: en-sw", "en-fr"]]),
        ({"layout": Sides()}, [["en-fr: en", "en-fr: fr"], ["corpus: en", "corpus: sw"]]),
        (
            {"layout": Sides(), "flip": 0.5},
            [
                ["en-fr, side 1", "en-fr, side 2"],
                ["corpus: en-sw, side 1", "corpus: en-sw, side 2"],
            ],
        ),
        (
            {"layout": Sides(mixup="order")},
            [
                ["en-fr + corpus: en-fr, en-sw, side 1", "en-fr + corpus: en-fr, en-sw, side 2"],
                ["corpus: en-sw, side 1", "corpus: en-sw, side 2"],
            ],
        ),
        (
            {"layout": Translations(("en", "fr", "sw"))},
            [["en-fr: fr", "en-fr: en"], ["corpus: fr", "corpus: en"]],
        ),
    ],
)
def test_segments_name_task_and_language(fields, labels):
    stream = PairStream("bitext", rows=2, length=8, **fields)
    first = [1, 1, 2, 2, 0, 0, 0, 0] if fields else [1, 1, 1, 1, 0, 0, 0, 0]
    arrays = {
        "tokens": np.full((2, 8), 4),
        "segment_ids": np.array([first, [1, 1, 2, 2, 2, 0, 0, 0]]),
        "languages": np.array([[2, 2, 1, 1, 0, 0, 0, 0]] * 2),
    }
    drawn = ["en-fr", "corpus", *([] if fields else ["en-fr"])]
    if stream.layout.pairs_per_item == 2:  # Two pairs an item.
        drawn += ["corpus", "corpus"]
    rows = made_batches.stream(
        stream=stream, arrays=arrays, languages=PAIRS, drawn=drawn, reading=None
    )
    for number, expected in enumerate(labels):
        found = [part.label for part in rows.row(number) if not isinstance(part, int)]
        assert found == expected


def test_labels_of_a_labelled_row():
    arrays = {**made_batches.stream().arrays, "labels": np.array([[2, IGNORED, 1]])}
    assert made_batches.stream(arrays=arrays).labels(0) == "2, 1"
    assert made_batches.stream().labels(0) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("▁cat", "▁cat"),
        ("a\x00b\x1b[31m\n", "a␀b␛[31m␊"),
        ("\x7f\x85", "␡⟨U+0085⟩"),
        ("\u202eabc\u2066", "⟨U+202E⟩abc⟨U+2066⟩"),
        ("\u2028\ufeff", "⟨U+2028⟩⟨U+FEFF⟩"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("é\u0301", "é\u0301"),
    ],
)
def test_control_characters_are_visible(text, expected):
    assert batch_rows.visible(text) == expected


def pairs(drawn, segments):
    """Returns rows of pairs, two segments each, without a reading."""
    shape = np.array(segments).shape
    return made_batches.stream(
        stream=PairStream("bitext", rows=shape[0], length=shape[1], layout=Sides()),
        arrays={"tokens": np.full(shape, 4), "segment_ids": np.array(segments)},
        languages={"en_fr": ("en", "fr"), "en_sw": ("en", "sw"), "en_xx": ("en", "xx")},
        shares={"en_fr": 0.6, "en_sw": 0.4},
        drawn=drawn,
        reading=None,
    )


def test_rows_with_every_language_are_chosen_first():
    rows = pairs(
        ["en_fr", "en_fr", "en_fr", "en_sw"],
        [[1, 1, 2, 2, 3, 4, 0, 0], [1, 1, 1, 2, 0, 0, 0, 0], [1, 2, 2, 0, 0, 0, 0, 0]],
    )
    assert rows.all_languages == ["en", "fr", "sw"]
    assert rows.row_languages(0) == {"en": 6, "fr": 6}
    assert rows.covering(most=2, least=2) == [0, 2]
    assert rows.covering(most=1, least=1) == [0]
    assert rows.covering(most=3, least=3) == [0, 1, 2]
    assert rows.covering(most=3, least=1, tokens=7) == [0, 1, 2]
    assert batch_rows.shown(rows, None) == [0, 1, 2] and batch_rows.shown(rows, 9) == [0, 1, 2]
    assert batch_rows.unseen(rows, [0, 1]) == "Not shown: sw (2 of 3 rows)"
    assert batch_rows.unseen(rows, [0, 2]) == ""


def test_rows_that_are_taken_keep_their_tasks():
    rows = pairs(
        ["en_fr", "en_xx", "en_fr", "en_sw"],
        [[1, 1, 2, 2, 3, 4, 0, 0], [1, 1, 1, 2, 0, 0, 0, 0], [1, 2, 2, 0, 0, 0, 0, 0]],
    )
    labels = [[part.label for part in rows.row(number)[:-1]] for number in range(3)]
    taken = batch_rows.joined([rows.take([2]), rows.take([0, 2])])
    assert [[p.label for p in taken.row(n)[:-1]] for n in range(3)] == [
        *(labels[2], labels[0], labels[2])
    ]
    assert taken.drawn == ["en_sw", "en_fr", "en_xx", "en_sw"]
