"""The samples of a run on its page: predictions for the same sentences, step by step."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from xlme_jax.studies.reports import html_page, samples
from xlme_jax.studies.reports.batch_page import MARKS, marked
from xlme_jax.studies.reports.batch_rows import Segment, Token
from xlme_jax.studies.reports.directions import direction
from xlme_jax.studies.reports.html_page import Html
from xlme_jax.studies.reports.samples import Sentence

STYLE = f"""{MARKS}
.steps .wide {{ max-height: 24em; overflow-y: auto; }}
.steps td:last-child {{ min-width: 20em; }}
@media (max-width: 600px) {{ .steps td:last-child {{ min-width: 13em; }} }}
"""
# Most steps whose samples are shown; the steps are evenly spread.
_STEPS = 40


def section(records: Sequence[Mapping[str, Any]]) -> str:
    """Returns the samples as HTML, a table for each sentence; empty without records.

    Args:
      records: the samples of each step, as `training.metrics.read_samples` returns them.

    Raises:
      ValueError: the records are not samples.
    """
    if not records:
        return ""
    spread = np.linspace(0, len(records) - 1, min(len(records), _STEPS)).round().astype(int)
    try:
        by_step = {
            records[n]["step"]: list(map(samples.from_json, records[n]["sentences"]))
            for n in spread
        }
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(
            f"samples.jsonl: not the samples of a run ({error!r}); delete it"
        ) from error
    first = next(iter(by_step.values()))
    parts = ["<h2>Samples as it learned</h2>", _note(first)]
    for number, sentence in enumerate(first):
        steps = {
            step: of_step[number] for step, of_step in by_step.items() if number < len(of_step)
        }
        parts += [f"<h3>{html_page.escaped(sentence.title)}</h3>", _table(sentence, steps)]
    return "\n".join(parts)


def _note(sentences: Sequence[Sentence]) -> str:
    """Returns a note that says what the sentences are and what their marks mean."""
    marks: dict[str, str] = {}
    if any(sentence.is_masked for sentence in sentences):
        marks |= {"masked": "masked", "right": "predicted right"}
    marks["missed"] = "predicted wrong"
    if any(sentence.is_judged for sentence in sentences):
        marks["missed"] = "predicted wrong, and not found by the discriminator"
        marks |= {"found": "wrong, and found", "alarm": "right, and called replaced"}
    legend = " ".join(f'<mark class="{kind}">{text}</mark>' for kind, text in marks.items())
    return (
        '<p class="note">The same sentences, masks and random draws all along, from the first '
        f"batch: {legend}</p>"
    )


def _table(first: Sentence, steps: Mapping[int, Sentence]) -> str:
    """Returns a table of the original sentence and, below it, the predictions of each step.

    Args:
      first: the sentence.
      steps: {step: the sentence with the predictions of the step}.
    """
    rows = [["", "text", "", _sentence(first.segment, "")]]
    rows += [
        [f"{step:,}", name, f"{sentence.of_original(name):.1%}", _sentence(sentence.segment, name)]
        for step, sentence in steps.items()
        for name in sentence.names
    ]
    head = ("step", "predicted by", "mean probability of the original tokens", "")
    return f'<div class="steps">{html_page.table(head, rows, "texts")}</div>'


def _sentence(segment: Segment, predictor: str) -> Html:
    """Returns a sentence in the direction of its script.

    Args:
      segment: the sentence.
      predictor: name of what predicts, such as "generator"; "" for the original sentence.
    """
    text_direction = direction(
        "".join(token.text for token in segment.tokens if not token.is_special)
    )
    runs = (
        f'<bdi class="special"> {"".join(_tokens(run, predictor))} </bdi>'
        if run[0].is_special
        else f"<bdi>{''.join(_tokens(run, predictor))}</bdi>"
        for run in segment.runs
    )
    return Html(f'<span dir="{text_direction}">{"".join(runs)}</span>')


def _tokens(run: Sequence[Token], predictor: str) -> Iterator[str]:
    """Yields the HTML of tokens: their predictions, or the originals where nothing is predicted.

    Args:
      run: the tokens.
      predictor: name of what predicts; "" for the original tokens.
    """
    for token in run:
        guess = token.predictions.get(predictor)
        if guess is None:
            yield marked(token.text, _kind_without_prediction(token, predictor))
            continue
        # The space is taken from the original, because a predicted piece with or without one would
        # part or join words.
        space = " " if token.piece.startswith("▁") else ""
        text = space + guess.piece.removeprefix("▁").replace("▁", " ")
        yield marked(text, _kind(token, guess.piece == token.piece))


def _kind_without_prediction(token: Token, predictor: str) -> str:
    """Returns the mark of a token that the predictor does not predict; "" for none."""
    if token.is_masked:
        return "masked"
    return "alarm" if predictor and token.is_called else ""


def _kind(token: Token, is_right: bool) -> str:
    """Returns how a token is marked for which the predictor made a prediction.

    Args:
      token: the original token; `is_called` says what the discriminator took it for.
      is_right: whether the prediction is the original token.

    Returns:
      For a masked token, "right" if it was predicted, and "alarm" if the discriminator called it
      replaced all the same. If another token was predicted, "found" if the discriminator noticed,
      else "missed".
      For other tokens, "missed" if another token was predicted, and "" if not.
    """
    if not token.is_masked:
        return "" if is_right else "missed"
    if is_right:
        return "alarm" if token.is_called else "right"
    return "found" if token.is_called else "missed"
