"""Signals, sent to subprocesses because they end them."""

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import threading

import jax
import pytest
from helpers import tiny

from xlme_jax.training import peers, stopping
from xlme_jax.training.run import NEVER
from xlme_jax.training.stopping import EXIT_STOPPED, StopOnSignal

# The tests may run under nohup, which ignores it.
HEAR_SIGHUP = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)"
SCRIPT = """
import sys, time
from xlme_jax.training.stopping import Stopped, StopOnSignal

def wait():
    print("waiting", flush=True)
    time.sleep({wait})
    print("written", flush=True)

with StopOnSignal() as stop:
{body}
print("end", flush=True)
"""


# Imports the libraries once; then forks a process for each [script, file of its output] that it
# reads, and writes its number and, when it has ended, its exit code.
FORKS = """
import json, os, signal, sys, traceback
import xlme_jax.training.stopping
for line in sys.stdin:
    text, output = json.loads(line)
    child = os.fork()
    if not child:
        signal.alarm(600)  # What hangs is killed.
        written = os.open(output, os.O_WRONLY)
        os.dup2(written, 1)
        os.dup2(written, 2)
        code = 0
        try:
            exec(text, {})
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Forked:
    """A script in a process that was forked; `forks` runs FORKS."""

    def __init__(self, forks, text, output):
        os.mkfifo(output)
        forks.stdin.write(json.dumps([text, str(output)]) + "\n")
        forks.stdin.flush()
        self.stdout = open(output)  # noqa: SIM115
        self._forks, self._process = forks, int(forks.stdout.readline())
        self.returncode = None

    def send_signal(self, number):
        os.kill(self._process, number)

    def end(self):
        """Waits for the process to end; returns its other output."""
        output = self.stdout.read()
        self.returncode = int(self._forks.stdout.readline())
        return output

    def close(self):
        if self.returncode is None:
            self.send_signal(signal.SIGKILL)
            self.end()
        self.stdout.close()


@pytest.fixture(scope="module")
def forks():
    """Returns a process that has imported the libraries and forks scripts."""
    process = tiny.start(["-c", FORKS], stdin=subprocess.PIPE, stderr=None)
    yield process
    process.communicate()


@pytest.fixture
def start(forks, tmp_path):
    """Starts a script with its body inside `with StopOnSignal()`; waits until it is ready."""
    processes = []

    def started(body, wait=0):
        text = SCRIPT.format(body="\n".join("    " + line for line in body), wait=wait)
        output = tmp_path / str(len(processes))
        processes.append(Forked(forks, HEAR_SIGHUP + text, output))
        assert processes[-1].stdout.readline() == "ready\n"
        return processes[-1]

    yield started
    for process in processes:
        process.close()


# The main thread in C for minutes, as in compiling: no handler of Python's would ever run.
BUSY = [
    "print('ready', flush=True)",
    "import hashlib",
    "hashlib.pbkdf2_hmac('sha256', b'a', b'b', 10**9)",
]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_while_nothing_is_unsaved_a_signal_ends_the_process(start, number):
    process = start(["stop.saved(7, wait)", *BUSY])
    process.send_signal(number)
    output = process.end()
    assert process.returncode == EXIT_STOPPED, output
    assert output.index("waiting") < output.index("written")
    assert "Stopped after step 7. Run the same command again to resume." in output
    assert signal.Signals(number).name in output


def test_before_anything_began_too(start):
    process = start(BUSY)
    process.send_signal(signal.SIGTERM)
    output = process.end()
    assert process.returncode == EXIT_STOPPED
    assert "Stopped before the first step." in output


def test_a_second_signal_ends_it_even_while_the_first_waits(start):
    process = start(["stop.saved(7, wait)", *BUSY], wait=600)
    process.send_signal(signal.SIGTERM)
    for line in process.stdout:
        if line == "waiting\n":
            break
    process.send_signal(signal.SIGINT)
    output = process.end()
    assert process.returncode == 128 + signal.SIGINT
    assert "SIGINT again: ending at once" in output
    assert "written" not in output


def test_a_step_in_flight_is_finished_and_saved_first(start):
    body = [
        "step = 1",
        "assert not stop.requested(step)",
        "print('ready', flush=True)",
        "while step == 1 or not stop.requested(step): time.sleep(0.05); step += 1",
        "print('saving', flush=True)",
        "try: stop.saved(step, wait)",
        "except Stopped as stopped: assert stopped.args == Stopped(step).args",
    ]
    process = start(body)
    process.send_signal(signal.SIGTERM)
    output = process.end()
    assert process.returncode == 0, output
    assert output.splitlines()[-2:] == ["saving", "end"]


@pytest.mark.slow
def test_nohup_is_respected(start):
    body = ["stop.saved(7, wait)", "print('ready', flush=True)", "time.sleep(2)"]
    text = SCRIPT.format(body="\n".join("    " + line for line in body), wait=0)
    command = "trap '' HUP; exec " + shlex.join([sys.executable, "-c", text])
    process = subprocess.Popen(
        ["bash", "-c", command], stdout=subprocess.PIPE, env=tiny.environment(), text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "end\n")


def test_failed_writes_are_reported(start):
    body = [
        "def wait(): raise ValueError('The disk is full.')",
        "stop.saved(7, wait)",
        *BUSY,
    ]
    process = start(body)
    process.send_signal(signal.SIGTERM)
    output = process.end()
    assert process.returncode == 1
    assert "ValueError: The disk is full." in output


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with StopOnSignal():
        during = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert during != before
    assert before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]


def test_nothing_stops_a_run_that_takes_no_signals():
    assert not NEVER.requested(5)
    NEVER.saved(5, lambda: None)


class Service:
    """A key-value store with barriers, like that of jax.distributed."""

    def __init__(self, processes):
        self.values, self.barrier = {}, threading.Barrier(processes)

    def key_value_set(self, key, value):
        self.values[key] = value

    def wait_at_barrier(self, key, timeout):
        self.barrier.wait(timeout / 1000)

    def key_value_dir_get(self, prefix):
        return [(k, v) for k, v in self.values.items() if k.startswith(prefix)]


def agreed(monkeypatch, *positions):
    """Returns the step that processes agree on; each is at (step, whether it is saved)."""
    service, stops, exits = Service(len(positions)), [], []
    index = threading.local()
    monkeypatch.setattr("jax.process_index", lambda: index.value)
    monkeypatch.setattr("os._exit", lambda status: exits.append((index.value, status)))

    def agree(number, stop):
        index.value = number
        stop._agree()

    for step, is_saved in positions:
        stop = StopOnSignal()
        stop._client = service
        (stop.saved(step, lambda: None) if is_saved else stop.requested(step))
        stops.append(stop)
    threads = [threading.Thread(target=agree, args=pair) for pair in enumerate(stops)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    (last,) = {stop._last for stop in stops}
    return last, sorted(exits)


def test_processes_agree_on_the_first_step_that_none_has_passed(monkeypatch):
    assert agreed(monkeypatch, (4, False), (4, False)) == (5, [])
    assert agreed(monkeypatch, (4, False), (5, False), (3, False)) == (6, [])
    # One is still at the step before the one that the other has saved, and evaluates.
    assert agreed(monkeypatch, (4, False), (5, True)) == (5, [(1, EXIT_STOPPED)])
    # One has passed the saved step: the other goes on to the next.
    assert agreed(monkeypatch, (5, False), (5, True)) == (6, [])
    both = [(0, EXIT_STOPPED), (1, EXIT_STOPPED)]
    assert agreed(monkeypatch, (5, True), (5, True)) == (5, both)
    # One has not yet read the checkpoint that the other goes on from.
    assert agreed(monkeypatch, (0, True), (40, True)) == (40, [(1, EXIT_STOPPED)])


class Deaf(Service):
    """Nobody asks for the end, and no other process comes to a barrier."""

    def key_value_try_get(self, key):
        if not self.values:
            raise jax.errors.JaxRuntimeError("NOT_FOUND")
        return self.values[key]

    def wait_at_barrier(self, key, timeout):
        raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: barrier\nmore")


@pytest.fixture
def ends(monkeypatch):
    """Returns a function that lets `act` use a stop of several processes; returns its end."""
    monkeypatch.setattr(stopping, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(stopping.peers, "coordination_client", lambda: Deaf(2))
    left, said = threading.Event(), []

    def leave(status):
        said.append(status)
        left.set()

    monkeypatch.setattr(stopping.peers, "leave", leave)
    monkeypatch.setattr(stopping, "say", said.append)

    def run(act, seconds, phase_timeout=100.0):
        with StopOnSignal(step_timeout=0.1, phase_timeout=phase_timeout) as stop:
            act(stop)
            has_left = left.wait(seconds)
        return has_left, said

    return run


def test_a_run_whose_steps_do_not_end_is_left(ends):
    has_left, said = ends(lambda stop: stop.requested(3), 30)
    assert has_left and said[1] == peers.EXIT_LOST_PEERS
    assert "no step ended for 0 s after step 3" in said[0]


def test_evaluations_and_preparation_may_take_long(ends):
    def act(stop):
        stop.requested(3)
        stop.saved(3, lambda: None)

    assert ends(act, 0.5) == (False, [])
    assert ends(lambda stop: None, 0.5) == (False, [])


def test_a_start_that_does_not_end_is_left(ends):
    has_left, said = ends(lambda stop: None, 30, phase_timeout=0.1)
    assert has_left and said[1] == peers.EXIT_LOST_PEERS
    assert "no step ended for 0 s after the start (--phase_timeout)" in said[0]


def test_an_evaluation_that_does_not_end_is_left(ends):
    has_left, said = ends(lambda stop: stop.saved(3, lambda: None), 30, phase_timeout=0.1)
    assert has_left and said[1] == peers.EXIT_LOST_PEERS
    assert "no step ended for 0 s after step 3 was saved (--phase_timeout)" in said[0]


def test_processes_that_do_not_agree_are_left(ends):
    def act(stop):
        stop.requested(3)
        stop._deadline = math.inf
        stop._client.key_value_set("xlme_jax/stop/requested", "SIGTERM")

    has_left, said = ends(act, 30)
    assert has_left and "did not agree on a last step (DEADLINE_EXCEEDED: barrier)" in said[0]


def test_it_can_be_installed_in_the_main_thread_alone():
    errors = []

    def enter():
        try:
            StopOnSignal().__enter__()
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert "main thread" in errors[0]
