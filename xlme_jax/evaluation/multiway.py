"""Retrieval over many-to-many sets, such as FLORES and NTREX-128, by language and family.

Each language's sentences are searched among those of a pivot, English, and the pivot's among those
of the language; other pairs are searched on request. Figures are accuracy@1 with every readout, as
for Tatoeba, MTEB's F1 by cosine, and, with the readouts without CSLS, the error of LASER's xsim, a
search by margin (`readouts.Margins`). Each language is encoded once, and all layers are evaluated
in one pass.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from xlme_jax.data import languages
from xlme_jax.data.benchmarks import evaluation_layouts, multiway_sets
from xlme_jax.data.benchmarks.parallel_sets import is_pair, languages_of_pair
from xlme_jax.data.language_families import by_family, family
from xlme_jax.data.text.reading import DataError, ReadReport
from xlme_jax.evaluation import encoding, readouts
from xlme_jax.evaluation.measure import About, LayerFigure, Measure, ScoreColumn, ScoreTable
from xlme_jax.evaluation.outcome import Evaluation, Outcome, Result, Rows, Subject
from xlme_jax.evaluation.readouts import Margin, Margins
from xlme_jax.evaluation.results import f1s, layer_results
from xlme_jax.evaluation.retrieval import TRAINED
from xlme_jax.evaluation.training_text import EncodedSample, Fitted
from xlme_jax.validation.fields import check_at_least

MEAN = "mean"
PAIRS = "mean-pairs"
# Fewest sentences that a pair may share: a search needs a wrong candidate.
_FEWEST = 2
_WAYS = ("forward", "backward")
# Readout -> metric -> value at each layer, float64[K].
_Figures = dict[str, dict[str, np.ndarray]]


def _about(name: str, title: str) -> About:
    """Returns the description of a set's measure for reports, with `title` in headings."""
    return About(
        name=name,
        reads_pairs=True,
        reads_data="if_there",
        averaged=(MEAN,),
        by_readout=True,
        lower_is_better=("xsim", "xsim_forward", "xsim_backward"),
        hub_type="sentence-similarity",
        tables=(
            ScoreTable(
                f"{title} sentence retrieval",
                "Accuracy@1 and error of xsim, cosine, mean over all languages with English.",
                (
                    ScoreColumn("xx→en", "accuracy_forward", (MEAN,)),
                    ScoreColumn("en→xx", "accuracy_backward", (MEAN,)),
                    ScoreColumn("xsim xx→en", "xsim_forward", (MEAN,)),
                    ScoreColumn("xsim en→xx", "xsim_backward", (MEAN,)),
                ),
            ),
        ),
        figure=LayerFigure(
            f"{title} over layers",
            "accuracy@1 in percent",
            "mean over all languages with English and both directions",
        ),
    )


