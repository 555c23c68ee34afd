"""Notebooks: a `py:percent` file and an .ipynb without outputs each, which run as they are."""

import json
import os
import re

import pytest
import tiny

FOLDER = tiny.REPOSITORY / "notebooks"
NOTEBOOKS = sorted(file.stem for file in FOLDER.glob("*.py"))


def cells(name):
    """Returns the cells of a `py:percent` file: (kind, source)."""
    text = (FOLDER / f"{name}.py").read_text()
    _, *parts = re.split(r"^# %%(.*)\n", text, flags=re.MULTILINE)
    found = []
    for kind, source in zip(parts[::2], parts[1::2]):
        is_text = kind.strip() == "[markdown]"
        lines = [re.sub(r"^# ?", "", line) if is_text else line for line in source.splitlines()]
        found.append(("markdown" if is_text else "code", "\n".join(lines).strip("\n")))
    return found


def notebook(name):
    """Returns the content of an .ipynb."""
    return json.loads((FOLDER / f"{name}.ipynb").read_text())


def test_each_notebook_has_both_forms():
    assert {file.stem for file in FOLDER.glob("*.ipynb")} == set(NOTEBOOKS) != set()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_both_forms_are_the_same_without_outputs(name):
    found = notebook(name)["cells"]
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in found] == cells(name)
    for cell in found:
        assert not cell.get("outputs") and cell.get("execution_count") is None


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_run(name, tmp_path, monkeypatch):
    reason = "executes notebooks with Jupyter: pip install nbclient ipykernel"
    nbclient = pytest.importorskip("nbclient", reason=reason)
    nbformat = pytest.importorskip("nbformat", reason=reason)
    pytest.importorskip("ipykernel", reason=reason)
    path = f"{tiny.REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"
    for variable, value in tiny.environment(variables={"PYTHONPATH": path}).items():
        monkeypatch.setenv(variable, value)
    found = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(found)
    code = [cell for cell in found.cells if cell.cell_type == "code"]
    assert sum("STEPS = 300" in cell.source for cell in code) == 1
    for cell in code:
        cell.source = cell.source.replace("STEPS = 300", "STEPS = 3")
    client = nbclient.NotebookClient(found, timeout=900, kernel_name="python3")
    client.execute(cwd=str(tmp_path))
    printed = "".join(out.get("text", "") for cell in code for out in cell.outputs)
    assert "Step 1:" in printed and "in the log" in printed
    shown = [out.data for cell in code for out in cell.outputs if "data" in out]
    assert any("<iframe srcdoc" in data.get("text/html", "") for data in shown)
