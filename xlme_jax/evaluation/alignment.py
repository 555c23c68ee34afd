"""Word alignment by optimal transport at every layer (XLM-E Table 6, Figure 4).

A pair is encoded as one row, `<s> e </s> f </s>`, each word tokenized separately. The similarity of
two tokens is the dot product of their hidden states. Two rounds of Sinkhorn scaling, columns
(tokens of f) before rows (tokens of e), convert the similarities to a transport plan. Each token
selects the token of the other side with the largest entry, and tokens that select each other are
linked. Words are linked if any of their tokens are. This is the method of XLM-Align's aligner,
whose results XLM-E quotes and compares with.

Despite the method's name, that aligner uses no exponential: its kernel is the dot products
themselves, here clamped to at least 1e-6. With `WordAlignment.temperature` the kernel is exp(dot
product / temperature), the entropic plan. Both are computed from logarithms, so states of any scale
work.

A second aligner stands beside it, with metrics "aer_argmax" and so on: tokens are linked if each
has the largest cosine for the other, as by SimAlign's "argmax" (Jalili Sabet et al. 2020). SimAlign
encodes the two sides apart, and here they are one row. The temperature does not change these links.

Differences from XLM-Align's script (word_aligner/xlmalign-ot-aligner.py of its repository):

- Clamping: the script means to raise dot products of 0 or less to 1e-6, but fills a copy, so that
  they stay as they are in its sums and maxima. Ours are raised. The links can differ only in pairs
  with such a product.
- Pairs longer than the encoder's maximum are cut and counted: words beyond it have no link, so that
  their gold links are missed. The script fails.

Scores follow the script's rules: sums over all pairs of a set; S is part of P; a sure link that
names no word is part of S. The first language of a set's name is the first in the row and in the
links of the gold file.
"""

import collections
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlme_jax.data.benchmarks import labelled_rows
from xlme_jax.data.benchmarks.featurize import truncated
from xlme_jax.data.benchmarks.parallel_sets import (
    ALIGNMENTS_4,
    AlignedCorpus,
    alignment_folders,
    english_first,
    is_pair,
    languages_of_pair,
    read_alignments,
)
from xlme_jax.data.languages import tag_or_code
from xlme_jax.data.text.reading import DataError, ReadReport
from xlme_jax.data.token_ids import BOS_ID, EOS_ID
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation import encoding
from xlme_jax.evaluation.alignment_matrices import AlignmentMatrix, matrix_file
from xlme_jax.evaluation.alignment_scores import Counts, Links, diagonal
from xlme_jax.evaluation.measure import (
    About,
    LayerFigure,
    Measure,
    Request,
    ScoreColumn,
    ScoreTable,
)
from xlme_jax.evaluation.outcome import Evaluation, Outcome, Result, Rows, Subject
from xlme_jax.storage.paths import as_path

_log = logging.getLogger(__name__)

_ROUNDS = 2
_SMALLEST = 1e-6
# {aligner: suffix of its metrics}.
_SUFFIXES = {"transport": "", "argmax": "_argmax"}