@dataclasses.dataclass(frozen=True)
class Multiway(Measure):
    """Sentence retrieval on a many-to-many set; `measure_of` makes the class of a set.

    Attributes:
      folder: folder with the set's files, as distributed (`data.benchmarks.evaluation_layouts`).
      languages: languages to search with the pivot, and pairs such as "fr-sw"; empty for all
        languages.
      pivot: language that is searched with all others.
      all_pairs: whether all pairs without the pivot are evaluated too, at `layer` alone.
      split: "test" or "validation" (FLORES: devtest and dev).
      layer: layer of the headline; None for the encoder's default. Results contain every layer,
        except those of `all_pairs`.
      pooling: see `Tatoeba`.
      length: maximum tokens per sentence, including specials; longer sentences are truncated.
      batch_tokens: tokens encoded at once.
      readouts: how sentences are compared (`evaluation.readouts`); "raw" is always among them.
      margin: score of xsim, "ratio", "distance" or "absolute".
      neighbours: number of nearest neighbours that xsim chooses among.
    """

    folder: str
    languages: tuple[str, ...] = ()
    pivot: str = "en"
    all_pairs: bool = False
    split: Literal["validation", "test"] = "test"
    layer: int | None = None
    pooling: encoding.Pooling = "mean"
    length: int = 512
    batch_tokens: int = encoding.BATCH_TOKENS
    readouts: tuple[str, ...] = readouts.RETRIEVAL
    margin: Margin = "ratio"
    neighbours: int = 4

    def __post_init__(self) -> None:
        encoding.check(self)
        readouts.check(self.readouts, f"{type(self).__name__}.readouts")
        check_at_least(self, type(self).__name__, 1, "neighbours")

    def build(self, subject: Subject) -> Evaluation:
        """Reads the sentences and returns a function that evaluates a model's parameters.

        Raises:
          ValueError: the folder or a language is missing, a file is damaged, or the encoder has no
            such layer.
        """
        name = type(self).__name__
        headline = encoding.choose_layer(self.layer, subject, f"{name}.layer")
        report = ReadReport()
        sentences = multiway_sets.read(self.about.name, self.folder, self.split, report)
        plan = self._plan(tuple(sentences))
        length = min(self.length, subject.max_length or self.length)

        def lay_out(texts: Sequence[encoding.Text]) -> list[encoding.Batch]:
            return encoding.batches(texts, subject.row_multiple, self.batch_tokens)

        sides = {
            code: _Side(sentences[code], subject, length, lay_out, report)
            for code in plan.languages
        }
        counts = {plan.name(pair): len(_shared(pair, sides)[0]) for pair in plan.all_pairs}
        if small_sets := [name for name, count in counts.items() if count < _FEWEST]:
            raise DataError(
                f"{self.folder}: {self.about.name}, {self.split}, has fewer than {_FEWEST} "
                f"sentences of {', '.join(small_sets)} and {plan.pivot}; name the other languages"
            )
        names = tuple(dict.fromkeys((readouts.RAW, *self.readouts)))
        # Fitting a rotation for all pairs of a hundred languages would take longer than the rest.
        sampled = plan.with_pivot if self.all_pairs else plan.all_pairs
        search = _Search(
            plan,
            sides,
            EncodedSample(subject.training_text, sampled, length, lay_out, names),
            jax.jit(encoding.pool_all(subject.encode, self.pooling)),
            names,
            Margins(self.margin, self.neighbours),
        )
        # All pairs of a hundred languages are too many for every layer; named pairs are few.
        layers = slice(headline, headline + 1) if self.all_pairs else slice(None)

        def evaluate(params: Any) -> Outcome:
            with_pivot, between = search.run(params, layers)
            results = self._results(with_pivot, plan.groups(with_pivot), counts)
            if between:
                mean = PAIRS if with_pivot else MEAN
                groups = {x: (x,) for x in between} | {mean: tuple(between)}
                results += self._results(between, groups, counts, layers.start or 0)
            return self._outcome(results, headline, counts, report)

        return evaluate

    def _plan(self, available: Sequence[str]) -> "_Plan":
        """Returns the languages and pairs to compare, spelled as in the set.

        Args:
          available: the languages of the set.

        Raises:
          DataError: a language is not in the set, or there is none but the pivot.
        """

        def spelled(code: str) -> str:
            (name,) = languages.spelled_as([code], available)
            if name not in available:
                raise DataError(
                    f"{self.folder}: {code!r} is not in {self.about.name}, {self.split}; choose "
                    f"from {', '.join(available)}"
                )
            return name

        pivot = spelled(self.pivot)
        named = [code for code in self.languages if code not in available and is_pair(code)]
        pairs = [tuple(map(spelled, languages_of_pair(code))) for code in named]
        sources = [spelled(code) for code in self.languages if code not in named]
        if not self.languages:
            sources = list(available)
        sources = [code for code in dict.fromkeys(sources) if code != pivot]
        sources += [x if y == pivot else y for x, y in pairs if pivot in (x, y)]
        if self.all_pairs:
            pairs += itertools.combinations(sources, 2)
        plan = _Plan(
            pivot,
            tuple(dict.fromkeys(sources)),
            tuple(dict.fromkeys((x, y) for x, y in pairs if pivot not in (x, y))),
        )
        if not plan.all_pairs:
            raise DataError(
                f"{self.folder}: {self.about.name}, {self.split}, has nothing to search but "
                f"{pivot!r} itself; name another language"
            )
        return plan

    def _results(
        self,
        figures_of: Mapping[str, _Figures],
        groups: Mapping[str, Sequence[str]],
        counts: Mapping[str, int],
        first_layer: int = 0,
    ) -> list[Result]:
        """Returns the results of the model and of chance.

        Args:
          figures_of: {language or pair: its figures}.
          groups: {name in results: languages or pairs whose mean it is}; see `layer_results`.
          counts: {language or pair: number of its sentences}.
          first_layer: number of the layer of the first figure.
        """
        task = self.about.name
        by_chance: list[Result] = []
        for name, members in groups.items():
            accuracy = float(np.mean([1 / counts[member] for member in members]))
            values = {"accuracy": accuracy}
            values |= dict.fromkeys(self.about.lower_is_better, 1 - accuracy)
            by_chance += [
                Result(task, name, metric, value, self.split, system="chance")
                for metric, value in values.items()
            ]
        setting = (
            f"{encoding.POOLINGS[self.pooling]}; {{}}; xsim: {self.margin} margin, "
            f"k = {self.neighbours}; {encoding.LAYERS}"
        )
        return by_chance + layer_results(task, self.split, setting, figures_of, groups, first_layer)

    def _outcome(
        self,
        results: Sequence[Result],
        headline: int,
        counts: Mapping[str, int],
        report: ReadReport,
    ) -> Outcome:
        """Returns the outcome, with a TSV file of the figures at the headline's layer (`_tsv`).

        Args:
          results: results of the model, at every layer, and of chance, at none.
          headline: layer of the headline.
          counts: {language or pair: number of sentences}.
          report: counts of what was skipped or repaired.
        """
        task = self.about.name
        rows: dict[str, dict[str, float]] = {}
        for result in results:
            if result.readout != readouts.RAW or result.layer not in (headline, None):
                continue
            if result.system == "chance" and result.metric != "accuracy":
                continue
            metric = result.metric if result.system == "model" else "chance"
            rows.setdefault(result.language, {})[metric] = result.value
        values = {f"{task}/{metric}": value for metric, value in rows.get(MEAN, {}).items()}
        return Outcome(
            tuple(results),
            values,
            {f"{task}_languages.tsv": _tsv(rows, counts)},
            dict(report.skipped),
            repaired=dict(report.repaired),
        )


