"""Notebooks: a `py:percent` file and an .ipynb with outputs each, which run as they are."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import types

import make_notebooks
import pytest
from helpers import tiny
from make_notebooks import FOLDER, cells

EXAMPLE = tiny.REPOSITORY / "examples" / "hard_negatives"
NOTEBOOKS = sorted(file.stem for file in FOLDER.glob("*.py"))
# What is replaced so that a notebook runs in seconds, and a part of what it then prints.
SHORT_RUN = {"STEPS = 600": "STEPS = 3"}
SMALL = {
    "a_checkpoint": (SHORT_RUN, "best layer: "),
    "a_sharded_model": ({"LAYERS = 2": "LAYERS = 1"}, "all-gather among "),
    "ablate": (SHORT_RUN, "Did you mean translation_pairs?"),
    "plan_a_pod_run": (
        {
            "MORE = {": 'MORE = {"Encoder.hidden_size": 48, "Train.vocab_size": 2_000, ',
            "COMPILATIONS = 2": "COMPILATIONS = 1",
        },
        "python -m xlme_jax.train --gin_file=gin_configs/runs/xlme_base.gin",
    ),
    "what_the_model_sees": (SHORT_RUN, "bitext/rtd_loss"),
    "your_own_system": (SHORT_RUN, "correction_accuracy"),
}


def code(name):
    """Returns the sources of the code cells."""
    return [source for kind, source in cells(name) if kind == "code"]


def notebook(name):
    """Returns the content of an .ipynb."""
    return json.loads((FOLDER / f"{name}.ipynb").read_text())


def test_each_notebook_has_both_forms():
    assert {file.stem for file in FOLDER.glob("*.ipynb")} == set(NOTEBOOKS) == set(SMALL)
    assert sum(file.stat().st_size for file in FOLDER.iterdir() if file.is_file()) < 1_000_000


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_both_forms_are_the_same(name):
    stored = notebook(name)
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in stored["cells"]] == cells(name)
    assert stored["metadata"] == make_notebooks.METADATA
    assert all(cell["metadata"] == {} for cell in stored["cells"])


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_outputs_are_those_of_one_run_without_what_depends_on_the_machine(name):
    executed = [cell for cell in notebook(name)["cells"] if cell["cell_type"] == "code"]
    counts = [cell["execution_count"] for cell in executed]
    assert counts == list(range(1, len(counts) + 1))
    outputs = [output for cell in executed for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {
        *("stream", "display_data", "execute_result")
    }
    assert all(output.get("name", "stdout") == "stdout" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs) or any(
        "text/html" in output.get("data", {}) for output in outputs
    )
    text = json.dumps(outputs)
    assert not re.search(r"[^\w.:/]/(tmp|home|root|work|usr|Users|content)/|step \d+/\d+ \(", text)
    assert not re.search("<script|<iframe", text)
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 200_000


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_say_what_they_need(name):
    """The first text says what to expect; the first code installs the package where it is not."""
    kinds = [kind for kind, _ in cells(name)]
    assert kinds[:2] == ["markdown", "code"]
    for part in ("**What it shows.**", "**How long.**", "**What to expect.**"):
        assert part in cells(name)[0][1]
    sources = [re.findall(r'^SOURCE = "(.*)"$', cell, re.MULTILINE) for cell in code(name)]
    others = [re.findall(r'^SOURCE = "(.*)"$', cell, re.MULTILINE) for cell in code(NOTEBOOKS[0])]
    assert len(sources[0]) == 1 and not any(sources[1:])
    assert sources[0] == others[0]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_first_cell_installs_from_what_is_there(name, tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(subprocess, "run", lambda words, check: called.append(words[-1]))
    monkeypatch.chdir(tmp_path)

    def run(source="", found=None):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
        exec(code(name)[0].replace('SOURCE = ""', f"SOURCE = {source!r}"), {})
        return called.pop() if called else None

    assert run(found=types.SimpleNamespace(origin="xlme_jax/__init__.py")) is None
    with pytest.raises(ValueError, match="set SOURCE: xlme_jax is neither installed nor"):
        run()
    address = "git+https://example.org/xlme_jax"
    assert re.fullmatch(r"xlme_jax\[\w+\] @ " + re.escape(address), run(address))
    clone = tmp_path / "xlme_jax"
    (clone / "xlme_jax").mkdir(parents=True)
    (clone / "notebooks").mkdir()
    (clone / "xlme_jax" / "api.py").touch()
    # Python takes the clone's folder for a package without a file.
    for source in ("", "xlme_jax"):
        wanted = run(source, found=types.SimpleNamespace(origin=None))
        assert wanted.partition("[")[0] == str(clone)
    monkeypatch.chdir(clone / "notebooks")
    assert run().partition("[")[0] == str(clone)


def test_the_system_of_the_notebook_is_the_example():
    written = [source for source in code("your_own_system") if source.startswith("%%writefile")]
    assert [cell.split("\n", 1)[0] for cell in written] == [
        "%%writefile hard_negatives.py",
        "%%writefile -a hard_negatives.py",
        "%%writefile -a hard_negatives.py",
    ]
    module = "\n".join(cell.split("\n", 1)[1] for cell in written)
    example = (EXAMPLE / "hard_negatives.py").read_text()
    assert ast.dump(ast.parse(module)) == ast.dump(ast.parse(example))
    gin = [line for line in (EXAMPLE / "hard_negatives.gin").read_text().splitlines()]
    gin = "\n".join(line for line in gin if not line.startswith("#"))
    assert sum(gin in cell for cell in code("your_own_system")) == 1


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Returns a folder in which all notebooks run: they share data and a run."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_run(name, shared, monkeypatch):
    reason = "executes notebooks with Jupyter: pip install nbclient ipykernel treescope rich"
    pytest.importorskip("nbclient", reason=reason)
    nbformat = pytest.importorskip("nbformat", reason=reason)
    for module in ("ipykernel", "treescope", "rich"):
        pytest.importorskip(module, reason=reason)
    path = f"{tiny.REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"
    for variable, value in tiny.environment(variables={"PYTHONPATH": path}).items():
        monkeypatch.setenv(variable, value)
    found = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(found)
    executed = [cell for cell in found.cells if cell.cell_type == "code"]
    changes, expected = SMALL[name]
    for given, small in changes.items():
        assert sum(cell.source.count(given) for cell in executed) == 1
        for cell in executed:
            cell.source = cell.source.replace(given, small)
    make_notebooks.run(found, shared, timeout=900)
    assert all(cell.execution_count for cell in executed)
    outputs = [output for cell in executed for output in cell.outputs]
    printed = "".join(output.get("text", "") for output in outputs)
    assert expected in printed
    shown = [output.data for output in outputs if "data" in output]
    if name == "what_the_model_sees":
        assert "Step 1:" in printed and "in the log" in printed
        pages = [data.get("text/html", "") for data in shown]
        assert any("<iframe srcdoc" in page for page in pages)
        assert any("discriminator reads" in page for page in pages)
    else:
        assert any("image/png" in data for data in shown)
