"""The pages on papers and public code: the values in their column "here" are those of the files."""

import ast
import re

import pytest
from helpers import tiny

from xlme_jax.configuration import loading

FOLDER = tiny.REPOSITORY / "docs" / "papers"
PAGES = sorted(FOLDER.glob("*.md"))
HEAD = ["setting", "paper", "public code", "here", "why"]


def rows_of(page):
    """Yields (gin files, cells) of each row of the tables, where files stand above a table."""
    files = ()
    for line in page.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            files = tuple(re.findall(r"`(gin_configs/\S+?\.gin)`", line)) or files
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells != HEAD and set(line) != set("|-"):
            yield files, cells


ROWS = [(page, files, cells) for page in PAGES for files, cells in rows_of(page)]
VALUES = [
    pytest.param(files, cells[0].strip("`"), cells[3], id=f"{page.stem}: {files[-1]}: {cells[0]}")
    for page, files, cells in ROWS
    if re.fullmatch(r"`[\w/]+\.\w+`", cells[0])
]


@pytest.mark.parametrize(("files", "setting", "here"), VALUES)
def test_the_file_has_the_value_of_the_page(files, setting, here):
    assert re.fullmatch("`.+`", here), "the cell has the value alone"
    name, field = setting.rsplit(".", 1)
    is_tuned = any(re.search(r"finetune/(?!veco_wmt)", file) for file in files)
    bindings = ["FineTune.pretrained = @XLM()"] if is_tuned else []
    value = getattr(loading.load(files, bindings, name), field)
    assert value == ast.literal_eval(here.strip("`"))


def test_every_row_has_its_columns():
    assert PAGES and VALUES
    for page, files, cells in ROWS:
        assert len(cells) == len(HEAD) and cells[3], (page.name, cells)
        assert files and all((tiny.REPOSITORY / file).is_file() for file in files), cells