def _tsv(rows: Mapping[str, Mapping[str, float]], counts: Mapping[str, int]) -> str:
    """Returns a TSV file with a line for each language, pair and mean.

    Args:
      rows: {language, pair or mean: {metric: value}}.
      counts: {language or pair: number of sentences}.
    """
    metrics = ("accuracy_forward", "accuracy_backward", "xsim_forward", "xsim_backward")
    lines = ["\t".join(("language", "family", "sentences", *metrics))]
    for name, values in rows.items():
        count = str(counts[name]) if name in counts else ""
        cells = (f"{values[metric]:.4f}" for metric in metrics)
        lines.append("\t".join((name, family(name), count, *cells)))
    return "\n".join(lines) + "\n"


@functools.cache
def measure_of(task: str) -> type[Multiway]:
    """Returns the measure of a set of translations.

    Args:
      task: a task of `evaluation_layouts.tasks`, such as "ntrex"; its class is `Ntrex`.
    """
    title = evaluation_layouts.tasks()[task]
    name = task.capitalize()
    text = f"Sentence retrieval on {title}; its fields are those of `Multiway`."
    members = {"__module__": __name__, "__doc__": text, "about": _about(task, title)}
    return dataclasses.dataclass(frozen=True)(type(name, (Multiway,), members))


# Those with a name in gin files (`measures.EVALUATORS`).
Flores, Ntrex, Tico19 = map(measure_of, ("flores", "ntrex", "tico19"))


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The languages and pairs that are compared, spelled as in the set.

    Attributes:
      pivot: the language that all `sources` are compared with.
      sources: languages that are compared with the pivot.
      pairs: pairs of languages without the pivot.
    """

    pivot: str
    sources: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]

    def name(self, pair: tuple[str, str]) -> str:
        """Returns the name of a pair in results; a language's own name if paired with the pivot."""
        return pair[0] if pair[1] == self.pivot else "-".join(pair)

    @property
    def with_pivot(self) -> list[tuple[str, str]]:
        """The pairs (language, pivot)."""
        return [(code, self.pivot) for code in self.sources]

    @property
    def all_pairs(self) -> list[tuple[str, str]]:
        """All pairs; those with the pivot come first."""
        return [*self.with_pivot, *self.pairs]

    @property
    def paired(self) -> set[str]:
        """Languages of the pairs without the pivot."""
        return set(itertools.chain(*self.pairs))

    @property
    def languages(self) -> list[str]:
        """All languages, the pivot first."""
        return list(dict.fromkeys([self.pivot, *itertools.chain(*self.all_pairs)]))

    def groups(self, figures_of: Mapping[str, _Figures]) -> dict[str, tuple[str, ...]]:
        """Returns {name in results: languages}: each language by itself, and means.

        Means are over all languages, over those of the training text if these are some but not all,
        and over each family. Varieties of the pivot's language, such as "en-GB", are in no mean,
        because their sentences are no translations, unless there is no other language.

        Args:
          figures_of: {language: its figures with the pivot}.
        """
        members = tuple(
            x for x in figures_of if not languages.same_language(x, self.pivot)
        ) or tuple(figures_of)
        trained = tuple(x for x in members if "centred" in figures_of[x])
        groups: dict[str, tuple[str, ...]] = {x: (x,) for x in figures_of}
        if members:
            groups[MEAN] = members
        if 0 < len(trained) < len(members):
            groups[TRAINED] = trained
        by_name = by_family(members).items()
        return groups | {f"{MEAN}-{name}": of_family for name, of_family in by_name}