@dataclasses.dataclass(frozen=True)
class WordAlignment(Measure):
    """Word alignment on sets of gold alignments.

    Attributes:
      folder: folder with a subfolder for each set of gold alignments.
      corpora: names of subfolders; empty for all. "en-de" is also found as "de-en": the same set,
        read in the direction of the folder's name.
      layer: layer of the headline; None for the encoder's default. Results contain every layer.
      temperature: None uses the dot products as the kernel, as XLM-Align's aligner does; a number
        uses exp(dot product / temperature).
      length: maximum tokens per pair, including specials; longer pairs are cut and counted.
      batch_tokens: tokens encoded at once.
    """

    about: ClassVar[About] = About(
        name="wordalign",
        reads_pairs=True,
        is_default=True,
        metric="aer",
        lower_is_better=tuple(f"aer{x}" for x in _SUFFIXES.values()),
        averaged=ALIGNMENTS_4,
        hub_type="token-classification",
        tables=(
            ScoreTable(
                "Word alignment",
                "XLM-E Table 6: alignment error rate of its four sets, lower is better; en-de is "
                "the set de-en too, and en-ro ro-en.",
                (
                    *(ScoreColumn(pair, "aer", (pair,)) for pair in ALIGNMENTS_4),
                    ScoreColumn("Avg", "aer", ALIGNMENTS_4),
                ),
            ),
        ),
        figure=LayerFigure(
            "Word alignment over layers",
            "AER in percent",
            "as XLM-E's Figure 4: mean over those of its sets that are there "
            f"({', '.join(ALIGNMENTS_4)})",
        ),
    )

    folder: str
    corpora: tuple[str, ...] = ()
    layer: int | None = None
    temperature: float | None = None
    length: int = 512
    batch_tokens: int = encoding.BATCH_TOKENS

    def __post_init__(self) -> None:
        encoding.check(self)
        if self.temperature is not None and not self.temperature > 0:
            raise ValueError(
                f"WordAlignment.temperature = {self.temperature} must be positive, or None for "
                "plain dot products."
            )

    @classmethod
    def requested(cls, task: str, request: Request, configured: Sequence[Any]) -> Self:
        """See `Measure.requested`; a pair names a set, a language chooses all sets with it.

        If there are pairs, languages are left out, which is logged if there is no other task. If
        there are other tasks, so are languages without a set.

        Raises:
          ValueError: there is no folder, no set has one of the languages, or, without other tasks,
            a language has no set.
        """
        del configured
        folder = str(labelled_rows.folder_of(request.data, task))
        languages = request.languages
        corpora = tuple(pair for pair in languages if is_pair(pair))
        single = [code for code in languages if not is_pair(code)]
        if corpora and single and request.tasks == (task,):
            _log.warning(
                "--languages: %s is left out, as sets are named too; name either",
                ", ".join(single),
            )
        if languages and not corpora:
            tags_of_sets = {
                name: set(map(tag_or_code, languages_of_pair(name)))
                for name in alignment_folders(folder)
            }
            tags = set(map(tag_or_code, languages)) - {"en"}
            corpora = tuple(name for name, of_set in tags_of_sets.items() if tags & of_set)
            missing = tags.difference(*tags_of_sets.values())
            if not corpora or (missing and request.tasks == (task,)):
                raise ValueError(
                    f"--languages={','.join(languages)}: {folder} has no word alignments of "
                    f"{', '.join(sorted(missing)) or 'these'}; choose from "
                    f"{', '.join(tags_of_sets) or 'none'}"
                )
        return cls(folder, corpora, request.layer)

    @classmethod
    def set_of(cls, language: str) -> str:
        """Returns the name of a set in tables: the pair with English first."""
        return english_first(language)

    def build(self, subject: Subject) -> Evaluation:
        """Reads the pairs and returns the evaluation of some parameters.

        A set whose files are damaged, or that has no pair of at most `length` tokens, is left out:
        the log and `Outcome.skipped` give the reason.

        Raises:
          ValueError: the folder or a corpus is missing, every set was left out, or the encoder has
            no such layer.
        """
        headline = encoding.choose_layer(self.layer, subject, "WordAlignment.layer")
        length = min(self.length, subject.max_length or self.length)
        skipped: dict[str, int] = {}
        repaired: dict[str, int] = {}
        named_rows = [
            (name, row)
            for name, rows in self._read(subject, length, skipped, repaired).items()
            for row in rows
        ]
        batches = encoding.batches(
            [row.tokens for _, row in named_rows], subject.row_multiple, self.batch_tokens
        )
        align = jax.jit(_aligner(subject, self.temperature))
        plan = jax.jit(_planner(subject, headline, self.temperature))
        names = list(dict.fromkeys(name for name, _ in named_rows))
        drawn = [
            _worth_drawing([row for set_name, row in named_rows if set_name == name])
            for name in names
        ]

        def evaluate(params: Any) -> Outcome:
            counts = _count_links(named_rows, encoding.run(align, params, batches))
            files: dict[str, str] = {}
            matrices = _matrices(plan, params, drawn, subject.row_multiple)
            for name, matrix in zip(names, matrices):
                files |= matrix_file(f"{name}_layer_{headline}", matrix)
            results, headline_values = self._results(counts, headline, subject.restarts)
            return Outcome(tuple(results), headline_values, files, skipped, repaired=repaired)

        return evaluate

    def _read(
        self, subject: Subject, length: int, skipped: dict[str, int], repaired: dict[str, int]
    ) -> dict[str, list["_Row"]]:
        """Returns {name of a set: tokenized pairs} of all sets that can be used.

        Adds counts of skipped links and of sets that are left out to `skipped`, those of cut pairs
        to `repaired`.

        Raises:
          ValueError: the folder or a corpus is missing, or every set is left out.
        """
        rows_by_set: dict[str, list[_Row]] = {}
        left_out: list[str] = []
        for name in self._names():
            report = ReadReport()
            try:
                corpus = read_alignments(as_path(self.folder) / name, report)
                rows_by_set[name] = self._cut_rows(corpus, subject, length, report)
            except DataError as error:
                left_out.append(str(error))
                _log.warning("word alignment set %s is left out: %s", name, error)
                skipped[f"{name}: the whole set: {error}"] = 1
                continue
            skipped |= {f"{name}: {reason}": count for reason, count in report.skipped.items()}
            repaired |= {f"{name}: {repair}": count for repair, count in report.repaired.items()}
        if not rows_by_set:
            raise ValueError("no set of word alignments can be used: " + "; ".join(left_out))
        return rows_by_set

    def _names(self) -> Iterator[str]:
        """Yields the names of the subfolders to read; ValueError if one is missing."""
        folders = alignment_folders(self.folder)
        if not folders:
            raise ValueError(
                f"{self.folder}: no folders of word alignments; each needs src.txt, tgt.txt and "
                "gold.txt, or test.en, test.fr and alignv2.txt in a folder like en-fr"
            )
        by_pair = {english_first(name): name for name in folders}
        for name in self.corpora or folders:
            if name not in folders and english_first(name) not in by_pair:
                raise ValueError(
                    f"WordAlignment.corpora has {name!r}, but {self.folder} has no such folder; "
                    f"choose from {', '.join(folders)}"
                )
            yield name if name in folders else by_pair[english_first(name)]

    @staticmethod
    def _cut_rows(
        corpus: AlignedCorpus, subject: Subject, length: int, report: ReadReport
    ) -> list["_Row"]:
        """Returns the tokenized pairs of a corpus, cut to `length` tokens.

        The number of cut pairs is added to `report`.

        Raises:
          DataError: all pairs have more than `length` tokens.
        """
        rows = _rows(corpus, subject.vocabulary)
        longer = sum(len(row.tokens) > length for row in rows)
        if longer == len(rows):
            raise DataError(
                f"{corpus.name}: no pair has {length} tokens or fewer; raise WordAlignment.length, "
                "or leave it out of WordAlignment.corpora"
            )
        report.repair(f"pairs cut to {length} tokens: words beyond have no link", longer)
        return _rows(corpus, subject.vocabulary, length) if longer else rows

    def _results(
        self, counts: "_Tally", headline: int, restarts: bool
    ) -> tuple[list[Result], dict[str, float]]:
        """Returns the results of the model by layer and of the diagonal, and the headline.

        Results are those of each set, their mean, and "mean-4", the mean over the sets of XLM-E's
        Table 6, if all four are there.

        Args:
          counts: link counts.
          headline: layer of the headline.
          restarts: whether positions restart on the second side, for `Result.setting`.
        """
        kernel = "the dot products"
        if self.temperature is not None:
            kernel = f"exp(dot products / {self.temperature:g})"
        setting = f"optimal transport, {_ROUNDS} rounds on {kernel}; {encoding.LAYERS}"
        settings = {"": setting, "_argmax": f"mutual argmax of cosines; {encoding.LAYERS}"}
        values, how = {}, {}
        for (corpus, layer, suffix), link_counts in counts.items():
            for metric, value in link_counts.figures().items():
                values[corpus, metric + suffix, layer] = value
                how[metric + suffix] = settings[suffix] + (
                    "; positions restart on the second side" if restarts else ""
                )
        values |= _means(values)
        results = [
            _result(self.about.name, corpus, metric, value, layer, how[metric])
            for (corpus, metric, layer), value in values.items()
        ]
        headline_values = {
            f"{self.about.name}{group}/{name}": values[mean, "aer", layer]
            for group, mean in (("", "mean"), ("/mean-4", "mean-4"))
            for name, layer in (("aer", headline), ("diagonal", None))
            if (mean, "aer", layer) in values
        }
        return results, headline_values


