"""Copies of a process that has imported libraries behave as Python started anew."""

import json
import os
import signal
import subprocess
import sys

import pytest
from helpers import tiny

FACTS = """
import json, os, sys, threading
import jax
print(json.dumps([
    __name__, sys.argv, os.getcwd(), os.environ.get("XLA_FLAGS"), os.getpid() == os.getsid(0),
    threading.active_count(), jax.device_count(),
]))
"""


def copy(text, *arguments, **options):
    return tiny.start(["-c", text, *arguments], modules=("jax",), **options)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_a_copy_has_the_facts_of_a_process(tmp_path, devices):
    options = {"devices": devices, "cwd": tmp_path, "start_new_session": True}
    outcomes = [
        json.loads(tiny.finish(tiny.start(["-c", FACTS, "a"], modules=modules, **options)))
        for modules in (("jax",), ())
    ]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][:3] == ["__main__", ["-c", "a"], str(tmp_path)] and outcomes[0][6] == devices


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("raise SystemExit('why')", 1, "why\n"),
        ("raise KeyError('x')", 1, "KeyError: 'x'\n"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    ],
)
def test_ends_as_python_ends(text, code, said):
    process = copy(text)
    output, _ = process.communicate()
    assert process.returncode == code and output.endswith(said)
    assert subprocess.run([sys.executable, "-c", text], stderr=subprocess.PIPE).returncode == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(number):
    # A shell starts what it runs in the background with SIGINT ignored.
    text = "import signal, time; signal.signal(signal.SIGINT, signal.default_int_handler)"
    with copy(f"{text}; print('ready', flush=True); time.sleep(60)") as process:
        assert process.stdout.readline() == "ready\n"
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(50) == -number


def test_files_and_input_are_those_given(tmp_path):
    with (tmp_path / "out").open("w") as file:
        process = copy("print(input())", stdin=subprocess.PIPE, stdout=file, stderr=None)
        process.communicate("line")
    assert process.returncode == 0
    assert (tmp_path / "out").read_text() == "line\n"


@pytest.mark.slow
def test_a_variable_that_libraries_read_on_import_needs_a_process_of_its_own():
    text = "import jax; print(jax.config.jax_log_compiles)"
    variables = {"JAX_LOG_COMPILES": "1"}
    assert tiny.run(["-c", text], variables=variables, modules=("jax",)) == "True\n"
    assert os.environ.get("JAX_LOG_COMPILES") is None
