"""The examples in docstrings."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = [file for file in (ROOT / "xlme_jax").rglob("*.py") if ">>> " in file.read_text()]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_examples_of_docstrings(file):
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted and not result.failed
