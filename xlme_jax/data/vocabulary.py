"""The vocabulary: a SentencePiece model with the ids of XLM-R, and its training.

All files of this project (prepared data, checkpoints, exports) use the ids of XLM-R (fairseq), so
that encoders can be initialized from and exported to that family of models::

    <s> 0   <pad> 1   </s> 2   <unk> 3   pieces 4 ...   <mask> last

A SentencePiece model file contains neither ``<pad>`` nor ``<mask>``. In XLM-R's file
(``sentencepiece.bpe.model``) ``<unk>``, ``<s>``, ``</s>`` have the SentencePiece ids 0, 1, 2 and
the pieces start at 3. Models trained here use the same layout, so that for both id =
SentencePiece id + 1, unknown = 3, size = SentencePiece size + 2.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import sentencepiece

from xlme_jax.data.token_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID, mask_id
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.paths import as_path, is_file

SPECIAL_PIECES = ("<s>", "<pad>", "</s>", "<unk>")
MASK_PIECE = "<mask>"

# SentencePiece sums expected counts per thread, so the result depends on the number of threads. A
# constant instead of the number of cores makes the model a function of the text alone.
_TRAINER_THREADS = 16
# SentencePiece drops lines of more bytes; longer texts are split at white space.
_MAX_SENTENCE_BYTES = 4192
# Larger files are not vocabularies and are rejected before they are read.
_MAX_MODEL_BYTES = 1 << 29
_MAX_SIZE = 10_000_000
# SentencePiece returns ids as lists of Python integers or, since 0.2.2, as arrays. To make an array
# takes as long as to make the integers of a text of this many characters.
_HAS_ARRAYS = hasattr(sentencepiece.SentencePieceProcessor, "EncodeAsNumpy")
_CHARACTERS_WORTH_AN_ARRAY = 150
# Characters that NMT-NFKC normalization maps to a space.
SPACES = (
    "".join(c for c in map(chr, range(0x3001)) if c.isspace())
    + "\u200b\u200e\u200f\u2581\ufeff\ufffd"
)


class VocabularyError(ValueError):
    """Raised for a vocabulary that cannot be read or trained or has another layout."""


class TooSmallError(VocabularyError):
    """Raised if a vocabulary has fewer ids than the text has characters to cover."""


class Vocabulary:
    """A SentencePiece model with XLM-R's ids.

    Attributes:
      path: File that the model was read from; None if it was built from bytes.
      digest: Hexadecimal SHA-256 of the model's bytes, recorded in prepared data sets and
        checkpoints.
      size: Number of ids, including ``<pad>`` and ``<mask>``.
    """

    bos_id = BOS_ID
    pad_id = PAD_ID
    eos_id = EOS_ID
    unk_id = UNK_ID

    def __init__(self, model: bytes, path: str | os.PathLike[str] | None = None):
        """Builds a vocabulary from a serialized SentencePiece model.

        Args:
          model: Bytes of the ``.model`` file.
          path: Path of the file, for messages.

        Raises:
          VocabularyError: The bytes are not a SentencePiece model, or its special ids differ from
            XLM-R's layout.
        """
        self.path = None if path is None else os.fspath(path)
        self.model = model
        self.digest = hashlib.sha256(model).hexdigest()
        self._processor = sentencepiece.SentencePieceProcessor()
        where = self.path or "the given bytes"
        try:
            self._processor.LoadFromSerializedProto(model)
        # SentencePiece raises ValueError for a piece that is not UTF-8.
        except (RuntimeError, OSError, ValueError) as error:
            raise VocabularyError(
                f"{where} is not a SentencePiece model ({error}). Pass a .model file of "
                "`python -m xlme_jax.train_vocabulary`, or XLM-R's sentencepiece.bpe.model."
            ) from error
        layout = (
            self._processor.unk_id(),
            self._processor.bos_id(),
            self._processor.eos_id(),
            self._processor.pad_id(),
        )
        if layout != (0, 1, 2, -1):
            raise VocabularyError(
                f"{where} has the SentencePiece ids unk, bos, eos, pad = {layout}; expected "
                "(0, 1, 2, -1) as in XLM-R. Train it with `python -m xlme_jax.train_vocabulary`, "
                "or pass --unk_id=0 --bos_id=1 --eos_id=2 --pad_id=-1 to spm_train."
            )
        self.size = self._processor.get_piece_size() + 2
        self.mask_id = mask_id(self.size)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Reads a ``.model`` file, of this project or XLM-R's ``sentencepiece.bpe.model``.

        Raises:
          VocabularyError: The file is missing or is not such a model.
        """
        file = as_path(path)
        if not is_file(file):
            raise VocabularyError(
                f"No vocabulary at {file}. Train one with `python -m xlme_jax.train_vocabulary "
                f"--output={file} ...` or download XLM-R's sentencepiece.bpe.model."
            )
        try:
            if file.stat().st_size > _MAX_MODEL_BYTES:
                raise VocabularyError(
                    f"{file} is too large for a SentencePiece model (usually a few megabytes). "
                    "Pass the .model file."
                )
            return cls(file.read_bytes(), file)
        except OSError as error:
            raise VocabularyError(
                f"{file} cannot be read ({error.strerror}); check the path and its permissions."
            ) from error

    def __len__(self) -> int:
        return self.size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Vocabulary(path={self.path!r}, size={self.size}, sha256={self.digest[:12]})"

    def __reduce__(self) -> tuple[type[Vocabulary], tuple[bytes, str | None]]:
        # The processor pickles without its model, so worker processes get the bytes.
        return (Vocabulary, (self.model, self.path))

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, without ``<s>`` and ``</s>``."""
        return [piece + 1 if piece else UNK_ID for piece in self._processor.encode(text)]

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Returns the ids of each text, without ``<s>`` and ``</s>``.

        Args:
          texts: The texts.
          threads: Number of SentencePiece threads; the result does not depend on it.

        Returns:
          A list of ids per text.
        """
        values, lengths = self.encode_flat(texts, threads)
        ends = np.cumsum(lengths)
        return [values[end - n : end].tolist() for n, end in zip(lengths, ends)]

    def encode_flat(self, texts: Sequence[str], threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Encodes many texts into one array, which has less overhead than `encode_batch`.

        Args:
          texts: N texts.
          threads: Number of SentencePiece threads; the result does not depend on it.

        Returns:
          ``(values, lengths)``: int32[sum of lengths], the concatenated ids of all texts, and
          int64[N], the number of ids per text.
        """
        values, lengths = self._encode_columns([texts], threads, framed=False)
        return values, lengths[0]

    def encode_framed(
        self, columns: Sequence[Sequence[str]], threads: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """Encodes examples of one or two texts: ``<s> text </s>`` or ``<s> e </s> f </s>``.

        Args:
          columns: For each of the features, N texts.
          threads: Number of SentencePiece threads; the result does not depend on it.

        Returns:
          ``(ids, sizes)``: int32[sum of sizes], the concatenated ids of all examples, and int64[N],
          their sizes; 0 if any text of the example has no tokens.
        """
        ids, lengths = self._encode_columns(columns, threads, framed=True)
        # `ids` is in the order of examples. ends[i, j] is where text j of example i ends.
        ends = lengths.T.cumsum().reshape(lengths.T.shape)
        ids[ends - 1] = EOS_ID
        ids[ends[:, 0] - lengths[0]] = BOS_ID
        sizes = lengths.sum(0)
        min_lengths = np.ones((len(columns), 1), np.int64)  # </s>
        min_lengths[0] += 1  # <s>
        whole = np.all(lengths > min_lengths, axis=0)
        if not whole.all():
            ids = ids[np.repeat(whole, sizes)]
            sizes = np.where(whole, sizes, 0)
        return ids, sizes

    def _encode_columns(
        self, columns: Sequence[Sequence[str]], threads: int, framed: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Encodes N examples of F texts.

        Args:
          columns: For each of the F features, N texts.
          threads: Number of SentencePiece threads.
          framed: Whether to leave places for special tokens: ``<s>`` before the first text of an
            example and ``</s>`` behind each text. The ids in these places are undefined.

        Returns:
          ``(ids, lengths)``: int32[sum of lengths], the ids of all texts, example by example, and
          int64[F, N], the number of ids per text, places included.
        """
        characters = sum(map(len, itertools.chain.from_iterable(columns)))
        are_long = characters > _CHARACTERS_WORTH_AN_ARRAY * sum(map(len, columns))
        as_arrays = are_long and _HAS_ARRAYS
        options: dict[str, Any] = {"return_type": "numpy"} if as_arrays else {}
        encoded = [
            self._processor.encode(
                list(texts),
                num_threads=threads,
                add_bos=framed and number == 0,
                add_eos=framed,
                **options,
            )
            for number, texts in enumerate(columns)
        ]
        lengths = np.array([list(map(len, column)) for column in encoded], np.int64)
        texts_in_order = itertools.chain.from_iterable(zip(*encoded))
        if as_arrays:
            pieces = np.concatenate(list(texts_in_order))
        else:
            values = itertools.chain.from_iterable(texts_in_order)
            pieces = np.fromiter(values, np.int32, int(lengths.sum()))
        ids = pieces + np.int32(1)
        ids[pieces == 0] = UNK_ID
        return ids, lengths

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[int], list[int]]:
        """Returns the ids of a text and the characters that each id covers.

        White space around a word belongs to no token. If several tokens spell one character (its
        bytes, or "½" as "1⁄2"), each has that character. A token of only white space has the first
        character of the next token.

        Returns:
          ``(ids, begins, ends)`` of equal length: token i covers ``text[begins[i] : ends[i]]``.
          Begins and ends never decrease.
        """
        try:
            mapping = self._processor.encode(text, out_type="offset_mapping")
            pieces, offsets = mapping["ids"], mapping["offsets"]
        except (RuntimeError, ValueError):  # SentencePiece before 0.2.2.
            tokens = self._processor.encode(text, out_type="immutable_proto").pieces  # type: ignore
            pieces = [piece.id for piece in tokens]
            offsets = [(piece.begin, piece.end) for piece in tokens]
        begins, ends = [], []
        # From the last token to the first, because white space takes the place of the next token.
        following = len(text)
        for begin, end in reversed(offsets):
            surface = text[begin:end]
            if inner := surface.strip(SPACES):
                following = begin + len(surface) - len(surface.lstrip(SPACES))
            begins.append(following)
            ends.append(min(following + max(len(inner), 1), len(text)))
        return (
            [piece + 1 if piece else UNK_ID for piece in pieces],
            begins[::-1],
            ends[::-1],
        )

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids, with " ⁇ " for `<unk>` and without other special tokens."""
        dropped = (BOS_ID, PAD_ID, EOS_ID, self.mask_id)
        pieces = [
            0 if i == UNK_ID else self._piece_id(i) for i in map(int, ids) if i not in dropped
        ]
        return self._processor.decode(pieces)

    def id_to_piece(self, token: int) -> str:
        """Returns the piece of an id; ``▁`` marks the start of a word."""
        if token == self.mask_id:
            return MASK_PIECE
        if 0 <= token < len(SPECIAL_PIECES):
            return SPECIAL_PIECES[token]
        return self._processor.id_to_piece(self._piece_id(token))

    def piece_to_id(self, piece: str) -> int:
        """Returns the id of a piece, or the id of ``<unk>`` if the piece is unknown."""
        if piece == MASK_PIECE:
            return self.mask_id
        if piece in SPECIAL_PIECES:
            return SPECIAL_PIECES.index(piece)
        piece_id = self._processor.piece_to_id(piece)
        return piece_id + 1 if piece_id else UNK_ID

    def normalize(self, text: str) -> str:
        """Returns the text that pieces are matched with: NFKC-like, spaces as ``▁``."""
        return self._processor.normalize(text)

    def scored_pieces(self) -> dict[str, float]:
        """Returns {piece: log-probability} of the pieces that spell text, in the order of ids.

        Special tokens and the bytes of byte fallback are left out.
        """
        # A copy of 250,000 pieces takes a few milliseconds; to ask the model takes a second.
        return dict(self._scored_pieces)

    @functools.cached_property
    def _scored_pieces(self) -> dict[str, float]:
        model = self._processor
        return {
            model.id_to_piece(i): model.get_score(i)
            for i in range(model.get_piece_size())
            if not (model.is_unknown(i) or model.is_control(i) or model.is_byte(i))
        }

    def _piece_id(self, token: int) -> int:
        """Returns the SentencePiece id of an id; raises VocabularyError for special tokens."""
        if not len(SPECIAL_PIECES) <= token < self.mask_id:
            raise VocabularyError(f"Id {token} is not a piece of a vocabulary of {self.size} ids.")
        return token - 1


def train_vocabulary(
    texts: Iterable[str],
    size: int,
    *,
    byte_fallback: bool = True,
    character_coverage: float = 0.9995,
    allow_smaller: bool = False,
) -> Vocabulary:
    """Trains a SentencePiece unigram model with XLM-R's ids.

    Unigram and NMT-NFKC normalization are XLM-R's choices. With byte fallback, the rare characters
    beyond ``character_coverage`` are spelled in UTF-8 bytes, so that no text is unknown, at a cost
    of 256 ids for any number of scripts. Full coverage (``character_coverage=1``) needs an id for
    every character instead, more than 10,000 with Chinese, Japanese and Korean: too many for a
    vocabulary of 16k, and most of them rare in training. The embedded corpus has a closed character
    set, for which full coverage is cheaper than the 256 byte ids. (Hugging Face's XLM-R tokenizer
    class decodes the bytes of such models as ``<unk>``.)

    The text is streamed into SentencePiece, which keeps a sample of it in memory. The result is a
    function of the texts and arguments alone.

    Args:
      texts: Training texts. Each line is a sentence; very long lines are split at white space.
      size: Number of ids, including ``<pad>`` and ``<mask>``.
      byte_fallback: Whether characters without a piece are spelled in bytes.
      character_coverage: Share of the text's characters that have their own piece.
      allow_smaller: Whether a text that does not support ``size`` ids may give fewer.

    Returns:
      The vocabulary; its ``model`` attribute has the bytes of the ``.model`` file.

    Raises:
      VocabularyError: There is no text, or too little for ``size``; names the possible size.
      Exception: Any error raised while iterating over ``texts``.
    """
    model = train_model(
        texts, size, byte_fallback=byte_fallback, character_coverage=character_coverage
    )
    vocabulary = Vocabulary(model)
    if vocabulary.size < size and not allow_smaller:
        raise VocabularyError(
            f"The text supports a vocabulary of {vocabulary.size} ids, not {size}. Add text, "
            f"request {vocabulary.size} or fewer, or allow a smaller one (--allow_smaller)."
        )
    return vocabulary


def train_model(texts: Iterable[str], size: int, **options: Any) -> bytes:
    """Trains a SentencePiece unigram model with XLM-R's layout and normalization.

    Args:
      texts: Training texts, as for `train_vocabulary`.
      size: Largest number of ids, including ``<pad>`` and ``<mask>``.
      **options: Further options of SentencePiece's trainer.

    Returns:
      The bytes of the model; of fewer ids if the text does not support ``size``.

    Raises:
      TooSmallError: The characters alone need more ids.
      VocabularyError: There is no text, or the size is senseless.
      Exception: Any error raised while iterating over ``texts``.
    """
    output = io.BytesIO()
    ended: list[BaseException] = []
    if size < 8:
        raise VocabularyError(
            f"A vocabulary of {size} ids has no room for pieces; use at least a few hundred."
        )
    if size > _MAX_SIZE:
        raise VocabularyError(f"A vocabulary of {size} ids is too large; use a million at most.")
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_keeping_error(sentences(texts), ended),
            model_writer=output,
            model_type="unigram",
            vocab_size=size - 2,
            hard_vocab_limit=False,
            normalization_rule_name="nmt_nfkc",
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=-1,
            max_sentence_length=_MAX_SENTENCE_BYTES,
            train_extremely_large_corpus=size > 300_000,
            minloglevel=2,
            **{"num_threads": _TRAINER_THREADS, **options},
        )
    except RuntimeError as error:
        if ended:
            raise ended[0] from None
        raise _friendlier(error, size) from error
    return output.getvalue()


def write_vocabulary(vocabulary: Vocabulary, path: str | os.PathLike[str]) -> None:
    """Writes the model file atomically.

    Args:
      vocabulary: The vocabulary.
      path: The ``.model`` file; its folder is created if necessary.
    """
    replace_file(as_path(path), vocabulary.model)


def _keeping_error(texts: Iterable[str], ended: list[BaseException]) -> Iterable[str]:
    """Yields `texts`; appends an exception that ends them to `ended`, as SentencePiece hides it."""
    try:
        yield from texts
    except BaseException as error:
        ended.append(error)
        raise


def sentences(texts: Iterable[str]) -> Iterator[str]:
    """Yields the lines of texts for the trainer: without empty lines, very long lines in parts."""
    for text in texts:
        for line in text.split("\n"):
            # A character has at most 4 bytes, so the size of shorter lines is not measured.
            if len(line) * 4 < _MAX_SENTENCE_BYTES:
                if line:
                    yield line
            else:
                yield from _cut(line)


def _cut(line: str) -> Iterable[str]:
    """Yields a line in parts of less than `_MAX_SENTENCE_BYTES`, cut at spaces if possible."""
    limit = _MAX_SENTENCE_BYTES // 4 - 1
    while len(line) > limit:
        space = line.rfind(" ", limit // 2, limit)
        end = space if space > 0 else limit
        yield line[:end]
        line = line[end:].lstrip(" ")
    if line:
        yield line


def _friendlier(error: RuntimeError, size: int) -> VocabularyError:
    """Returns an error that says what to change for an error of SentencePiece's trainer."""
    message = str(error)
    required = re.search(r"smaller than required_chars\. (\d+) vs (\d+)", message)
    if required:
        return TooSmallError(
            f"A vocabulary of {size} ids is too small for all characters to be covered: it needs "
            f"at least {int(required.group(2)) + 2}. Raise the size, lower the character coverage "
            "or disable byte fallback."
        )
    if "sentences_.empty()" in message:
        return VocabularyError("No text to train a vocabulary on: all lines are empty.")
    return VocabularyError(f"SentencePiece could not train a vocabulary of {size} ids: {message}")
