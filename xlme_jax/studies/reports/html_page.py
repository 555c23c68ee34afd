"""The frame, the style and the tables of HTML pages; light or dark as the reader's system is.

Pages are one file each, and load nothing. Their policy lets a browser run the scripts of the page
and no others, so that text of data could execute nothing even if it were not escaped.
"""

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence

from xlme_jax.studies.reports.visible_text import shortened, visible

_STYLE = """
:root { color-scheme: light dark; --text: #222; --back: #fff; --faint: #666; --line: #ddd;
        --fill: #f6f6f6; --ours: #eef5fb; }
@media (prefers-color-scheme: dark) {
  :root { --text: #ddd; --back: #17191c; --faint: #9a9a9a; --line: #3a3d42; --fill: #22252a;
          --ours: #1d2b3a; }
  /* Plots have a white ground; their hues stay. */
  img { filter: invert(0.91) hue-rotate(180deg); }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
       max-width: 1100px; margin: 2em auto; padding: 0 1em; overflow-wrap: anywhere; }
h1 { font-size: 1.5em; margin-bottom: 0; } h2 { font-size: 1.15em; margin-top: 2em; }
h3 { font-size: 1em; margin-bottom: 0.2em; }
.note { color: var(--faint); font-size: 13px; margin-top: 0.2em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; overflow-wrap: normal; }
th, td { padding: 0.25em 0.8em; text-align: right; border-bottom: 1px solid var(--line);
         unicode-bidi: plaintext; }
th:first-child, td:first-child { text-align: left; }
td { max-width: 45em; overflow-wrap: break-word; }
table.texts th, table.texts td { text-align: start; }
tr.ours td { background: var(--ours); } tr.ours td:first-child { font-weight: 600; }
th button { all: unset; cursor: pointer; } th button:hover { text-decoration: underline; }
th button:focus-visible { outline: 2px solid; }
th[aria-sort=ascending] button::after { content: " \\25B2" / ""; }
th[aria-sort=descending] button::after { content: " \\25BC" / ""; }
img { max-width: 100%; border: 1px solid var(--line); border-radius: 6px; margin: 0.5em 0; }
pre { background: var(--fill); border-radius: 6px; padding: 0.8em; white-space: pre-wrap;
      overflow-wrap: anywhere; font-size: 13px; }
summary { cursor: pointer; font-weight: 600; margin: 1em 0; }
@media (max-width: 600px) {
  body { margin: 1em auto; padding: 0 0.7em; } th, td { padding: 0.25em 0.5em; }
}
"""
# Most characters of a cell.
_LENGTH = 2_000

# Sorts a table by the column whose heading is clicked: by the number that begins a cell if most
# cells have one, else as text. Cells without a number stay last.
SORTING = r"""
for (const table of document.querySelectorAll("table")) {
  const head = table.tHead?.rows[0], body = table.tBodies[0];
  if (!head || !body || body.rows.length < 2) continue;
  const text = cell => (cell?.firstChild?.textContent ?? "").trim();
  const number = cell => {
    const found = /^[+\-−]?(\d[\d,]*(\.\d*)?|\.\d+)(e[+\-]?\d+)?/i.exec(text(cell));
    return found ? Number(found[0].replaceAll(",", "").replace("−", "-")) : NaN;
  };
  const sort = (column, sign) => {
    const rows = [...body.rows];
    const numbers = new Map(rows.map(row => [row, number(row.cells[column])]));
    const found = rows.filter(row => !isNaN(numbers.get(row)));
    if (2 * found.length > rows.length) {
      found.sort((a, b) => sign * (numbers.get(a) - numbers.get(b)));
      body.append(...found, ...rows.filter(row => isNaN(numbers.get(row))));
    } else {
      const of = row => text(row.cells[column]);
      body.append(...rows.sort((a, b) => sign * of(a).localeCompare(of(b))));
    }
  };
  [...head.cells].forEach((cell, column) => {
    if (!cell.textContent.trim()) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...cell.childNodes);
    cell.append(button);
    button.addEventListener("click", () => {
      const order = cell.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      for (const other of head.cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", order);
      sort(column, order === "ascending" ? 1 : -1);
    });
  });
}
"""


class Html(str):
    """A text that is HTML already; every other text is escaped."""


def page(
    title: str, body: str, style: str = "", scripts: Sequence[str] = (), served: bool = False
) -> str:
    """Returns a self-contained page.

    Args:
      title: plain text.
      body: HTML.
      style: further CSS; the colours of the page are the variables `--text`, `--back`, `--faint`,
        `--line`, `--fill` and `--ours`.
      scripts: JavaScript that runs after the body is read, such as `SORTING`.
      served: whether a server sends the page and its Content-Security-Policy; other pages contain
        their policy.
    """
    scripts = [script.replace("\r\n", "\n").replace("\r", "\n") for script in scripts]
    policy = "" if served else _policy(scripts)
    run = "".join(f"<script>{script}</script>\n" for script in scripts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'{policy}<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n"
        f"<body>\n{body}\n{run}</body>\n</html>\n"
    )


def _policy(scripts: Sequence[str]) -> str:
    """Returns the element that lets a browser run these scripts, and load nothing."""
    allowed = " ".join(f"'sha256-{digest(script)}'" for script in scripts) or "'none'"
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}; "
        "base-uri 'none'; form-action 'none'"
    )
    return f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'


def digest(script: str) -> str:
    """Returns the SHA-256 of a script, as a Content-Security-Policy names it."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def escaped(text: str) -> str:
    """Returns a text as HTML, with control characters as symbols; `Html` is returned unchanged."""
    return text if isinstance(text, Html) else html.escape(visible(text))


def table(
    head: Iterable[str],
    rows: Iterable[Iterable[str]],
    kind: str = "",
    ours: Iterable[bool] = (),
) -> str:
    """Returns a table of plain texts, each in the direction that its script is written in.

    Args:
      head: headings.
      rows: cells; `Html` is inserted unchanged, other text is escaped, and cut if very long.
      kind: class of the table; "texts" for cells of sentences instead of numbers.
      ours: which rows are set off as ours; none by default.
    """

    def line(cells: Iterable[str], tag: str, attribute: str = "") -> str:
        contents = (c if isinstance(c, Html) else html.escape(shortened(c, _LENGTH)) for c in cells)
        return f"<tr{attribute}>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in contents) + "</tr>"

    rows = list(rows)
    attributes = [' class="ours"' if is_ours else "" for is_ours in ours] or [""] * len(rows)
    begin = f'<table class="{kind}">' if kind else "<table>"
    body = (line(row, "td", attribute) for row, attribute in zip(rows, attributes))
    return "\n".join(
        [
            f'<div class="wide">{begin}<thead>{line(head, "th")}</thead><tbody>',
            *body,
            "</tbody></table></div>",
        ]
    )


def picture(caption: str, png: bytes) -> str:
    """Returns an image element that contains a picture.

    Args:
      caption: text in place of the picture, such as for screen readers.
      png: the picture.
    """
    data = base64.b64encode(png).decode("ascii")
    return f'<img alt="{escaped(caption)}" src="data:image/png;base64,{data}">'


def details(summary: str, content: str) -> str:
    """Returns HTML that a click on its heading opens and closes; empty if there is no content.

    Args:
      summary: the heading, plain text.
      content: HTML.
    """
    if not content:
        return ""
    return f"<details><summary>{escaped(summary)}</summary>\n{content}\n</details>"
