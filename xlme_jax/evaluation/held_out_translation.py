"""Translation of held-out pairs as the train loop goes, beside a word-by-word dictionary."""

import dataclasses
import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation import encoding, word_dictionary
from xlme_jax.evaluation.beam_search import BeamSearch
from xlme_jax.evaluation.context import Context, MakeEvaluator
from xlme_jax.evaluation.encoding import Text
from xlme_jax.evaluation.retrieval import RetrievalProbe
from xlme_jax.evaluation.translation import Translator
from xlme_jax.evaluation.translation_scores import bleu, score, tokenizer_of
from xlme_jax.storage.files import replace_file
from xlme_jax.validation.fields import check_at_least

# In MODEL_DIR: {"step": step, "tokenizers": {"en-fr": sacreBLEU's tokenizer},
# "directions": {"en-fr": [{"source", "reference", "translation"}]}}.
SAMPLES_FILE = "translations.json"
MEAN = "mean"
CUT = "cut"  # Share of translations that end at their length limit.
PREFIX, DICTIONARY = "translation/", "dictionary_"
_SAMPLES = 5  # Of each direction.
_log = logging.getLogger(__name__)


class Direction(NamedTuple):
    """Held-out pairs in one direction.

    Attributes:
      name: as in metrics, such as "en-fr".
      languages: (from, into).
      texts: tokenized sources.
      sources: text of the sources.
      references: translations of the sources.
    """

    name: str
    languages: tuple[str, str]
    texts: Sequence[Text]
    sources: Sequence[str]
    references: Sequence[str]


@dataclasses.dataclass(frozen=True)
class HeldOutTranslation:
    """Scores of translated held-out pairs, in the learned directions, as the train loop goes.

    Attributes:
      pairs: patterns (* and ?) of bitext task names; empty for all with a validation split.
      max_pairs: translated pairs per task.
      beams: hypotheses that are followed at once.
      length_penalty: see `BeamSearch`.
      batch_tokens: source tokens of a batch.
      dictionary_pairs: training pairs of two languages from which the baseline, a word-by-word
        dictionary, is estimated; 0 for none.
    """

    pairs: tuple[str, ...] = ()
    max_pairs: int = 500
    beams: int = 1
    length_penalty: float = 1.0
    batch_tokens: int = encoding.BATCH_TOKENS
    dictionary_pairs: int = 20_000

    def __post_init__(self) -> None:
        check_at_least(self, "HeldOutTranslation", 1, "max_pairs", "beams", "batch_tokens")
        check_at_least(self, "HeldOutTranslation", 0, "dictionary_pairs")

    def evaluator(self, context: Context) -> MakeEvaluator:
        """See `EvaluatorConfig.evaluator`.

        Metrics are `translation/<metric>/<from>-<to>`, those of the baseline
        `translation/dictionary_<metric>/<from>-<to>`, and means over directions `.../mean`.
        `translation/cut/...` is the share of translations that end at the length limit of their
        source (`Translator.limit`). Some translations are written to `SAMPLES_FILE`.

        Raises:
          ValueError: sacreBLEU, or its tokenizer for a target language, is not installed.
        """
        config = BeamSearch(self.beams, self.length_penalty)
        translator = Translator(context.objective, config, context.row_multiple, self.batch_tokens)
        vocabulary = Vocabulary.load(context.dataset.vocabulary_path)
        directions = self._directions(context, vocabulary, translator.max_length or 512)
        tokenizers = {direction.name: _tokenizer(direction) for direction in directions}
        baseline: dict[str, float] = {}
        if self.dictionary_pairs:
            baseline = _baseline(context.dataset, vocabulary, directions, self.dictionary_pairs)

        def evaluate(params: Any, step: int) -> dict[str, float]:
            metrics, samples = {}, {}
            for direction in directions:
                hypotheses = translator(params, direction.texts, direction.languages[1])
                ours = [vocabulary.decode(best[0].tokens) for best in hypotheses]
                cut = float(np.mean([best[0].is_cut for best in hypotheses]))
                scores = score(ours, direction.references, direction.languages[1])
                metrics[direction.name] = {**scores, CUT: cut}
                samples[direction.name] = _samples(direction, ours)
            if context.model_dir is not None and jax.process_index() == 0:
                about = {"step": step, "tokenizers": tokenizers, "directions": samples}
                content = json.dumps(about, ensure_ascii=False)
                path = context.model_dir / SAMPLES_FILE
                replace_file(path, f"{content}\n".encode())
            return _by_full_name(metrics, directions) | baseline

        return lambda initial_params: evaluate

    def _directions(
        self, context: Context, vocabulary: Vocabulary, length: int
    ) -> Sequence[Direction]:
        """Reads the held-out pairs, in the directions that are learned."""
        candidates = RetrievalProbe(self.pairs, self.max_pairs, length=length).candidates(
            context.dataset
        )
        directions = []
        for key, translations in candidates.items():
            texts = list(zip(*translations.pairs))
            decoded = [[vocabulary.decode(text) for text in side] for side in texts]
            for source, target in ((0, 1), (1, 0)):
                codes = translations.languages[source], translations.languages[target]
                name = "-".join(codes)
                # `key` is the task's name if there are two corpora of the same languages.
                if key != "-".join(translations.languages):
                    name += f"/{key}"
                if context.objective.config.translates(*codes):
                    sides = texts[source], decoded[source], decoded[target]
                    directions.append(Direction(name, codes, *sides))
        return directions


