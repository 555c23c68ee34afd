"""Answers to requests: results of a model for texts, as plain values for JSON.

Control characters are made visible in every text, also those that change direction (`visible`).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fontTools import unicodedata

from xlme_jax.data.vocabulary import MASK_PIECE
from xlme_jax.runs.models import Model
from xlme_jax.studies.reports.directions import direction
from xlme_jax.studies.reports.visible_text import visible
from xlme_jax.tools.serving import request_fields

Answer = dict[str, Any]

_NEAREST = 3
# Scripts without spaces between words, in which each token counts as a word.
_UNSPACED = frozenset(("Hani", "Hira", "Kana", "Khmr", "Laoo", "Mymr", "Thai"))


def detect(model: Model, content: Any) -> Answer:
    """Returns the probability that each word of a text, and each token of the word, was replaced.

    The probability of a word is the highest one of its tokens.

    Args:
      model: the model.
      content: JSON of the request: "text".

    Raises:
      ValueError: a field is wrong, or `Model.detect` cannot read the text.
    """
    text = request_fields.text(request_fields.only(content, "text"), "text")
    inner = model.detect(text)[1:-1]
    _, begins, ends = model.vocabulary.encode_with_offsets(text)
    words = []
    end = 0
    for group in _words(text, begins, ends):
        first = begins[group[0]]
        last = max(ends[index] for index in group)
        words.append(
            {
                "before": _plain(text[end:first]),
                "text": visible(text[first:last]),
                "probability": max(inner[index].probability for index in group),
                "tokens": [
                    {"token": visible(inner[i].token), "probability": inner[i].probability}
                    for i in group
                ],
            }
        )
        end = last
    return {"words": words, "after": _plain(text[end:]), "direction": direction(text)}


def fill(model: Model, content: Any) -> Answer:
    """Returns the most likely tokens for each `<mask>` of a text, and the text between the masks.

    Args:
      model: the model.
      content: JSON of the request: "text", and "k", the number of tokens for each mask, by default
        5.

    Raises:
      TooLargeError: the text has too many masks or characters.
      ValueError: a field is wrong, or `Model.fill` cannot read the text.
    """
    fields = request_fields.only(content, "text", "k")
    text = request_fields.text(fields, "text")
    parts = text.split(MASK_PIECE)
    if len(parts) - 1 > request_fields.MASKS:
        raise request_fields.TooLargeError(
            f"text has {len(parts) - 1} times {MASK_PIECE}; the most is {request_fields.MASKS}"
        )
    by_mask = model.fill(
        text, request_fields.integer(fields, "k", 5, 1, request_fields.PREDICTIONS)
    )
    predictions = [
        [
            {
                "token": visible(scored.token),
                "text": visible(scored.token.removeprefix("▁")),
                "begins_word": scored.token.startswith("▁"),
                "probability": scored.probability,
            }
            for scored in of_mask
        ]
        for of_mask in by_mask
    ]
    return {
        "parts": list(map(_plain, parts)),
        "predictions": predictions,
        "direction": direction(text),
    }


def retrieve(model: Model, content: Any) -> Answer:
    """Returns the `_NEAREST` candidates that are nearest to each query by CSLS, with their scores.

    Args:
      model: the model.
      content: JSON of the request: "queries" and "candidates", lists of sentences, and "layer" of
        the encoder, null for the middle one. Matches have indices of candidates, from 0.

    Raises:
      ValueError: a field is wrong, or the encoder has no such "layer".
    """
    fields = request_fields.only(content, "queries", "candidates", "layer")
    queries, candidates = (request_fields.lines(fields, name) for name in ("queries", "candidates"))
    layer = request_fields.integer(fields, "layer", None, 0, model.num_layers)
    matches = model.retrieve(queries, candidates, k=_NEAREST, layer=layer)
    return {
        "queries": list(map(visible, queries)),
        "candidates": list(map(visible, candidates)),
        "matches": [
            [{"candidate": int(index), "score": float(score)} for index, score in zip(*of_query)]
            for of_query in zip(matches.indices, matches.scores)
        ],
    }


def align(model: Model, content: Any) -> Answer:
    """Returns the links between the words of two sentences, and the strength of each pair of words.

    Args:
      model: the model.
      content: JSON of the request: "source" and "target", sentences with spaces between words, and
        "layer" of the encoder, null for the default of `Model.align`.

    Raises:
      TooLargeError: a sentence has too many words or characters.
      ValueError: a field is wrong, or `Model.align` cannot read the pair.
    """
    fields = request_fields.only(content, "source", "target", "layer")
    sides = [request_fields.text(fields, name).split() for name in ("source", "target")]
    for name, words in zip(("source", "target"), sides):
        if len(words) > request_fields.WORDS:
            raise request_fields.TooLargeError(
                f"{name} has {len(words)} words; the most is {request_fields.WORDS}"
            )
    alignment = model.align(
        *sides, layer=request_fields.integer(fields, "layer", None, 0, model.num_layers)
    )
    return {
        "source": list(map(visible, alignment.source)),
        "target": list(map(visible, alignment.target)),
        "matrix": alignment.matrix.round(4).tolist(),
        "links": sorted(map(list, alignment.predicted)),
    }


ANSWERS: Mapping[str, Callable[[Model, Any], Answer]] = {
    "detect": detect,
    "fill": fill,
    "retrieve": retrieve,
    "align": align,
}


def _words(text: str, begins: list[int], ends: list[int]) -> Iterator[list[int]]:
    """Yields the indices of the tokens of each word.

    A word ends at white space; in scripts without spaces between words, each token is a word.

    Args:
      text: the text.
      begins: offset in the text of the first character of each token.
      ends: offset behind the last character of each token.
    """
    word: list[int] = []
    end = 0
    for index, (begin, next_end) in enumerate(zip(begins, ends)):
        begins_word = begin > end or (begin == end and _is_unspaced(text[begin : begin + 1]))
        if word and begins_word:
            yield word
            word = []
        word.append(index)
        end = max(end, next_end)
    if word:
        yield word


def _is_unspaced(character: str) -> bool:
    """Returns whether a character is of a script without spaces; False for an empty text."""
    return bool(character) and unicodedata.script(character) in _UNSPACED


def _plain(text: str) -> str:
    """Returns a visible text with one space in place of several, of tabs and of line breaks."""
    return visible(re.sub("[ \t\r\n]+", " ", text))
