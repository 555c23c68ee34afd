"""Signals to the command: saved step, exit code and resuming."""

import re
import signal
import time
from types import MappingProxyType

import pytest
from helpers import commands, runs, tiny
from helpers.runs import SHORT, STEPS

from xlme_jax.training.peers import EXIT_LOST_PEERS
from xlme_jax.training.stopping import EXIT_STOPPED

PEER_TIMEOUT = 20


def assert_saved(model_dir, *processes):
    """Checks that all processes report stopping at the saved step; returns it."""
    assert [process.end() for process in processes] == [EXIT_STOPPED] * len(processes), [
        process.said() for process in processes
    ]
    saved = commands.newest(model_dir)
    assert commands.saving(model_dir) == ()
    for process in processes:
        steps = re.findall(r"Stopped after step (\d+)\. Run the same command again", process.said())
        assert steps == [str(saved)], process.said()
        assert process.step() <= saved
        assert "Traceback" not in process.said()
    return saved


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_step_in_flight_is_saved_and_the_run_ends_with_the_same_bits(
    undisturbed, tmp_path, tiny_data, start, number
):
    command = start()
    assert command.until_step(5), command.said()
    command.signal(number)
    assert assert_saved(tmp_path / "run", command) >= 5
    assert f"{number.name}: the run ends after this step and saves" in command.said()
    runs.run(tmp_path / "run", tiny_data, **SHORT)
    assert commands.differences(tmp_path / "run", undisturbed) == []


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["saving", "sealing", "evaluating"])
def test_a_signal_while_a_checkpoint_is_written(undisturbed, tmp_path, tiny_data, start, phase):
    command = start()
    assert command.until_moment(commands.moments(STEPS)[phase]), command.said()
    command.signal(signal.SIGTERM)
    assert_saved(tmp_path / "run", command)
    runs.run(tmp_path / "run", tiny_data, **SHORT)
    assert commands.differences(tmp_path / "run", undisturbed) == []


@pytest.mark.slow
def test_before_the_first_step_there_is_nothing_to_wait_for(tmp_path, start):
    # It compiles by itself: it is at that for long.
    command = start(variables={"JAX_ENABLE_COMPILATION_CACHE": "0"})
    assert command.until(command.begun), command.said()
    command.signal(signal.SIGINT)
    assert command.end() == EXIT_STOPPED, command.said()
    # The second is said in the moment before it knows that it has nothing to save.
    assert re.search(r"Stopped (after step 0|before the first step)", command.said())
    assert command.step() == -1
    assert commands.newest(tmp_path / "run") is None


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(tmp_path, start):
    command = start()
    assert command.until_step(5), command.said()
    command.signal(signal.SIGSTOP)  # So that both come in the same step.
    command.signal(signal.SIGINT)
    command.signal(signal.SIGTERM)
    command.signal(signal.SIGCONT)
    assert command.end() in (128 + signal.SIGINT, 128 + signal.SIGTERM), command.said()
    assert "again: ending at once" in command.said()
    assert (commands.newest(tmp_path / "run") or 0) < STEPS


ENDLESS_EVALUATION = """
import threading
import xlme_jax.train as train
from xlme_jax.configuration import command_line
from xlme_jax.evaluation.retrieval import ACCURACY, RetrievalProbe

def evaluate(params, step):
    if step:
        print(f"evaluating step {step}", flush=True)
        threading.Event().wait()
    return {ACCURACY: 0.5}

RetrievalProbe.build = lambda *arguments: evaluate
command_line.run_app(train.main)
"""


@pytest.mark.slow
def test_an_evaluation_is_not_waited_for(undisturbed, tmp_path, tiny_data, start):
    command = start(python=["-c", ENDLESS_EVALUATION])
    assert command.until_said("evaluating step 10"), command.said()
    command.signal(signal.SIGTERM)
    assert assert_saved(tmp_path / "run", command) == 10
    assert commands.last_line(tmp_path / "run") == 5
    # The evaluation is made up for; with the true probe it only lacks the line of step 0.
    runs.run(tmp_path / "run", tiny_data, **SHORT)
    found, expected = commands.lines(tmp_path / "run"), commands.lines(undisturbed)
    assert found[1:] == expected[1:]
    assert [line["step"] for line in found] == [line["step"] for line in expected]


# Processes hear of each other's signals every half second; saving keeps them from going far.
PAIR = {**SHORT, "TRAIN_STEPS": 40, "CHECKPOINT_EVERY": 2}


def flags_of_pair(*more):
    """Returns the flags of two processes of one run."""
    where = f"--coordinator_address=localhost:{tiny.free_port()}"
    flags = [where, f"--peer_timeout={PEER_TIMEOUT}", "--num_processes=2", *more]
    return [[*flags, f"--process_id={index}"] for index in range(2)]


@pytest.fixture
def start_pair(start, tmp_path):
    """Returns a function that starts the command in two processes."""

    def start_pair(name="run", more=(), options=MappingProxyType({})):
        return [
            start(
                tmp_path / name,
                *flags,
                bindings=PAIR,
                log=f"log{index}",
                devices=2,
                **options.get(index, {}),
            )
            for index, flags in enumerate(flags_of_pair(*more))
        ]

    return start_pair


