"""Word alignment by optimal transport at every layer (XLM-E Table 6, Figure 4).

A pair is read as one row, `<s> e </s> f </s>`, each word tokenized by itself. The similarity of two
tokens is the raw dot product of their hidden states. Two rounds of Sinkhorn's scaling, columns
(tokens of f) before rows (tokens of e), make a transport plan of it; a token of either side takes
the token of the other where the plan is largest, and a link is what both sides agree on. Words are
linked if any of their tokens are. That is what XLM-Align's aligner does, whose figures XLM-E quotes
and compares with.

Despite the method's name that aligner takes no exponential: the dot products are themselves the
kernel, those below 1e-6 raised to it. `WordAlignment.temperature` makes it the entropic plan,
with the kernel exp(dot product / temperature). The plan is computed from logarithms either way,
hence states of any size give one.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlme_jax.data.benchmarks.parallel_sets import AlignedCorpus, alignment_sets, read_alignments
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.data.token_ids import BOS_ID, EOS_ID
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation import encoding
from xlme_jax.evaluation.alignment_matrices import AlignmentMatrix, matrix_file
from xlme_jax.evaluation.context import OfficialEvaluation
from xlme_jax.evaluation.outcome import Evaluation, Outcome, Result, Rows, Subject

Links = Set[tuple[int, int]]

_ROUNDS = 2
_SMALLEST = 1e-6


@dataclasses.dataclass(frozen=True)
class Counts:
    """Links of a corpus, counted; |A|, |S|, |A and S|, |A and P| of XLM-E Eq. 10."""

    predicted: int = 0
    sure: int = 0
    predicted_sure: int = 0
    predicted_possible: int = 0

    @classmethod
    def of(cls, predicted: Links, sure: Links, possible: Links) -> "Counts":
        """Counts one pair's links; what is sure is possible too."""
        right = predicted & (possible | sure)
        return cls(len(predicted), len(sure), len(predicted & sure), len(right))

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*map(sum, zip(dataclasses.astuple(self), dataclasses.astuple(other))))

    @property
    def aer(self) -> float:
        """Alignment error rate, in [0, 1]; 0 where nothing is sure and nothing was predicted."""
        links = self.predicted + self.sure
        return 1.0 - (self.predicted_sure + self.predicted_possible) / links if links else 0.0

    @property
    def precision(self) -> float:
        """Share of the predicted links that are possible; 0 without any."""
        return self.predicted_possible / max(self.predicted, 1)

    @property
    def recall(self) -> float:
        """Share of the sure links that were predicted; 0 without any."""
        return self.predicted_sure / max(self.sure, 1)


def aer(predicted: Iterable[Links], sure: Iterable[Links], possible: Iterable[Links]) -> float:
    """Returns the alignment error rate of a corpus (XLM-E Eq. 10; Och and Ney 2003).

    Args:
      predicted: A: links of each pair, (word of the source, word of the target).
      sure: S, in the same order of pairs.
      possible: P, with or without the sure ones, which it includes in any case.

    Returns:
      1 - (|A and S| + |A and P|) / (|A| + |S|), sums over all pairs; 0 if both are empty.

    Raises:
      ValueError: not the same number of pairs.
    """
    return sum(map(Counts.of, *_same_length(predicted, sure, possible)), Counts()).aer


def _same_length(*lists: Iterable[Links]) -> list[list[Links]]:
    found = [list(links) for links in lists]
    if len(set(map(len, found))) > 1:
        lengths = ", ".join(str(len(links)) for links in found)
        raise ValueError(f"predicted, sure and possible links of {lengths} pairs: not the same")
    return found


def diagonal(source: int, target: int) -> set[tuple[int, int]]:
    """Links each of `source` words to the one at the same relative place among `target` words."""
    last = max(source - 1, 1)
    return {(i, round(i * (target - 1) / last)) for i in range(source) if target}


