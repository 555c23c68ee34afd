"""Converts labelled examples to token ids and labels.

Rows are `<s> a </s>` or `<s> a </s> b </s>`. Evaluation never drops long inputs: tagged sentences
are split between words, contexts of questions are read in overlapping windows, and texts to
classify are truncated.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from xlme_jax.data.benchmarks.examples import (
    NO_LABEL,
    Example,
    Features,
    Kind,
    QuestionExample,
    TaggedExample,
    TextExample,
)
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.data.token_ids import IGNORED
from xlme_jax.data.vocabulary import SPACES, Vocabulary

# Longer questions are truncated: one in a thousand of XQuAD's.
MAX_QUESTION_TOKENS = 64


class Labelling(Protocol):
    """The attributes of a benchmark that determine how its examples are encoded."""

    @property
    def name(self) -> str:
        """Name of the benchmark, for messages."""

    @property
    def kind(self) -> Kind:
        """Type of prediction."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes or tags, in order of their ids."""


def encode(
    vocabulary: Vocabulary,
    benchmark: Labelling,
    examples: Sequence[Example],
    max_length: int,
    *,
    stride: int = 128,
    report: ReadReport,
    training: bool,
) -> list[Features]:
    """Encodes examples as input rows of the model.

    Args:
      vocabulary: the vocabulary.
      benchmark: kind and labels of the examples.
      examples: examples of the benchmark's kind.
      max_length: maximum tokens per row, including `<s>` and `</s>`.
      stride: tokens shared by neighboring windows of a context, as in Hugging Face's tokenizers.
        (BERT's `doc_stride` is the distance between the starts of two windows.)
      report: collects the counts of skipped (`skipped`) and truncated or split (`repaired`)
        examples.
      training: whether to leave out rows without a label, and count their examples.

    Returns:
      Rows in the order of the examples; `Features.example` is the index in `examples`.

    Raises:
      ValueError: `max_length` has no room for text, or `stride` is too large for windows to
        advance.
    """
    if benchmark.kind == "tagging":
        rows = _tagged(vocabulary, benchmark, examples, max_length, report)
    elif benchmark.kind == "question_answering":
        rows = _questions(vocabulary, benchmark, examples, max_length, stride, report)
    else:
        rows = _texts(vocabulary, benchmark, examples, max_length, report)
    if not training:
        return list(rows)
    encoded = list(rows)
    unlabelled = {row.example for row in encoded if not row.labels.size}
    report.skip("no label to train on", len(unlabelled))
    return [row for row in encoded if row.labels.size]


def _array(values: Sequence[int]) -> np.ndarray:
    """Returns n ids or labels as an array, int32[n]."""
    return np.asarray(values, np.int32)


def _room(benchmark: Labelling, max_length: int, special: int, min_room: int) -> int:
    """Returns the number of text tokens that fit into a row.

    Args:
      benchmark: the benchmark, for errors.
      max_length: maximum tokens per row.
      special: number of special tokens in a row.
      min_room: smallest number of text tokens that is allowed.

    Raises:
      ValueError: fewer than `min_room` text tokens fit.
    """
    shortest = special + min_room
    if max_length < shortest:
        raise ValueError(
            f"{benchmark.name}: max_length is {max_length}; it must be at least {shortest}"
        )
    return max_length - special


# --- Classification and regression ---


def _texts(
    vocabulary: Vocabulary,
    benchmark: Labelling,
    examples: Sequence[Example],
    max_length: int,
    report: ReadReport,
) -> Iterator[Features]:
    """Yields a row for each text or pair of texts, truncated to `max_length` tokens."""
    ids = {label: i for i, label in enumerate(benchmark.labels)}
    for index, example in enumerate(examples):
        assert isinstance(example, TextExample), example
        parts = [vocabulary.encode(text) for text in example.texts]
        room = _room(benchmark, max_length, len(parts) + 1, 2 * len(parts))
        lengths = truncated([len(part) for part in parts], room)
        report.repair("texts cut", int(sum(lengths) < sum(map(len, parts))))
        tokens = [vocabulary.bos_id]
        for part, length in zip(parts, lengths):
            tokens += [*part[:length], vocabulary.eos_id]
        if example.label is None or example.label == NO_LABEL:
            labels = _array(())
        elif benchmark.kind == "regression":
            labels = np.asarray([example.label], np.float32).view(np.int32)  # The bits of a score.
        else:
            labels = _array([ids[str(example.label)]])
        yield Features(_array(tokens), labels, index)


