"""BUCC: mining translations from two corpora (XTREME's sets, LASER's method).

The score of two sentences is their cosine divided by the mean cosine of both with their 4 nearest
neighbours in the other corpus (ratio margin). Every sentence of either side proposes its best
neighbour; proposals are accepted in order of their score unless one of the sentences is already
used. Pairs above a threshold are compared with the gold pairs. The threshold maximizes F1 on the
gold pairs of the validation split, for each language, readout and encoder. So figures of the test
split are as in XTREME, and figures of the validation split are upper bounds. Readouts are "raw"
cosines, as in the papers, and cosines "centred" by each language's mean over training text.
"""

import collections
import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlme_jax.data.benchmarks import labelled_rows
from xlme_jax.data.benchmarks.parallel_sets import (
    MiningCorpus,
    bucc_languages,
    read_bucc,
)
from xlme_jax.data.languages import spelled_as
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.evaluation import encoding
from xlme_jax.evaluation.measure import About, Measure, Request, ScoreColumn, ScoreTable
from xlme_jax.evaluation.outcome import Evaluation, Outcome, Result, Rows, Subject
from xlme_jax.evaluation.readouts import DESCRIPTIONS, RAW, normalised, warn_if_not_finite
from xlme_jax.evaluation.results import prediction_files
from xlme_jax.evaluation.training_text import EncodedSample, Fitted
from xlme_jax.validation.fields import check_at_least

_log = logging.getLogger(__name__)

Pair = tuple[int, int]
# Embeddings [N, D] and [M, D].
Sides = tuple[np.ndarray, np.ndarray]

# Similarities computed at once, 4 bytes each.
_BLOCK = 1 << 24
# XTREME's name of the folder of predictions.
_FOLDER = "bucc2018"
# The readouts whose cosines the margin compares.
_READOUTS = (RAW, "centred")


