"""Token ids and labels of labelled examples.

Rows are `<s> a </s>` or `<s> a </s> b </s>`. What is too long is never dropped when evaluating:
tagged sentences are split between words, contexts of questions are read in overlapping windows, and
only texts to classify are cut.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from xlme_jax.data.benchmarks.examples import (
    IGNORED,
    Answer,
    Example,
    Features,
    Kind,
    QuestionExample,
    TaggedExample,
    TextExample,
)
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.data.vocabulary import SPACES, Vocabulary

# Longer questions are cut: in XQuAD one in a thousand is.
MAX_QUESTION_TOKENS = 64


class Labelling(Protocol):
    """What of a benchmark decides how its examples are encoded."""

    @property
    def name(self) -> str:
        """Its name, for messages."""

    @property
    def kind(self) -> Kind:
        """What is predicted."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of classes or tags, in order of their ids."""


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
    """Encodes examples as rows for the model.

    Args:
      vocabulary: makes the ids.
      benchmark: whose examples they are.
      examples: all of its kind.
      max_length: tokens of a row at most, `<s>` and `</s>` included.
      stride: tokens that neighbouring windows of a context share. (In BERT's code `doc_stride` is
        how far a window lies from the one before; here, as in Hugging Face's tokenizers, the
        overlap.)
      report: gets the counts of what was left out (`skipped`) and cut or split (`repaired`).
      training: leave out, and count, what has no label to learn from.

    Returns:
      Rows in order of the examples; `Features.example` is the index in `examples`.

    Raises:
      ValueError: no room for text in `max_length`, or windows that would not advance.
    """
    if benchmark.kind == "tagging":
        rows = _tagged(vocabulary, benchmark, examples, max_length, report)
    elif benchmark.kind == "question_answering":
        rows = _questions(vocabulary, benchmark, examples, max_length, stride, report)
    else:
        rows = _texts(vocabulary, benchmark, examples, max_length, report)
    if not training:
        return list(rows)
    labelled = []
    for row in rows:
        if row.labels.size:
            labelled.append(row)
        else:
            report.skip("no label to train on")
    return labelled


def _array(values: Sequence[int]) -> np.ndarray:
    return np.asarray(values, np.int32)