@dataclasses.dataclass(frozen=True)
class WordAlignment(OfficialEvaluation):
    """What to align and how.

    Attributes:
      folder: with a folder for each set of gold alignments.
      corpora: names of those folders; empty for all that are there.
      layer: the layer of the headline; None the middle one. Results are of every layer.
      temperature: None takes the dot products themselves as the kernel, as XLM-Align's aligner
        does; a number exp(dot product / temperature).
      length: tokens of a pair at most, specials included; longer ones are skipped and counted.
      batch_tokens: tokens encoded at once.
    """

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
                f"WordAlignment.temperature is {self.temperature}, must be positive, or None for "
                "the dot products themselves"
            )

    def build(self, subject: Subject) -> Evaluation:
        """Reads the pairs and returns the evaluation of some parameters.

        Raises:
          ValueError: the folder or a corpus is missing or its files do not fit together, or the
            encoder has no such layer.
        """
        headline = encoding.choose_layer(self.layer, subject.num_layers, "WordAlignment.layer")
        length = min(self.length, subject.max_length or self.length)
        skipped: dict[str, int] = {}
        kept: list[tuple[str, _Row]] = []
        for corpus in self._read(skipped):
            rows = _rows(corpus, subject.vocabulary)
            short = [row for row in rows if len(row.tokens) <= length]
            if not short:
                raise ValueError(
                    f"{self.folder}/{corpus.name}: no pair has {length} tokens or fewer; raise "
                    "WordAlignment.length, or leave it out of WordAlignment.corpora"
                )
            if len(short) < len(rows):
                skipped[f"{corpus.name}: longer than {length} tokens"] = len(rows) - len(short)
            kept += [(corpus.name, row) for row in short]
        batches = encoding.batches(
            [row.tokens for _, row in kept], subject.row_multiple, self.batch_tokens
        )
        align = jax.jit(_aligner(subject, self.temperature))
        plan = jax.jit(_planner(subject, headline, self.temperature))
        names = list(dict.fromkeys(name for name, _ in kept))
        drawn = [_worth_drawing([row for of, row in kept if of == name]) for name in names]

        def evaluate(params: Any) -> Outcome:
            counts = _Tally()
            for indices, links in encoding.run(align, params, batches):
                for index, of_layers in zip(indices, links):
                    name, row = kept[index]
                    for layer, linked in enumerate(of_layers):
                        counts[name, layer] += row.count(row.word_links(linked))
            for name, row in kept:
                counts[name, None] += row.count(diagonal(len(row.source), len(row.target)))
            files: dict[str, str] = {}
            matrices = _matrices(plan, params, drawn, subject.row_multiple)
            for name, matrix in zip(names, matrices):
                files |= matrix_file(f"{name}_layer_{headline}", matrix)
            results, shown = self._results(counts, headline, subject.restarts)
            return Outcome(tuple(results), shown, files, skipped)

        return evaluate

    def _read(self, skipped: dict[str, int]) -> list[AlignedCorpus]:
        """Reads the corpora, and counts what was left out of each."""
        names = self.corpora or alignment_sets(self.folder)
        if not names:
            raise ValueError(
                f"{self.folder}: no folders of word alignments; each needs src.txt, tgt.txt and "
                "gold.txt, or test.en, test.fr and alignv2.txt in a folder like en-fr"
            )
        corpora = []
        for name in names:
            report = ReadReport()
            corpora.append(read_alignments(Path(self.folder) / name, report))
            skipped |= {f"{name}: {reason}": count for reason, count in report.skipped.items()}
        return corpora

    def _results(
        self, counts: "_Tally", headline: int, restarts: bool
    ) -> tuple[list[Result], dict[str, float]]:
        """Figures of each corpus and of their mean, by layer and of the diagonal; the headline."""
        kernel = "the dot products"
        if self.temperature is not None:
            kernel = f"exp(dot products / {self.temperature:g})"
        setting = f"optimal transport, {_ROUNDS} rounds on {kernel}; {encoding.LAYERS}"
        if restarts:
            setting += "; positions restart on the second side"
        results = []
        of_all: dict[tuple[str, int | None], list[float]] = collections.defaultdict(list)
        for (corpus, layer), found in counts.items():
            for metric in ("aer", "precision", "recall"):
                value = getattr(found, metric)
                of_all[metric, layer].append(value)
                results.append(_result(corpus, metric, value, layer, setting))
        means = {key: float(np.mean(values)) for key, values in of_all.items()}
        results += [
            _result("mean", metric, value, layer, setting)
            for (metric, layer), value in means.items()
        ]
        shown = {"wordalign/aer": means["aer", headline], "wordalign/diagonal": means["aer", None]}
        return results, shown


