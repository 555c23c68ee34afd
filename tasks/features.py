"""Shared parts of all tasks: XLM-R's ids as a SeqIO vocabulary, and tokenization in batches.

Tokenization is the only expensive step of a task and processes a few hundred texts at a time. A
TensorFlow call costs about as much as SentencePiece needs for a sentence, so one call per text
would double or triple the time to prepare a corpus.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence

import numpy as np
import seqio
import tensorflow as tf

from xlme_jax.data.token_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from xlme_jax.data.vocabulary import Vocabulary, VocabularyError
from xlme_jax.preparation.tokenizing import BATCH_SIZE

MONOLINGUAL_FIELDS = ("tokens",)
BITEXT_FIELDS = ("source", "target")
LABELLED_FIELDS = ("tokens", "labels")
VOCABULARY_VARIABLE = "XLME_VOCABULARY"


class XlmVocabulary(seqio.Vocabulary):
    """`xlme_jax.data.vocabulary.Vocabulary` as a SeqIO vocabulary; loads the model at first use.

    `encode` adds no special tokens and `decode` stops after `</s>`, as usual in SeqIO.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, threads: int = 1):
        """Makes the vocabulary; reads nothing.

        Args:
          path: SentencePiece model; None uses the environment variable `XLME_VOCABULARY`.
          threads: SentencePiece threads per batch of texts; does not affect the ids.
        """
        super().__init__()
        self._path = None if path is None else os.fspath(path)
        self.threads = threads

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """The loaded vocabulary.

        Raises:
          VocabularyError: No path is given, or it is not a valid model.
        """
        path = self._path or os.environ.get(VOCABULARY_VARIABLE)
        if not path:
            raise VocabularyError(
                "No vocabulary given: pass vocabulary=PATH to register(), or set "
                f"{VOCABULARY_VARIABLE}. `python -m xlme_jax.train_vocabulary` trains one."
            )
        return Vocabulary.load(path)

    @property
    def bos_id(self) -> int:
        """The id of `<s>`."""
        return BOS_ID

    @property
    def eos_id(self) -> int:
        """The id of `</s>`."""
        return EOS_ID

    @property
    def unk_id(self) -> int:
        """The id of `<unk>`."""
        return UNK_ID

    @property
    def pad_id(self) -> int:
        """The id of `<pad>`."""
        return PAD_ID

    @property
    def _base_vocab_size(self) -> int:
        return self.vocabulary.size

    def _encode(self, s: str) -> list[int]:
        return self.vocabulary.encode(s)

    def _decode(self, ids: Sequence[int]) -> str:
        return self.vocabulary.decode(ids)

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        return self.encode_batch_tf(s[tf.newaxis]).flat_values

    def encode_batch_tf(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Encodes string[N] into ragged int32[N, (tokens)]."""

        def encode(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            decoded = [text.decode("utf-8") for text in column]
            return self.vocabulary.encode_flat(decoded, threads=self.threads)

        values, lengths = tf.numpy_function(encode, [texts], [tf.int32, tf.int64])
        return tf.RaggedTensor.from_row_lengths(
            tf.ensure_shape(values, [None]), tf.ensure_shape(lengths, [None]), validate=False
        )

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        def decode(array: np.ndarray) -> np.ndarray:
            rows = array.reshape(-1, array.shape[-1])
            texts = [self.vocabulary.decode(row).encode("utf-8") for row in rows]
            return np.array(texts, object).reshape(array.shape[:-1])

        return tf.ensure_shape(tf.numpy_function(decode, [ids], tf.string), ids.shape[:-1])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, XlmVocabulary):
            return False
        return self._path == other._path or self.vocabulary == other.vocabulary

    def __hash__(self) -> int:
        return hash(type(self))

    def __str__(self) -> str:
        return f"XlmVocabulary({self._path or '$' + VOCABULARY_VARIABLE})"


def as_vocabulary(vocabulary: str | os.PathLike[str] | XlmVocabulary | None) -> XlmVocabulary:
    """Returns a vocabulary for SeqIO; reads nothing.

    Args:
      vocabulary: A vocabulary, which is returned, or the path of a SentencePiece model; None uses
        the environment variable `XLME_VOCABULARY`.
    """
    return vocabulary if isinstance(vocabulary, XlmVocabulary) else XlmVocabulary(vocabulary)


def output_features(
    fields: Sequence[str], vocabulary: XlmVocabulary
) -> Mapping[str, seqio.Feature]:
    """Returns the features of a task: int32[tokens] per field, without `<s>` and `</s>`."""
    return {field: seqio.Feature(vocabulary, add_eos=False, dtype=tf.int32) for field in fields}


def tokenize(
    dataset: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]
) -> tf.data.Dataset:
    """Preprocessor: replaces the text of every output feature by token ids; keeps the order.

    Args:
      dataset: Examples with a string scalar for each output feature.
      output_features: Features of the task, passed by SeqIO; each must have an `XlmVocabulary`.

    Returns:
      Examples with int32[tokens] for each output feature; other fields are dropped.
    """
    for feature in output_features.values():
        _ = feature.vocabulary.vocabulary  # Raises here, not inside TensorFlow.

    def encode(batch: Mapping[str, tf.Tensor]) -> dict[str, tf.RaggedTensor]:
        return {
            name: feature.vocabulary.encode_batch_tf(batch[name])
            for name, feature in output_features.items()
        }

    def dense(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        # After unbatch, parts of a ragged tensor have the type of ragged tensors of rank 0, which
        # are slow in Python.
        return {name: tf.ensure_shape(ids, [None]) for name, ids in example.items()}

    return dataset.batch(BATCH_SIZE).map(encode).unbatch().map(dense)


def preprocessors() -> list:
    """Returns the preprocessors of all text tasks; SeqIO may cache their results offline."""
    return [tokenize, seqio.CacheDatasetPlaceholder()]
