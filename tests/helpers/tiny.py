"""A prepared data set of random tokens, and helpers that run commands on it in seconds."""

import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from xlme_jax.data.prepared.writer import BitextWriter, MonolingualWriter, write_dataset
from xlme_jax.storage.paths import as_path

REPOSITORY = Path(__file__).resolve().parents[2]
VOCABULARY = 200
# Of different sizes and lengths, so that windows, epochs and documents end out of step.
DOCUMENTS = {"en": 40, "sw": 7, "th": 3}
PAIRS = {("en", "fr"): 150, ("en", "sw"): 40, ("fr", "sw"): 9}


def slow_except(fast, values):
    """Returns the parameters `values`, of which the default suite tests only those in `fast`."""
    values = list(values)
    assert all(value in values for value in fast)
    return [
        value
        if value in fast
        else pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow
        )
        for value in values
    ]


def write_tiny_data(directory, seed=0):
    """Writes the data set without a tokenizer; returns the folder."""
    rng = np.random.default_rng(seed)
    directory = as_path(directory)
    rows = []
    for language, count in DOCUMENTS.items():
        writer = MonolingualWriter(directory, language, [language], VOCABULARY)
        for length in rng.integers(4, 90, count):
            writer.add([0, *_words(rng, length), 2])
        rows.append(writer.close())
    for split, share in (("train", 1), ("validation", 4)):
        for pair, count in PAIRS.items():
            name = "-".join(pair)
            writer = BitextWriter(directory, name, pair, VOCABULARY, split=split)
            for length in rng.integers(2, 12, max(count // share, 2)):
                words = _words(rng, length)
                writer.add([0, *words, 2, *(3 + (w + 30) % (VOCABULARY - 4) for w in words), 2])
            rows.append(writer.close())
    return finish_dataset(directory, rows, VOCABULARY)


def finish_dataset(directory, rows, vocabulary):
    """Completes a data set of drawn tokens, which has no tokenizer; returns the folder."""
    model = directory / "random.model"
    model.write_bytes(b"no tokenizer: these tokens were drawn")
    write_dataset(directory, rows, model, vocabulary)
    return directory


def _words(rng, count):
    # Squared: frequent and rare tokens, so that there is something to learn.
    return (4 + (VOCABULARY - 5) * rng.random(count) ** 2).astype(int).tolist()


def flags(model_dir, data_dir, objective="xlme", **bindings):
    """Returns the flags of a tiny run; `Loop__seed=1` sets Loop.seed."""
    values = {"MODEL_DIR": str(model_dir), "DATA_DIR": str(data_dir), **bindings}
    files = [REPOSITORY / "tests" / "tiny.gin"]
    if (own := REPOSITORY / "tests" / f"{objective}.gin").is_file():
        files.insert(0, own)
    return [
        f"--gin_file=gin_configs/models/{objective}.gin",
        *(f"--gin_file={file}" for file in files),
        *(f"--gin.{name.replace('__', '.')}={value!r}" for name, value in values.items()),
    ]


def environment(devices=1, variables=None):
    """Returns environment variables for a process with this number of CPU devices."""
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(REPOSITORY),
        "XLA_FLAGS": " ".join(
            [
                os.environ.get("XLA_FLAGS", ""),
                f"--xla_force_host_platform_device_count={devices}",
            ]
        ),
        # Threads: a device may wait in two collectives at once, and with 8 devices on 2 busy cores
        # XLA was seen to wait for itself until it gave up.
        **({"PJRT_NPROC": str(4 * devices)} if devices > 1 else {}),
        **(variables or {}),
    }


def start(arguments, devices=1, variables=None, **options):
    """Starts Python with these arguments in a subprocess with piped output."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(
        [sys.executable, *arguments], env=environment(devices, variables), **(piped | options)
    )


def train_in_two_processes(*flags):
    """Runs one training in two processes of four devices each; returns their outputs."""
    port = free_port()
    processes = [
        start(
            [
                *("-m", "xlme_jax.train", *flags, f"--coordinator_address=localhost:{port}"),
                *("--num_processes=2", f"--process_id={index}"),
            ],
            devices=4,
        )
        for index in range(2)
    ]
    try:
        return [finish(process) for process in processes]
    finally:  # If one fails, the other waits for it.
        for process in processes:
            process.kill()


def run_each(module, *commands, variables=None, later=None):
    """Runs a command of xlme_jax with several argument lists; imports its libraries once.

    Args:
      module: the command, a module of xlme_jax; or another module, with its package.
      commands: one argument list each.
      variables: environment variables to add. Libraries read some when they are imported, so
        commands with other variables than those of the call before have a new process that imports.
      later: environment variables to add that no library reads when it is imported.

    Returns:
      A `subprocess.CompletedProcess` for each argument list. Each ran in its own process, forked
      from one that had only imported modules.
    """
    variables = variables or {}
    name = module if "." in module else f"xlme_jax.{module}"
    given = [
        name,
        _IMPORTED_LATER.get(module, ()),
        os.getcwd(),
        environment(variables=variables | (later or {})),
    ]
    request = json.dumps([*given, [list(map(str, arguments)) for arguments in commands]])
    processes = _ask(_forks(tuple(variables.items())), request)
    return [subprocess.CompletedProcess(*process) for process in processes]


# Those used last; one ends when it is forgotten, since its input does.
@functools.lru_cache(maxsize=2)
def _forks(variables):
    """Returns a process that imports modules with these (name, value) and forks commands."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    added = environment(variables=dict(variables))
    return subprocess.Popen([sys.executable, "-c", _FORKS], env=added, **pipes)


def _ask(process, request):
    process.stdin.write(request + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    assert answer, f"the process of commands ended with code {process.wait()}"
    return json.loads(answer)


# What commands import after they have parsed their flags.
_IMPORTED_LATER = {
    "train": ("xlme_jax.runs.assembly",),
    "inspect": ("xlme_jax.runs.batch_inspection",),
    # What its runs and evaluations import.
    "tests.helpers.forked_sweep": ("xlme_jax.runs.assembly", "xlme_jax.runs.evaluating"),
}
_FORKS = """
import atexit, importlib, json, os, runpy, signal, sys, tempfile, threading
from absl import flags


def run(name):
    '''Ends as the command ends, but does not free all modules, which takes most of a second.'''
    code = 0
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


for line in sys.stdin:
    name, libraries, folder, variables, commands = json.loads(line)
    for module in (name, *libraries):
        importlib.import_module(module)
    # What defined flags is imported anew by each command; other commands define the same names.
    for module, defined in list(flags.FLAGS.flags_by_module_dict().items()):
        if defined and module.startswith("xlme_jax."):
            for flag in list(defined):
                delattr(flags.FLAGS, flag.name)
            package, _, own = module.rpartition(".")
            delattr(sys.modules[package], own)
            del sys.modules[module]

    done = []
    for arguments in commands:
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            child = os.fork()
            if not child:
                signal.alarm(600)  # What hangs is killed.
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(output.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                os.chdir(folder)
                os.environ.clear()
                os.environ.update(variables)
                sys.argv = [name, *arguments]
                run(name)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            output.seek(0)
            errors.seek(0)
            done.append(([name, *arguments], code, output.read(), errors.read()))
    print(json.dumps(done), flush=True)
"""


def finish(process, timeout=600):
    """Waits for a process to end with code 0; returns its output."""
    output, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, output
    return output


def run(arguments, devices=1, **options):
    """Runs Python with these arguments; returns the output."""
    return finish(start(arguments, devices, **options))


def train(*arguments, devices=1, **options):
    """Runs the training command; returns the output."""
    return run(["-m", "xlme_jax.train", *arguments], devices, **options)


def free_port():
    """Returns a free port."""
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


def metrics(model_dir):
    """Returns the lines of metrics.jsonl."""
    return [
        json.loads(line) for line in (Path(model_dir) / "metrics.jsonl").read_text().splitlines()
    ]
