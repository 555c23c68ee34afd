"""The command that shows batches."""

import os
import pty
import subprocess
import sys

import pytest
from helpers import tiny

from xlme_jax.runs import batch_inspection
from xlme_jax.studies.reports import batch_text


@pytest.mark.slow
def test_the_command_prints_and_writes_the_batch(tmp_path, tiny_data):
    from helpers import runs

    flags = tiny.flags(tmp_path / "run", tiny_data, "xlm")
    page = tmp_path / "pages" / "batch.html"
    page.parent.mkdir()
    good = [*flags, "--step=3", "--rows=2", f"--output={page}"]
    past, missing = ([*flags, "--step=21"], [*flags, f"--gin.DATA_DIR='{tmp_path}/no'"])
    done, beyond, nothing = tiny.run_each("inspect", good, past, missing)
    assert done.returncode == 0, done.stderr
    expected = batch_inspection.inspect_batch(
        runs.load(tmp_path / "run", tiny_data, objective="xlm"), 3
    )
    assert done.stdout == expected.text(2)
    assert "\x1b" not in done.stdout and "[" in done.stdout
    assert page.read_text() == expected.html(2)
    assert f"Page: {page}" in done.stderr
    assert beyond.returncode == nothing.returncode == 1
    assert "step = 21: the run has the steps 1 to TRAIN_STEPS = 20" in beyond.stderr
    assert f"DATA_DIR = '{tmp_path}/no' holds no prepared data set" in nothing.stderr
    assert not (tmp_path / "run").exists()


def in_a_terminal(flags):
    """Runs the command with a terminal as output; returns what it prints."""
    reader, writer = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "xlme_jax.inspect", *flags],
        env=tiny.environment(variables={"TERM": "xterm", "NO_COLOR": ""}),
        stdout=writer,
        stderr=subprocess.DEVNULL,
    )
    os.close(writer)
    printed = b""
    try:
        while part := os.read(reader, 65536):
            printed += part
    except OSError:  # The other end is closed.
        pass
    os.close(reader)
    assert process.wait() == 0
    return printed.decode()


@pytest.mark.slow
def test_the_command_prints_colours_to_a_terminal(tmp_path, tiny_data):
    flags = [*tiny.flags(tmp_path / "run", tiny_data, "xlm"), "--rows=1"]
    assert "\x1b[33m[" in in_a_terminal(flags)


def test_a_terminal_gets_colours_unless_it_wants_none(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for value, colored in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", value)
        assert batch_text.has_colors() == colored
