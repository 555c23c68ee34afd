import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from xlme_jax.preparation import workers


def double(item, report):
    report(item)
    return item * 2


def end(item, report):
    os._exit(1)


def fail(item, report):
    raise ValueError(f"cannot do {item}")


def wait_for_ever(item, report):
    if item:
        os.write(1, b"working\n")
        signal.pause()


def nothing():
    pass


@pytest.mark.parametrize("count", [1, 2])
def test_every_item_gets_its_result(count, capfd):
    assert dict(workers.run(double, [5, 1, 7], count, nothing)) == {5: 10, 1: 2, 7: 14}
    assert "3/3" in capfd.readouterr().err
    list(workers.run(double, [5, 1, 7], count, nothing, size_of=lambda item: 1000 * item))
    printed = capfd.readouterr().err
    assert "13.0k/13.0k" in printed and "3 of 3 files" in printed


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_errors_arrive_as_they_were_raised(count):
    with pytest.raises(ValueError, match="cannot do 1"):
        list(workers.run(fail, [1, 1], count, nothing))


def test_killed_worker_is_reported():
    with pytest.raises(workers.WorkerDied, match="--workers"):
        list(workers.run(functools.partial(end), [1, 2], 2, nothing))


def test_workers_end_with_a_killed_parent():
    """Busy and idle workers all release their pipe."""
    here = Path(__file__).resolve()
    call = "workers.run(test_workers.wait_for_ever, [1, 1, 0], 3, test_workers.nothing)"
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import test_workers; from test_workers import *; list({call})"],
        env={**os.environ, "PYTHONPATH": f"{here.parent}{os.pathsep}{here.parents[2]}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert [parent.stdout.readline() for _ in range(2)] == [b"working\n"] * 2
    parent.kill()
    try:
        parent.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(parent.pid, signal.SIGKILL)
        pytest.fail("the workers live on")
