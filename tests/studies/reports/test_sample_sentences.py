"""Sentences that a run shows as it learns."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from helpers import made_batches

from xlme_jax.objectives.readings import Guess, Reading
from xlme_jax.studies.reports import samples, samples_page

HOSTILE = "<script>alert(1)</script>\x00\u202e</span><img src=x onerror=alert(1)>"
VISIBLE = HOSTILE.replace("\x00", "␀").replace("\u202e", "⟨U+202E⟩")


def through_json(sentences):
    text = json.dumps([samples.to_json(one) for one in sentences])
    return [samples.from_json(one) for one in json.loads(text)]


def test_sentences_are_lines_of_text_that_survive_json():
    found = samples.sentences(made_batches.stream())
    lines = samples.to_text(found).splitlines()
    assert "x is masked" in lines[0] and "the discriminator finds" in lines[0]
    assert "{y}" not in lines[0]
    assert lines[1:] == [
        "  text, en",
        "    generator (original tokens at 50.0%): <s> the [cat>dog]!s sat </s>",
        "  text, en",
        # In a direction of its own.
        "    generator (original tokens at 50.0%): <s> \u2068שלום? [עולם>dog]\u2069 </s>",
    ]
    again = through_json(found)
    assert samples.to_text(again).splitlines() == lines
    tokens = samples.to_json(found[0])["tokens"]
    assert tokens[0] == {"piece": "<s>", "special": True} and tokens[1] == "▁the"
    assert tokens[2] == {
        "piece": "▁cat",
        "read": "<mask>",
        "predictions": {"generator": ["▁dog", 0.25, 0.5]},
        "verdict": ["▁dog", 0.9],
    }


def test_right_predictions_and_those_called_replaced_are_marked():
    reading = made_batches.reading()
    right = reading.guesses["generator"]._replace(tokens=np.where(reading.is_masked, [[5]], 0))
    verdicts = reading.detection._replace(tokens=np.array(made_batches.ROWS))
    shown = made_batches.stream(
        reading=reading._replace(guesses={"mlm": right}, detection=verdicts)
    )
    assert "the [cat=]?s sat" in samples.to_text(samples.sentences(shown))
    without = made_batches.stream(reading=reading._replace(guesses={"mlm": right}, detection=None))
    found = samples.sentences(without)
    text = samples.to_text(found)
    assert "the [cat=]s sat" in text and "x is masked" in text
    page = samples_page.section([{"step": 0, "sentences": [samples.to_json(x) for x in found]}])
    for shown in (text, page):  # A system without a discriminator has no marks of one.
        assert "discriminator" not in shown and "called replaced" not in shown
    assert '<mark class="missed">predicted wrong</mark>' in page


def test_translations_stand_below_the_text():
    tokens = np.array(made_batches.ROWS)
    chosen = np.zeros(tokens.shape, bool)
    chosen[0, 7:10] = True
    guessed = np.where(chosen, [[0, 0, 0, 0, 0, 0, 0, 8, 10, 2, 0, 0]], 0)
    share = np.where(chosen, 0.5, 0)
    guess = Guess(guessed, share, share, chosen)
    reading = Reading(tokens, np.zeros(tokens.shape, bool), {"translation": guess})
    (found,) = samples.sentences(made_batches.stream(reading=reading))
    legend, *lines = samples.to_text([found]).splitlines()
    assert legend == (
        "Original tokens at p: their mean probability. "
        "{y}: y is predicted, and is not the original."
    )
    assert lines == [
        "  text, en",
        "    text: <s> \u2068שלום עולם\u2069 </s>",
        "    translation (original tokens at 50.0%): <s> \u2068שלום {dog}\u2069 </s>",
    ]
    page = samples_page.section([{"step": 0, "sentences": [samples.to_json(found)]}])
    assert '<mark class="missed">dog</mark>' in page and ">masked<" not in page


def test_sentences_without_predictions_are_left_out():
    assert samples.sentences(made_batches.stream(reading=made_batches.reading(False))) == []
    assert samples.sentences(made_batches.stream(reading=None)) == []


def wide(languages):
    """Returns rows of a monolingual stream, the second text of each of which has predictions."""
    read = made_batches.reading()
    count = len(languages)
    repeated = {
        "arrays": {
            "tokens": np.tile(made_batches.ROWS, (count, 1)),
            "segment_ids": np.tile(made_batches.SEGMENTS, (count, 1)),
        },
        "languages": {x: (x,) for x in {*languages, "unread"}},
        "shares": dict.fromkeys([*languages, "unread"], 0.1),
        "drawn": languages,
        "reading": jax.tree.map(lambda array: np.repeat(array, count, axis=0), read),
    }
    return made_batches.stream(**repeated)


def test_every_language_has_a_sentence():
    found = samples.sentences(wide(["en", "en", "en", "de", "en", "fr"]))
    assert [one.segment.languages for one in found] == [("en",), ("en",), ("de",), ("fr",)]
    rows = wide(["en", "de"])
    legend = samples.to_text(samples.sentences(rows), rows.all_languages).splitlines()[0]
    assert legend.endswith("replaced. Without a sample: unread.")
    pairs = dataclasses.replace(rows, languages={"en": ("de", "en"), "de": ("de",)})
    assert "Either language of a pair" in samples.to_text(samples.sentences(pairs))
    assert "Either language of a pair" not in legend


def test_more_languages_than_sentences_are_named():
    languages = [f"l{number:02}" for number in range(30)]
    rows = wide(languages)
    found = samples.sentences(rows)
    assert [one.segment.languages[0] for one in found] == languages[:16]
    legend = samples.to_text(found, rows.all_languages).splitlines()[0]
    assert legend.endswith(f"Without a sample: {', '.join(languages[16:26])} and 5 more.")


def records(pieces=made_batches.PIECES, steps=(0, 1000)):
    found = [samples.to_json(one) for one in samples.sentences(made_batches.stream(pieces))]
    return [{"step": step, "sentences": found} for step in steps]


def test_a_page_shows_each_sentence_step_by_step():
    page = samples_page.section(records())
    assert page.count("<h3>text, en</h3>") == 2
    assert "<th>mean probability of the original tokens</th>" in page
    assert "<td>1,000</td><td>generator</td><td>50.0%</td>" in page
    assert page.count('<mark class="masked">cat</mark>') == 1
    assert page.count('<mark class="found">dog</mark>') == 2
    assert page.count('<mark class="alarm">שלום</mark>') == 2
    assert page.count('<span dir="rtl">') == 3 and page.count('<span dir="ltr">') == 3
    assert samples_page.section([]) == ""


def test_few_steps_of_many_are_shown_the_first_and_the_last_too():
    page = samples_page.section(records(steps=range(0, 5000, 10)))
    assert page.count("<td>generator</td>") == 2 * 40
    assert "<td>0</td><td>generator</td>" in page and "<td>4,990</td><td>generator</td>" in page


def test_hostile_text_is_text():
    pieces = list(made_batches.PIECES)
    pieces[4], pieces[5], pieces[10] = HOSTILE, HOSTILE, HOSTILE
    text = samples.to_text(samples.sentences(made_batches.stream(pieces)))
    assert VISIBLE in text and "\x00" not in text and "\u202e" not in text
    found = records(pieces)
    found[0]["sentences"][0]["label"] = HOSTILE
    page = samples_page.section(found)
    assert "<script" not in page and "<img" not in page and "\u202e" not in page


@pytest.mark.parametrize("content", [{}, {"sentences": 3}, {"sentences": [{"tokens": []}]}])
def test_other_content_is_refused(content):
    with pytest.raises(ValueError, match=r"samples\.jsonl: not the samples of a run"):
        samples_page.section([{"step": 1, **content}])
