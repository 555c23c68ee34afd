"""The command `xlme-jax`."""

import re
import sys

import pytest
from helpers import tiny

from xlme_jax import __main__ as console


def test_the_commands_are_listed_with_what_they_do():
    import test_rooms

    found = console.commands()
    assert set(found) == test_rooms.COMMANDS
    assert found["train"] == "Trains or fine-tunes"
    assert all(re.fullmatch(r"[A-Z][^`]{10,}[^.]", summary) for summary in found.values())


def test_help_imports_nothing_heavy():
    code = """
import runpy, sys
sys.argv = ["xlme-jax"]
try:
    runpy.run_module("xlme_jax", run_name="__main__", alter_sys=True)
except SystemExit as status:
    heavy = {"jax", "numpy", "absl", "xlme_jax.api"} & set(sys.modules)
    print("ENDED", status.code, heavy)
"""
    output = tiny.run(["-c", code])
    assert "\n  train_vocabulary  Trains a SentencePiece vocabulary\n" in output
    assert output.endswith("ENDED 0 set()\n")


@pytest.mark.parametrize(
    ("name", "said"), [("trian", "did you mean 'train'? "), ("zzz", "no command 'zzz'; xlme-jax")]
)
def test_unknown_commands_are_named(monkeypatch, capsys, name, said):
    monkeypatch.setattr(sys, "argv", ["xlme-jax", name, "--x=1"])
    assert console.main() == 1
    assert said in capsys.readouterr().err


def test_a_command_runs_as_its_module_does(monkeypatch):
    calls = []
    run = lambda *name, **options: calls.append((name, options, sys.argv[1:]))  # noqa: E731
    monkeypatch.setattr(console.runpy, "run_module", run)
    monkeypatch.setattr(sys, "argv", ["xlme-jax", "import-hf", "--source=x"])
    assert console.main() == 0
    options = {"run_name": "__main__", "alter_sys": True}
    assert calls == [(("xlme_jax.import_hf",), options, ["--source=x"])]
