"""Extractive question answering: from logits to answers, and from answers to F1 and exact match.

Scoring follows three official scripts. All compare in lower case without punctuation and articles
and take the best over the accepted answers, but they differ in details; see `rules_of`.
"""

import dataclasses
import functools
import re
import string
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Literal, get_args

import numpy as np

from xlme_jax.data.benchmarks.examples import Features

Metric = Literal["f1", "exact_match"]
METRICS: tuple[Metric, ...] = get_args(Metric)

# Scoring.


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules for comparing an answer with an accepted one.

    Attributes:
      normalise: text -> its words as they are compared, separated by single spaces.
      no_answer: whether "" is the right answer to a question without accepted answers (SQuAD 2.0).
        Texts without words then match each other; with the other rules they are an exact match
        with an F1 of 0.
    """

    normalise: Callable[[str], str]
    no_answer: bool = False


_ASCII_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation))
_ENGLISH_ARTICLES = "a an the"
_MLQA_ARTICLES = {
    "en": _ENGLISH_ARTICLES,
    "es": "un una unos unas el la los las",
    "vi": "của là cái chiếc những",
    "de": "ein eine einen einem eines einer der die das den dem des",
    "ar": "ال",
    "hi": "",
    "zh": "",
}
_HAN = re.compile("([\u4e00-\u9fa5])")


@functools.cache
def _all_punctuation() -> dict[int, None]:
    """Returns Unicode punctuation, and the ASCII symbols that it lacks, such as $ and +."""
    codes = range(sys.maxunicode + 1)
    unicode = dict.fromkeys(code for code in codes if unicodedata.category(chr(code))[0] == "P")
    return _ASCII_PUNCTUATION | unicode


def _without_words(text: str, words: str) -> str:
    """Returns the text with each of `words`, separated by spaces, replaced by a space."""
    return re.sub(rf"\b({'|'.join(words.split())})\b", " ", text) if words else text


def _normalise_squad(text: str) -> str:
    """Returns the words of a text by SQuAD's rules (`rules_of`), separated by single spaces."""
    text = text.lower().translate(_ASCII_PUNCTUATION)
    return " ".join(_without_words(text, _ENGLISH_ARTICLES).split())


def _normalise_mlqa(text: str, language: str) -> str:
    """Returns the words of a text by MLQA's rules (`rules_of`), separated by single spaces."""
    text = text.lower().translate(_all_punctuation())
    articles = _MLQA_ARTICLES[language]
    # The Arabic article is a prefix, so that it is removed everywhere, even inside words, as in the
    # official script.
    arabic = language == "ar"
    text = text.replace(articles, " ") if arabic else _without_words(text, articles)
    if language == "zh":
        text = _HAN.sub(r" \1 ", text)
    return " ".join(text.split())


SQUAD = Rules(_normalise_squad)
SQUAD2 = Rules(_normalise_squad, no_answer=True)


def rules_of(task: str, language: str) -> Rules:
    """Returns the rules of a benchmark's official script.

    - mlqa: Unicode's punctuation and the articles of the language are removed, and in Chinese each
      character of U+4E00 to U+9FA5 is a word.
    - All other benchmarks, XQuAD and TyDiQA among them, have the rules of SQuAD 1.1 in every
      language: ASCII punctuation and English articles are removed.
    - squad2 has the rules of SQuAD 1.1 too, and a question may have no answer.

    Args:
      task: name of the benchmark.
      language: language of the context and the answer.

    Raises:
      ValueError: MLQA has no rules for the language.
    """
    if task != "mlqa":
        return SQUAD2 if task == "squad2" else SQUAD
    if language not in _MLQA_ARTICLES:
        raise ValueError(
            f"MLQA has no rules for {language!r}, but for {', '.join(sorted(_MLQA_ARTICLES))}: "
            "give the language of the answers"
        )
    return Rules(lambda text: _normalise_mlqa(text, language))


def compare(predicted: str, gold: Collection[str], rules: Rules = SQUAD) -> tuple[float, float]:
    """Scores the answer to one question.

    Args:
      predicted: the answer; "" for no answer.
      gold: the accepted answers; empty if there are none.
      rules: rules of comparison.

    Returns:
      (exact match 0 or 1, F1 of words), each the maximum over the accepted answers.

    Raises:
      ValueError: there is no accepted answer, and the rules do not allow such questions.
    """
    accepted = [rules.normalise(text) for text in gold]
    if rules.no_answer:
        accepted = [text for text in accepted if text] or [""]
    if not accepted:
        raise ValueError(
            "a question has no accepted answer: score it by the rules of SQuAD 2.0, or leave it out"
        )
    text = rules.normalise(predicted)
    return (
        float(any(text == answer for answer in accepted)),
        max(_word_f1(text.split(), answer.split(), rules.no_answer) for answer in accepted),
    )


