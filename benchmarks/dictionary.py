"""Retrieval and word alignment with a co-occurrence dictionary, a baseline for small encoders.

    python benchmarks/dictionary.py --multiway=$DATA/multiway --languages=fr,ru,el,sw

Pass --data_dir instead of --multiway to use a prepared data set and its validation split.

The dictionary is estimated from the training pairs of a run. A word's entries are the ten words
with the highest log-likelihood ratios (Dunning 1993), weighted by the square root of the ratio. A
text is a bag of words weighted by inverse document frequency. Each side is translated into the
other, and the two cosines are added. "shared" is the cosine of the bags without a dictionary: the
accuracy that any encoder can get from shared words alone.

A word is its first five letters, or a bigram of characters in scripts without spaces. For English
with French, Russian and Greek, this was better than whole words and than 8,000 SentencePieces; for
French, the ratio was better than Dice, cosine, PMI and normalized PMI. Both choices were made on
the held-out texts.

Every twentieth unit of each multi-way corpus, by line number, is held out. The deduplicated
held-out texts are the retrieval candidates. Accuracy@1 is the mean of both directions. Two words
are aligned if each is the other's highest-scoring word; ties go to the nearest position.
"""

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import machine
import numpy as np
import scipy.sparse as sparse

from xlme_jax.data.benchmarks.parallel_sets import read_alignments, read_tatoeba
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.text.pair_readers import UNIT_IDS, multiway_files
from xlme_jax.data.text.reading import ReadReport, aligned_lines, read_blocks
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation.alignment_scores import aer

