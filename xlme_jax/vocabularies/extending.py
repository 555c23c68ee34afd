"""Pieces of new languages for an existing vocabulary, whose ids and scores stay.

The text of the new languages trains a vocabulary of its own, whose pieces that the old one lacks
are appended. Text is then segmented by the mixture of both unigram models: a new piece has the
score log p(piece) + log(new pieces / old pieces). The old scores are those of the old model, so
text without new pieces is segmented as before.

Pieces of new languages also occur in words of the old ones. Those that old text uses at more than a
tenth of the rate of new text are left out: a few, which account for most changes of old text.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Iterable, Sequence

import numpy as np

from xlme_jax.data import vocabulary as vocabularies
from xlme_jax.data import vocabulary_extension
from xlme_jax.data.vocabulary import Vocabulary, VocabularyError
from xlme_jax.preparation import workers
from xlme_jax.vocabularies.merging import BYTES, SPECIALS
from xlme_jax.vocabularies.vocabulary_measures import token_counts

_MOST_SHARE = 0.1  # Highest rate of a new piece in old text, relative to its rate in new text.
_ROUNDS = 6
_BATCH = 1024


@dataclasses.dataclass(frozen=True)
class Changes:
    """How a text is tokenized by a vocabulary that derives from another one.

    Attributes:
      lines: Number of lines.
      changed: Number of lines whose tokens differ between the vocabularies.
      tokens_before: Number of tokens by the old vocabulary.
      tokens: Number of tokens by the derived vocabulary.
    """

    lines: int
    changed: int
    tokens_before: int
    tokens: int


def extend(
    old: Vocabulary,
    lines: Sequence[str],
    added: int,
    old_text: Sequence[str] = (),
    character_coverage: float = 0.9995,
    allow_smaller: bool = False,
) -> Vocabulary:
    """Appends pieces of new languages to a vocabulary.

    Args:
      old: The vocabulary to extend.
      lines: Text of the new languages.
      added: Number of pieces to append.
      old_text: Text of the old languages, whose tokens should hardly change.
      character_coverage: Share of the characters of `lines` that are pieces.
      allow_smaller: Whether to append fewer pieces if the text does not support `added`.

    Returns:
      The extended vocabulary, a function of the arguments alone.

    Raises:
      VocabularyError: The text does not support as many new pieces, or `old` cannot be extended.
    """
    pieces: list[tuple[str, float]] = []
    size = math.ceil(1.2 * added) + SPECIALS + BYTES
    with workers.open_bar(unit="piece", total=added) as bar:
        for round_number in range(1, _ROUNDS + 1):
            bar.set_description(f"train pieces (round {round_number})")
            # Bytes for characters that are too rare for a piece: without them, all would be pieces.
            model = vocabularies.train_model(
                lines, size, byte_fallback=True, character_coverage=character_coverage
            )
            trained = Vocabulary(model)
            bar.set_description(f"choose pieces (round {round_number})")
            pieces = _new_pieces(old, trained, added, lines, old_text)
            bar.update(min(len(pieces), added) - bar.n)
            if len(pieces) >= added or trained.size < size:
                break
            size += max(math.ceil(1.2 * (added - len(pieces))), 16)
    if len(pieces) < added and not allow_smaller:
        raise VocabularyError(
            f"The text supports {len(pieces):,} new pieces, not {added:,}. Add text, request "
            f"{len(pieces):,} or fewer, or allow a smaller one (--allow_smaller)."
        )
    return vocabulary_extension.extend(old, dict(pieces[:added]))


def _new_pieces(
    old: Vocabulary, trained: Vocabulary, added: int, lines: Sequence[str], old_lines: Sequence[str]
) -> list[tuple[str, float]]:
    """Returns (piece, score) of the pieces that may be appended, the best first.

    Single characters precede longer pieces, because words that contain them need them. Pieces that
    text of the old languages uses often are left out.
    """
    old_pieces = old.scored_pieces()
    shift = math.log(added / len(old_pieces))
    novel = {
        x: score + shift for x, score in trained.scored_pieces().items() if x not in old_pieces
    }
    order = sorted(novel, key=lambda piece: (len(piece) > 1, -novel[piece], piece))
    if old_lines and novel:
        extended = vocabulary_extension.extend(old, {piece: novel[piece] for piece in order})
        rates = []
        for text in (lines, old_lines):
            counts, _ = token_counts(extended, text, os.cpu_count() or 1)
            # New ids lie between the old pieces and `<mask>`.
            rates.append(counts[old.size - 1 : -1] / max(1, counts.sum()))
        rare = rates[1] <= _MOST_SHARE * rates[0]
        order = list(itertools.compress(order, np.asarray(rare).tolist()))
    return [(piece, novel[piece]) for piece in order]


def changes(old: Vocabulary, new: Vocabulary, lines: Iterable[str]) -> Changes:
    """Counts the lines that an extended vocabulary tokenizes in another way.

    Args:
      old: The vocabulary before the extension.
      new: The vocabulary that derives from `old`.
      lines: Lines of text.
    """
    total = changed = ids_before = ids_after = 0
    stream = iter(lines)
    ids_in_old = vocabulary_extension.old_ids(new, old)
    while batch := list(itertools.islice(stream, _BATCH)):
        pairs = zip(old.encode_batch(batch), new.encode_batch(batch))
        for old_ids, new_ids in pairs:
            total += 1
            changed += old_ids != ids_in_old[new_ids].tolist()
            ids_before += len(old_ids)
            ids_after += len(new_ids)
    return Changes(total, changed, ids_before, ids_after)


def summary(changes: Sequence[tuple[str, Changes]]) -> str:
    """Returns a text table of `changes` by language."""
    lines = [f"{'language':<10}{'lines':>9}{'changed':>10}{'tokens before':>15}{'tokens':>12}"]
    for language, counts in changes:
        share = counts.changed / max(1, counts.lines)
        lines.append(
            f"{language:<10}{counts.lines:>9,}{share:>10.2%}"
            f"{counts.tokens_before:>15,}{counts.tokens:>12,}"
        )
    return "\n".join(lines)
