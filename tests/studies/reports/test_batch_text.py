"""Batches in a terminal."""

import re
import sys

import numpy as np
import pytest
from helpers import made_batches

from xlme_jax.objectives.readings import Guess, Reading
from xlme_jax.studies.reports import batch_text

ANSI = re.compile(r"\x1b\[\d*m")


def test_a_batch_as_text():
    text = batch_text.render(made_batches.batch(metrics={"text/mlm_loss": 1.23456, "loss": 9.0}))
    lines = text.splitlines()
    assert lines[0] == "Step 3: of 9, seed 0"
    assert lines[3] == (
        "text (monolingual): rows: 1 of 12 tokens, padding: 16.7%, segments: 2, masked: 2 of 10 "
        "real tokens, 20.0%, replaced: 1, 10.0%"
    )
    assert lines[4] == "  mlm_loss 1.235"
    assert [line.split() for line in lines[5:8]] == [
        ["task", "weight", "drawn", "draws"],
        ["en", "75.00%", "100.00%", "1"],
        ["news", "25.00%", "0.00%", "0"],
    ]
    assert lines[8:10] == ["  row 0", "    1 en: <s> the [cat]s sat </s>"]
    # The text and each cell in the direction of their own.
    assert lines[10:12] == ["    2 en: <s> \u2068שלום? [עולם]\u2069 </s>", "    2 padding"]
    assert lines[12].split("  ")[3:5] == ["column", "original"]
    assert lines[13].split() == [
        *("2", "▁cat", "<mask>", "▁dog", "25.0%", "50.0%"),
        *("▁dog", "90.0%", "found"),
    ]
    assert "\u2068▁שלום\u2069" in lines[14] and lines[14].endswith("false alarm")
    assert len(lines) == 16
    assert "\x1b" not in text


def test_marks_of_a_discriminator_are_explained_where_there_is_one():
    assert "the discriminator calls" in batch_text.render(made_batches.batch())
    reading = made_batches.reading()._replace(detection=None)
    text = batch_text.render(made_batches.batch(made_batches.stream(reading=reading)))
    assert "x is masked" in text and "discriminator" not in text


def test_colours_change_nothing_else():
    plain, colored = (batch_text.render(made_batches.batch(), colors=c) for c in (False, True))
    assert ANSI.sub("", colored) == plain
    assert "\x1b[32m[cat]\x1b[0m" in colored and "\x1b[35mשלום?\x1b[0m" in colored


@pytest.mark.parametrize(
    ("is_terminal", "variables", "expected"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(monkeypatch, is_terminal, variables, expected):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    assert batch_text.has_colors() is expected


def test_rows_and_tasks_are_limited():
    arrays = {name: np.repeat(x, 6, axis=0) for name, x in made_batches.stream().arrays.items()}
    shares = {f"t{n:02}": 1 / 30 for n in range(30)}
    one = made_batches.stream(
        arrays=arrays, shares=shares, drawn=["t29"] * 5 + ["t00"], reading=None,
        languages={name: ("en",) for name in shares},
    )  # fmt: skip
    text = batch_text.render(made_batches.batch(one), rows=2)
    assert text.count("  row ") == 2
    assert "  10 others  33.33%  83.33%  5" in text
    assert batch_text.render(made_batches.batch(one), rows=None).count("  row ") == 6


def test_predicted_continuations_are_shown_beside_the_text():
    tokens = np.array(made_batches.ROWS)
    predicted = np.zeros(tokens.shape, bool)
    predicted[0, 1:6] = True
    guessed = np.where(tokens == 7, 10, tokens)
    shares = np.full(tokens.shape, 0.5)
    guess = Guess(guessed, shares, shares, predicted)
    reading = Reading(tokens, np.zeros(tokens.shape, bool), {"translation": guess})
    text = batch_text.render(made_batches.batch(made_batches.stream(reading=reading)))
    assert "      translation (original tokens at 50.0%): the cats{dog}</s>" in text


HOSTILE = "\x1b]0;x\x07\x00\u202e<script>\u2066\r\n"


def test_no_control_character_reaches_the_terminal():
    pieces = list(made_batches.PIECES)
    pieces[5], pieces[10] = HOSTILE, "x" * 100_000
    text = batch_text.render(made_batches.batch(made_batches.stream(pieces)))
    assert len(text) > 100_000
    assert {c for c in text if not c.isprintable()} == {"\n", "\u2068", "\u2069"}
    assert "[␛]0;x␇␀⟨U+202E⟩<script>⟨U+2066⟩␍␊]" in text
