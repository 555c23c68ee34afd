"""Sentences with their predictions, which a run writes as it learns: as JSON and as text."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from xlme_jax.studies.reports.batch_rows import (
    PredictedToken,
    Segment,
    StreamRows,
    Token,
    Verdict,
    listed,
)
from xlme_jax.studies.reports.directions import isolated

# Of each stream: least and most rows that are read, tokens of a language that are enough to have
# masked ones, and sentences that are shown: one for each language, at least and at most this many.
LEAST_ROWS, MOST_ROWS = 2, 16
LANGUAGE_TOKENS = 32
_LEAST_SENTENCES, _MOST_SENTENCES = 4, 16
_TOKENS = 64  # Of each sentence.
_OF_MASKS = "[x>y]: x is masked, and y predicted; [x=]: x itself."
_OF_VERDICTS = (
    "!: the discriminator finds that y is not the original; x?: it calls an original replaced."
)
_OF_NEXT_TOKENS = "{y}: y is predicted, and is not the original."
_OF_SHARES = "Original tokens at p: their mean probability."
_OF_PAIRS = "Either language of a pair may come first."


class Sentence(NamedTuple):
    """A segment of a batch, with its predictions.

    Attributes:
      stream: name of its stream.
      segment: its tokens. In JSON, only masked tokens and tokens that the discriminator calls
        replaced keep their verdicts.
    """

    stream: str
    segment: Segment

    @property
    def title(self) -> str:
        """Stream, task and language."""
        return f"{self.stream}, {self.segment.label}"

    @property
    def names(self) -> list[str]:
        """Names of what predicts tokens of the sentence, such as "generator"."""
        return list(dict.fromkeys(name for t in self.segment.tokens for name in t.predictions))

    @property
    def is_continued(self) -> bool:
        """Whether tokens that are not masked are predicted, such as tokens of translations."""
        return bool(self.segment.unmasked_predictions)

    @property
    def is_masked(self) -> bool:
        """Whether tokens are masked."""
        return any(token.is_masked for token in self.segment.tokens)

    @property
    def is_judged(self) -> bool:
        """Whether a discriminator judges any token of the sentence."""
        return any(token.verdict is not None for token in self.segment.tokens)

    def of_original(self, name: str) -> float:
        """Returns the mean probability of the original tokens, over the tokens that are predicted.

        Args:
          name: name of what predicts, one of `names`.
        """
        probabilities = [
            t.predictions[name].of_original for t in self.segment.tokens if name in t.predictions
        ]
        return sum(probabilities) / len(probabilities)


def sentences(rows: StreamRows) -> list[Sentence]:
    """Returns sentences of a stream that have predictions, in order.

    The first sentence of each language comes before others; at most `_MOST_SENTENCES`, and at least
    `_LEAST_SENTENCES` if there are so many. Sentences are cut to `_TOKENS` tokens.
    """
    candidates = []
    for number in range(len(rows.arrays["tokens"])):
        for part in rows.row(number):
            if not isinstance(part, int):  # Not a number of padding tokens.
                cut = dataclasses.replace(part, tokens=part.tokens[:_TOKENS])
                if any(token.predictions for token in cut.tokens):
                    candidates.append(Sentence(rows.stream.name, cut))
    chosen: list[int] = []
    languages: set[str] = set()
    for number, candidate in enumerate(candidates):
        if not languages.issuperset(candidate.segment.languages):
            languages.update(candidate.segment.languages)
            chosen.append(number)
    further = (number for number in range(len(candidates)) if number not in chosen)
    chosen += itertools.islice(further, max(_LEAST_SENTENCES - len(chosen), 0))
    return [candidates[number] for number in sorted(chosen[:_MOST_SENTENCES])]


def has_enough(rows: StreamRows) -> bool:
    """Returns whether rows are as many as are read, or have enough text of every language."""
    tokens = Counter[str]()
    for number in range(len(rows.arrays["tokens"])):
        tokens.update(rows.row_languages(number))
    is_full = len(rows.arrays["tokens"]) >= MOST_ROWS
    return is_full or all(tokens[x] >= LANGUAGE_TOKENS for x in rows.all_languages)


# ---- JSON ----------------------------------------------------------------------------------


def to_json(sentence: Sentence) -> dict[str, Any]:
    """Returns a sentence as JSON; a token without predictions and marks is a string."""
    tokens = [_token_to_json(token) for token in sentence.segment.tokens]
    return {"stream": sentence.stream, "label": sentence.segment.label, "tokens": tokens}


def from_json(content: Mapping[str, Any]) -> Sentence:
    """Returns the sentence of a value of `to_json`, with number 0 as its segment id."""
    tokens = tuple(_token_from_json(column, x) for column, x in enumerate(content["tokens"]))
    return Sentence(content["stream"], Segment(0, content["label"], tokens))


def _token_to_json(token: Token) -> str | dict[str, Any]:
    """Returns a token as JSON, without fields that have their default; its piece if all have."""
    fields: dict[str, Any] = {}
    if token.is_special:
        fields["special"] = True
    if token.is_masked:
        fields["read"] = token.read
    if token.predictions:
        fields["predictions"] = {
            name: [
                prediction.piece,
                round(prediction.probability, 4),
                round(prediction.of_original, 4),
            ]
            for name, prediction in token.predictions.items()
        }
    if token.verdict is not None and (token.is_masked or token.is_called):
        fields["verdict"] = [token.verdict.piece, round(token.verdict.probability, 4)]
    return {"piece": token.piece, **fields} if fields else token.piece


def _token_from_json(column: int, encoded: str | Mapping[str, Any]) -> Token:
    """Returns the token of a value of `_token_to_json`, at a column of its row."""
    if isinstance(encoded, str):
        return Token(column, encoded, encoded, False, False, {})
    piece = encoded["piece"]
    verdict = encoded.get("verdict")
    return Token(
        column,
        piece,
        encoded.get("read", piece),
        encoded.get("special", False),
        "read" in encoded,
        {name: PredictedToken(*values) for name, values in encoded.get("predictions", {}).items()},
        None if verdict is None else Verdict(verdict[0], verdict[0] != piece, verdict[1]),
    )


# ---- Text ----------------------------------------------------------------------------------


def to_text(sentences: Sequence[Sentence], languages: Iterable[str] = ()) -> str:
    """Returns sentences as lines, the first of which explains the marks that they may have.

    Args:
      sentences: the sentences.
      languages: the languages of the run; the first line names those that no sentence has.
    """
    lines = (line for sentence in sentences for line in _lines(sentence))
    covered = {language for sentence in sentences for language in sentence.segment.languages}
    missing = sorted(set(languages) - covered)
    note = f" Without a sample: {listed(missing)}." if missing else ""
    return "\n".join([f"{_legend(sentences)}{note}", *lines])


def _legend(samples: Sequence[Sentence]) -> str:
    """Returns the meaning of the marks that the sentences may have."""
    parts = (
        (_OF_MASKS, any(sentence.is_masked for sentence in samples)),
        (_OF_SHARES, any(sentence.names for sentence in samples)),
        (_OF_VERDICTS, any(sentence.is_judged for sentence in samples)),
        (_OF_NEXT_TOKENS, any(sentence.is_continued for sentence in samples)),
        (_OF_PAIRS, any(len(set(sentence.segment.languages)) > 1 for sentence in samples)),
    )
    return " ".join(text for text, is_needed in parts if is_needed)


def _lines(sentence: Sentence) -> Iterator[str]:
    """Yields the title of a sentence, and a line for each predictor, indented."""
    yield f"  {sentence.title}"
    if sentence.is_continued:
        yield f"    text: {_text(sentence.segment, '')}"
    for name in sentence.names:
        share = f"{sentence.of_original(name):.1%}"
        yield f"    {name} (original tokens at {share}): {_text(sentence.segment, name)}"


def _text(segment: Segment, name: str) -> str:
    """Returns a sentence with the predictions of `name`; "" for the original sentence."""
    return " ".join(
        isolated("".join(_marked(token, name) for token in run).strip()) for run in segment.runs
    )


def _marked(token: Token, name: str) -> str:
    """Returns a token with the marks that `_legend` explains."""
    guess = token.predictions.get(name)
    if guess is None:
        word = f"{token.text}?" if token.is_called and not token.is_masked else token.text
        return f" {word} " if token.is_special else word
    is_right = guess.piece == token.piece
    if not token.is_masked:
        return token.text if is_right else f" {{{guess.piece.removeprefix('▁')}}}"
    space = " " if token.piece.startswith("▁") else ""
    other = "=" if is_right else f">{guess.piece.removeprefix('▁')}"
    called = ""
    if token.is_called and token.verdict:
        called = "!" if token.verdict.is_replaced else "?"
    return f"{space}[{token.piece.removeprefix('▁')}{other}]{called}"