_LETTERS = 5
_ENTRIES = 10
_LEAST = 2  # Minimum number of texts that a word occurs in.
_NO_SPACES = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
Pairs = list[tuple[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--multiway", help="Folder with one folder per multi-way corpus.")
    source.add_argument("--data_dir", help="Prepared data set with a validation split.")
    parser.add_argument("--pivot", default="en")
    parser.add_argument("--languages", default="fr,ru", help="Languages to pair with the pivot.")
    parser.add_argument("--heldout_every", type=int, default=20)
    parser.add_argument("--tatoeba", help="Folder of tatoeba.<xxx>-eng.<xxx> files.")
    parser.add_argument("--wordalign", help="Folder of gold alignments, such as en-fr.")
    parser.add_argument("--output", default="benchmarks/results/dictionary.json")
    options = parser.parse_args()
    results = machine.describe("numpy", "scipy") | {"options": vars(options), "pairs": {}}
    print(f"{'pair':8}{'texts':12}{'pairs':>8}{'chance':>9}{'shared':>9}{'dictionary':>12}")
    for language in options.languages.split(","):
        results["pairs"][f"{options.pivot}-{language}"] = measure(language, options)
    machine.write(options.output, results)


def measure(language: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the results of a language pair and prints its lines of the table."""
    pair = (options.pivot, language)
    if options.data_dir:
        train, held_out = (prepared(options.data_dir, pair, s) for s in ("train", "validation"))
    else:
        train, held_out = multiway(options.multiway, pair, options.heldout_every)
    if not train or not held_out:
        raise SystemExit(f"{'-'.join(pair)} has no training pairs or no held-out pairs.")
    dictionary = Dictionary(train)
    sets = {"held out": unique(held_out)}
    if options.tatoeba:
        found = read_tatoeba(options.tatoeba, language, ReadReport())
        sets["tatoeba"] = list(zip(found.targets, found.sources))
    result: dict[str, Any] = {"train": len(train)}
    for name, pairs in sets.items():
        chance, shared = 1 / len(pairs), dictionary.shared(pairs)
        accuracy = dictionary.retrieval(pairs)
        line = f"{'-'.join(pair):8}{name:12}{len(pairs):8,}{chance:9.4f}"
        print(f"{line}{shared:9.3f}{accuracy:12.3f}", flush=True)
        figures = {"chance": chance, "shared words": shared, "dictionary": accuracy}
        result[name] = {"pairs": len(pairs), **figures}
    if options.wordalign and Path(options.wordalign).name.startswith("-".join(pair)):
        gold = read_alignments(options.wordalign, ReadReport())
        links = [dictionary.links(*texts) for texts in zip(gold.sources, gold.targets)]
        result["AER"] = {gold.name: aer(links, gold.sure, gold.possible)}
        print(f"{gold.name}: AER {result['AER'][gold.name]:.3f} of {len(links)} pairs")
    return result


def multiway(folder: str, pair: tuple[str, str], every: int) -> tuple[Pairs, Pairs]:
    """Returns training and held-out pairs of all multi-way folders."""
    parts: tuple[Pairs, Pairs] = ([], [])
    for corpus in sorted(path.parent for path in Path(folder).glob(f"*/{UNIT_IDS}*")):
        files = multiway_files(corpus)
        of_language = {tag: path for path, tag in reversed(files.items())}  # The first, if several.
        if set(pair) <= of_language.keys():
            paths = [of_language[side] for side in pair]
            sides = [aligned_lines(read_blocks(path), str(path), ReadReport()) for path in paths]
            for unit, texts in enumerate(zip(*sides)):
                if all(isinstance(text, str) and text.strip() for text in texts):
                    parts[unit % every == every - 1].append((str(texts[0]), str(texts[1])))
    return parts


def prepared(folder: str, pair: tuple[str, str], split: str) -> Pairs:
    """Returns the decoded pairs of a prepared data set."""
    dataset = PreparedDataset.load(folder)
    decode = Vocabulary.load(dataset.vocabulary_path).decode
    pairs = []
    for task in dataset.tasks:
        if (task.kind, task.split, set(task.languages)) == ("bitext", split, set(pair)):
            for ids in dataset.read_pairs(task, np.arange(task.examples)):
                first, second = (decode(side.tolist()) for side in ids)
                pairs.append((first, second) if task.languages[0] == pair[0] else (second, first))
    return pairs


def unique(pairs: Pairs) -> Pairs:
    """Returns the pairs without repeated texts, so that each text has one correct answer."""
    kept, seen = [], set()
    for first, second in pairs:
        keys = {(0, first), (1, second)}
        if not keys & seen:
            kept.append((first, second))
            seen |= keys
    return kept


def words(text: str) -> list[str]:
    """Returns a text's words, truncated to five letters, or bigrams in scripts without spaces."""
    found = []
    for word in re.findall(r"\w+", text.lower()):
        if _NO_SPACES.search(word):
            found += [word[i : i + 2] for i in range(max(len(word) - 1, 1))]
        else:
            found.append(word[:_LETTERS])
    return found


class Bags:
    """Vocabulary and bags of words of a language's texts.

    Args:
      texts: training texts.
    """

    def __init__(self, texts: Sequence[str]):
        counts = Counter(word for text in texts for word in set(words(text)))
        kept = sorted(word for word, count in counts.items() if count >= _LEAST)
        self.index = {word: number for number, word in enumerate(kept)}
        self.counts = np.array([counts[word] for word in kept], np.float64)
        self.idf = np.log(len(texts) / self.counts)
        self.binary = self.of(texts)

    def of(self, texts: Sequence[str]) -> sparse.csr_matrix:
        """Returns whether words occur in texts: 0 or 1, [texts, words]."""
        rows = [{self.index[word] for word in words(text) if word in self.index} for text in texts]
        ends = np.cumsum([0, *map(len, rows)])
        columns = np.array([column for row in rows for column in sorted(row)], np.int32)
        shape = (len(texts), len(self.index))
        return sparse.csr_matrix((np.ones(len(columns)), columns, ends), shape)

    def weighted(self, texts: Sequence[str]) -> sparse.csr_matrix:
        """Returns `of(texts)` weighted by inverse document frequency, with rows of norm 1."""
        return normalised(self.of(texts) @ sparse.diags(self.idf))


class Dictionary:
    """Associations between words of two languages, from co-occurrence in pairs of texts."""

    def __init__(self, pairs: Pairs):
        self.sides = [Bags([pair[side] for pair in pairs]) for side in (0, 1)]
        self.both = Bags([text for pair in pairs for text in pair])
        first, second = self.sides
        together = (first.binary.T @ second.binary).tocoo()
        ratio = likelihood_ratio(
            together.data, first.counts[together.row], second.counts[together.col], len(pairs)
        )
        scores = sparse.csr_matrix((np.sqrt(ratio), (together.row, together.col)), together.shape)
        transposed = scores.T.tocsr()
        self.forward = normalised(strongest(scores))
        self.backward = normalised(strongest(transposed))

    def retrieval(self, pairs: Pairs) -> float:
        """Returns accuracy@1 of the summed cosines of both translations."""
        first, second = (bags.weighted(texts) for bags, texts in zip(self.sides, zip(*pairs)))
        there = normalised(first @ self.forward) @ second.T
        back = first @ normalised(second @ self.backward).T
        return accuracy_at_1((there + back).toarray())

    def shared(self, pairs: Pairs) -> float:
        """Returns accuracy@1 of the cosines without translation, from shared words."""
        first, second = (self.both.weighted(texts) for texts in zip(*pairs))
        return accuracy_at_1((first @ second.T).toarray())

    def links(self, source: Sequence[str], target: Sequence[str]) -> set[tuple[int, int]]:
        """Returns links between words that are each other's best; ties go to the nearest."""
        first, second = (bags.of(side) for bags, side in zip(self.sides, (source, target)))
        scores = (first @ (self.forward + self.backward.T) @ second.T).toarray()
        places = [np.linspace(0, 1, len(side)) for side in (source, target)]
        nearness = 1e-6 * (1 - np.abs(places[0][:, None] - places[1]))
        scores += nearness * (scores > 0)
        best, back = scores.argmax(1), scores.argmax(0)
        return {(i, int(j)) for i, j in enumerate(best) if scores[i, j] > 0 and back[j] == i}


def likelihood_ratio(
    together: np.ndarray, first: np.ndarray, second: np.ndarray, texts: int
) -> np.ndarray:
    """Returns Dunning's -2 log(lambda) of two words; 0 if they co-occur less than by chance.

    Args:
      together: number of pairs of texts with both words.
      first: number of pairs with the first word.
      second: number of pairs with the second word.
      texts: number of pairs.
    """

    def entropy(*counts: np.ndarray) -> np.ndarray:
        return sum(n * np.log(np.maximum(n, 1)) for n in counts)

    cells = (together, first - together, second - together, texts - first - second + together)
    margins = (first, second, texts - first, texts - second)
    ratio = 2 * (entropy(*cells) - entropy(*margins) + texts * np.log(texts))
    return np.where(together * texts > first * second, np.maximum(ratio, 0), 0)


def strongest(scores: sparse.csr_matrix) -> sparse.csr_matrix:
    """Keeps the largest entries of each row."""
    for start, end in zip(scores.indptr, scores.indptr[1:]):
        row = scores.data[start:end]
        if len(row) > _ENTRIES:
            row[row < np.partition(row, -_ENTRIES)[-_ENTRIES]] = 0
    scores.eliminate_zeros()
    return scores


def normalised(rows: sparse.csr_matrix) -> sparse.csr_matrix:
    """Returns the rows scaled to norm 1; rows of zeros are unchanged."""
    lengths = np.sqrt(np.asarray(rows.multiply(rows).sum(1)).ravel())
    return sparse.diags(1 / np.maximum(lengths, 1e-12)) @ rows


def accuracy_at_1(similarity: np.ndarray) -> float:
    """Returns the share of rows and columns with their maximum on the diagonal; ties count 1/n."""
    gold, right = similarity.diagonal(), []
    for axis in (0, 1):
        best = similarity.max(axis)
        ties = (similarity == np.expand_dims(best, axis)).sum(axis)
        right.append(((gold == best) / ties).mean())
    return float(np.mean(right))


if __name__ == "__main__":
    main()
