"""Prepared bitext of words for concepts, with one task of shuffled and one of identical sides."""

import itertools

import numpy as np

from helpers import tiny
from xlme_jax.data.prepared.writer import BitextWriter, MonolingualWriter

LANGUAGES, CORPORA, CONCEPTS, PAIRS = 4, 10, 6, 400
TAGS = 4 + LANGUAGES * CONCEPTS
VOCABULARY = TAGS + LANGUAGES + 1
CLEAN = LANGUAGES * (LANGUAGES - 1) // 2 * CORPORA
# Share of free translations, with another concept.
FREE = 0.3


def write(directory, seed=0):
    """Writes `CLEAN` tasks of translations, "shuffled" and "identical"; returns the folder.

    A sentence is a word for its language and one for a concept, which the other side tells; in the
    shuffled task it does not, in the identical one always.
    """
    rng = np.random.default_rng(seed)
    pairs = itertools.combinations(range(LANGUAGES), 2)
    sides = {f"l{a}-l{b}.{n}": (a, b) for a, b in pairs for n in range(CORPORA)}
    rows = []
    for name, (one, other) in {**sides, "shuffled": (0, 1), "identical": (2, 2)}.items():
        count = PAIRS * (6 if name == "identical" else 1)  # Like similar languages, much mined.
        first = rng.integers(0, CONCEPTS, count)
        second = np.where(rng.random(count) < FREE, rng.integers(0, CONCEPTS, count), first)
        if name == "shuffled":
            second = rng.permutation(second)
        if name == "identical":
            second = first
        languages = f"l{one}", f"l{other}"
        writer = BitextWriter(directory, name, languages, VOCABULARY)
        for left, right in zip(_sentences(first, one), _sentences(second, other)):
            writer.add([0, *left, 2, *right, 2])
        rows.append(writer.close())
    text = MonolingualWriter(directory, "l0", ["l0"], VOCABULARY)
    for sentence in _sentences(np.arange(60) % CONCEPTS, 0):
        text.add([0, *sentence, 2])
    rows.append(text.close())
    return tiny.finish_dataset(directory, rows, VOCABULARY)


def _sentences(concepts, language):
    return [[TAGS + language, 4 + language * CONCEPTS + concept] for concept in concepts.tolist()]