def _word_f1(predicted: list[str], gold: list[str], nothing_agrees: bool) -> float:
    """Returns the F1 of words; two texts without words have 1 if `nothing_agrees`, else 0."""
    if nothing_agrees and not (predicted and gold):
        return float(predicted == gold)
    shared = sum((Counter(predicted) & Counter(gold)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(gold)
    return 2 * precision * recall / (precision + recall)


def exact_match(
    gold: Sequence[Collection[str]], predicted: Sequence[str], rules: Rules = SQUAD
) -> float:
    """Returns the share of questions whose answer matches exactly.

    Args:
      gold: the accepted answers of each question.
      predicted: an answer for each question; "" for no answer.
      rules: rules of comparison.

    Raises:
      ValueError: there are no questions, lengths differ, or as in `compare`.
    """
    return sum(exact for exact, _ in _compare_all(gold, predicted, rules)) / len(gold)


def f1(gold: Sequence[Collection[str]], predicted: Sequence[str], rules: Rules = SQUAD) -> float:
    """Returns the mean word F1 of answers; arguments and errors are those of `exact_match`."""
    return sum(score for _, score in _compare_all(gold, predicted, rules)) / len(gold)


def _compare_all(
    gold: Sequence[Collection[str]], predicted: Sequence[str], rules: Rules
) -> list[tuple[float, float]]:
    """Returns the result of `compare` for each question, of which there must be at least one."""
    if len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} questions, but {len(predicted)} answers")
    if not gold:
        raise ValueError("there is no question to score")
    return [compare(text, accepted, rules) for text, accepted in zip(predicted, gold)]


# Decoding.


@dataclasses.dataclass(frozen=True)
class AnswerCandidate:
    """One of the best answers to a question.

    Attributes:
      text: substring of the context; "" for no answer.
      score: logit of the first token plus logit of the last token.
      probability: softmax of the scores of the candidates.
    """

    text: str
    score: float
    probability: float


@dataclasses.dataclass(frozen=True)
class PredictedAnswer:
    """The answer to a question.

    Attributes:
      text: substring of the context; "" for no answer.
      best: the best substring, even if `text` is ""; "" if there is none.
      score: score of `best`; 0 if there is none.
      null_score_difference: score of no answer minus `score`.
      n_best: the best candidates with distinct texts, best first; includes no answer if there is a
        threshold for it.
    """

    text: str
    best: str
    score: float
    null_score_difference: float
    n_best: tuple[AnswerCandidate, ...]

    def answer(self, null_threshold: float) -> str:
        """Returns `best`, or "" if `null_score_difference` is above the threshold."""
        return "" if self.null_score_difference > null_threshold else self.best


def decode(
    windows: Sequence[tuple[Features, np.ndarray]],
    context: str,
    *,
    n_best: int = 20,
    max_answer_length: int = 30,
    null_threshold: float | None = None,
) -> PredictedAnswer:
    """Returns the best answers to a question from all windows of its context.

    Candidates are the spans from one of the `n_best` best first tokens of a window to one of its
    `n_best` best last tokens, both in the context. Spans of all windows compete, and of spans with
    equal texts only the best counts. Spans with a non-finite score or without visible characters
    are ignored.

    Args:
      windows: (features with offsets, logits float[>= n, 2] of the answer's first and last token)
        for each window; logits of padding are ignored.
      context: the original text, which the offsets refer to.
      n_best: number of best tokens, see above, and of candidates that are returned.
      max_answer_length: maximum tokens of an answer.
      null_threshold: the answer is "" if the score of "no answer" exceeds the best score by more
        than this; None always answers. The score of "no answer" is the minimum over windows of the
        sum of both logits of the window's first token.

    Raises:
      ValueError: there are no windows, or features lack offsets, have offsets outside the context
        or fewer logits than tokens.
    """
    if not windows:
        raise ValueError("a question has no window: encode it before decoding")
    spans = []
    nulls = []
    for features, logits in windows:
        offsets = _checked_offsets(features, logits, context)
        scores = np.asarray(logits, np.float64)
        nulls.append(float(scores[0].sum()))
        spans.append(_window_spans(scores, offsets, n_best, max_answer_length))
    candidates = _best_texts(np.concatenate(spans), context, n_best)
    null = min((score for score in nulls if np.isfinite(score)), default=0.0)
    text, score = candidates[0] if candidates else ("", 0.0)
    if null_threshold is not None:
        candidates = sorted([*candidates, ("", null)], key=lambda item: -item[1])
        if candidates[-1][0]:  # No answer is among the best.
            candidates = candidates[:n_best]
    prediction = PredictedAnswer(text, text, score, null - score, _with_probabilities(candidates))
    if null_threshold is None:
        return prediction
    return dataclasses.replace(prediction, text=prediction.answer(null_threshold))


def _checked_offsets(features: Features, logits: np.ndarray, context: str) -> np.ndarray:
    """Returns the offsets of a window; ValueError if they do not fit the logits and the context."""
    offsets = features.offsets
    if offsets is None:
        raise ValueError(
            f"the features of example {features.example} have no offsets: it is not a question"
        )
    if len(logits) < len(offsets) or np.shape(logits)[1:] != (2,):
        raise ValueError(
            f"a window of example {features.example} has {len(offsets)} tokens, but logits of "
            f"shape {np.shape(logits)}: give two for each token"
        )
    if len(offsets) and offsets.max() > len(context):
        raise ValueError(
            f"a token of example {features.example} ends at character {offsets.max()} of a context "
            f"of {len(context)}: give the context that it was encoded from"
        )
    return offsets


_SPAN = np.dtype([("begin", np.int64), ("end", np.int64), ("score", np.float64)])


def _window_spans(
    scores: np.ndarray, offsets: np.ndarray, n_best: int, max_answer_length: int
) -> np.ndarray:
    """Returns the candidate spans of a window, `_SPAN`[k]: characters [begin, end) and score."""
    inside = np.flatnonzero(offsets[:, 0] >= 0)
    firsts, lasts = (
        inside[np.argsort(-scores[inside, side], kind="stable")[:n_best]] for side in (0, 1)
    )
    first, last = (grid.ravel() for grid in np.meshgrid(firsts, lasts, indexing="ij"))
    spans = np.empty(len(first), _SPAN)
    spans["begin"], spans["end"] = offsets[first, 0], offsets[last, 1]
    spans["score"] = scores[first, 0] + scores[last, 1]
    length = last - first + 1
    return spans[(length >= 1) & (length <= max_answer_length) & np.isfinite(spans["score"])]


def _best_texts(spans: np.ndarray, context: str, n_best: int) -> list[tuple[str, float]]:
    """Returns the distinct texts of the best spans with their scores, best first."""
    best: dict[str, float] = {}
    for begin, end, score in spans[np.argsort(-spans["score"], kind="stable")].tolist():
        text = context[begin:end]
        if text.strip():
            best.setdefault(text, score)
        if len(best) == n_best:
            break
    return list(best.items())


def _with_probabilities(candidates: Sequence[tuple[str, float]]) -> tuple[AnswerCandidate, ...]:
    """Returns candidates (text, score) with the softmax of their scores."""
    if not candidates:
        return ()
    scores = np.array([score for _, score in candidates])
    weights = np.exp(scores - scores.max())
    shares = (weights / weights.sum()).tolist()
    return tuple(
        AnswerCandidate(text, score, share) for (text, score), share in zip(candidates, shares)
    )


def best_null_threshold(
    gold: Sequence[Collection[str]],
    predictions: Sequence[PredictedAnswer],
    metric: Metric = "f1",
) -> tuple[float, float]:
    """Tunes the threshold of `decode` and `PredictedAnswer.answer` on questions, as SQuAD 2.0 does.

    Args:
      gold: the accepted answers of each question; empty if it has no answer.
      predictions: a prediction for each question.
      metric: metric to maximize.

    Returns:
      (threshold, score in [0, 1]). Questions are answered one by one in order of their
      `null_score_difference`; the threshold is the difference of the question after which the score
      is highest. It equals the threshold of the official script except if answering nothing is
      best: the script's threshold is then 0, even if some questions are answered with 0, and ours
      is below the smallest difference. If several differences equal the threshold, the score may
      not be reachable by any threshold.

    Raises:
      ValueError: there are no questions, or lengths differ.
    """
    texts = [prediction.best for prediction in predictions]
    compared = _compare_all(gold, texts, SQUAD2)
    scores = [word_f1 if metric == "f1" else exact for exact, word_f1 in compared]
    differences = [prediction.null_score_difference for prediction in predictions]
    current = best = float(sum(not accepted for accepted in gold))
    threshold = min(0.0, float(np.nextafter(min(differences), -np.inf)))
    for index in np.argsort(differences, kind="stable"):
        if gold[index]:
            current += scores[index]
        elif texts[index]:
            current -= 1
        if current > best:
            best = current
            threshold = differences[index]
    return threshold, best / len(gold)