def _means(
    values: Mapping[tuple[str, str, int | None], float],
) -> dict[tuple[str, str, int | None], float]:
    """Returns means over sets, with "mean" or "mean-4" in place of the name of a set.

    Args:
      values: {(set, metric, layer): value}; layer None is the diagonal's.
    """
    of_all: dict[tuple[str, int | None], dict[str, float]] = collections.defaultdict(dict)
    for (name, metric, layer), value in values.items():
        of_all[metric, layer][name] = value
    means = {}
    for (metric, layer), by_set in of_all.items():
        means["mean", metric, layer] = float(np.mean(list(by_set.values())))
        papers = {english_first(x): value for x, value in by_set.items()}
        if set(ALIGNMENTS_4) <= papers.keys():
            four = [papers[name] for name in ALIGNMENTS_4]
            means["mean-4", metric, layer] = float(np.mean(four))
    return means


def _count_links(
    named_rows: Sequence[tuple[str, "_Row"]],
    batches: Iterable[tuple[np.ndarray, Mapping[str, np.ndarray]]],
) -> "_Tally":
    """Counts the links of the model and of the diagonal.

    Args:
      named_rows: (name of the set, pair) of each pair.
      batches: of each batch, the indices of its pairs, int[R]; and {aligner: links of tokens,
        int32[R, layers + 1, L]}, as from `_aligner`.
    """
    counts = _Tally()
    for indices, links_by_aligner in batches:
        for aligner, links in links_by_aligner.items():
            for index, by_layer in zip(indices, links):
                name, row = named_rows[index]
                for layer, linked in enumerate(by_layer):
                    counts[name, layer, _SUFFIXES[aligner]] += row.count(row.word_links(linked))
    for name, row in named_rows:
        counts[name, None, ""] += row.count(diagonal(len(row.source), len(row.target)))
    return counts


