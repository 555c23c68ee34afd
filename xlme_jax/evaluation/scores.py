"""Metrics of benchmarks, by the rules of their reference implementations.

Gold and predicted items depend on the kind of task:

- classification: a class id each; accuracy, f1 (of one class), micro_f1 (of all classes but the
  first), macro_f1 (mean of f1 over classes), matthews, as in scikit-learn.
- multiple_choice: the number of an answer each; accuracy.
- regression: a float each; pearson, spearman, as in SciPy.
- tagging: a sequence of tag names each; chunk_f1, token_accuracy, as in seqeval.
- question_answering: a collection of accepted answers against one text; f1, exact_match, by the
  rules of `xlme_jax.evaluation.answer_spans`.

All are shares in [0, 1], except matthews, pearson and spearman in [-1, 1]. Empty input, and gold
and predictions of different lengths, raise ValueError.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from xlme_jax.data.benchmarks.examples import Kind
from xlme_jax.evaluation import answer_spans

_log = logging.getLogger(__name__)

Classes = Sequence[int] | np.ndarray
Floats = Sequence[float] | np.ndarray
Tags = Sequence[Sequence[str]]
Chunk = tuple[str, int, int]


def score(
    kind: Kind,
    metric: str,
    gold: Sequence[Any],
    predicted: Sequence[Any],
    *,
    rules: answer_spans.Rules = answer_spans.SQUAD,
) -> float:
    """Computes a metric by its name.

    Args:
      kind: kind of the task; the same name has different meanings in different kinds.
      metric: a name in `METRICS[kind]`.
      gold: one item per example, see above.
      predicted: one item per example.
      rules: rules for comparing answers (`answer_spans.rules_of`); ignored by other kinds.

    Raises:
      ValueError: the kind has no such metric, or the items are invalid for it.
    """
    if metric not in METRICS[kind]:
        raise ValueError(f"{kind} has no metric {metric!r}: choose from {', '.join(METRICS[kind])}")
    if kind == "question_answering":
        return METRICS[kind][metric](gold, predicted, rules)
    return METRICS[kind][metric](gold, predicted)


def accuracy(gold: Classes, predicted: Classes) -> float:
    """Returns the share of correct classes."""
    _check_lengths(gold, predicted)
    return float(np.mean(np.asarray(gold) == np.asarray(predicted)))


def f1(gold: Classes, predicted: Classes, positive: int = 1) -> float:
    """Returns the F1 of one class against all others.

    GLUE scores MRPC and QQP by the F1 of class 1, paraphrases. The F1 is 0 if the class is never
    predicted or never correct.
    """
    _check_lengths(gold, predicted)
    truth, guess = np.asarray(gold) == positive, np.asarray(predicted) == positive
    total = truth.sum() + guess.sum()
    return float(2 * (truth & guess).sum() / total) if total else 0.0


def micro_f1(gold: Classes, predicted: Classes, none: int = 0) -> float:
    """Returns the F1 over all classes but one, which stands for nothing to be found.

    This is ChemProt's metric: a pair that is given the wrong group is both a false positive and a
    false negative. The F1 is 0 if no class but `none` is predicted or in gold.
    """
    _check_lengths(gold, predicted)
    truth, guess = np.asarray(gold), np.asarray(predicted)
    total = (truth != none).sum() + (guess != none).sum()
    return float(2 * ((truth == guess) & (truth != none)).sum() / total) if total else 0.0


def macro_f1(gold: Classes, predicted: Classes) -> float:
    """Returns the mean of the F1 of all classes that are in gold or predicted."""
    _check_lengths(gold, predicted)
    classes = np.unique(np.concatenate([gold, predicted]))
    return float(np.mean([f1(gold, predicted, positive) for positive in classes]))


def matthews(gold: Classes, predicted: Classes) -> float:
    """Returns Matthews' correlation coefficient, for two classes or more.

    It is 0 if all predictions or all gold classes are the same.
    """
    _check_lengths(gold, predicted)
    classes, codes = np.unique(np.concatenate([gold, predicted]), return_inverse=True)
    counts = np.zeros((len(classes), len(classes)), object)  # Python integers cannot overflow.
    np.add.at(counts, (codes[: len(gold)], codes[len(gold) :]), 1)
    in_gold, in_predicted = counts.sum(axis=1), counts.sum(axis=0)
    covariance = np.trace(counts) * len(gold) - (in_gold * in_predicted).sum()
    spread = len(gold) ** 2 - (in_gold**2).sum(), len(gold) ** 2 - (in_predicted**2).sum()
    return float(covariance / (spread[0] * spread[1]) ** 0.5) if all(spread) else 0.0


def pearson(gold: Floats, predicted: Floats) -> float:
    """Returns Pearson's correlation of scores, in [-1, 1].

    The correlation is 0, with a warning, if the predictions are constant, because they tell nothing
    of the gold scores; with SciPy's NaN, a diverged run would have no score in a table. It is NaN
    if gold is constant, as a single score is, or if a score of either side is not finite.
    """
    _check_lengths(gold, predicted)
    truth, guess = np.asarray(gold, np.float64), np.asarray(predicted, np.float64)
    if not (np.isfinite(truth).all() and np.isfinite(guess).all()) or _is_constant(truth):
        return float("nan")
    if _is_constant(guess):
        _log.warning(
            "all %d predicted scores are the same; their correlation with gold counts as 0",
            len(guess),
        )
        return 0.0
    truth, guess = _centred(truth), _centred(guess)
    correlation = truth @ guess / np.sqrt((truth @ truth) * (guess @ guess))
    return float(np.clip(correlation, -1.0, 1.0))


def _is_constant(values: np.ndarray) -> bool:
    """Returns whether all scores are equal, as a single one is."""
    return bool((values == values[0]).all())


def _centred(values: np.ndarray) -> np.ndarray:
    """Returns scores less their mean, divided by the largest, so that squares do not overflow."""
    centred = values - values.mean()
    return centred / np.abs(centred).max()


def spearman(gold: Floats, predicted: Floats) -> float:
    """Returns Spearman's correlation of scores, which is Pearson's correlation of their ranks.

    Tied scores share the mean of their ranks. The correlation is 0 if the predictions are constant,
    and NaN if gold is constant or a score is NaN; infinite scores have a rank.
    """
    _check_lengths(gold, predicted)
    sides = np.asarray(gold, np.float64), np.asarray(predicted, np.float64)
    if any(np.isnan(side).any() for side in sides):
        return float("nan")
    return pearson(*(_ranks(side) for side in sides))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Returns the rank of each value, from 1; ties share the mean of their ranks."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[group]


def token_accuracy(gold: Tags, predicted: Tags) -> float:
    """Returns the share of words in all sentences with the correct tag."""
    _check_tags(gold, predicted)
    hits = [a == b for truth, guess in zip(gold, predicted) for a, b in zip(truth, guess)]
    if not hits:
        raise ValueError("there is no word to score")
    return sum(hits) / len(hits)


def chunk_f1(gold: Tags, predicted: Tags) -> float:
    """Returns the F1 of chunks over all types, seqeval's default `f1_score`.

    A chunk is correct if its type, begin and end are correct. `chunks` has conlleval's rules, for
    IOB1 and IOB2. XTREME's F1 of POS is this metric on bare tags ("NOUN"), which are
    parsed as position "N" and type "OUN": a run of equal tags is one chunk, so that the F1 differs
    from the accuracy of tokens. The F1 is 0 if either side has no chunks.
    """
    _check_tags(gold, predicted)
    truth, guess = chunks(gold), chunks(predicted)
    if not truth & guess:
        return 0.0
    precision, recall = (len(truth & guess) / len(side) for side in (guess, truth))
    return 2 * precision * recall / (precision + recall)


def chunks(sentences: Tags) -> set[Chunk]:
    """Returns the chunks of tagged sentences: (type, number of the first word, that of the last).

    A tag is a position, its first character, and a type, the rest of the tag behind a dash if it
    has one ("_" for an empty rest). A chunk ends before a change of type, a B, an S or an O, and
    after an E or S; a chunk begins at a change of type, at a B or S, and at an E or I behind an E,
    S or O.

    Words are numbered through one sequence of all sentences, in which an O follows each sentence,
    as in seqeval. So a bare tag of one letter, such as the UPOS tag X, has the type of O: an O
    behind it does not end its chunk, and an O before it does not let one begin. The code follows
    seqeval step by step, because only so the figures are equal.

    Raises:
      ValueError: a tag is empty.
    """
    spans = set()
    begin = 0
    tag_before = "O"
    type_before = ""
    flat = [tag for sentence in sentences for tag in (*sentence, "O")]
    for index, tag in enumerate([*flat, "O"]):
        if not tag:
            raise ValueError("a tag is empty: give words without tag the tag O")
        position = tag[0]
        kind = tag[1:].split("-", 1)[-1] or "_"
        is_other_type = kind != type_before
        if (
            tag_before in "ES"
            or (tag_before in "BI" and position in "BSO")
            or (tag_before not in "O." and is_other_type)
        ):
            spans.add((type_before, begin, index - 1))
        if (
            position in "BS"
            or (tag_before in "ESO" and position in "EI")
            or (position not in "O." and is_other_type)
        ):
            begin = index
        tag_before, type_before = position, kind
    return spans


def _check_lengths(gold: Sequence[Any] | np.ndarray, predicted: Sequence[Any] | np.ndarray) -> None:
    if len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} gold items, but {len(predicted)} predictions")
    if not len(gold):
        raise ValueError("there is nothing to score")


def _check_tags(gold: Tags, predicted: Tags) -> None:
    _check_lengths(gold, predicted)
    for index, (truth, guess) in enumerate(zip(gold, predicted)):
        if len(truth) != len(guess):
            raise ValueError(
                f"sentence {index} has {len(truth)} words, but {len(guess)} predictions"
            )


# Metric names available to benchmarks.
METRICS: Mapping[Kind, Mapping[str, Callable[..., float]]] = {
    "classification": {
        "accuracy": accuracy,
        "f1": f1,
        "micro_f1": micro_f1,
        "macro_f1": macro_f1,
        "matthews": matthews,
    },
    "multiple_choice": {"accuracy": accuracy},
    "regression": {"pearson": pearson, "spearman": spearman},
    "tagging": {"chunk_f1": chunk_f1, "token_accuracy": token_accuracy},
    "question_answering": {"f1": answer_spans.f1, "exact_match": answer_spans.exact_match},
}
