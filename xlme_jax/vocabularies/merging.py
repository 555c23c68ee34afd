"""One SentencePiece model with given pieces, whose scores are estimated on text of all languages.

The pieces are the seeds of SentencePiece's trainer, which estimates their scores by EM; they are
too few for the trainer to prune. The trainer drops pieces with an expected count below a half,
which are appended again with the lowest score. VoCap's public code has a patched trainer for this,
which never drops a required piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sentencepiece import sentencepiece_model_pb2 as model_pb2

from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.vocabularies.seeds import train_from

# Numbers of ids that are no pieces: <s>, <pad>, </s>, <unk> and <mask>; and bytes for fallback.
SPECIALS = 5
BYTES = 256
# Rounds of EM. SentencePiece's default, 2, is for each of its many rounds of pruning.
_ROUNDS = 8
# The smallest coverage that the trainer accepts. It adds no characters to those of the pieces,
# unless these cover less of the text.
_LEAST_COVERAGE = 0.98


def merge(
    pieces: Mapping[str, float], texts: Iterable[str], text_bytes: int, byte_fallback: bool
) -> Vocabulary:
    """Returns a vocabulary of exactly these pieces.

    Args:
      pieces: {piece: probability}, from which EM starts.
      texts: Text of all languages in the proportions of training.
      text_bytes: Approximate bytes of the text.
      byte_fallback: Whether characters without a piece are spelled in bytes.

    Returns:
      A vocabulary of `len(pieces) + SPECIALS` ids, `BYTES` more with byte fallback. It depends on
      the arguments alone.

    Raises:
      VocabularyError: There is no text.
    """
    size = len(pieces) + SPECIALS + (BYTES if byte_fallback else 0)
    model = train_from(
        pieces,
        texts,
        text_bytes,
        size,
        byte_fallback=byte_fallback,
        character_coverage=_LEAST_COVERAGE,
        required_chars="".join(piece for piece in pieces if len(piece) == 1),
        seed_sentencepiece_size=2 * size,
        num_sub_iterations=_ROUNDS,
    )
    return Vocabulary(_with_dropped(model, pieces, size))


def _with_dropped(model: bytes, pieces: Mapping[str, float], size: int) -> bytes:
    """Returns a model with the pieces that the trainer dropped, with the lowest score.

    Args:
      model: bytes of the trained model.
      pieces: {piece: probability} of all pieces.
      size: number of ids of the vocabulary.
    """
    proto = model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
    trained = {piece.piece for piece in proto.pieces}
    dropped = [piece for piece in pieces if piece not in trained]
    lowest_score = min(piece.score for piece in proto.pieces)
    for piece in dropped[: size - 2 - len(proto.pieces)]:
        proto.pieces.add(piece=piece, score=lowest_score)
    proto.trainer_spec.vocab_size = len(proto.pieces)
    return proto.SerializeToString(deterministic=True)