@pytest.fixture(scope="module")
def undisturbed_pair(tmp_path_factory, tiny_data):
    """Returns MODEL_DIR of an undisturbed run of two processes."""
    folder = tmp_path_factory.mktemp("pair")
    run = tiny.flags(folder, tiny_data, **PAIR)
    processes = [
        commands.Command([*run, *flags], folder, tmp_path_factory.mktemp("log") / "log", devices=2)
        for flags in flags_of_pair()
    ]
    for process in processes:
        process.finish()
    return folder


@pytest.mark.slow
def test_two_processes_save_the_same_step_whoever_is_signalled(
    tmp_path, start_pair, undisturbed_pair
):
    steps = [0]
    for whom in ([0], [1], [0, 1]):
        first, second = start_pair()
        assert first.until_step(steps[-1] + 3), first.said()
        for index in whom:
            (first, second)[index].signal(signal.SIGTERM)
        steps.append(assert_saved(tmp_path / "run", first, second))
    assert steps == sorted(set(steps))
    for process in start_pair():
        process.finish()
    assert commands.differences(tmp_path / "run", undisturbed_pair) == []


# In the order in which a run that is resumed at each meets them.
PHASES = ("compiling", "evaluating", "stepping", "saving", "ending")
# JAX's limit for the start of all processes.
JOIN_SECONDS = 300


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_a_process_whose_peer_died_ends_and_says_so(tmp_path, start_pair, undisturbed_pair, index):
    moments = commands.moments(PAIR["TRAIN_STEPS"])
    for phase in PHASES:
        processes = start_pair()
        assert processes[0].until_moment(moments[phase]), processes[0].said()
        processes[index].kill()
        survivor, begin = processes[1 - index], time.monotonic()
        # Process 0 serves the others: without it, JAX may be the one to end them.
        expected = (EXIT_LOST_PEERS, *([-signal.SIGABRT] if index == 0 else []))
        # At the end everything is saved; JAX aborts a process that waits for the other to exit.
        allowed = (EXIT_LOST_PEERS, -signal.SIGABRT, 0) if phase == "ending" else expected
        assert survivor.end(timeout=PEER_TIMEOUT + 100) in allowed, survivor.said()
        print(f"\n{phase}: exit {survivor.end()} after {time.monotonic() - begin:.1f} s")
        if survivor.end() == EXIT_LOST_PEERS:
            # Whichever of three threads notices first.
            ways = (
                rf"(lost .*process {index}|a computation failed|no response from another process)"
            )
            assert re.search(f"Process {1 - index} of 2: {ways}", survivor.said()), survivor.said()
            assert "Start all processes again with the same command" in survivor.said()
    for process in start_pair():
        process.finish()
    assert commands.differences(tmp_path / "run", undisturbed_pair) == []


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_a_process_whose_peer_never_joins_ends(tmp_path, start_pair, index):
    processes = start_pair()
    processes[index].kill()
    begin = time.monotonic()
    assert processes[1 - index].end(timeout=JOIN_SECONDS + 60) in (1, -signal.SIGABRT)
    print(f"\nexit {processes[1 - index].end()} after {time.monotonic() - begin:.1f} s")


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_a_slow_process_is_waited_for_in_every_phase(tmp_path, start_pair, undisturbed_pair, index):
    moments = {"joining": lambda command: True} | commands.moments(PAIR["TRAIN_STEPS"])
    processes = start_pair()
    for phase in ("joining", "compiling", "stepping", "saving", "evaluating", "ending"):
        assert processes[0].until_moment(moments[phase]), processes[0].said()
        processes[index].signal(signal.SIGSTOP)
        time.sleep(PEER_TIMEOUT / 3)
        processes[index].signal(signal.SIGCONT)
    for process in processes:
        process.finish()
    assert commands.differences(tmp_path / "run", undisturbed_pair) == []


STUCK = """
import os, threading
import xlme_jax.train as train
from xlme_jax.configuration import command_line
from xlme_jax.runs import datasets
from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.evaluation.retrieval import RetrievalProbe
from xlme_jax.training import loop, mesh

functions = {
    "data": (datasets, "_copy_and_verify"),
    "compiling": (loop, "compile_step"),
    "stepping": (mesh, "put_batch"),
    "saving": (Checkpoints, "save"),
    "evaluating": (RetrievalProbe, "build"),
}
owner, name = functions[os.environ["PHASE"]]
function, calls = getattr(owner, name), [3 if os.environ["PHASE"] == "stepping" else 0]

def wait(*arguments, **named):
    if not calls[0]:
        print("stuck", flush=True)
        threading.Event().wait()
    calls[0] -= 1
    return function(*arguments, **named)

setattr(owner, name, wait)
command_line.run_app(train.main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_no_process_waits_forever_for_a_stuck_one(tmp_path, start_pair, index):
    for phase in ("data", "compiling", "stepping", "saving", "evaluating"):
        given = {"python": ["-c", STUCK], "variables": {"PHASE": phase}}
        processes = start_pair(phase, ["--step_timeout=15", "--phase_timeout=60"], {index: given})
        assert processes[index].until_said("stuck"), processes[index].said()
        begin = time.monotonic()
        ends = [process.end(timeout=150) for process in processes]
        print(f"\n{phase}: exits {ends} after {time.monotonic() - begin:.1f} s")
        assert set(ends) <= {EXIT_LOST_PEERS, -signal.SIGABRT}, [p.said() for p in processes]
        assert any("_timeout)" in process.said() for process in processes)
