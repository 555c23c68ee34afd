"""A training batch as an HTML page. All text of the batch is escaped."""

import html
from collections.abc import Iterator, Sequence

from xlme_jax.studies.reports import batch_rows, directions, html_page
from xlme_jax.studies.reports.batch_rows import BatchRows, Segment, StreamRows, Token
from xlme_jax.studies.reports.batch_text import draws
from xlme_jax.studies.reports.visible_text import visible

# Colours of tokens.
MARKS = """
:root { --masked: #fff1b8; --found: #c8f0cd; --missed: #ffd0cc; --alarm: #e8d4f7;
        --right: #cfe4fa; }
@media (prefers-color-scheme: dark) {
  :root { --masked: #574a12; --found: #1d4d27; --missed: #662420; --alarm: #4a2c63;
          --right: #1c3f63; }
}
.special { color: var(--faint); }
mark { color: inherit; border-radius: 3px; padding: 0 0.15em; background: var(--masked); }
mark.found { background: var(--found); } mark.missed { background: var(--missed); }
mark.alarm { background: var(--alarm); } mark.right { background: var(--right); }
"""
_STYLE = f"""{MARKS}
.segment {{ border-left: 3px solid var(--line); padding: 0.1em 0.8em; margin: 0.6em 0; }}
.segment p {{ margin: 0.2em 0; }}
"""
_CLASSES = {"found": "found", "missed": "missed", "false alarm": "alarm"}


def render(batch: BatchRows, rows: int | None = 4) -> str:
    """Returns a batch as a self-contained page.

    Args:
      batch: the batch.
      rows: most rows of each stream, those that add a language first; None for all.
    """
    title = f"Step {batch.step}"
    facts = ", ".join(f"{name} {visible(value)}" for name, value in batch.facts.items())
    parts = [f"<h1>{title}</h1>", f'<p class="note">{html.escape(facts)}</p>', _legend(batch)]
    parts += [part for stream in batch.streams for part in _stream(stream, batch, rows)]
    return html_page.page(title, "\n".join(parts), _STYLE)


def _legend(batch: BatchRows) -> str:
    """Returns the meaning of the marks that the batch may have."""
    marks = [("masked", "masked")]
    if any(stream.is_judged for stream in batch.streams):
        marks += [("replaced, and found", "found"), ("replaced and missed", "missed")]
        marks.append(("false alarm", "alarm"))
    if any(stream.is_continued for stream in batch.streams):
        marks.append(("predicted wrong", "missed"))
    return f'<p class="note">{" ".join(marked(*mark) for mark in marks)}</p>'


def _stream(stream: StreamRows, batch: BatchRows, rows: int | None) -> Iterator[str]:
    """Yields the HTML of a stream: facts, metrics, tasks, and rows with their notes."""
    name = stream.stream.name
    yield f"<h2>{html.escape(visible(name))} ({stream.stream.kind})</h2>"
    yield html_page.table(("", ""), stream.facts.items())
    metrics = {key: f"{x:.4g}" for key, x in batch.metrics.items() if key.startswith(f"{name}/")}
    if metrics:
        yield html_page.details("Metrics of this step", html_page.table(("", ""), metrics.items()))
    tasks = html_page.table(("task", "weight", "drawn", "draws"), draws(stream))
    yield html_page.details("Tasks", tasks)
    numbers = batch_rows.shown(stream, rows)
    for number in numbers:
        labels = stream.labels(number)
        yield f"<h3>Row {number}{html.escape(f', labels {labels}' if labels else '')}</h3>"
        parts = stream.row(number)
        for part in parts:
            if isinstance(part, int):
                yield f'<p class="note">{part} padding</p>'
            else:
                yield _segment(part)
        if notes := batch_rows.notes(parts):
            yield html_page.table(*notes)
    if note := batch_rows.unseen(stream, numbers):
        yield f'<p class="note">{html.escape(note)}</p>'


def _segment(segment: Segment) -> str:
    """Returns the HTML of a segment, and of the predictions of tokens without masks."""
    heading = html.escape(f"{segment.number} {segment.label}")
    direction = directions.direction("".join(t.text for t in segment.tokens if not t.is_special))
    text = "".join(map(_run, segment.runs))
    parts = [f'<span class="note">{heading}</span>', f'<p dir="{direction}">{text}</p>']
    for name, predictions in segment.unmasked_predictions.items():
        guessed = "".join(
            marked(
                prediction.piece.replace("▁", " "),
                "" if prediction.piece == token.piece else "missed",
            )
            for token, prediction in predictions
        )
        mean = sum(prediction.of_original for _, prediction in predictions) / len(predictions)
        note = html.escape(f"{name}, mean probability of the original tokens {mean:.1%}")
        parts.append(
            f'<span class="note">{note}</span><p dir="{direction}"><bdi>{guessed}</bdi></p>'
        )
    return '<div class="segment">' + "\n".join(parts) + "</div>"


def _run(tokens: Sequence[Token]) -> str:
    """Returns the HTML of a run, isolated from the direction of the text around it."""
    inner = "".join(map(_token, tokens))
    if tokens[0].is_special:
        return f' <bdi class="special">{inner}</bdi> '
    return f"<bdi>{inner}</bdi>"


def _token(token: Token) -> str:
    if token.verdict is not None and (token.is_masked or token.is_called):
        return marked(token.text, _CLASSES.get(token.verdict.kind, "masked"))
    return marked(token.text, "masked" if token.is_masked else "")


def marked(text: str, kind: str) -> str:
    """Returns the escaped text of a token, highlighted except for the spaces before it.

    Args:
      text: the text; a text of spaces alone is highlighted as "▁".
      kind: class of the highlight; "" for none.
    """
    word = text.lstrip(" ")
    space = text[: len(text) - len(word)]
    if not kind:
        return space + html.escape(word)
    return f'{space}<mark class="{kind}">{html.escape(word or "▁")}</mark>'
