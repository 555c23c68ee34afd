"""Language means and rotations for readouts, estimated on training text.

The sample of texts is fixed, so that results of checkpoints differ only by their weights. All
languages are represented by the same kind of text: sides of translations if there are any, which
correspond in content and length, else pieces of running text.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from xlme_jax.data.languages import tag_or_code
from xlme_jax.data.prepared import PreparedDataset, TaskInfo
from xlme_jax.data.token_ids import BOS_ID, EOS_ID
from xlme_jax.evaluation import encoding, readouts
from xlme_jax.evaluation.encoding import Batch, Text

TEXTS = 1_000  # Per language.
PAIRS = 2_000  # Per pair of languages.
# Tokens per piece of running text, about a sentence.
_PIECE = 32
# (params, rows) -> pooled states of all layers, [R, K, D]; see `encoding.pool_all`.
Pooled = Callable[[Any, Mapping[str, jax.Array]], jax.Array]
# Lays texts out in batches.
Batcher = Callable[[Sequence[Text]], list[Batch]]


class TrainingText:
    """The training text of a prepared data set.

    Args:
      dataset: prepared data; its split "train" is read.
    """

    def __init__(self, dataset: PreparedDataset):
        self.dataset = dataset
        self._tasks = [
            task
            for task in dataset.tasks
            if task.split == "train" and task.kind != "labelled" and task.examples
        ]

    @property
    def languages(self) -> frozenset[str]:
        """Languages with text, as canonical tags."""
        return frozenset(tag for task in self._tasks for tag in task.tags)

    def texts(self, language: str, count: int, length: int) -> list[Text]:
        """Returns a fixed sample of distinct texts of a language.

        Args:
          language: one of `languages`, in any spelling.
          count: number of texts, spread evenly over tasks if possible; fewer are returned if the
            language has not enough.
          length: maximum tokens per text, including specials; longer texts are truncated.
        """
        tag = tag_or_code(language)
        tasks = [task for task in self._tasks if tag in task.tags]
        tasks = [task for task in tasks if task.kind == "bitext"] or tasks
        texts: list[Text] = []
        # Large tasks fill up the share of small ones.
        for tasks_left, task in zip(
            range(len(tasks), 0, -1), sorted(tasks, key=lambda t: t.tokens)
        ):
            share = -(-(count - len(texts)) // tasks_left)
            read = (
                self._sides(task, tag, share)
                if task.kind == "bitext"
                else self._pieces(task, share, length)
            )
            texts = _unique((*texts, *_unique(read, length)[:share]), length)
        return texts

    def pairs(self, language: str, other: str, count: int, length: int) -> list[tuple[Text, Text]]:
        """Returns a fixed sample of translations (text in `language`, text in `other`).

        Args:
          language: language of the first side, in any spelling.
          other: language of the second side, in any spelling.
          count: number of pairs; fewer are returned if there are not enough, or none.
          length: maximum tokens per text, including specials; longer texts are truncated.
        """
        tags = tag_or_code(language), tag_or_code(other)
        tasks = [
            task
            for task in self._tasks
            if task.kind == "bitext" and set(task.tags) == set(tags) and tags[0] != tags[1]
        ]
        share = -(-count // len(tasks)) if tasks else 0
        pairs = []
        for task in tasks:
            for pair in self.dataset.read_pairs(task, _sampled_indices(task.examples, share)):
                source, target = (encoding.cut(tuple(side.tolist()), length) for side in pair)
                pairs.append((source, target) if task.tags[0] == tags[0] else (target, source))
        return pairs[:count]

    def _sides(self, task: TaskInfo, tag: str, count: int) -> Iterable[Text]:
        """Yields the texts in a language of up to `2 * count` sampled pairs."""
        side = task.tags.index(tag)
        # Twice as many as needed, because some texts repeat, for example in Bibles and menus.
        for pair in self.dataset.read_pairs(task, _sampled_indices(task.examples, 2 * count)):
            yield tuple(pair[side].tolist())

    def _pieces(self, task: TaskInfo, count: int, length: int) -> Iterable[Text]:
        """Yields up to `count` pieces of running text, with `<s>` and `</s>`."""
        tokens = min(_PIECE, length) - 2
        starts = _sampled_indices(max(task.tokens - tokens, 1), count)
        for piece in self.dataset.read_text(task, starts, tokens):
            inner = piece[(piece != BOS_ID) & (piece != EOS_ID)].tolist()
            if inner:
                yield (BOS_ID, *inner, EOS_ID)


@dataclasses.dataclass(frozen=True)
class Fitted:
    """Means and rotations of one encoder with one set of weights.

    Attributes:
      means: {canonical tag of a language: mean embedding at each layer, float32[K, D]}.
      rotations: {(source, target): result of `readouts.orthogonal_map`, float32[K, D, D]}, by
        canonical tags.
    """

    means: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    rotations: Mapping[tuple[str, str], np.ndarray] = dataclasses.field(default_factory=dict)

    def search(
        self,
        languages: tuple[str, str],
        source: np.ndarray,
        target: np.ndarray,
        names: Sequence[str] = readouts.READOUTS,
        margins: readouts.Margins | None = None,
    ) -> dict[str, readouts.Found]:
        """Runs `readouts.search` on embeddings [K, N, D] with the languages' means and rotation."""
        centres = self.centres(languages)
        tags = tag_or_code(languages[0]), tag_or_code(languages[1])
        rotation = self.rotations.get(tags) if centres else None
        return readouts.search(source, target, centres, rotation, names, margins)

    def at(self, layers: slice) -> "Fitted":
        """Returns the means and rotations of some layers."""
        return Fitted(
            {language: mean[layers] for language, mean in self.means.items()},
            {pair: rotation[layers] for pair, rotation in self.rotations.items()},
        )

    def centres(self, languages: tuple[str, str]) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns the means of two languages in any spelling; None if one of them has no text."""
        source_mean, target_mean = (self.means.get(tag_or_code(language)) for language in languages)
        return None if source_mean is None or target_mean is None else (source_mean, target_mean)


class EncodedSample:
    """A tokenized sample of training text in batches, encoded with several sets of weights.

    Args:
      text: source of the sample; None for an empty sample.
      languages: pairs of languages that will be searched.
      length: maximum tokens per text.
      batches: function that lays texts out in batches.
      names: names of readouts; texts and pairs that no readout needs are not read.
      texts: number of texts per language.
      pairs: number of pairs per two languages.
    """

    def __init__(
        self,
        text: TrainingText | None,
        languages: Iterable[tuple[str, str]],
        length: int,
        batches: Batcher,
        names: Sequence[str] = readouts.READOUTS,
        texts: int = TEXTS,
        pairs: int = PAIRS,
    ):
        without_sample = readouts.available(names, False, False)
        is_used = readouts.available(names, True, True) != without_sample
        languages = list(languages) if text is not None and is_used else []
        self._texts: dict[str, list[Batch]] = {}
        self._pairs: dict[tuple[str, str], tuple[list[Batch], list[Batch]]] = {}
        if text is None:
            return
        tags = [(tag_or_code(source), tag_or_code(target)) for source, target in languages]
        both = [pair for pair in tags if text.languages.issuperset(pair)]
        for language in sorted({language for pair in both for language in pair}):
            self._texts[language] = batches(text.texts(language, texts, length))
        for source, target in both if "procrustes" in names else []:
            if translations := text.pairs(source, target, pairs, length):
                sides = [batches([pair[side] for pair in translations]) for side in (0, 1)]
                self._pairs[source, target] = (sides[0], sides[1])

    def fit(self, pooled: Pooled, params: Any) -> Fitted:
        """Encodes the sample and returns its means and rotations."""
        fitted = Fitted(self.means(pooled, params))
        for languages in self._pairs:
            fitted = self.with_rotation(fitted, languages, pooled, params)
        return fitted

    def means(self, pooled: Pooled, params: Any) -> dict[str, np.ndarray]:
        """Encodes the texts and returns `Fitted.means`."""
        means = {
            language: readouts.mean_of_finite(encoding.embed(pooled, params, batches), np.float64)
            for language, batches in self._texts.items()
        }
        return {language: mean.astype(np.float32) for language, mean in means.items()}

    def with_rotation(
        self, fitted: Fitted, languages: tuple[str, str], pooled: Pooled, params: Any
    ) -> Fitted:
        """Encodes the pairs of two languages and returns `fitted` with their rotation.

        Returns `fitted` as it is if the sample has no pairs of the languages. Evaluations of many
        languages call this for one pair after the other, because all rotations at once are large.
        """
        tags = tag_or_code(languages[0]), tag_or_code(languages[1])
        if tags not in self._pairs:
            return fitted
        source, target = (
            encoding.embed(pooled, params, side).swapaxes(0, 1) for side in self._pairs[tags]
        )
        centres = (fitted.means[tags[0]], fitted.means[tags[1]])
        rotation = readouts.orthogonal_map(source, target, centres)
        return Fitted(fitted.means, {**fitted.rotations, tags: rotation})


def _sampled_indices(size: int, count: int) -> np.ndarray:
    """Returns up to `count` different numbers below `size`, in a fixed random order."""
    rng = np.random.default_rng(0)
    return rng.choice(size, min(count, size), replace=False, shuffle=True)


def _unique(texts: Iterable[Text], length: int) -> list[Text]:
    """Returns the distinct texts, cut to `length` tokens, in their order."""
    return list(dict.fromkeys(encoding.cut(text, length) for text in texts))