def _tokenizer(direction: Direction) -> str:
    """Returns and logs sacreBLEU's tokenizer for a direction.

    Raises:
      ValueError: sacreBLEU or the tokenizer is not installed.
    """
    tokenizer = tokenizer_of(direction.languages[1], direction.references)
    bleu(tokenizer)
    _log.info("%s: BLEU with sacreBLEU's tokenizer %s.", direction.name, tokenizer)
    return tokenizer


def _samples(direction: Direction, translations: Sequence[str]) -> list[dict[str, str]]:
    """Returns {"source", "reference", "translation"} of the first pairs.

    They are a random sample, because pairs are in a fixed random order.
    """
    lines = zip(direction.sources, direction.references, translations)
    names = ("source", "reference", "translation")
    return [dict(zip(names, line)) for line in itertools.islice(lines, _SAMPLES)]


def _by_full_name(
    scores: Mapping[str, Mapping[str, float]], directions: Sequence[Direction], system: str = ""
) -> dict[str, float]:
    """Returns {full name of a metric: value}, with means if `scores` has all directions.

    The mean of a baseline over some directions would not compare with the translator's mean.

    Args:
      scores: {direction: {metric: value}}.
      directions: all directions.
      system: what precedes the metric in a name, `DICTIONARY` for the baseline.
    """
    by_direction = dict(scores)
    if by_direction and len(by_direction) == len(directions):
        metrics = next(iter(by_direction.values()))
        by_direction[MEAN] = {
            x: float(np.mean([direction_scores[x] for direction_scores in scores.values()]))
            for x in metrics
        }
    return {
        f"{PREFIX}{system}{metric}/{direction}": value
        for direction, values in by_direction.items()
        for metric, value in values.items()
    }


def _baseline(
    dataset: PreparedDataset, vocabulary: Vocabulary, directions: Sequence[Direction], count: int
) -> dict[str, float]:
    """Returns the metrics of a word-by-word dictionary, for directions with training pairs."""
    read: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    scores = {}
    for direction in directions:
        languages = tuple(sorted(direction.languages))
        if languages not in read:
            read[languages] = _training_pairs(dataset, vocabulary, languages, count)
        pairs = read[languages]
        if not pairs:
            continue
        if languages != direction.languages:
            pairs = [(second, first) for first, second in pairs]
        words = word_dictionary.learn(pairs)
        translated = [word_dictionary.translate(words, text) for text in direction.sources]
        scores[direction.name] = score(translated, direction.references, direction.languages[1])
        _log.info(
            "%s: a word-by-word dictionary of %d training pairs translates %.1f%% of %d held-out "
            "texts exactly.",
            direction.name,
            len(pairs),
            100 * scores[direction.name]["exact_match"],
            len(direction.texts),
        )
    return _by_full_name(scores, directions, DICTIONARY)


def _training_pairs(
    dataset: PreparedDataset, vocabulary: Vocabulary, languages: tuple[str, ...], count: int
) -> list[tuple[str, str]]:
    """Returns up to `count` training pairs of two languages.

    Each task in turn gives as many random pairs as are still missing.
    """
    pairs: list[tuple[str, str]] = []
    for task in dataset.tasks:
        num_pairs = min(count - len(pairs), task.examples)
        if (task.kind, task.split) != ("bitext", "train") or sorted(task.tags) != list(languages):
            continue
        chosen = np.random.default_rng(0).choice(task.examples, num_pairs, replace=False)
        for pair in dataset.read_pairs(task, chosen):
            first, second = (vocabulary.decode(ids.tolist()) for ids in pair)
            # The sides of the task may be in the other order.
            is_turned = task.tags != languages
            pairs.append((second, first) if is_turned else (first, second))
    return pairs