@dataclasses.dataclass(frozen=True)
class Bucc(Measure):
    """Bitext mining on BUCC 2018 (Zweigenbaum et al., 2018), with XTREME's splits.

    Attributes:
      folder: folder with the files `zh-en.dev.zh`, `zh-en.dev.en` and `zh-en.dev.gold`.
      languages: languages other than English ("zh", ...); empty for all that have files.
      split: "validation"; or "test", XTREME's name for BUCC's training set, with the threshold of
        the validation split, whose files must be there too.
      layer: the evaluated layer; None for the encoder's default. It is the only one, as the corpora
        are large.
      pooling: see `Tatoeba`.
      neighbours: number of neighbours on the other side for the margin.
      length: maximum tokens per sentence, including specials; longer sentences are truncated.
      batch_tokens: tokens encoded at once.
    """

    about: ClassVar[About] = About(
        name="bucc",
        reads_data="if_there",
        metric="f1",
        hub_type="sentence-similarity",
        tables=(
            ScoreTable(
                "BUCC bitext mining",
                "VECO Table 12: F1 at the threshold that is best on the validation split; on that "
                "split itself, which a note says, it flatters. Layer 0 is the embeddings, k the "
                "output of layer k; that of trained sentence vectors, or the middle one, unless "
                "--layer named another.",
                (
                    *(
                        ScoreColumn(code, "f1", (f"{code}-en",))
                        for code in ("de", "fr", "ru", "zh")
                    ),
                    ScoreColumn("Avg", "f1", ("de-en", "fr-en", "ru-en", "zh-en")),
                ),
            ),
        ),
        xtreme=ScoreColumn("BUCC", "f1", official=4),
        flags="--split=test",
        note=(
            "BUCC: its training set is scored, as in XTREME, at the threshold that is best on its "
            "sample."
        ),
    )

    folder: str
    languages: tuple[str, ...] = ()
    split: str = "validation"
    layer: int | None = None
    pooling: encoding.Pooling = "mean"
    neighbours: int = 4
    length: int = 512
    batch_tokens: int = encoding.BATCH_TOKENS

    def __post_init__(self) -> None:
        encoding.check(self)
        check_at_least(self, "Bucc", 1, "neighbours")

    @classmethod
    def requested(cls, task: str, request: Request, configured: Sequence[Any]) -> Self | None:
        """See `Measure.requested`; pairs of languages, which other measures read, are left out.

        If there are other tasks, languages that BUCC lacks are left out too, with a log line.

        Raises:
          ValueError: BUCC has none of the languages, or only pairs are given, and no other task
            reads them.
        """
        del configured
        codes = request.single_languages(task)
        if codes is None:
            return None
        folder = str(labelled_rows.folder_of(request.data, task))
        split = request.split or ("test" if bucc_languages(folder, "test") else "validation")
        if codes and request.tasks != (task,):
            available = bucc_languages(folder, split)
            spelled = spelled_as(codes, available)
            mined = tuple(code for code in spelled if code in available)
            if not mined:
                raise ValueError(
                    f"--languages={','.join(codes)}: {folder} has none of these, {split}; choose "
                    f"from {', '.join(available) or 'none'}, or leave {task} out of --tasks"
                )
            if missing := [code for code in spelled if code not in available]:
                _log.warning("%s is not evaluated in %s, %s", task, ", ".join(missing), split)
            codes = mined
        return cls(folder, codes, split, request.layer, request.pooling)

    def build(self, subject: Subject) -> Evaluation:
        """Reads the corpora and returns the evaluation of some parameters.

        Raises:
          ValueError: the folder, a language, its gold pairs or the files of the validation split
            are missing, or the encoder has no such layer.
        """
        layer = encoding.choose_layer(self.layer, subject, "Bucc.layer")
        report = ReadReport()
        corpora = [
            _Corpora(corpus, self, subject, report) for corpus in self._read(self.split, report)
        ]
        tuned_on = self._tuned_on(corpora, subject, report)

        def pooled(params: Any, rows: Rows) -> jax.Array:
            return encoding.pool(subject.encode(params, rows)[layer], rows, self.pooling)

        compiled = jax.jit(pooled)
        sample = EncodedSample(
            subject.training_text,
            [corpus.languages for corpus in corpora],
            min(self.length, subject.max_length or self.length),
            lambda texts: encoding.batches(texts, subject.row_multiple, self.batch_tokens),
            _READOUTS,
        )

        def evaluate(params: Any) -> Outcome:
            results: list[Result] = []
            files: dict[str, str] = {}
            fitted = sample.fit(compiled, params)

            def mined(corpus: _Corpora) -> dict[str, list[tuple[float, Pair]]]:
                return corpus.mined(compiled, params, fitted, self.neighbours)

            for corpus, validation in zip(corpora, tuned_on):
                name = "-".join(corpus.languages)
                for readout, (pairs, figures) in _translations(corpus, validation, mined).items():
                    results += self._results(name, readout, layer, figures)
                    if readout == RAW:
                        ids = corpus.ids(pairs)
                        files |= prediction_files(_FOLDER, "mining", self.split, name[:2], ids)
            return Outcome(
                tuple(results),
                self._headline(results, len(corpora)),
                files,
                dict(report.skipped),
                repaired=dict(report.repaired),
            )

        return evaluate

    def _tuned_on(
        self, corpora: "Sequence[_Corpora]", subject: Subject, report: ReadReport
    ) -> "Sequence[_Corpora | None]":
        """Returns for each of `corpora` the corpora of the validation split, for the threshold.

        Returns None for each if the corpora are of the validation split themselves.

        Raises:
          ValueError: files or gold pairs of the validation split are missing.
        """
        if self.split != "test":
            return [None] * len(corpora)
        codes = [corpus.languages[0] for corpus in corpora]
        try:
            validation = self._read("validation", report, codes)
        except ValueError as error:
            why = "the threshold of the test split is that of the validation split"
            raise ValueError(f"{error}; {why}") from error
        return [_Corpora(corpus, self, subject, report) for corpus in validation]

    def _results(
        self, name: str, readout: str, layer: int, figures: Mapping[str, float]
    ) -> list[Result]:
        """Returns the results of two languages with a readout, of which `figures` are by metric."""
        return [
            Result(
                self.about.name,
                name,
                metric,
                value,
                self.split,
                layer,
                setting=self._setting(readout),
                readout=readout,
            )
            for metric, value in figures.items()
        ]

    def _headline(self, results: Sequence[Result], count: int) -> dict[str, float]:
        """Returns the mean F1 of each readout that all `count` pairs of languages have."""
        headline = {}
        for readout in _READOUTS:
            f1s = [x.value for x in results if (x.metric, x.readout) == ("f1", readout)]
            if len(f1s) == count:
                prefix = "" if readout == RAW else f"{readout}/"
                headline[f"{self.about.name}/{prefix}f1"] = float(np.mean(f1s))
        return headline

    def _setting(self, readout: str) -> str:
        """Returns the text of `Result.setting`: how the results of a readout were computed."""
        tuned_on = "the validation split" if self.split == "test" else "the same gold pairs"
        return (
            f"ratio margin, k = {self.neighbours}, on {DESCRIPTIONS[readout]}; greedy in both "
            f"directions, threshold tuned on {tuned_on}; "
            f"{encoding.POOLINGS[self.pooling]}; {encoding.LAYERS}"
        )

    def _read(
        self, split: str, report: ReadReport, languages: Sequence[str] = ()
    ) -> list[MiningCorpus]:
        """Reads the corpora of a split, all with gold pairs.

        Args:
          split: "validation" or "test".
          report: collects counts of skipped and repaired lines.
          languages: languages to read; () for those of the settings.

        Raises:
          ValueError: files or gold pairs of a language are missing, or a file is damaged.
        """
        available = bucc_languages(self.folder, split)
        languages = spelled_as(languages or self.languages, available) or available
        if not languages:
            name = "zh-en.dev" if split == "validation" else "zh-en.training"
            raise ValueError(
                f"{self.folder}: no files of BUCC's, {split}; get those of BUCC 2018, whose names "
                f"are like {name}.zh, {name}.en and {name}.gold, or choose another split"
            )
        corpora = [read_bucc(self.folder, code, split, report) for code in languages]
        for corpus in corpora:
            if not corpus.gold:
                name = "-".join(corpus.languages)
                raise ValueError(
                    f"{self.folder}: {name}, {split}, has no gold pairs, which mined pairs are "
                    f"compared with; get {name}'s .gold, or choose Bucc.languages without it"
                )
        return corpora


