"""Ends hostile tests that hang, which is a failure."""

import signal

import pytest
from fuzzing import HANG_SECONDS


@pytest.fixture(autouse=True)
def hang_guard():
    def hangs(*_):
        raise AssertionError(f"still at it after {HANG_SECONDS} seconds")

    previous = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(HANG_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)
