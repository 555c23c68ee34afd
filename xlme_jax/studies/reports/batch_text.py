"""A training batch as text for a terminal, with or without colours."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from xlme_jax.studies.reports import batch_rows
from xlme_jax.studies.reports.batch_rows import BatchRows, Segment, StreamRows, Token
from xlme_jax.studies.reports.directions import isolated
from xlme_jax.studies.reports.text_table import aligned
from xlme_jax.studies.reports.visible_text import visible

# Most tasks in the table of a stream.
TASKS = 20
_RESET = "\x1b[0m"
_STYLES = {
    "heading": "\x1b[1m",
    "special": "\x1b[2m",
    "masked": "\x1b[33m",
    "found": "\x1b[32m",
    "missed": "\x1b[31m",
    "false alarm": "\x1b[35m",
}
_OF_MASKS = "[x]: x is masked; [x>y]: y is read in its place, [x=]: x itself."
_OF_VERDICTS = "x?: the discriminator calls x replaced, though it is the original."
_OF_NEXT_TOKENS = "{x}: x was predicted, and is not the original."


def has_colors() -> bool:
    """Returns whether standard output is a terminal that shows colours (https://no-color.org)."""
    allowed = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return allowed and sys.stdout.isatty()


def render(batch: BatchRows, rows: int | None = 4, colors: bool = False) -> str:
    """Returns a batch as text.

    Args:
      batch: the batch.
      rows: most rows of each stream, those that add a language first; None for all.
      colors: whether to colour masked tokens and verdicts with ANSI codes.
    """
    painter = _Painter(colors)
    facts = ", ".join(f"{name} {visible(value)}" for name, value in batch.facts.items())
    lines = [painter.paint(f"Step {batch.step}", "heading") + f": {facts}", _legend(batch)]
    for stream in batch.streams:
        lines += ["", *painter.stream(stream, batch.metrics, rows)]
    return "\n".join(lines) + "\n"


def _legend(batch: BatchRows) -> str:
    """Returns the meaning of the marks that the batch may have."""
    parts = [_OF_MASKS]
    if any(stream.is_judged for stream in batch.streams):
        parts.append(_OF_VERDICTS)
    if any(stream.is_continued for stream in batch.streams):
        parts.append(_OF_NEXT_TOKENS)
    return " ".join(parts)


class _Painter:
    """Renders parts of a batch as lines."""

    def __init__(self, colors: bool):
        self._colors = colors

    def paint(self, text: str, style: str) -> str:
        """Returns a text in a style of `_STYLES`; unchanged without colours or such a style."""
        if not self._colors or style not in _STYLES:
            return text
        return f"{_STYLES[style]}{text}{_RESET}"

    def stream(
        self, stream: StreamRows, metrics: Mapping[str, float], rows: int | None
    ) -> Iterator[str]:
        """Yields the lines of a stream: facts, metrics, tasks, and rows with their notes.

        Args:
          stream: the stream.
          metrics: the metrics of the step, of all streams.
          rows: most rows; None for all.
        """
        name = stream.stream.name
        facts = ", ".join(f"{key}: {value}" for key, value in stream.facts.items())
        yield f"{self.paint(visible(name), 'heading')} ({stream.stream.kind}): {facts}"
        of_stream = {key: x for key, x in metrics.items() if key.startswith(f"{name}/")}
        if of_stream:
            line = ", ".join(
                f"{key.removeprefix(f'{name}/')} {x:.4g}" for key, x in of_stream.items()
            )
            yield f"  {visible(line)}"
        yield from _table(["task", "weight", "drawn", "draws"], draws(stream), "  ")
        numbers = batch_rows.shown(stream, rows)
        for number in numbers:
            labels = stream.labels(number)
            yield self.paint(f"  row {number}", "heading") + (
                f", labels {labels}" if labels else ""
            )
            parts = stream.row(number)
            for part in parts:
                if isinstance(part, int):
                    yield "    " + self.paint(f"{part} padding", "special")
                else:
                    yield from self._segment(part)
            if notes := batch_rows.notes(parts):
                yield from _table(*notes, "      ")
        if note := batch_rows.unseen(stream, numbers):
            yield f"  {note}"

    def _segment(self, segment: Segment) -> Iterator[str]:
        """Yields the line of a segment, and one for each predictor of tokens without masks."""
        text = " ".join(map(self._run, segment.runs))
        yield f"    {segment.number} {segment.label}: {text}"
        for name, predictions in segment.unmasked_predictions.items():
            parts = [
                self.paint(prediction.piece.replace("▁", " "), "found")
                if prediction.piece == token.piece
                else self.paint(f"{{{prediction.piece.replace('▁', ' ').strip()}}}", "missed")
                for token, prediction in predictions
            ]
            mean = sum(prediction.of_original for _, prediction in predictions) / len(predictions)
            guessed = isolated("".join(parts).strip())
            yield f"      {name} (original tokens at {mean:.1%}): {guessed}"

    def _run(self, tokens: Sequence[Token]) -> str:
        if tokens[0].is_special and not any(token.is_masked for token in tokens):
            return self.paint(" ".join(token.piece for token in tokens), "special")
        return isolated("".join(map(self._token, tokens)).strip())

    def _token(self, token: Token) -> str:
        style = "masked" if token.is_masked else ""
        if token.verdict is not None and (token.is_masked or token.is_called):
            style = token.verdict.kind
        word = token.marked.lstrip(" ")
        return token.marked[: len(token.marked) - len(word)] + self.paint(word, style)


def draws(stream: StreamRows) -> list[list[str]]:
    """Returns the rows of a table of tasks: name, weight, share in this batch, draws.

    The `TASKS` tasks with the largest weights are listed, the others are summed up in a last row.
    """
    tasks = stream.draws()
    rows = [
        [visible(task), f"{share:.2%}", f"{drawn:.2%}", str(count)]
        for task, share, drawn, count in tasks[:TASKS]
    ]
    if rest := tasks[TASKS:]:
        _, shares, drawn, counts = zip(*rest)
        rows.append(
            [f"{len(rest)} others", f"{sum(shares):.2%}", f"{sum(drawn):.2%}", str(sum(counts))]
        )
    return rows


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], indent: str) -> Iterator[str]:
    return (indent + line for line in aligned([head, *rows], texts=len(head)))
