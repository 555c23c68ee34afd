"""Vocabularies that extend another: its pieces with their ids and scores, and further ones.

The extended model names the one it extends, so that weights trained with that one can be grown
(`xlme_jax.checkpoints.growth`). Only `<mask>`, always the last id, has another id than before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_pb2

from xlme_jax.data.token_ids import UNK_ID
from xlme_jax.data.vocabulary import Vocabulary, VocabularyError

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
    if proto.trainer_spec.model_type != model_pb2.TrainerSpec.UNIGRAM:  # type: ignore[attr-defined]
        raise VocabularyError(
            f"{old.path or 'the vocabulary'} is not a unigram model, so it has no scores that new "
            "pieces could compete with; extend a model of `python -m xlme_jax.train_vocabulary` or "
            "XLM-R's"
        )
    known = {piece.piece for piece in proto.pieces}
    if there := sorted(scores.keys() & known):
        raise VocabularyError(f"{old.path or 'the vocabulary'} already has the piece {there[0]!r}")
    least = min(old.scored_pieces().values())
    for piece, score in scores.items():
        proto.pieces.add(piece=piece, score=max(score, least))
    proto.trainer_spec.vocab_size = len(proto.pieces)
    proto.trainer_spec.model_prefix = f"extends sha256:{old.digest} size:{old.size}"
    return Vocabulary(proto.SerializeToString(deterministic=True))


def parent(vocabulary: Vocabulary) -> Parent | None:
    """Returns the parent of an extended vocabulary; None for a vocabulary that extends none."""
    match = _PARENT.fullmatch(_parse(vocabulary.model).trainer_spec.model_prefix)
    return Parent(match["digest"], int(match["size"])) if match else None


def decompositions(vocabulary: Vocabulary, old_size: int) -> list[list[int]]:
    """Splits each new piece of an extended vocabulary into pieces of the one it extends.

    Args:
      vocabulary: The extended vocabulary.
      old_size: Number of ids of the vocabulary that it extends.

    Returns:
      Ids of each new piece's parts, in the order of the new ids `old_size - 1`, ...: the best
      segmentation by the old scores, where "▁" is a character like any other. Characters without a
      piece are bytes or `<unk>`.
    """
    proto = _parse(vocabulary.model)
    # A model lacks <pad> and <mask>, so the old vocabulary has `old_size - 2` pieces in its model.
    new = [piece.piece for piece in proto.pieces[old_size - 2 :]]
    del proto.pieces[old_size - 2 :]
    proto.trainer_spec.vocab_size = len(proto.pieces)
    # Pieces are normalized already, and not every piece begins a word.
    proto.normalizer_spec.Clear()
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = False
    proto.normalizer_spec.remove_extra_whitespaces = False
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(proto.SerializeToString())
    return [[i + 1 if i else UNK_ID for i in ids] for ids in processor.encode(new)]


def row_sources(vocabulary: Vocabulary, old_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of the old tables whose mean is each row of the new tables.

    An old id keeps its row, `<mask>` takes the row of the old `<mask>`, and a new piece takes the
    mean of the rows of its parts (`decompositions`).

    Args:
      vocabulary: The extended vocabulary.
      old_size: Number of ids of the vocabulary that it extends.

    Returns:
      (rows, sources): int32[N] twice. Row `rows[i]` is the mean of all `sources[i]` with that row.
    """
    parts = [[i] for i in range(old_size - 1)]
    parts += decompositions(vocabulary, old_size)
    parts.append([old_size - 1])
    rows = np.repeat(np.arange(len(parts), dtype=np.int32), [len(ids) for ids in parts])
    return rows, np.concatenate([np.asarray(ids, np.int32) for ids in parts])


def _parse(model: bytes) -> Any:
    """Returns the `ModelProto` in the bytes of a SentencePiece model."""
    return model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
