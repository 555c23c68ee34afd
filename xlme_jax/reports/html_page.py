"""The frame, the style and the tables of HTML pages; light or dark as the reader's system is."""

import html
from collections.abc import Iterable

_STYLE = """
:root { color-scheme: light dark; --text: #222; --back: #fff; --faint: #666; --line: #ddd;
        --fill: #f6f6f6; --ours: #eef5fb; }
@media (prefers-color-scheme: dark) {
  :root { --text: #ddd; --back: #17191c; --faint: #9a9a9a; --line: #3a3d42; --fill: #22252a;
          --ours: #1d2b3a; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
       max-width: 1100px; margin: 2em auto; padding: 0 1em; overflow-wrap: break-word; }
h1 { font-size: 1.5em; margin-bottom: 0; } h2 { font-size: 1.15em; margin-top: 2em; }
h3 { font-size: 1em; margin-bottom: 0.2em; }
.note { color: var(--faint); font-size: 13px; margin-top: 0.2em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; }
th, td { padding: 0.25em 0.8em; text-align: right; border-bottom: 1px solid var(--line);
         unicode-bidi: plaintext; }
th:first-child, td:first-child { text-align: left; }
table.texts th, table.texts td { text-align: start; }
tr.ours td { background: var(--ours); } tr.ours td:first-child { font-weight: 600; }
img { max-width: 100%; border: 1px solid var(--line); border-radius: 6px; margin: 0.5em 0; }
pre { background: var(--fill); border-radius: 6px; padding: 0.8em; overflow-x: auto;
      font-size: 13px; }
summary { cursor: pointer; font-weight: 600; margin: 1em 0; }
"""


def page(title: str, body: str, style: str = "") -> str:
    """Returns a self-contained page.

    Args:
      title: plain text.
      body: HTML.
      style: further CSS; `--text`, `--back`, `--faint`, `--line`, `--fill` and `--ours` are its
        colours.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def table(head: Iterable[str], rows: Iterable[Iterable[str]], of: str = "") -> str:
    """Returns a table of plain texts, each in the direction that its script is written in.

    Of class `of`; "texts" for cells of sentences instead of numbers.
    """

    def line(cells: Iterable[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    lines = [line(head, "th"), *(line(row, "td") for row in rows)]
    begin = f'<table class="{of}">' if of else "<table>"
    return "\n".join([f'<div class="wide">{begin}', *lines, "</table></div>"])


def details(summary: str, content: str) -> str:
    """Returns HTML under a heading that opens and closes it; empty if there is no content."""
    if not content:
        return ""
    return f"<details><summary>{html.escape(summary)}</summary>\n{content}\n</details>"
