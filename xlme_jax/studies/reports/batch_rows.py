"""A training batch as text: its rows, segments and tokens, and their predictions."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from xlme_jax.data.batches.pair_layouts import Translations
from xlme_jax.data.batches.pipeline import BatchIterator
from xlme_jax.data.batches.streams import PairStream, Stream
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.token_ids import BOS_ID, EOS_ID, IGNORED, PAD_ID, UNK_ID, mask_id
from xlme_jax.data.vocabulary import MASK_PIECE, SPECIAL_PIECES, Vocabulary, VocabularyError
from xlme_jax.objectives.readings import Reading
from xlme_jax.studies.reports.visible_text import visible

_NAMED = 10  # Languages in a note.


@dataclasses.dataclass(frozen=True)
class PredictedToken:
    """A predicted token.

    Attributes:
      piece: the predicted token.
      probability: the probability of the predicted token.
      of_original: the probability of the original token.
    """

    piece: str
    probability: float
    of_original: float


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict of a discriminator on a token.

    Attributes:
      piece: the token that the discriminator reads.
      is_replaced: whether that token differs from the original.
      probability: the discriminator's probability that the token was replaced.
    """

    piece: str
    is_replaced: bool
    probability: float

    @property
    def is_called(self) -> bool:
        """Whether the discriminator calls the token replaced."""
        return self.probability > 0.5

    @property
    def kind(self) -> str:
        """Kind of the verdict: "found", "missed", "false alarm" or "original"."""
        if self.is_replaced:
            return "found" if self.is_called else "missed"
        return "false alarm" if self.is_called else "original"


@dataclasses.dataclass(frozen=True)
class Token:
    """A token of a row; texts have no control characters (`visible`).

    Attributes:
      column: its column in the row.
      piece: the original, as the vocabulary spells it ("▁" begins a word).
      read: the token that the model reads in its place.
      is_special: whether it is `<s>`, `<pad>`, `</s>` or `<unk>`.
      is_masked: whether it was chosen to be predicted.
      predictions: {name of what predicts: the predicted token}.
      verdict: the verdict of the discriminator; None without a discriminator.
    """

    column: int
    piece: str
    read: str
    is_special: bool
    is_masked: bool
    predictions: Mapping[str, PredictedToken]
    verdict: Verdict | None = None

    @property
    def text(self) -> str:
        """The piece with a space where a word begins."""
        return self.piece.replace("▁", " ")

    @property
    def marked(self) -> str:
        """The text with the marks of a terminal.

        "[x]" is a masked x, "[x>y]" an x that the model reads as y, and "[x=]" an x that was chosen
        to be predicted and is read as it is. "x?" is an original that a discriminator calls
        replaced.
        """
        word = self.text.lstrip(" ")
        space = self.text[: len(self.text) - len(word)]
        word = word or "▁"
        if not self.is_masked:
            return f"{space}{word}?" if self.is_called else self.text
        other = "=" if self.read == self.piece else f">{self.read.removeprefix('▁')}"
        return f"{space}[{word}{'' if self.read == MASK_PIECE else other}]"

    @property
    def is_called(self) -> bool:
        """Whether a discriminator calls the token replaced."""
        return self.verdict is not None and self.verdict.is_called


@dataclasses.dataclass(frozen=True)
class Segment:
    """Consecutive tokens of a row that attend to each other.

    Attributes:
      number: its segment id.
      label: task and language.
      tokens: the tokens.
      languages: the languages of its tasks; both for a pair.
    """

    number: int
    label: str
    tokens: tuple[Token, ...]
    languages: tuple[str, ...] = ()

    @property
    def runs(self) -> list[tuple[Token, ...]]:
        """Consecutive tokens that are either all text or all special tokens."""
        return [
            tuple(run) for _, run in itertools.groupby(self.tokens, lambda token: token.is_special)
        ]

    @property
    def unmasked_predictions(self) -> dict[str, list[tuple[Token, PredictedToken]]]:
        """{name of what predicts: (token, its prediction) of tokens that are not masked}.

        The tokens of a translation are predicted without a mask.
        """
        predictions: dict[str, list[tuple[Token, PredictedToken]]] = {}
        for token in self.tokens:
            for name, prediction in token.predictions.items():
                if not token.is_masked:
                    predictions.setdefault(name, []).append((token, prediction))
        return predictions


