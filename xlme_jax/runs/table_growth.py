"""How the vocabulary's tables of a checkpoint become those of a vocabulary that derives from it."""

from __future__ import annotations

from pathlib import Path

from xlme_jax.checkpoints.growth import Growth
from xlme_jax.checkpoints.saved import checkpoint_of, read_record
from xlme_jax.data import vocabulary_extension
from xlme_jax.data.prepared.format import VOCABULARY_FILE
from xlme_jax.data.vocabulary import Vocabulary, VocabularyError
from xlme_jax.objectives.base import Params
from xlme_jax.ops.vocabulary_head import padded_size
from xlme_jax.training import model_info


def table_growth(run: Path, vocabulary: Vocabulary, boxed: Params) -> Growth | None:
    """Returns how a checkpoint's tables become those of a vocabulary.

    Args:
      run: MODEL_DIR of a run, or one of its checkpoints.
      vocabulary: the vocabulary of the new tables.
      boxed: weights of the model with the new tables, with their logical axes.

    Returns:
      The rule; None if the vocabulary is that of the checkpoint, or does not derive from it.

    Raises:
      ValueError: whether it derives cannot be told, because the run lacks its vocabulary.
    """
    digest = read_record(run).vocabulary
    if digest in ("", vocabulary.digest):
        return None
    parent = vocabulary_extension.parent(vocabulary)
    if parent is not None and parent.digest == digest:
        old = vocabulary_extension.extended_pieces(vocabulary, parent.size)
    else:
        old = _vocabulary_of(run, digest)
        if not vocabulary_extension.derives_from(vocabulary, old):
            return None
    rows, sources = vocabulary_extension.row_sources(vocabulary, old)
    tables = model_info.vocabulary_tables(boxed)
    return Growth(digest, old.size, padded_size(old.size), tables, rows, sources)


def _vocabulary_of(run: Path, digest: str) -> Vocabulary:
    """Returns the vocabulary in a run's MODEL_DIR.

    Args:
      run: MODEL_DIR of a run, or one of its checkpoints.
      digest: digest of the vocabulary, as the checkpoint records it.

    Raises:
      ValueError: the file is missing or is another vocabulary.
    """
    file = checkpoint_of(run).parent.parent / VOCABULARY_FILE
    try:
        vocabulary = Vocabulary.load(file)
        problem = "" if vocabulary.digest == digest else "is another one"
    except VocabularyError:
        problem = "is missing or damaged"
    if problem:
        raise ValueError(
            f"{run} was trained with another vocabulary (sha256 {digest[:12]}), and {file}, which "
            f"would tell whether the new one derives from it, {problem}. Copy the vocabulary.model "
            "of that run's DATA_DIR there."
        )
    return vocabulary
