"""The sentences that the page shows first: translations from the data of a model's run."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from xlme_jax.data.prepared import PreparedDataError, PreparedDataset, TaskInfo
from xlme_jax.data.token_ids import UNK_ID
from xlme_jax.data.vocabulary import MASK_PIECE, Vocabulary
from xlme_jax.tools.serving import request_fields

_log = logging.getLogger(__name__)
_PIVOT = "en"
_SHOWN = 5
_READ = 400  # Pairs among which to choose.
_TOKENS = 32  # Of a side, with <s> and </s>.
_BUILT_IN = (
    ("The cat sleeps on the sofa.", "Le chat dort sur le canapé."),
    ("I drink coffee every morning.", "Je bois du café tous les matins."),
    ("The train to Paris leaves at eight.", "Le train pour Paris part à huit heures."),
    ("She reads a book in the garden.", "Elle lit un livre dans le jardin."),
    ("It rained all day yesterday.", "Il a plu toute la journée hier."),
)


@dataclasses.dataclass(frozen=True)
class Examples:
    """Sentences in two languages.

    Attributes:
      origin: the source of the sentences, for the page.
      languages: codes of the two languages.
      pairs: sentences and their translations.
    """

    origin: str
    languages: tuple[str, str]
    pairs: tuple[tuple[str, str], ...]

    @property
    def odd(self) -> str:
        """The first sentence, with the last word of the last translation as its middle word.

        Words on both sides tell more about what belongs there than those on one.
        """
        words = self.pairs[0][0].split()
        middle = (len(words) - 1) // 2
        words[middle] = self.pairs[-1][1].split()[-1]
        return " ".join(words)

    @property
    def masked(self) -> str:
        """The second sentence, or the only one, with `<mask>` as its middle word."""
        words = self.pairs[1 % len(self.pairs)][0].split()
        words[len(words) // 2] = MASK_PIECE
        return " ".join(words)


def find(folder: Path, vocabulary: Vocabulary) -> Examples:
    """Returns examples from prepared data.

    Held-out pairs of English and another language are preferred, with three words or more. Without
    data or pairs, built-in examples in English and French are returned.

    Args:
      folder: prepared data.
      vocabulary: its vocabulary.
    """
    built_in = Examples("built in, not of the model's data", ("en", "fr"), _BUILT_IN)
    try:
        dataset = PreparedDataset.load(folder)
        tasks = [task for task in dataset.tasks if task.kind == "bitext" and task.examples]
        if not tasks:
            return built_in
        task = min(tasks, key=lambda each: (each.split == "train", _PIVOT not in each.tags))
        pairs = _pairs(dataset, task, vocabulary)
    except (OSError, PreparedDataError) as error:
        _log.info("No examples from the run's data: %s", error)
        return built_in
    first, second = task.tags
    if second == _PIVOT:
        first, second, pairs = second, first, [(target, source) for source, target in pairs]
    chosen = _choose(pairs)
    where = f"{folder}, {task.name} ({task.split})"
    return Examples(where, (first, second), tuple(chosen)) if chosen else built_in


def _pairs(
    dataset: PreparedDataset, task: TaskInfo, vocabulary: Vocabulary
) -> list[tuple[str, str]]:
    """Returns the short pairs without `<unk>` among `_READ` random pairs of a task, as text."""
    order = np.random.default_rng(0).permutation(min(task.examples, 1 << 20))[:_READ]
    return [
        (vocabulary.decode(source), vocabulary.decode(target))
        for source, target in dataset.read_pairs(task, order)
        if max(len(source), len(target)) <= _TOKENS
        and not (np.any(source == UNK_ID) or np.any(target == UNK_ID))
    ]


def _choose(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns at most `_SHOWN` pairs that share few words with each other.

    Pairs whose first side has three words or more come first.
    """
    chosen: list[tuple[str, str]] = []
    for pair in sorted(pairs, key=lambda pair: len(pair[0].split()) < 3):
        fits = all(side.strip() and len(side) <= request_fields.CHARACTERS for side in pair)
        if fits and not any(_overlap(pair, other) for other in chosen):
            chosen.append(pair)
        if len(chosen) == _SHOWN:
            break
    return chosen


def _overlap(pair: tuple[str, str], other: tuple[str, str]) -> bool:
    """Returns whether two pairs share half of the words of the shorter sentence, on either side."""
    words = [(set(first.split()), set(second.split())) for first, second in zip(pair, other)]
    return any(2 * len(first & second) >= min(len(first), len(second)) for first, second in words)