class _Tally(dict[tuple[str, int | None], Counts]):
    """(corpus, layer, None for the diagonal) -> counts, none to begin with."""

    def __missing__(self, key: tuple[str, int | None]) -> Counts:
        return Counts()


def _result(language: str, metric: str, value: float, layer: int | None, setting: str) -> Result:
    system, setting = ("diagonal", "") if layer is None else ("model", setting)
    # XL-WA has validation sets as well, and its folders' names end in it.
    split = "validation" if language.endswith("_dev") else "test"
    return Result("wordalign", language, metric, value, split, layer, system, setting)


@dataclasses.dataclass(frozen=True)
class _Row:
    """A pair as the encoder reads it.

    Attributes:
      source: words of e.
      target: words of f.
      sure: links that must be found.
      possible: links that may be found.
      tokens: `<s> e </s> f </s>`.
      words: int[n], the word that each token belongs to, counted on its own side; -1 for `<s>` and
        `</s>`.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    sure: Links
    possible: Links
    tokens: encoding.Text
    words: np.ndarray

    def word_links(self, linked: np.ndarray) -> set[tuple[int, int]]:
        """Words of which tokens are linked; `linked` as `_aligner` gives it, int[L]."""
        sources = np.flatnonzero(linked >= 0)
        targets = linked[sources]
        return set(zip(self.words[sources].tolist(), self.words[targets].tolist()))

    def count(self, predicted: Links) -> Counts:
        """Counts predicted links against the gold ones."""
        return Counts.of(predicted, self.sure, self.possible)


def _rows(corpus: AlignedCorpus, vocabulary: Vocabulary) -> list[_Row]:
    """Reads each pair as the encoder does: word by word, so that tokens belong to words."""
    sides = corpus.sources, corpus.targets
    words = list(dict.fromkeys(word for side in sides for text in side for word in text))
    pieces = dict(zip(words, vocabulary.encode_batch(words)))
    rows = []
    for source, target, sure, possible in zip(*sides, corpus.sure, corpus.possible):
        tokens, owners = [BOS_ID], [-1]
        for text in (source, target):
            for index, word in enumerate(text):
                tokens += pieces[word]
                owners += [index] * len(pieces[word])
            tokens.append(EOS_ID)
            owners.append(-1)
        rows.append(_Row(source, target, sure, possible, tuple(tokens), np.array(owners)))
    return rows


def _aligner(subject: Subject, temperature: float | None) -> Callable[[Any, Rows], jax.Array]:
    """Returns (params, rows) -> int32[R, layers + 1, L].

    That is for each token of the source the position of the token that it is linked to, or -1.
    """

    def align(params: Any, rows: Rows) -> jax.Array:
        sides = _sides(rows)
        states = _encode(subject, params, rows)
        return jnp.stack([_mutual(_plan(h, *sides, temperature)) for h in states], axis=1)

    return align


def _encode(subject: Subject, params: Any, rows: Rows) -> list[jax.Array]:
    """Hidden states of pairs, with the positions that the encoder was trained on."""
    if not subject.restarts:
        return subject.encode(params, rows)
    is_end = rows["tokens"] == EOS_ID
    is_second = (jnp.cumsum(is_end, axis=1) - is_end >= 1) & (rows["segment_ids"] > 0)
    first = ((rows["segment_ids"] > 0) & ~is_second).sum(axis=1, keepdims=True)
    positions = jnp.where(is_second, rows["positions"] - first, rows["positions"])
    return subject.encode(params, {**rows, "positions": positions})


def _sides(rows: Rows) -> tuple[jax.Array, jax.Array]:
    """Which tokens are words of the source, and which of the target: bool[R, L] each."""
    ends = jnp.cumsum(rows["tokens"] == EOS_ID, axis=1)
    is_word = (rows["tokens"] != BOS_ID) & (rows["tokens"] != EOS_ID) & (rows["segment_ids"] > 0)
    return is_word & (ends == 0), is_word & (ends == 1)


def _plan(
    hidden: jax.Array, source: jax.Array, target: jax.Array, temperature: float | None
) -> jax.Array:
    """Logarithm of the plan whose columns have been scaled last, float32[R, L, L].

    Rows are tokens of the source, columns of the target; -inf elsewhere. Scaling the rows once more
    would not change which column is largest in a row.
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
    """For each row of [R, L, L] the column that is its largest and has it as its largest, or -1."""
    # Not by equality with the maximum: fused programs may round the two differently.
    forward, backward = plan.argmax(axis=2), plan.argmax(axis=1)
    back = jnp.take_along_axis(backward, forward, axis=1)
    # Not so for tokens of no word, nor where states are not finite.
    is_finite = jnp.isfinite(plan.max(axis=2))
    return jnp.where(is_finite & (back == jnp.arange(plan.shape[1])), forward, -1)


