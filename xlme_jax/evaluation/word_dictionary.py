"""Word-by-word translation with a dictionary from co-occurrence, a baseline for translators."""

from collections.abc import Mapping, Sequence

import numpy as np
import scipy.sparse as sparse


def learn(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Returns the translation of each source word: the target word with the best Dice coefficient.

    Words are separated by spaces. The coefficient is 2 n(s, t) / (n(s) + n(t)), where n counts the
    pairs that have a word (Dice 1945). Ties go to the first word in the order of code points.

    Args:
      pairs: translations, (source, target).
    """
    if not pairs:
        return {}
    (sources, first), (targets, second) = (_occurrences(side) for side in zip(*pairs))
    together = (first.T @ second).tocoo()
    counts = [np.asarray(side.sum(axis=0)).ravel() for side in (first, second)]
    dice = 2 * together.data / (counts[0][together.row] + counts[1][together.col])
    # Sorted by source word, then the best target word first; ties are in order of code points.
    order = np.lexsort((together.col, -dice, together.row))
    rows, columns = together.row[order], together.col[order]
    is_first = np.diff(rows, prepend=-1) != 0
    return {sources[i]: targets[j] for i, j in zip(rows[is_first], columns[is_first])}


def translate(dictionary: Mapping[str, str], text: str) -> str:
    """Returns the text with each word replaced by its translation; unknown words are copied."""
    return " ".join(dictionary.get(word, word) for word in text.split())


def _occurrences(texts: Sequence[str]) -> tuple[list[str], sparse.csr_matrix]:
    """Returns the words of the texts, sorted, and [texts, words]: 1 where a text has a word."""
    rows = [sorted(set(text.split())) for text in texts]
    words = sorted({word for row in rows for word in row})
    index = {word: number for number, word in enumerate(words)}
    columns = np.array([index[word] for row in rows for word in row], np.int64)
    ends = np.cumsum([0, *map(len, rows)])
    shape = (len(rows), len(words))
    return words, sparse.csr_matrix((np.ones(len(columns)), columns, ends), shape)
