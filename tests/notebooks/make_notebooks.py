"""Writes notebooks: the .ipynb of a `py:percent` file, with the outputs of a run of all cells.

    python tests/notebooks/make_notebooks.py a_checkpoint    # Without names: all of them.

A folder that all of them share holds data and runs, and is deleted at the end. What depends on the
machine is left out: the log, the progress line, times. So is what needs JavaScript, which GitHub
does not run; pictures get a palette.
"""

import base64
import io
import os
import re
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "notebooks"
METADATA = {
    "jupytext": {"formats": "ipynb,py:percent"},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
}
_COLORS = 64
_WIDTH = 800  # Pixels of a picture, at most.


def cells(name):
    """Returns the cells of a `py:percent` file: (kind, source)."""
    text = (FOLDER / f"{name}.py").read_text()
    _, *parts = re.split(r"^# %%(| .*)\n", text, flags=re.MULTILINE)
    pairs = []
    for kind, source in zip(parts[::2], parts[1::2]):
        is_text = kind.strip() == "[markdown]"
        # Jupytext writes magics as comments.
        comment = r"^# ?" if is_text else r"^# (?=%)"
        lines = [re.sub(comment, "", line) for line in source.splitlines()]
        pairs.append(("markdown" if is_text else "code", "\n".join(lines).strip("\n")))
    return pairs


def notebook(name):
    """Returns the notebook of a `py:percent` file, without outputs."""
    from nbformat import v4

    make = {"markdown": v4.new_markdown_cell, "code": v4.new_code_cell}
    return v4.new_notebook(
        cells=[
            make[kind](source, id=f"cell-{number}")
            for number, (kind, source) in enumerate(cells(name))
        ],
        metadata=METADATA,
    )


def run(content, folder, timeout=None):
    """Runs all cells of a notebook in a folder; the outputs become part of it."""
    import nbclient

    client = nbclient.NotebookClient(
        content, timeout=timeout, kernel_name="python3", record_timing=False
    )
    client.execute(cwd=str(folder))


def strip(content, folder):
    """Keeps what a reader of a stored notebook sees, and what the next run repeats.

    Args:
      content: the notebook, which ran.
      folder: the folder in which it ran, which outputs do not name.
    """
    content.metadata = METADATA
    for cell in content.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if _is_stored(output)]
            for output in cell.outputs:
                if "text" in output:
                    output.text = output.text.replace(f"{folder}/", "")
                data = output.get("data", {})
                data.update({kind: _stored(kind, data[kind], folder) for kind in data})


def _stored(kind, content, folder):
    """Returns a representation of an output as it is kept."""
    return _small(content) if kind == "image/png" else content.replace(f"{folder}/", "")


def _is_stored(output):
    """Returns whether an output is kept."""
    if output.output_type == "stream":
        return output.name == "stdout"
    if re.search("<script|<iframe", output.data.get("text/html", "")):
        return False
    # The progress line is the only text that is displayed and not a cell's value.
    return output.output_type != "display_data" or set(output.data) != {"text/plain"}


def _small(encoded):
    """Returns a PNG, as base64, with a palette and at most `_WIDTH` wide."""
    from PIL import Image

    picture = Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB")
    picture.thumbnail((_WIDTH, 10 * _WIDTH), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    # Median cut would give the thin lines of a plot the colour of its text.
    small = picture.quantize(_COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def main(names):
    """Writes the notebooks with these names, or all."""
    import nbformat

    os.environ["PYTHONPATH"] = f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    with tempfile.TemporaryDirectory() as folder:
        for name in names or sorted(file.stem for file in FOLDER.glob("*.py")):
            content = notebook(name)
            run(content, folder)
            strip(content, Path(folder).resolve())
            file = FOLDER / f"{name}.ipynb"
            nbformat.write(content, file)
            print(f"{file.relative_to(REPOSITORY)}: {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