def truncated(lengths: Sequence[int], room: int) -> list[int]:
    """Returns the lengths to which texts are truncated to have `room` tokens in total.

    One token at a time is removed from the longest text, and of equally long ones from the last.

    Args:
      lengths: number of tokens of each text.
      room: maximum total number of tokens.

    Returns:
      The remaining number of tokens of each text.
    """
    sizes = list(lengths)
    while sum(sizes) > room:
        part = max(range(len(sizes)), key=lambda i: (sizes[i], i))
        sizes[part] -= 1
    return sizes


# --- Tagging ---


def _tagged(
    vocabulary: Vocabulary,
    benchmark: Labelling,
    examples: Sequence[Example],
    max_length: int,
    report: ReadReport,
) -> Iterator[Features]:
    """Yields the rows of tagged sentences; a sentence that is too long is split between words."""
    room = _room(benchmark, max_length, 2, 1)
    ids = {label: i for i, label in enumerate(benchmark.labels)}
    for index, example in enumerate(examples):
        assert isinstance(example, TaggedExample), example
        pieces = [_word_pieces(vocabulary, word, room, report) for word in example.words]
        starts = _row_starts([len(of_word) for of_word in pieces], room)
        report.repair("sentences split", int(len(starts) > 1))
        for begin, end in zip(starts, [*starts[1:], len(pieces)]):
            tokens = [vocabulary.bos_id]
            words = [-1]
            labels = [IGNORED]
            for word in range(begin, end):
                inside = len(pieces[word]) - 1
                tokens += pieces[word]
                words += [word, *[-1] * inside]
                tag = ids.get(example.tags[word], IGNORED) if example.tags else IGNORED
                labels += [tag, *[IGNORED] * inside]
            yield Features(
                _array([*tokens, vocabulary.eos_id]),
                _array([*labels, IGNORED]) if example.tags else _array(()),
                index,
                words=_array([*words, -1]),
            )


def _word_pieces(vocabulary: Vocabulary, word: str, room: int, report: ReadReport) -> list[int]:
    """Returns at least one id for a word, so that each word gets a prediction."""
    pieces = vocabulary.encode(word)
    report.repair("words without tokens made <unk>", int(not pieces))
    report.repair("words cut", int(len(pieces) > room))
    return pieces[:room] or [vocabulary.unk_id]


def _row_starts(lengths: Sequence[int], room: int) -> list[int]:
    """Returns the index of the first word of each row, so that no row has more than `room` tokens.

    Args:
      lengths: number of tokens of each word, `room` at most.
      room: maximum tokens of words per row.
    """
    starts = [0]
    used = 0
    for word, length in enumerate(lengths):
        if used + length > room:
            starts.append(word)
            used = 0
        used += length
    return starts


# --- Questions ---


