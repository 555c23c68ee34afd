"""Values that the tables of papers and public code name are those of the configurations."""

import ast
import re
from pathlib import Path

import gin
import pytest

from xlme_jax.configuration import loading
from xlme_jax.configuration.registry import class_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "lab" / "paper_choices.md"
COLUMNS = ["setting", "paper", "public code", "here", "why"]
BINDING = re.compile(r"([\w/.]+) = (.+)")


def cases():
    """Yields (setting, gin files, name, value) of each value in a column "here"."""
    default = ""
    reading = False
    for line in PAGE.read_text().splitlines():
        if line.startswith("Values of `"):
            default = line.split("`")[1]
        cells = [cell.strip() for cell in line.strip()[1:-1].split("|")]
        if cells == COLUMNS or not line.startswith("|"):
            reading = line.startswith("|")
            continue
        if not reading or set(line) <= set("|- "):
            continue
        assert len(cells) == len(COLUMNS), f"{PAGE.name}: {line}"
        files = [default]
        for text, code in re.findall(r"([^`]*)`([^`]*)`", cells[3]):
            if code.endswith(".gin"):
                files = [*files, code] if text.strip() == "+" else [code]
            elif binding := BINDING.fullmatch(code):
                yield pytest.param(files, *binding.groups(), id=f"{cells[0]}: {binding[1]}")


def value_of(files, name):
    """Returns the value of a macro or of a configurable's field that gin files give."""
    paths = [f"gin_configs/{file}" for file in files]
    bindings = ["FineTune.pretrained = @XLM()"] if "finetune" in paths[0] else []
    loading.load(paths, bindings, "Optimizer")
    root, _, field = name.rpartition(".")
    if not root:
        return gin.query_parameter(f"%{name}")
    cls = root.split("/")[-1]
    bound = [key for key in (name, f"{cls}.{field}") if _is_bound(key)]
    return gin.query_parameter(bound[0]) if bound else getattr(class_of(cls), field)


def _is_bound(name):
    try:
        gin.query_parameter(name)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(("files", "name", "value"), cases())
def test_a_value_of_a_table_is_that_of_the_configuration(files, name, value):
    actual = value_of(files, name)
    if isinstance(actual, gin.config.ConfigurableReference):
        actual = gin.query_parameter(f"%{actual.selector.rpartition('.')[2]}")
    assert actual == ast.literal_eval(value)