@dataclasses.dataclass(frozen=True)
class StreamRows:
    """A stream's part of a batch, on the host.

    Attributes:
      stream: its configuration.
      arrays: the batch, as training reads it: int32[B, L] "tokens", "segment_ids", ...
      languages: {task: its language, or both}, also for tasks of other streams.
      shares: {task that the stream samples: its share of the draws}.
      drawn: the task of each draw, in order (`BatchIterator.drawn`).
      reading: masked rows and predictions; None if the system shows none.
      pieces: function from a token id to its piece.
    """

    stream: Stream
    arrays: Mapping[str, np.ndarray]
    languages: Mapping[str, tuple[str, ...]]
    shares: Mapping[str, float]
    drawn: Sequence[str]
    reading: Reading | None
    pieces: Callable[[int], str]

    @property
    def facts(self) -> dict[str, str]:
        """{name: count} of rows, padding and segments, and of masked and replaced tokens."""
        tokens, segments = self.arrays["tokens"], self.arrays["segment_ids"]
        real = max(int((segments > 0).sum()), 1)
        counts = {
            "rows": f"{tokens.shape[0]:,} of {tokens.shape[1]:,} tokens",
            "padding": f"{1 - real / tokens.size:.1%}",
            "segments": f"{sum(len(np.unique(row[row > 0])) for row in segments):,}",
        }
        if self.reading is not None and self.reading.is_masked.any():
            masked = int(self.reading.is_masked.sum())
            counts["masked"] = f"{masked:,} of {real:,} real tokens, {masked / real:.1%}"
        if self.reading is not None and self.reading.detection is not None:
            replaced = int((self.reading.detection.tokens != tokens).sum())
            counts["replaced"] = f"{replaced:,}, {replaced / real:.1%}"
        return counts

    @property
    def is_judged(self) -> bool:
        """Whether a discriminator judges the tokens."""
        return self.reading is not None and self.reading.detection is not None

    @property
    def is_continued(self) -> bool:
        """Whether tokens that are not masked are predicted, such as tokens of translations."""
        reading = self.reading
        return reading is not None and any(
            bool((guess.is_predicted & ~reading.is_masked).any())
            for guess in reading.guesses.values()
        )

    def draws(self) -> list[tuple[str, float, float, int]]:
        """Returns (task, share of all draws, share in this batch, draws in this batch).

        The tasks with the largest share of all draws come first.
        """
        counts = Counter(self.drawn)
        total = max(len(self.drawn), 1)
        rows = [(n, share, counts[n] / total, counts[n]) for n, share in self.shares.items()]
        return sorted(rows, key=lambda row: (-row[1], row[0]))

    @property
    def all_languages(self) -> list[str]:
        """The languages of the tasks that the stream samples, sorted."""
        return sorted({language for task in self.shares for language in self.languages[task]})

    def covering(self, most: int, least: int, tokens: int = 1) -> list[int]:
        """Returns the numbers of rows that together have every language of the batch, in order.

        Args:
          most: most rows, even if that leaves languages out.
          least: least rows; the first ones are added.
          tokens: tokens of a language that are enough, in texts and pairs of it.
        """
        count = len(self.arrays["tokens"])
        chosen: list[int] = []
        counts: Counter[str] = Counter()
        for number in range(count):
            if len(chosen) == most or all(counts[x] >= tokens for x in self.all_languages):
                break
            of_row = self.row_languages(number)
            if any(counts[language] < tokens for language in of_row):
                chosen.append(number)
                counts.update(of_row)
        further = (number for number in range(count) if number not in chosen)
        return sorted([*chosen, *itertools.islice(further, max(least - len(chosen), 0))])

    def row_languages(self, number: int) -> Counter[str]:
        """Returns {language: tokens of the texts and pairs of this language in a row}."""
        segments, counts = np.unique(self.arrays["segment_ids"][number], return_counts=True)
        tokens: Counter[str] = Counter()
        for segment, count in zip(segments.tolist(), counts.tolist()):
            if segment:
                tokens.update(dict.fromkeys(self._languages_of(number, segment), count))
        return tokens

    def take(self, numbers: Sequence[int]) -> StreamRows:
        """Returns the rows with these numbers, with their draws and without what is read."""
        drawn = [task for number in numbers for task in self._draws_of(number)]
        arrays = {name: array[list(numbers)] for name, array in self.arrays.items()}
        return dataclasses.replace(self, arrays=arrays, drawn=drawn, reading=None)

    def row(self, number: int) -> list[Segment | int]:
        """Returns the segments of a row in order, and the length of each run of padding."""
        parts: list[Segment | int] = []
        column = 0
        for segment, run in itertools.groupby(self.arrays["segment_ids"][number].tolist()):
            width = len(list(run))
            columns = range(column, column + width)
            if segment:
                tokens = tuple(self._token(number, c) for c in columns)
                label = self._label(number, segment, column)
                parts.append(Segment(segment, label, tokens, self._languages_of(number, segment)))
            else:
                parts.append(width)
            column += width
        return parts

    def labels(self, number: int) -> str:
        """Returns the labels of a row, separated by commas; empty if the stream has no labels."""
        if "labels" not in self.arrays:
            return ""
        values = self.arrays["labels"][number]
        return ", ".join(map(str, values[values != IGNORED].tolist()))

    def _token(self, row: int, column: int) -> Token:
        """Returns the token at a row and a column, with its predictions and verdict."""
        original = int(self.arrays["tokens"][row, column])
        # Without a model that reads the batch, each token stands for itself.
        token = original
        is_masked = False
        if self.reading is not None:
            token = int(self.reading.tokens[row, column])
            is_masked = bool(self.reading.is_masked[row, column])
        return Token(
            column=column,
            piece=self._piece(original),
            read=self._piece(token),
            is_special=original in (BOS_ID, PAD_ID, EOS_ID, UNK_ID),
            is_masked=is_masked,
            predictions=dict(self._predictions(row, column)),
            verdict=self._verdict(row, column),
        )

    def _verdict(self, row: int, column: int) -> Verdict | None:
        """Returns the verdict on a token; None without a discriminator."""
        if self.reading is None or self.reading.detection is None:
            return None
        detection = self.reading.detection
        token = int(detection.tokens[row, column])
        return Verdict(
            piece=self._piece(token),
            is_replaced=token != int(self.arrays["tokens"][row, column]),
            probability=float(detection.probability[row, column]),
        )

    def _predictions(self, row: int, column: int) -> Iterator[tuple[str, PredictedToken]]:
        """Yields (name of what predicts, predicted token) of the predictions of a token."""
        if self.reading is None:
            return
        for name, guess in self.reading.guesses.items():
            if guess.is_predicted[row, column]:
                yield (
                    name,
                    PredictedToken(
                        piece=self._piece(int(guess.tokens[row, column])),
                        probability=float(guess.probability[row, column]),
                        of_original=float(guess.of_original[row, column]),
                    ),
                )

    def _piece(self, token: int) -> str:
        return visible(self.pieces(token))

    def _label(self, row: int, segment: int, column: int) -> str:
        """Returns task and language of a segment.

        Args:
          row: number of the row.
          segment: segment id.
          column: first column of the segment.
        """
        names = self._tasks_of(row, segment)
        task = visible(" + ".join(names))
        pairs = self.stream if isinstance(self.stream, PairStream) else None
        if pairs is not None and isinstance(pairs.layout, Translations):
            number = int(self.arrays["languages"][row, column])
            return f"{task}: {visible(pairs.layout.languages[number - 1])}"
        # Segment ids are from 1, and the sides of a pair take turns.
        side = 1 - segment % 2
        is_side = pairs is not None and pairs.layout.segments == 2
        if pairs is not None and is_side and not pairs.flip and pairs.layout.pairs_per_item == 1:
            return f"{task}: {visible(self.languages[names[0]][side])}"
        languages = visible(
            ", ".join(dict.fromkeys("-".join(self.languages[name]) for name in names))
        )
        label = task if languages == task else f"{task}: {languages}"
        return f"{label}, side {side + 1}" if is_side else label

    def _languages_of(self, row: int, segment: int) -> tuple[str, ...]:
        """Returns the languages of a segment's tasks, each once."""
        names = self._tasks_of(row, segment)
        return tuple(dict.fromkeys(x for name in names for x in self.languages[name]))

    def _tasks_of(self, row: int, segment: int) -> list[str]:
        """Returns the tasks of a segment's draws: two if two pairs were mixed."""
        draws = self._draws_of(row)
        if isinstance(self.stream, PairStream):
            sides, each = self.stream.layout.segments, self.stream.layout.pairs_per_item
            item = (segment - 1) // sides
            draws = draws[item * each : (item + 1) * each]
        return list(dict.fromkeys(draws))

    def _draws_of(self, row: int) -> Sequence[str]:
        """Returns the tasks of a row's draws, in order: one, or one for each pair."""
        if not isinstance(self.stream, PairStream):
            return [self.drawn[row]]
        # `drawn` has the draws of all items, row by row.
        each = self.stream.layout.pairs_per_item
        return self.drawn[each * self._first_items[row] : each * self._first_items[row + 1]]

    @functools.cached_property
    def _first_items(self) -> list[int]:
        """The number of items before each row of a pair stream, and of all items."""
        assert isinstance(self.stream, PairStream)
        items = self.arrays["segment_ids"].max(axis=1) // self.stream.layout.segments
        return [0, *np.cumsum(items).tolist()]