def alignment_matrices(
    subject: Subject,
    params: Any,
    corpus: AlignedCorpus,
    layer: int | None = None,
    sentences: Sequence[int] = (0, 1, 2),
    temperature: float | None = None,
) -> list[AlignmentMatrix]:
    """Returns how a few pairs are aligned at a layer, to draw them.

    Args:
      subject: the encoder.
      params: its parameters.
      corpus: the pairs.
      layer: None for the middle one.
      sentences: which pairs, none longer than the encoder can read.
      temperature: as `WordAlignment.temperature`.

    Returns:
      A matrix for each pair: what share of a source word's token goes to a target word's; of
      several tokens the largest; 0 for words without tokens.
    """
    chosen = encoding.choose_layer(layer, subject.num_layers, "layer")
    rows = _rows(corpus, subject.vocabulary)
    plan = jax.jit(_planner(subject, chosen, temperature))
    return _matrices(plan, params, [rows[index] for index in sentences], subject.row_multiple)


def _planner(
    subject: Subject, layer: int, temperature: float | None
) -> Callable[[Any, Rows], tuple[jax.Array, jax.Array]]:
    """Returns (params, rows) -> plan with rows scaled last, float32[R, L, L], and `_mutual`'s."""

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
    """Runs a compiled `_planner` on pairs, and makes matrices of words of them."""
    found: dict[int, AlignmentMatrix] = {}
    batches = encoding.batches([row.tokens for row in rows], row_multiple)
    for indices, results in encoding.run(plan, params, batches):
        for index, tokens, linked in zip(indices.tolist(), *results):
            row = rows[index]
            source, target = np.nonzero(tokens)
            matrix = np.zeros((len(row.source), len(row.target)))
            where = row.words[source], row.words[target]
            np.maximum.at(matrix, where, tokens[source, target])
            gold = frozenset(row.sure), frozenset(row.possible)
            predicted = frozenset(row.word_links(linked))
            found[index] = AlignmentMatrix(row.source, row.target, matrix, *gold, predicted)
    return [found[index] for index in range(len(rows))]


def _worth_drawing(rows: Sequence[_Row]) -> _Row:
    """The first pair that tells something and fits a page, else the first one."""

    def fits(row: _Row) -> bool:
        return all(8 <= len(words) <= 16 for words in (row.source, row.target))

    return next(filter(fits, rows), rows[0])
