"""Pages of files outside of `docs/`, and the links to them.

Markdown in the repository links to files as they lie there, so that links work where the files are
read without the site. On the site these links lead to a page that shows the file.
"""

import ast
import json
import posixpath
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Markdown files outside of docs/ that are pages of the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
_LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
_SHOWN = {
    ".gin": "python",
    ".py": "python",
    ".sh": "bash",
    ".sbatch": "bash",
    ".yaml": "yaml",
    ".cff": "yaml",
    ".toml": "toml",
    ".cfg": "ini",
}
# Pages of files are found through the pages that link to them, not by search.
_FRONT = "---\nsearch:\n  exclude: true\n---\n\n"


def linked_files(markdown: str, uri: str) -> set[str]:
    """Returns the files and folders outside of `docs/` that a page links to, from the root."""
    targets = {_target(link, f"docs/{uri}") for _, link, _ in _LINK.findall(markdown)}
    return {path for path in targets if path and _page(path).startswith("files/")}


def with_site_links(markdown: str, uri: str) -> str:
    """Points the links of a page that leave `docs/` to pages of the site."""

    def on_site(match: re.Match[str]) -> str:
        if not (target := _target(match[2], f"docs/{uri}")):
            return match[0]
        return f"{match[1]}{posixpath.relpath(_page(target), posixpath.dirname(uri))}{match[3]}"

    return _LINK.sub(on_site, markdown)


def page_of(path: str, uri: str) -> str:
    """Returns a Markdown file of the repository as the page `uri`, whose links lead as before."""
    place = posixpath.relpath(".", posixpath.dirname(f"docs/{uri}"))

    def from_page(match: re.Match[str]) -> str:
        target = _target(match[2], path)
        return f"{match[1]}{posixpath.join(place, target)}{match[3]}" if target else match[0]

    return _LINK.sub(from_page, (ROOT / path).read_text())


def file_pages(paths: Iterable[str]) -> dict[str, str]:
    """Returns {uri: page} of files and folders, and of the files in these folders."""
    found = {}
    for path in paths:
        place = ROOT / path
        entries = sorted(place.iterdir()) if place.is_dir() else []
        for file in [place, *(entry for entry in entries if _is_shown(entry))]:
            name = file.relative_to(ROOT).as_posix()
            found[_page(name)] = _FRONT + (_folder(file) if file.is_dir() else _file(file))
    return found


def _target(link: str, origin: str) -> str:
    """Returns the existing path, from the root, that a link in the file `origin` means, or ""."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))
    return path if not path.startswith("..") and (ROOT / path).exists() else ""


def _page(path: str) -> str:
    """Returns the page of a path of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return PAGES.get(path) or f"files/{path}.md"


def _is_shown(file: Path) -> bool:
    return file.is_file() and (file.suffix in _SHOWN or file.name.startswith("Dockerfile"))


def _folder(folder: Path) -> str:
    """Returns the page of a folder: its purpose, and its files with their first sentences."""
    name = folder.relative_to(ROOT).as_posix()
    init = folder / "__init__.py"
    rows = [f"# `{name}`", "", _summary(init) if init.is_file() else "", ""]
    rows += ["| file | |", "|---|---|"]
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith((".", "__")):
            continue
        label = f"`{entry.name}{'/' if entry.is_dir() else ''}`"
        if _is_shown(entry):
            label = f"[{label}]({folder.name}/{entry.name}.md)"
        rows.append(f"| {label} | {_summary(entry)} |")
    return "\n".join(rows) + "\n"


def _file(file: Path) -> str:
    """Returns the page of a file with its content; of a notebook, its cells without output."""
    title = f"# `{file.relative_to(ROOT).as_posix()}`\n\n"
    if file.suffix == ".ipynb":
        return title + "\n\n".join(map(_cell, json.loads(file.read_text())["cells"]))
    language = _SHOWN.get(file.suffix, "docker" if "Dockerfile" in file.name else "text")
    return f"{title}`````{language}\n{file.read_text()}`````\n"


def _cell(cell: dict) -> str:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return re.sub(r"^#", "##", text, flags=re.MULTILINE)
    return f"`````python\n{text}\n`````"


def _summary(file: Path) -> str:
    """Returns the first line of a module's docstring, or of the comment at the top of a file."""
    if not _is_shown(file):
        return ""
    text = file.read_text()
    if file.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0].replace("|", "\\|")
    comments = [line.lstrip("# ") for line in text.splitlines() if line.startswith("# ")]
    return comments[0].replace("|", "\\|") if comments else ""
