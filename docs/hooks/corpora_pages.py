"""Reference of the public distributions of text that `prepare --tasks=text` recognises."""

import html

from xlme_jax.preparation import distributions
from xlme_jax.preparation.distribution_table import Distribution
from xlme_jax.preparation.distributions import FileOfDistribution
from xlme_jax.preparation.folder_source import DOCUMENTS

_INTRODUCTION = """
# Public corpora

The distributions that `--tasks=text --dir=FOLDER` takes as downloaded
([Your own text](../guide/own_text.md#public-corpora-as-downloaded)), each with the path of one of
its files. `python -m xlme_jax.prepare --explain` prints the same list, and with `--dir=FOLDER` what
each file of a folder is. Parts in the column "left out" are no training text;
`--include_parts=test`, for example, takes them. So it is with pair files that have `dev` or `test`
in their names. `--min_score` selects pairs by their scores.
"""
_TEXT, _PAIRS = "Running text", "Translations"
_EVALUATION, _UNREAD = "Sets to measure with", "Not read as they are"


def page() -> str:
    """Returns the page with a table for each kind of distribution."""
    tables: dict[str, list[str]] = {_TEXT: [], _PAIRS: [], _EVALUATION: [], _UNREAD: []}
    for file in distributions.examples():
        tables[_kind(file.distribution)].append(_row(file))
    lines = [_INTRODUCTION]
    for kind, rows in tables.items():
        last = "what to do" if kind == _UNREAD else "licence"
        lines += [f"## {kind}", "", f"| distribution | a file | left out | {last} |"]
        lines += ["|---|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _kind(row: Distribution) -> str:
    """Returns the heading below which a distribution is listed."""
    if row.is_evaluation:
        return _EVALUATION
    if not row.format:
        return _UNREAD
    return _TEXT if row.format in DOCUMENTS else _PAIRS


def _row(file: FileOfDistribution) -> str:
    """Returns the line of the table for the example of a distribution."""
    row = file.distribution
    name = f"[{row.title}]({row.url})" if row.url else row.title
    if row.score is not None:
        name += ", with scores"
    left_out = ", ".join(f"`{part}`" for part in distributions.other_parts(row))
    is_read = row.format or row.is_evaluation
    about = row.licence if is_read else _escaped(file.advice)
    return f"| {name} | `{row.example}` | {left_out} | {about} |"


def _escaped(text: str) -> str:
    """Returns text in which nothing is a mark of Markdown or of HTML."""
    text = html.escape(text, quote=False)
    for mark in "|*_":
        text = text.replace(mark, f"&#{ord(mark)};")
    return text