def shown(rows: StreamRows, most: int | None) -> list[int]:
    """Returns the numbers of rows to show: of more languages first; all if `most` is None."""
    count = len(rows.arrays["tokens"])
    return list(range(count)) if most is None else rows.covering(most, min(most, count))


def unseen(rows: StreamRows, numbers: Sequence[int]) -> str:
    """Returns a note on the languages that some of the rows do not have; "" if all are shown."""
    count = len(rows.arrays["tokens"])
    seen = {language for number in numbers for language in rows.row_languages(number)}
    missing = [language for language in rows.all_languages if language not in seen]
    if len(numbers) == count or not missing:
        return ""
    return f"Not shown: {listed(missing)} ({len(numbers)} of {count} rows)"


def listed(languages: Sequence[str]) -> str:
    """Returns up to `_NAMED` languages, and the number of others."""
    named = ", ".join(map(visible, languages[:_NAMED]))
    return named + (f" and {len(languages) - _NAMED:,} more" if languages[_NAMED:] else "")


def joined(parts: Sequence[StreamRows]) -> StreamRows:
    """Returns rows of several batches of one stream as one."""
    arrays = {
        name: np.concatenate([part.arrays[name] for part in parts]) for name in parts[0].arrays
    }
    drawn = [task for part in parts for task in part.drawn]
    return dataclasses.replace(parts[0], arrays=arrays, drawn=drawn)


