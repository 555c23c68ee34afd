"""Reference of the shipped gin files, each with its first comment and its content."""

from repository import ROOT

_INTRODUCTION = """
# Shipped configurations

The gin files of the package, in `gin_configs`. The first comment of each says what it runs, on what
hardware, how long, and what to expect. `--gin_file=gin_configs/runs/quickstart.gin` works in any
folder, once the package is installed; several files are read in order.
[Configure a run](../guide/configuration.md) changes them from the command line.
"""
_FOLDERS = {
    "runs": "Pre-training runs",
    "finetune": "Fine-tuning",
    "ablations": "Ablations, to add after a run's file",
    "models": "Systems, included by the runs",
    ".": "Shared parts, included by the runs",
}


def page() -> str:
    """Returns the page with a section for each folder of `gin_configs`."""
    lines = [_INTRODUCTION]
    for folder, title in _FOLDERS.items():
        files = sorted((ROOT / "gin_configs" / folder).glob("*.gin"))
        lines += [f"## {title}", ""]
        for file in files:
            name = file.relative_to(ROOT / "gin_configs").as_posix()
            text = file.read_text()
            lines += [f"### `{name}`", "", f"```text\n{_comment(text)}\n```", ""]
            lines += ['??? note "Content"', "", "    ```python"]
            lines += [f"    {line}".rstrip() for line in _content(text).splitlines()]
            lines += ["    ```", ""]
    return "\n".join(lines)


def _comment(text: str) -> str:
    """Returns the comment at the top of a file, without its marks."""
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in _head(text))


def _content(text: str) -> str:
    return "\n".join(text.splitlines()[len(_head(text)) :]).strip("\n")


def _head(text: str) -> list[str]:
    lines = text.splitlines()
    return lines[: next((i for i, s in enumerate(lines) if not s.startswith("#")), len(lines))]