class _Corpora:
    """Two corpora in batches, in which each distinct text of a side is encoded once.

    Attributes:
      corpus: the sentences.
      languages: (source, target).
      gold: gold pairs of indices of sentences, those that name no sentence included.
      occurrences: for each side, the indices of the sentences that have each distinct text.
      batches: for each side, batches of the distinct texts.
    """

    def __init__(self, corpus: MiningCorpus, settings: Bucc, subject: Subject, report: ReadReport):
        self.corpus = corpus
        self.languages = corpus.languages
        # Gold pairs that name no sentence get negative indices, which no mined pair has, so that
        # they count as missed.
        outside = {(-number, -number) for number in range(1, corpus.outside + 1)}
        self.gold: Set[Pair] = (corpus.gold or frozenset()) | outside
        length = min(settings.length, subject.max_length or settings.length)
        self.occurrences, self.batches = [], []
        for side in (corpus.sources, corpus.targets):
            where = collections.defaultdict[str, list[int]](list)
            for index, text in enumerate(side):
                where[text].append(index)
            texts = encoding.texts_of(subject.vocabulary, list(where), length, report)
            self.occurrences.append(list(where.values()))
            self.batches.append(
                encoding.batches(texts, subject.row_multiple, settings.batch_tokens)
            )

    def embed(self, pooled: Callable[[Any, Rows], jax.Array], params: Any) -> Sides:
        """Returns the embeddings of the distinct texts of both sides."""
        source, target = (encoding.embed(pooled, params, batches) for batches in self.batches)
        return source, target

    def mined(
        self,
        pooled: Callable[[Any, Rows], jax.Array],
        params: Any,
        fitted: Fitted,
        neighbours: int,
    ) -> dict[str, list[tuple[float, Pair]]]:
        """Returns {readout: pairs from `mine`}; without training text, "centred" is missing."""
        spaces = _spaces(self.embed(pooled, params), self.languages, fitted)
        return {readout: self.mine(sides, neighbours) for readout, sides in spaces.items()}

    def mine(self, sides: Sides, neighbours: int) -> list[tuple[float, Pair]]:
        """Returns (score, pair of indices of sentences), best first.

        Sentences that occur more than once are ambiguous: as in XTREME, they are mined but removed
        from the result.
        """
        sources, targets = self.occurrences
        return [
            (score, (sources[i][0], targets[j][0]))
            for score, (i, j) in mine(*sides, neighbours)
            if len(sources[i]) == len(targets[j]) == 1
        ]

    def ids(self, pairs: Sequence[Pair]) -> list[tuple[str, str]]:
        """Returns the ids of pairs in the corpora's files."""
        return [(self.corpus.source_ids[i], self.corpus.target_ids[j]) for i, j in pairs]