@dataclasses.dataclass(frozen=True)
class BatchRows:
    """The batch of a step.

    Attributes:
      step: the step that reads it, from 1.
      facts: what the batch depends on, by name: seed, data, checkpoint.
      streams: its streams.
      metrics: the metrics of the step with the checkpoint's weights; empty without one.
    """

    step: int
    facts: Mapping[str, str]
    streams: tuple[StreamRows, ...]
    metrics: Mapping[str, float]


def notes(row: Sequence[Segment | int]) -> tuple[list[str], list[list[str]]] | None:
    """Returns a table of the tokens of a row that are masked or called replaced.

    Args:
      row: segments and numbers of padding tokens, as `StreamRows.row` returns them.

    Returns:
      The headings and the rows of the table; None if these tokens have neither predictions nor
      verdicts.
    """
    tokens = [token for part in row if not isinstance(part, int) for token in part.tokens]
    noted = [token for token in tokens if token.is_masked or token.is_called]
    names = list(dict.fromkeys(name for token in noted for name in token.predictions))
    is_judged = any(token.verdict is not None for token in noted)
    if not (names or is_judged):
        return None
    head = ["column", "original", "read"]
    for name in names:
        head += [name, "probability", "of original"]
    if is_judged:
        head += ["discriminator reads", "P(replaced)", "verdict"]
    return head, [_note_cells(token, names) for token in noted]


def _note_cells(token: Token, names: Sequence[str]) -> list[str]:
    """Returns the cells of a token in the table of `notes`."""
    cells = [str(token.column), token.piece, token.read]
    for name in names:
        if (prediction := token.predictions.get(name)) is None:
            cells += ["", "", ""]
        else:
            shares = f"{prediction.probability:.1%}", f"{prediction.of_original:.1%}"
            cells += [prediction.piece, *shares]
    if (verdict := token.verdict) is not None:
        cells += [verdict.piece, f"{verdict.probability:.1%}", verdict.kind]
    return cells


def stream_rows(
    dataset: PreparedDataset,
    streams: Sequence[Stream],
    batches: BatchIterator,
    arrays: Mapping[str, Mapping[str, np.ndarray]],
    readings: Mapping[str, Reading],
) -> tuple[StreamRows, ...]:
    """Returns the rows of each stream in the last batch of an iterator.

    Args:
      dataset: the prepared data.
      streams: the streams.
      batches: the iterator.
      arrays: {stream: its part of the batch}.
      readings: {stream: its masked rows and predictions}; may lack streams.
    """
    pieces = _pieces(dataset)
    shares = batches.shares()
    drawn = batches.drawn()
    languages = {t.name: t.tags for t in dataset.tasks if t.split == "train"}
    return tuple(
        StreamRows(
            stream,
            arrays[stream.name],
            languages,
            shares[stream.name],
            drawn[stream.name],
            readings.get(stream.name),
            pieces,
        )
        for stream in streams
    )


def _pieces(dataset: PreparedDataset) -> Callable[[int], str]:
    """Returns the function from a token id to its piece.

    If the vocabulary cannot be loaded, the piece is "▁" and the id, or the name of a special token.
    """
    try:
        return Vocabulary.load(dataset.vocabulary_path).id_to_piece
    except VocabularyError:
        special = dict(enumerate(SPECIAL_PIECES))
        special[mask_id(dataset.vocabulary_size)] = MASK_PIECE
        return lambda token: special.get(token, f"▁{token}")
