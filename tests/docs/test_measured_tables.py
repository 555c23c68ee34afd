"""Tables of measurements in the documentation are those of benchmarks/results."""

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tables():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
        return importlib.import_module("tables")


@pytest.mark.parametrize("page", ["speed.md", "plan_tables.md"])
def test_tables_are_those_of_the_results(tables, page):
    text = (ROOT / "docs" / "lab" / page).read_text(encoding="utf-8")
    assert tables.filled(text) == text, "run python benchmarks/tables.py"
    assert text.count("<!-- table: ") == text.count("<!-- end -->")


def test_a_figure_that_was_typed_is_found(tables):
    text = (ROOT / "docs" / "lab" / "speed.md").read_text(encoding="utf-8")
    head = re.search(r"<!-- table: head -->.*?<!-- end -->", text, flags=re.DOTALL)[0]
    typed = re.sub(r"\d\.\d+ s", "0.001 s", head, count=1)
    assert typed != head and tables.filled(typed) == head


def test_every_table_has_a_command(tables):
    assert set(tables.TABLES) <= set(tables.COMMANDS)
    for command in tables.COMMANDS.values():
        script = command.split()[0]
        assert script == "-m" or (ROOT / script).is_file()