def _spaces(sides: Sides, languages: tuple[str, str], fitted: Fitted) -> dict[str, Sides]:
    """Returns {readout: embeddings to compare}; without training text, "centred" is missing."""
    spaces = {RAW: sides}
    if centres := fitted.centres(languages):
        sources, targets = (side - centre for side, centre in zip(sides, centres))
        spaces["centred"] = sources, targets
    return spaces


def _translations(
    corpus: _Corpora,
    tuned_on: _Corpora | None,
    mined: Callable[[_Corpora], dict[str, list[tuple[float, Pair]]]],
) -> dict[str, tuple[list[Pair], dict[str, float]]]:
    """Returns {readout: (the pairs that count as translations, their figures)}.

    Args:
      corpus: the corpora that are scored.
      tuned_on: the corpora whose gold pairs choose the threshold; None for those of `corpus`.
      mined: function that returns {readout: pairs from `mine`}.
    """
    pairs = mined(corpus)
    if tuned_on is None:
        return {readout: tune(of_readout, corpus.gold) for readout, of_readout in pairs.items()}
    translations = {}
    for readout, of_readout in mined(tuned_on).items():
        _, figures = tune(of_readout, tuned_on.gold)
        translations[readout] = at_threshold(pairs[readout], corpus.gold, figures["threshold"])
    return translations


def mine(source: np.ndarray, target: np.ndarray, neighbours: int = 4) -> list[tuple[float, Pair]]:
    """Pairs up texts by ratio margin, greedily in both directions.

    Args:
      source: [N, D] embeddings.
      target: [M, D] embeddings.
      neighbours: k, nearest neighbours on the other side; fewer if there are fewer texts.

    Returns:
      (score, (index of the source, index of the target)), best first. Each text is in at most one
      pair. Pairs whose score is not positive or not finite are left out; a warning counts the texts
      whose embeddings are not finite.
    """
    warn_if_not_finite(source, target)
    forward, forward_cosines = nearest(source, target, neighbours)
    backward, backward_cosines = nearest(target, source, neighbours)
    source_means, target_means = forward_cosines.mean(axis=1), backward_cosines.mean(axis=1)

    def best(indices, cosines, query_means, candidate_means):
        scores = ratio_margin(cosines, query_means[:, None], candidate_means[indices])
        scores = np.where(np.isfinite(scores), scores, -np.inf)
        first = scores.argmax(axis=1)[:, None]
        return [np.take_along_axis(array, first, axis=1)[:, 0] for array in (indices, scores)]

    partners, scores = best(forward, forward_cosines, source_means, target_means)
    back_partners, back_scores = best(backward, backward_cosines, target_means, source_means)
    sources = np.concatenate([np.arange(len(source)), back_partners])
    targets = np.concatenate([partners, np.arange(len(target))])
    scores = np.concatenate([scores, back_scores])
    pairs = []
    used_sources = set[int]()
    used_targets = set[int]()
    for index in np.argsort(-scores, kind="stable"):
        score, i, j = float(scores[index]), int(sources[index]), int(targets[index])
        if score > 0 and i not in used_sources and j not in used_targets:
            used_sources.add(i)
            used_targets.add(j)
            pairs.append((score, (i, j)))
    return pairs


