"""Vocabularies that derive from another: its pieces, or some of them, and further ones.

Pieces of both keep their scores, so that text with these pieces is segmented alike, and weights
trained with one vocabulary can be carried to the other piece by piece (`row_sources`,
`xlme_jax.checkpoints.growth`). An extended vocabulary keeps the ids of the pieces too; only
`<mask>`, always the last id, has another id than before. Its model names the one it extends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_pb2

from xlme_jax.data.token_ids import UNK_ID
from xlme_jax.data.vocabulary import SPECIAL_PIECES, Vocabulary, VocabularyError

# The parent is noted in a field of the model that SentencePiece only writes: the name that the
# trainer gave the file.
_PARENT = re.compile(r"extends sha256:(?P<digest>[0-9a-f]{64}) size:(?P<size>\d+)")


class Parent(NamedTuple):
    """The vocabulary that another one extends.

    Attributes:
      digest: Hexadecimal SHA-256 of the bytes of the parent's model.
      size: Number of ids of the parent.
    """

    digest: str
    size: int


def extend(old: Vocabulary, scores: Mapping[str, float]) -> Vocabulary:
    """Returns a vocabulary with the pieces of another one and further pieces.

    Args:
      old: The vocabulary to extend, a unigram model.
      scores: {further piece: log-probability on the scale of the old scores}; `old` has none of
        these pieces. Scores below the lowest in `old` are raised to it, because SentencePiece
        derives the score of unknown characters from the lowest score.

    Returns:
      The vocabulary: a function of the arguments alone.

    Raises:
      VocabularyError: `old` is no unigram model, or has one of the pieces.
    """
    proto = _parse(old.model)
    if not _is_unigram(proto):
        raise VocabularyError(
            f"{old.path or 'the vocabulary'} is not a unigram model, so it has no scores that new "
            "pieces could compete with; extend a model of `python -m xlme_jax.train_vocabulary` or "
            "XLM-R's"
        )
    pieces = {piece.piece for piece in proto.pieces}
    if repeated := sorted(scores.keys() & pieces):
        raise VocabularyError(
            f"{old.path or 'the vocabulary'} already has the piece {repeated[0]!r}"
        )
    lowest_score = min(old.scored_pieces().values())
    for piece, score in scores.items():
        proto.pieces.add(piece=piece, score=max(score, lowest_score))
    proto.trainer_spec.vocab_size = len(proto.pieces)
    proto.trainer_spec.model_prefix = f"extends sha256:{old.digest} size:{old.size}"
    return Vocabulary(proto.SerializeToString(deterministic=True))


def parent(vocabulary: Vocabulary) -> Parent | None:
    """Returns the parent of an extended vocabulary; None for a vocabulary that extends none."""
    match = _PARENT.fullmatch(_parse(vocabulary.model).trainer_spec.model_prefix)
    return Parent(match["digest"], int(match["size"])) if match else None


def extended_pieces(vocabulary: Vocabulary, old_size: int) -> Vocabulary:
    """Returns the pieces of the vocabulary that another one extends, as a vocabulary.

    Args:
      vocabulary: The extended vocabulary.
      old_size: Number of ids of the vocabulary that it extends.
    """
    proto = _parse(vocabulary.model)
    # A model lacks <pad> and <mask>, so the old vocabulary has `old_size - 2` pieces in its model.
    del proto.pieces[old_size - 2 :]
    proto.trainer_spec.vocab_size = len(proto.pieces)
    return Vocabulary(proto.SerializeToString(deterministic=True))


def trim(
    vocabulary: Vocabulary,
    used: np.ndarray,
    origin: Vocabulary | None = None,
    all_characters: bool = True,
) -> Vocabulary:
    """Returns a vocabulary with some of the pieces of another one, in the same order.

    Besides the used pieces it has special tokens, bytes, single characters, and one piece each with
    the lowest and the highest score, because SentencePiece derives the scores of unknown characters
    and of user-defined pieces from these.

    Text whose pieces all remain has the same pieces as before: its best segmentation is still
    there, with the same score, and has fewer rivals. Among equal scores, SentencePiece takes the
    first that it meets, and the order is that of before.

    Args:
      vocabulary: The vocabulary to trim, a unigram model.
      used: bool[V], whether an id is used.
      origin: The vocabulary that the model names as the trimmed one; None is `vocabulary`.
      all_characters: Whether to keep single characters that are not used. Without them, they are
        bytes or `<unk>`.

    Returns:
      The vocabulary: a function of the arguments alone.

    Raises:
      VocabularyError: `vocabulary` is no unigram model.
    """
    proto = _parse(vocabulary.model)
    origin = origin or vocabulary
    if not _is_unigram(proto):
        raise VocabularyError(
            f"{vocabulary.path or 'the vocabulary'} is not a unigram model: without some of its "
            "pieces it would split the same text otherwise; trim a model of `python -m "
            "xlme_jax.train_vocabulary` or XLM-R's"
        )
    normal = [i for i, piece in enumerate(proto.pieces) if piece.type == piece.NORMAL]
    extremes = [extreme(normal, key=lambda i: proto.pieces[i].score) for extreme in (min, max)]
    retained = [
        piece
        for i, piece in enumerate(proto.pieces)
        if piece.type not in (piece.NORMAL, piece.UNUSED)
        or used[i + 1]  # The ids of a model are one less than ours (`data.vocabulary`).
        or (all_characters and len(piece.piece) == 1)
        or i in extremes
    ]
    proto.ClearField("pieces")
    proto.pieces.extend(retained)
    proto.trainer_spec.vocab_size = len(proto.pieces)
    proto.trainer_spec.model_prefix = f"trims sha256:{origin.digest} size:{origin.size}"
    return Vocabulary(proto.SerializeToString(deterministic=True))


def derives_from(vocabulary: Vocabulary, old: Vocabulary) -> bool:
    """Returns whether a vocabulary derives from another one, by extending it, trimming it or both.

    Both are unigram models with the same normalization, and the pieces that both have, at least
    one, have one score. Vocabularies that are trained apart have other scores.
    """
    protos = _parse(vocabulary.model), _parse(old.model)
    if not all(map(_is_unigram, protos)):
        return False
    if protos[0].normalizer_spec != protos[1].normalizer_spec:
        return False
    scores, old_scores = vocabulary.scored_pieces(), old.scored_pieces()
    shared = scores.keys() & old_scores.keys()
    return bool(shared) and all(scores[piece] == old_scores[piece] for piece in shared)


def decompositions(pieces: Sequence[str], old: Vocabulary) -> list[list[int]]:
    """Splits pieces into pieces of a vocabulary.

    Args:
      pieces: Pieces that the vocabulary may lack.
      old: The vocabulary.

    Returns:
      Ids of each piece's parts: the best segmentation by the scores of `old`, where "▁" is a
      character like any other. Characters without a piece are bytes or `<unk>`.
    """
    proto = _parse(old.model)
    # Pieces are normalized already, and not every piece begins a word.
    proto.normalizer_spec.Clear()
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = False
    proto.normalizer_spec.remove_extra_whitespaces = False
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(proto.SerializeToString())
    return [[i + 1 if i else UNK_ID for i in ids] for ids in processor.encode(list(pieces))]


def row_sources(vocabulary: Vocabulary, old: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of the old tables whose mean is each row of the new tables.

    A piece that `old` has keeps its row, as special tokens do, and a new piece takes the mean of
    the rows of its parts (`decompositions`).

    Args:
      vocabulary: A vocabulary that derives from `old`.
      old: The vocabulary of the old tables.

    Returns:
      (rows, sources): int32[N] twice. Row `rows[i]` is the mean of all `sources[i]` with that row.
    """
    parts = [[i] for i in old_ids(vocabulary, old).tolist()]
    new = [row for row, ids in enumerate(parts) if ids == [-1]]
    pieces = [vocabulary.id_to_piece(row) for row in new]
    for row, ids in zip(new, decompositions(pieces, old), strict=True):
        parts[row] = ids
    rows = np.repeat(np.arange(len(parts), dtype=np.int32), [len(ids) for ids in parts])
    return rows, np.concatenate([np.asarray(ids, np.int32) for ids in parts])


def old_ids(vocabulary: Vocabulary, old: Vocabulary) -> np.ndarray:
    """Returns the id in `old` of each piece of a vocabulary, int32[V]; -1 if it is new."""
    ids = {piece.piece: i + 1 for i, piece in enumerate(_parse(old.model).pieces)}
    pieces = [ids.get(piece.piece, -1) for piece in _parse(vocabulary.model).pieces]
    # A model begins with <unk>, <s> and </s>; our ids begin with <s>, <pad>, </s> and <unk>.
    specials = range(len(SPECIAL_PIECES))
    return np.array([*specials, *pieces[len(SPECIAL_PIECES) - 1 :], old.mask_id], np.int32)


def _is_unigram(proto: Any) -> bool:
    """Returns whether a `ModelProto` is a unigram model."""
    return proto.trainer_spec.model_type == model_pb2.TrainerSpec.UNIGRAM  # type: ignore[attr-defined,no-any-return]


def _parse(model: bytes) -> Any:
    """Returns the `ModelProto` in the bytes of a SentencePiece model."""
    return model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