class _Side:
    """The sentences that a language has, in batches.

    Args:
      sentences: all sentences of the set in the language; "" where it lacks one.
      subject: the encoder.
      length: maximum tokens per sentence, including specials.
      lay_out: function that lays texts out in batches.
      report: collects the count of sentences that are cut.

    Attributes:
      units: int[n], numbers in the set of the sentences that the language has, ascending.
      text_ids: int[n], a number for each of these sentences; equal sentences have equal numbers.
    """

    def __init__(
        self,
        sentences: Sequence[str],
        subject: Subject,
        length: int,
        lay_out: Callable[[Sequence[encoding.Text]], list[encoding.Batch]],
        report: ReadReport,
    ):
        self.units = np.array([i for i, text in enumerate(sentences) if text], np.int64)
        texts = [text for text in sentences if text]
        self.text_ids = np.unique(texts, return_inverse=True)[1]
        self._batches = lay_out(encoding.texts_of(subject.vocabulary, texts, length, report))

    def embed(self, pooled: Callable[[Any, Rows], jax.Array], params: Any) -> np.ndarray:
        """Returns the pooled states of the sentences at all layers, float32[K, n, D]."""
        return encoding.embed(pooled, params, self._batches).swapaxes(0, 1)


@dataclasses.dataclass(frozen=True)
class _Search:
    """Searches the pairs of a plan with an encoder.

    Attributes:
      plan: what is compared.
      sides: the sentences of each language.
      sample: training text for the readouts.
      pooled: (params, rows) -> pooled states of all layers.
      readouts: names of readouts.
      margins: settings of xsim.
    """

    plan: _Plan
    sides: Mapping[str, _Side]
    sample: EncodedSample
    pooled: Callable[[Any, Rows], jax.Array]
    readouts: Sequence[str]
    margins: Margins

    def run(self, params: Any, layers: slice) -> tuple[dict[str, _Figures], dict[str, _Figures]]:
        """Returns the figures of all pairs; each language is encoded once.

        Args:
          params: the encoder's parameters.
          layers: layers at which pairs without the pivot are compared.

        Returns:
          {language: its figures with the pivot} and {name of a pair without the pivot: figures}.
        """
        plan = self.plan
        means = Fitted(self.sample.means(self.pooled, params))
        pivot = self.sides[plan.pivot].embed(self.pooled, params)
        with_pivot: dict[str, _Figures] = {}
        between: dict[str, _Figures] = {}
        states = {}
        for code, side in self.sides.items():
            of_side = pivot if code == plan.pivot else side.embed(self.pooled, params)
            if code in plan.sources:
                pair = (code, plan.pivot)
                fitted = self.sample.with_rotation(means, pair, self.pooled, params)
                with_pivot[code] = self._figures(pair, (of_side, pivot), fitted)
            if code in plan.paired:
                states[code] = of_side[layers].copy()  # A view would keep all layers.
        for pair in plan.pairs:
            fitted = self.sample.with_rotation(means, pair, self.pooled, params).at(layers)
            of_sides = (states[pair[0]], states[pair[1]])
            between[plan.name(pair)] = self._figures(pair, of_sides, fitted)
        return with_pivot, between

    def _figures(
        self, pair: tuple[str, str], states: tuple[np.ndarray, np.ndarray], fitted: Fitted
    ) -> _Figures:
        """Returns the figures of a pair, over the sentences that both languages have.

        Args:
          pair: the languages.
          states: pooled states of all sentences of each language, [K, n, D] each.
          fitted: means and rotations for readouts.
        """
        units = _shared(pair, self.sides)
        source, target = (of_side[:, rows] for of_side, rows in zip(states, units))
        by_readout = fitted.search(pair, source, target, self.readouts, self.margins)
        # Equal texts are the same translation, as in LASER's evaluation.
        texts = [self.sides[code].text_ids[rows] for code, rows in zip(pair, units)]
        values: _Figures = {}
        for name, hits in by_readout.items():
            of_readout = {
                "accuracy" if direction == "mean" else f"accuracy_{direction}": accuracy
                for direction, accuracy in readouts.accuracies(hits).items()
            }
            if name == readouts.RAW:
                of_readout |= {f"f1_{direction}": f1 for direction, f1 in f1s(hits).items()}
            for direction, candidates in zip(_WAYS, texts[::-1]):
                if (nearest := hits.get(f"{direction}_margin")) is not None:
                    is_wrong = (candidates[nearest] != candidates) | (nearest < 0)
                    of_readout[f"xsim_{direction}"] = is_wrong.mean(axis=1, dtype=np.float64)
            if "xsim_forward" in of_readout:
                errors = of_readout["xsim_forward"] + of_readout["xsim_backward"]
                of_readout["xsim"] = errors / 2
            values[name] = of_readout
        return values


def _shared(pair: tuple[str, str], sides: Mapping[str, _Side]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows, int[N] on each side, of the sentences that both languages have."""
    first, second = (sides[code].units for code in pair)
    _, source, target = np.intersect1d(first, second, assume_unique=True, return_indices=True)
    return source, target