def _room(benchmark: Labelling, max_length: int, special: int, least: int) -> int:
    """Returns the tokens of text that fit into a row.

    Raises:
      ValueError: they are fewer than `least`.
    """
    if max_length - special < least:
        raise ValueError(
            f"{benchmark.name}: max_length is {max_length}; it must be at least {special + least}"
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
        if example.label is None:
            labels = _array(())
        elif benchmark.kind == "regression":
            labels = np.asarray([example.label], np.float32).view(np.int32)
        else:
            labels = _array([ids[str(example.label)]])
        yield Features(_array(tokens), labels, index)


def truncated(lengths: Sequence[int], room: int) -> list[int]:
    """Cuts texts to `room` tokens together, token by token from the longest (the last of equals).

    Args:
      lengths: tokens of each text.
      room: tokens of all texts together, at most.

    Returns:
      How many tokens of each text remain.
    """
    kept = list(lengths)
    while sum(kept) > room:
        longest = max(range(len(kept)), key=lambda i: (kept[i], i))
        kept[longest] -= 1
    return kept


# --- Tagging ---


def _tagged(
    vocabulary: Vocabulary,
    benchmark: Labelling,
    examples: Sequence[Example],
    max_length: int,
    report: ReadReport,
) -> Iterator[Features]:
    room = _room(benchmark, max_length, 2, 1)
    ids = {label: i for i, label in enumerate(benchmark.labels)}
    for index, example in enumerate(examples):
        assert isinstance(example, TaggedExample), example
        pieces = [_word_pieces(vocabulary, word, room, report) for word in example.words]
        starts = _splits([len(some) for some in pieces], room)
        report.repair("sentences split", int(len(starts) > 1))
        for begin, end in zip(starts, [*starts[1:], len(pieces)]):
            tokens, words, labels = [vocabulary.bos_id], [-1], [IGNORED]
            for word in range(begin, end):
                inside = len(pieces[word]) - 1
                tokens += pieces[word]
                words += [word, *[-1] * inside]
                tag = ids[example.tags[word]] if example.tags else IGNORED
                labels += [tag, *[IGNORED] * inside]
            yield Features(
                _array([*tokens, vocabulary.eos_id]),
                _array([*labels, IGNORED]) if example.tags else _array(()),
                index,
                words=_array([*words, -1]),
            )


def _word_pieces(vocabulary: Vocabulary, word: str, room: int, report: ReadReport) -> list[int]:
    """Returns the ids of a word, one at least, so that each word gets a prediction."""
    pieces = vocabulary.encode(word)
    report.repair("words without tokens made <unk>", int(not pieces))
    report.repair("words cut", int(len(pieces) > room))
    return pieces[:room] or [vocabulary.unk_id]


def _splits(lengths: Sequence[int], room: int) -> list[int]:
    """Returns the first word of each row, so that no row has more than `room` tokens."""
    starts, used = [0], 0
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
    room = _room(benchmark, max_length, 3, 4)
    most = min(MAX_QUESTION_TOKENS, room // 2)
    if not 0 <= stride < room - most:
        raise ValueError(
            f"{benchmark.name}: windows of {room - most} tokens (max_length {max_length} less a "
            f"question of {most}) cannot share {stride}; give `stride` in [0, {room - most})"
        )
    context = ContextEncoder(vocabulary)
    last: str | None = None
    ids: list[int] = []
    offsets = np.zeros((0, 2), np.int32)
    for index, example in enumerate(examples):
        assert isinstance(example, QuestionExample), example
        question = vocabulary.encode(example.question)
        report.repair("questions cut", int(len(question) > most))
        head = [vocabulary.bos_id, *question[:most], vocabulary.eos_id]
        if example.context != last:  # questions about one context stand together
            last, (ids, offsets) = example.context, context.encode(example.context)
        size = max_length - len(head) - 1
        span = answer_tokens(example.answers[0], offsets) if example.answers else None
        for start in range(0, max(len(ids) - stride, 1), size - stride):
            end = min(start + size, len(ids))
            tokens = [*head, *ids[start:end], vocabulary.eos_id]
            of_context = np.full((len(tokens), 2), -1, np.int32)
            of_context[len(head) : -1] = offsets[start:end]
            labels = [0, 0]
            if span and start <= span[0] and span[1] < end:
                labels = [len(head) + token - start for token in span]
            yield Features(_array(tokens), _array(labels), index, offsets=of_context)


class ContextEncoder:
    """Encodes contexts so that answers can end where punctuation begins.

    A vocabulary has pieces such as `).` and `1)`, and an answer often ends between the two
    characters. Pieces that hold punctuation and something else are therefore split there, if their
    parts are pieces too (BERT's tokenizers split all text so).
    """

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._split: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def encode(self, text: str) -> tuple[list[int], np.ndarray]:
        """Returns the ids of a text, and int32[n, 2], the characters [begin, end) of each."""
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
        """Returns the tokens that a token is split into, and how many characters each has."""
        piece = self._vocabulary.id_to_piece(token)
        space, text = piece[: piece.startswith("▁")], piece.removeprefix("▁")
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
        """Returns the piece, or else the longest pieces that spell it, from its beginning."""
        spelled = []
        while self._is_unknown(piece) and len(piece) > 1:
            ends = range(len(piece) - 1, 0, -1)
            end = next((end for end in ends if not self._is_unknown(piece[:end])), 1)
            spelled.append(piece[:end])
            piece = piece[end:]
        return [*spelled, piece]

    def _is_unknown(self, piece: str) -> bool:
        return self._vocabulary.piece_to_id(piece) == self._vocabulary.unk_id


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


def answer_tokens(answer: Answer, offsets: np.ndarray) -> tuple[int, int] | None:
    """Finds the tokens that cover an answer.

    Args:
      answer: a stretch of the context.
      offsets: int32[n, 2], the characters of each token, as of `Vocabulary.encode_with_offsets`.

    Returns:
      (first, last) token; None if no token has a character of the answer (nothing but space).
    """
    first = int(np.searchsorted(offsets[:, 1], answer.start, side="right"))
    last = int(np.searchsorted(offsets[:, 0], answer.start + len(answer.text), side="left")) - 1
    return (first, last) if first <= last else None


def lost_answers(
    examples: Sequence[QuestionExample], rows: Sequence[Features]
) -> dict[str, tuple[str, str]]:
    """Finds the answers whose exact characters rows cannot give back.

    Args:
      examples: with answers.
      rows: all windows of them, as `encode` makes them.

    Returns:
      {id: (reason, the text that the labels give, "" if none)} of the examples whose first answer
      is not the text that its labels give in some window.
    """
    cuts: dict[int, str] = {}
    for row in rows:
        if row.labels.any():
            assert row.offsets is not None
            begin, end = row.offsets[row.labels[0], 0], row.offsets[row.labels[1], 1]
            cuts[row.example] = examples[row.example].context[begin:end]
    lost = {}
    for index, example in enumerate(examples):
        if not example.answers:
            continue
        answer, cut = example.answers[0].text, cuts.get(index, "")
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