def _questions(
    vocabulary: Vocabulary,
    benchmark: Labelling,
    examples: Sequence[Example],
    max_length: int,
    stride: int,
    report: ReadReport,
) -> Iterator[Features]:
    """Yields the rows of questions: one for each window of the context, `stride` tokens shared."""
    room = _room(benchmark, max_length, 3, 4)
    max_question = min(MAX_QUESTION_TOKENS, room // 2)
    window = room - max_question
    if not 0 <= stride < window:
        raise ValueError(
            f"{benchmark.name}: windows of {window} tokens (max_length {max_length} less a "
            f"question of {max_question}) cannot share {stride}; give `stride` in [0, {window})"
        )
    context = ContextEncoder(vocabulary)
    last: str | None = None
    ids: list[int] = []
    offsets = np.zeros((0, 2), np.int32)
    for index, example in enumerate(examples):
        assert isinstance(example, QuestionExample), example
        question = vocabulary.encode(example.question)
        report.repair("questions cut", int(len(question) > max_question))
        head = [vocabulary.bos_id, *question[:max_question], vocabulary.eos_id]
        if example.context != last:  # Questions about one context are adjacent.
            last = example.context
            (ids, offsets) = context.encode(example.context)
        size = max_length - len(head) - 1
        answer = example.span
        span = answer_tokens(answer, offsets) if answer else None
        for start in range(0, max(len(ids) - stride, 1), size - stride):
            end = min(start + size, len(ids))
            tokens = [*head, *ids[start:end], vocabulary.eos_id]
            of_context = np.full((len(tokens), 2), -1, np.int32)
            of_context[len(head) : -1] = offsets[start:end]
            # If no answer has a known place in the context, the label is unknown.
            labels = [0, 0] if answer or not example.answers else []
            if span and start <= span[0] and span[1] < end:
                labels = [len(head) + token - start for token in span]
            yield Features(_array(tokens), _array(labels), index, offsets=of_context)


class ContextEncoder:
    """Encodes contexts so that token boundaries match the boundaries of answers.

    A vocabulary has pieces such as `).` and `1)`, and an answer often ends between the two
    characters. Pieces that mix punctuation with other characters are therefore split there if their
    parts are in the vocabulary, as BERT's tokenizers split all text.
    """

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._split: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def encode(self, text: str) -> tuple[list[int], np.ndarray]:
        """Returns n token ids of a text and int32[n, 2], the characters [begin, end) of each."""
        ids: list[int] = []
        begins: list[int] = []
        ends: list[int] = []
        for token, begin, end in zip(*self._vocabulary.encode_with_offsets(text)):
            if token not in self._split:
                self._split[token] = self._parts(token)
            parts, lengths = self._split[token]
            if len(parts) == 1 or sum(lengths) != end - begin:
                ids.append(token)
                begins.append(begin)
                ends.append(end)
                continue
            for part, length in zip(parts, lengths):
                ids.append(part)
                begins.append(begin)
                ends.append(begin + max(length, 1))
                begin += length
        return ids, np.stack([_array(begins), _array(ends)], axis=1)

    def _parts(self, token: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the ids of the parts that a token is split into, and their numbers of characters.

        Returns the token itself as the only part if it is not split.
        """
        piece = self._vocabulary.id_to_piece(token)
        space = "▁" if piece.startswith("▁") else ""
        text = piece.removeprefix("▁")
        if len(text) < 2 or not any(map(_is_punctuation, text)) or text.startswith("<0x"):
            return (token,), (len(text),)
        runs: list[str] = []
        for i, character in enumerate(text):
            if i == 0 or _is_punctuation(character) or _is_punctuation(text[i - 1]):
                runs.append(character)
            else:
                runs[-1] += character
        pieces = [space + runs[0], *runs[1:]]
        if self._is_unknown(pieces[0]):
            pieces = [space, *runs] if space else runs
        spelled = [part for piece in pieces for part in self._spelled(piece)]
        parts = tuple(map(self._vocabulary.piece_to_id, spelled))
        if self._vocabulary.unk_id in parts:
            return (token,), (len(text),)
        return parts, tuple(len(part.replace("▁", "")) for part in spelled)

    def _spelled(self, piece: str) -> list[str]:
        """Returns the pieces that spell a piece: itself if known, else the longest known prefixes.

        A character that is no piece is a part of its own.
        """
        spelled = []
        while self._is_unknown(piece) and len(piece) > 1:
            ends = range(len(piece) - 1, 0, -1)
            end = next((end for end in ends if not self._is_unknown(piece[:end])), 1)
            spelled.append(piece[:end])
            piece = piece[end:]
        return [*spelled, piece]

    def _is_unknown(self, piece: str) -> bool:
        """Returns whether the vocabulary lacks a piece."""
        return self._vocabulary.piece_to_id(piece) == self._vocabulary.unk_id


def _is_punctuation(character: str) -> bool:
    """Returns whether a character is punctuation or a symbol."""
    return unicodedata.category(character)[0] in "PS"


def answer_tokens(span: tuple[int, int], offsets: np.ndarray) -> tuple[int, int] | None:
    """Returns the first and the last token that cover an answer.

    Args:
      span: characters [begin, end) of the answer in the context.
      offsets: int32[n, 2], characters of each token (see `Vocabulary.encode_with_offsets`).

    Returns:
      (first, last) token, or None if no token covers the answer (only white space).
    """
    first = int(np.searchsorted(offsets[:, 1], span[0], side="right"))
    last = int(np.searchsorted(offsets[:, 0], span[1], side="left")) - 1
    return (first, last) if first <= last else None


def lost_answers(
    examples: Sequence[QuestionExample], rows: Sequence[Features]
) -> dict[str, tuple[str, str]]:
    """Returns the answers that the labels of their rows do not reproduce exactly.

    Args:
      examples: examples, some with answers.
      rows: all windows of the examples, from `encode`.

    Returns:
      {id: (reason, labelled text or "")} of the examples whose answer (`QuestionExample.span`)
      differs from the text that the labels select in a window.
    """
    cuts: dict[int, str] = {}
    for row in rows:
        if row.labels.any():
            assert row.offsets is not None
            begin, end = row.offsets[row.labels[0], 0], row.offsets[row.labels[1], 1]
            cuts[row.example] = examples[row.example].context[begin:end]
    lost = {}
    for index, example in enumerate(examples):
        if not example.span:
            continue
        answer = example.context[slice(*example.span)]
        cut = cuts.get(index, "")
        if cut == answer:
            continue
        if not cut:
            reason = "no window holds all of it"
        elif cut == answer.strip(SPACES):
            reason = "space around it"
        elif cut.endswith(answer):
            reason = "begins inside a token"
        elif cut.startswith(answer):
            reason = "ends inside a token"
        else:
            reason = "begins and ends inside a token"
        lost[example.id] = (reason, cut)
    return lost