def ratio_margin(
    cosines: np.ndarray, query_means: np.ndarray, candidate_means: np.ndarray
) -> np.ndarray:
    """Returns cosines divided by the mean of those with the nearest neighbours of both texts.

    It is the ratio margin of Artetxe and Schwenk 2019, "Margin-based Parallel Corpus Mining with
    Multilingual Sentence Embeddings" (Eq. 2). Quotients by 0 are not finite.

    Args:
      cosines: cosines of queries with candidates.
      query_means: mean cosine of each query with its nearest candidates.
      candidate_means: mean cosine of each candidate with its nearest queries.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        margins: np.ndarray = cosines / ((query_means + candidate_means) / 2)
    return margins


def tune(
    mined: Sequence[tuple[float, Pair]], gold: Set[Pair]
) -> tuple[list[Pair], dict[str, float]]:
    """Chooses the threshold with the best F1.

    Args:
      mined: (score, pair), best first.
      gold: the gold pairs.

    Returns:
      The pairs whose score is at least the threshold, and {"f1", "precision", "recall",
      "threshold": value}. The threshold lies half-way between the lowest score of these pairs and
      the next lower score. If no mined pair is a gold pair: no pairs, and zeros.
    """
    chosen = 0
    figures = {"f1": 0.0, "precision": 0.0, "recall": 0.0, "threshold": 0.0}
    correct = 0
    for count, (score, pair) in enumerate(mined, 1):
        correct += pair in gold
        following = mined[count][0] if count < len(mined) else score
        # A threshold cannot separate equal scores.
        if count < len(mined) and following == score:
            continue
        f1 = 2 * correct / (count + len(gold))
        if f1 > figures["f1"]:
            chosen = count
            figures = {
                "f1": f1,
                "precision": correct / count,
                "recall": correct / len(gold),
                "threshold": (score + following) / 2,
            }
    return [pair for _, pair in mined[:chosen]], figures


def at_threshold(
    mined: Sequence[tuple[float, Pair]], gold: Set[Pair], threshold: float
) -> tuple[list[Pair], dict[str, float]]:
    """Applies a threshold that was chosen on another set.

    Args:
      mined: (score, pair), best first.
      gold: the gold pairs; not empty.
      threshold: the least score with which a pair counts as a translation.

    Returns:
      The pairs whose score is at least the threshold, and {"f1", "precision", "recall",
      "threshold": value}.
    """
    chosen = [pair for score, pair in mined if score >= threshold]
    correct = sum(pair in gold for pair in chosen)
    return chosen, {
        "f1": 2 * correct / (len(chosen) + len(gold)),
        "precision": correct / len(chosen) if chosen else 0.0,
        "recall": correct / len(gold),
        "threshold": threshold,
    }


def nearest(queries: np.ndarray, candidates: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns indices, int[N, k], and cosines, float64[N, k], of the nearest candidates.

    Candidates of a query are sorted, the nearest first. There are fewer if there are fewer than k.
    The cosine of embeddings that are not finite is -inf.
    """
    at_once = max(_BLOCK // len(candidates), 1)
    nearest = _search(queries, candidates, min(k, len(candidates)), at_once)
    cosines, indices = map(encoding.on_host, nearest)
    return indices, cosines.astype(np.float64)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _search(
    queries: jax.Array, candidates: jax.Array, k: int, at_once: int
) -> tuple[jax.Array, jax.Array]:
    """Returns cosines and indices of each query's k nearest candidates, [N, k] each.

    Args:
      queries: [N, D].
      candidates: [M, D].
      k: at most M.
      at_once: number of queries whose cosines are in memory at a time.
    """
    candidates = normalised(candidates)

    def search(query: jax.Array) -> tuple[jax.Array, jax.Array]:
        cosines = jnp.matmul(candidates, query, precision=jax.lax.Precision.HIGHEST)
        # NaN would be the nearest candidate of every query.
        values, indices = jax.lax.top_k(jnp.where(jnp.isfinite(cosines), cosines, -jnp.inf), k)
        return values, indices

    values, indices = jax.lax.map(search, normalised(queries), batch_size=at_once)
    return values, indices
