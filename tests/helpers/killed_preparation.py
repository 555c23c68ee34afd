"""Prepares one folder in children that are killed at their n-th use of a file of it.

`run_each("tests.helpers.killed_preparation", [file])`: the file is a pickle of a `PrepareConfig`
and the n's, which are tried until a child ends; then one may end. Forked, since to import takes
longer than all the rest.
"""

import itertools
import os
import pickle
import signal
import sys
from pathlib import Path

from xlme_jax import api

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "fcntl.flock"}


def run(config, last):
    """Prepares in a child; returns its exit code."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    count = itertools.count(1)

    def hook(event, args):
        is_use = event == "fcntl.flock" or (args and str(args[0]).startswith(config.output))
        if event in EVENTS and is_use and next(count) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    api.prepare(config)
    os._exit(0)


def main():
    config, moments = pickle.loads(Path(sys.argv[1]).read_bytes())
    killed = 0
    for last in moments:
        status = run(config, last)
        assert status in (0, -signal.SIGKILL), status
        if status == 0:
            break
        killed += 1
    assert run(config, None) == 0
    print("killed", killed)


if __name__ == "__main__":
    main()