class _Tally(dict[tuple[str, int | None, str], Counts]):
    """Link counts, initially zero, by (set, layer or None for the diagonal, suffix of metrics)."""

    def __missing__(self, key: tuple[str, int | None, str]) -> Counts:
        return Counts()


def _result(
    task: str, language: str, metric: str, value: float, layer: int | None, setting: str
) -> Result:
    """Returns a result of the model, or for layer None of the diagonal, which has no setting."""
    system, setting = ("diagonal", "") if layer is None else ("model", setting)
    # XL-WA also has validation sets; the names of their folders end so.
    split = "validation" if language.endswith("_dev") else "test"
    return Result(task, language, metric, value, split, layer, system, setting)


@dataclasses.dataclass(frozen=True)
class _Row:
    """A tokenized pair.

    Attributes:
      source: words of e.
      target: words of f.
      sure: sure gold links.
      possible: possible gold links.
      outside: sure gold links that name no word.
      tokens: `<s> e </s> f </s>`, n tokens.
      words: int[n], index of each token's word on its side; -1 for `<s>` and `</s>`.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    sure: Links
    possible: Links
    outside: Links
    tokens: encoding.Text
    words: np.ndarray

    def word_links(self, linked: np.ndarray) -> set[tuple[int, int]]:
        """Returns the links (source word, target word) whose tokens are linked.

        Args:
          linked: int[L], links of the row's tokens at one layer, from `_aligner`.
        """
        sources = np.flatnonzero(linked >= 0)
        targets = linked[sources]
        return set(zip(self.words[sources].tolist(), self.words[targets].tolist()))

    def word_shares(self, shares: np.ndarray) -> np.ndarray:
        """Returns float64[source words, target words], the largest share of their tokens, or 0.

        Args:
          shares: float32[L, L], the shares of source tokens (rows) that are transported to target
            tokens (columns), from `_planner`; 0 for all other tokens.
        """
        largest = np.zeros((len(self.source), len(self.target)))
        sources, targets = np.nonzero(shares)
        np.maximum.at(largest, (self.words[sources], self.words[targets]), shares[sources, targets])
        return largest

    def count(self, predicted: Links) -> Counts:
        """Counts the agreement of predicted and gold links."""
        return Counts.of(predicted, self.sure | self.outside, self.possible)


def _rows(corpus: AlignedCorpus, vocabulary: Vocabulary, length: int | None = None) -> list[_Row]:
    """Returns the pairs of a corpus, tokenized word by word, so that each token has its word.

    Pairs of more than `length` tokens, specials included, are cut token by token at the end of the
    longer side; None cuts none.
    """
    sides = corpus.sources, corpus.targets
    words = list(dict.fromkeys(word for side in sides for text in side for word in text))
    pieces = dict(zip(words, vocabulary.encode_batch(words)))
    rows = []
    outside = corpus.outside or (frozenset(),) * len(corpus.sources)
    for source, target, sure, possible, stray in zip(*sides, corpus.sure, corpus.possible, outside):
        texts = [
            [(token, index) for index, word in enumerate(text) for token in pieces[word]]
            for text in (source, target)
        ]
        sizes = list(map(len, texts))
        if length is not None:
            sizes = truncated(sizes, length - 3)
        row = [(BOS_ID, -1)]
        for text, size in zip(texts, sizes):
            row += [*text[:size], (EOS_ID, -1)]
        tokens, owners = zip(*row)
        rows.append(_Row(source, target, sure, possible, stray, tokens, np.array(owners)))
    return rows


def _aligner(
    subject: Subject, temperature: float | None
) -> Callable[[Any, Rows], dict[str, jax.Array]]:
    """Returns the function (params, rows) -> {aligner: links, int32[R, layers + 1, L]}.

    The links have, at the position of each source token, the position of the target token that it
    is linked to, and -1 at all other positions. The aligners are "transport" and "argmax".
    """

    def align(params: Any, rows: Rows) -> dict[str, jax.Array]:
        sides = _sides(rows)
        states = _encode(subject, params, rows)
        scores = {
            "transport": [_plan(h, *sides, temperature) for h in states],
            "argmax": [_cosines(h, *sides) for h in states],
        }
        return {
            aligner: jnp.stack([_mutual(of_layer) for of_layer in by_layer], axis=1)
            for aligner, by_layer in scores.items()
        }

    return align


def _cosines(hidden: jax.Array, source: jax.Array, target: jax.Array) -> jax.Array:
    """Returns the cosines of source tokens (rows) with target tokens (columns), float32[R, L, L].

    All entries of other tokens are -inf.

    Args:
      hidden: [R, L, D], states.
      source: bool[R, L], which tokens are words of the source.
      target: bool[R, L], which tokens are words of the target.
    """
    hidden = hidden.astype(jnp.float32)
    hidden /= jnp.linalg.norm(hidden, axis=2, keepdims=True)
    exact = jax.lax.Precision.HIGHEST
    cosines = jnp.einsum("rid,rjd->rij", hidden, hidden, precision=exact)
    return jnp.where(source[:, :, None] & target[:, None, :], cosines, -jnp.inf)


def _encode(subject: Subject, params: Any, rows: Rows) -> list[jax.Array]:
    """Returns the hidden states of pairs by layer, [R, L, D] each.

    Positions are those of training: they restart on the second side if `Subject.restarts`.
    """
    if not subject.restarts:
        return subject.encode(params, rows)
    is_end = rows["tokens"] == EOS_ID
    is_second = (jnp.cumsum(is_end, axis=1) - is_end >= 1) & (rows["segment_ids"] > 0)
    first = ((rows["segment_ids"] > 0) & ~is_second).sum(axis=1, keepdims=True)
    positions = jnp.where(is_second, rows["positions"] - first, rows["positions"])
    return subject.encode(params, {**rows, "positions": positions})


def _sides(rows: Rows) -> tuple[jax.Array, jax.Array]:
    """Returns which tokens belong to words of the source, and which to words of the target.

    Both are bool[R, L]; specials and padding belong to neither.
    """
    ends = jnp.cumsum(rows["tokens"] == EOS_ID, axis=1)
    is_word = (rows["tokens"] != BOS_ID) & (rows["tokens"] != EOS_ID) & (rows["segment_ids"] > 0)
    return is_word & (ends == 0), is_word & (ends == 1)


def _plan(
    hidden: jax.Array, source: jax.Array, target: jax.Array, temperature: float | None
) -> jax.Array:
    """Returns the logarithm of the transport plan, float32[R, L, L].

    Rows are source tokens, columns are target tokens, and all other entries are -inf. The last
    scaling of the rows is left out, because it does not change the largest column of a row; a
    caller that needs shares applies a softmax to the rows.

    Args:
      hidden: [R, L, D], states.
      source: bool[R, L], which tokens are words of the source.
      target: bool[R, L], which tokens are words of the target.
      temperature: see `WordAlignment.temperature`.
    """
    hidden = hidden.astype(jnp.float32)
    exact = jax.lax.Precision.HIGHEST
    dots = jnp.einsum("rid,rjd->rij", hidden, hidden, precision=exact)
    pair = source[:, :, None] & target[:, None, :]
    plan = jnp.log(jnp.maximum(dots, _SMALLEST)) if temperature is None else dots / temperature
    columns, rows = 1, 2
    for axis in (columns, rows) * (_ROUNDS - 1) + (columns,):
        total = jax.nn.logsumexp(plan, axis=axis, keepdims=True, where=pair)
        plan = jnp.where(pair, plan - total, -jnp.inf)
    return plan


def _mutual(plan: jax.Array) -> jax.Array:
    """Returns, for each row, the column with its largest entry, int32[R, L].

    It is -1 where the row does not have the largest entry of that column in turn.

    Args:
      plan: [R, L, L], plans or similarities; -inf outside of pairs of a source and a target token.
    """
    # Not by equality with the maximum: fused programs may round the two differently.
    forward, backward = plan.argmax(axis=2), plan.argmax(axis=1)
    # For each row, the best row of its best column.
    back = jnp.take_along_axis(backward, forward, axis=1)
    # False for tokens without a word, and for non-finite states.
    is_finite = jnp.isfinite(plan.max(axis=2))
    return jnp.where(is_finite & (back == jnp.arange(plan.shape[1])), forward, -1)


class PairAligner:
    """Aligns single pairs at a layer, as `WordAlignment` does by optimal transport.

    Args:
      subject: the encoder.
      layer: the layer; None for the encoder's default.
      temperature: see `WordAlignment.temperature`.

    Raises:
      ValueError: the encoder has no such layer.
    """

    def __init__(
        self, subject: Subject, layer: int | None = None, temperature: float | None = None
    ):
        chosen = encoding.choose_layer(layer, subject, "layer")
        self._subject = subject
        self._plan = jax.jit(_planner(subject, chosen, temperature))

    def __call__(self, params: Any, corpus: AlignedCorpus) -> list[AlignmentMatrix]:
        """Returns a matrix for each pair of a corpus.

        The entry of two words is the largest share of a token of the source word that is
        transported to a token of the target word; 0 if one of the words has no tokens.

        Args:
          params: the encoder's parameters.
          corpus: the pairs.

        Raises:
          ValueError: a pair has more tokens than the encoder reads.
        """
        rows = _rows(corpus, self._subject.vocabulary)
        length = max(len(row.tokens) for row in rows)
        max_length = self._subject.max_length
        if max_length is not None and length > max_length:
            raise ValueError(
                f"a pair has {length} tokens with <s> and </s>, and the encoder reads "
                f"{max_length}; shorten it"
            )
        return _matrices(self._plan, params, rows, self._subject.row_multiple)


def _planner(
    subject: Subject, layer: int, temperature: float | None
) -> Callable[[Any, Rows], tuple[jax.Array, jax.Array]]:
    """Returns the function (params, rows) -> (plan, float32[R, L, L]; its links by `_mutual`).

    The rows of the plan are scaled last, so that each row of a source token adds up to 1. All other
    entries are 0.
    """

    def plan(params: Any, rows: Rows) -> tuple[jax.Array, jax.Array]:
        scaled = _plan(_encode(subject, params, rows)[layer], *_sides(rows), temperature)
        shares = jnp.where(jnp.isfinite(scaled), jax.nn.softmax(scaled, axis=2), 0.0)
        return shares, _mutual(scaled)

    return plan


def _matrices(
    plan: Callable[[Any, Rows], tuple[jax.Array, jax.Array]],
    params: Any,
    rows: Sequence[_Row],
    row_multiple: int,
) -> list[AlignmentMatrix]:
    """Returns the matrix over words of each pair.

    Args:
      plan: function from `_planner`, compiled.
      params: the encoder's parameters.
      rows: the pairs.
      row_multiple: see `encoding.batches`.
    """
    matrices: dict[int, AlignmentMatrix] = {}
    batches = encoding.batches([row.tokens for row in rows], row_multiple)
    for indices, (shares, links) in encoding.run(plan, params, batches):
        for index, shares_of_row, links_of_row in zip(indices.tolist(), shares, links):
            row = rows[index]
            matrices[index] = AlignmentMatrix(
                source=row.source,
                target=row.target,
                matrix=row.word_shares(shares_of_row),
                sure=frozenset(row.sure),
                possible=frozenset(row.possible),
                predicted=frozenset(row.word_links(links_of_row)),
            )
    return [matrices[index] for index in range(len(rows))]


def _worth_drawing(rows: Sequence[_Row]) -> _Row:
    """Returns the first pair with 8 to 16 words on both sides, which fit a page, else the first."""

    def fits(row: _Row) -> bool:
        return all(8 <= len(words) <= 16 for words in (row.source, row.target))

    return next(filter(fits, rows), rows[0])
