"""Training of a unigram model that starts from given pieces.

SentencePiece starts from the million most frequent strings of a text, estimates their probabilities
by EM and removes the least useful ones, round after round, until the size is reached. With the
pieces of a larger model as seeds, the first rounds are saved.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

from sentencepiece import sentencepiece_model_pb2 as model_pb2

from xlme_jax.data import vocabulary

# Typical bytes of text per token, which only determine the scale of the seeds' counts.
_TOKEN_BYTES = 4


def train_from(
    pieces: Mapping[str, float], texts: Iterable[str], text_bytes: int, size: int, **options: Any
) -> bytes:
    """Trains a model whose pieces are single characters and some of the given pieces.

    Args:
      pieces: {piece: probability}, from which EM starts.
      texts: Training texts, as for `vocabulary.train_model`.
      text_bytes: Approximate bytes of the texts.
      size: Largest number of ids, as for `vocabulary.train_model`.
      **options: Further options of SentencePiece's trainer.

    Returns:
      The bytes of the model, which depend on the arguments alone.

    Raises:
      VocabularyError: See `vocabulary.train_model`.
    """
    scale = text_bytes / _TOKEN_BYTES
    with tempfile.TemporaryDirectory(prefix="xlme_jax-") as folder:
        seeds = os.path.join(folder, "seeds.tsv")
        with open(seeds, "w", encoding="utf-8") as file:
            # Single characters are seeds anyway, and the trainer takes no seed twice.
            file.writelines(
                f"{piece}\t{max(1, round(scale * probability))}\n"
                for piece, probability in pieces.items()
                if len(piece) > 1
            )
        model = vocabulary.train_model(texts, size, seed_sentencepieces_file=seeds, **options)
    proto = model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
    # The name of the temporary file is unknown to the message's definition in older packages.
    proto.trainer_spec.DiscardUnknownFields()
    for field in ("seed_sentencepieces_file", "required_chars"):
        if field in proto.trainer_spec.DESCRIPTOR.fields_by_name:
            proto.trainer_spec.ClearField(field)
    return proto.SerializeToString(deterministic=True)
