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

from helpers import forks
from xlme_jax.data.prepared.writer import BitextWriter, MonolingualWriter, write_dataset
from xlme_jax.storage.paths import as_path

REPOSITORY = Path(__file__).resolve().parents[2]
VOCABULARY = 200
# Of different sizes and lengths, so that windows, epochs and documents end out of step.
DOCUMENTS = {"en": 40, "sw": 7, "th": 3}
# What a training run imports after it has parsed its flags.
TRAINING = ("xlme_jax.runs.assembly", "xlme_jax.studies.reports.run_page")
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


def start(arguments, devices=1, variables=None, modules=None, drawn=False, **options):
    """Starts Python with these arguments in a subprocess with piped output.

    Args:
      arguments: arguments of Python.
      devices: number of CPU devices.
      variables: environment variables to add.
      modules: what the arguments import, for a copy of a process that has imported them; () for
        Python itself. None: for `-m xlme_jax.COMMAND` what the command imports, for others ().
      drawn: whether a run ends with its report; such a copy leaves it out otherwise.
      options: options of `subprocess.Popen`.
    """
    arguments = list(map(str, arguments))
    options = {
        **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True},
        **{"env": environment(devices, variables), **options},
    }
    if modules is None:
        modules = _imports(arguments[1]) if arguments[0] == "-m" else ()
    if modules and _server().suits(options["env"]):
        return forks.Popen(_server(), modules, _changes(modules, drawn), arguments, **options)
    return subprocess.Popen([sys.executable, *arguments], **options)


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


def run_each(module, *commands, variables=None, later=None, drawn=False):
    """Runs a command of xlme_jax with several argument lists; imports its libraries once.

    Args:
      module: the command, a module of xlme_jax; or another module, with its package.
      commands: one argument list each.
      variables: environment variables to add. Libraries read some when they are imported, so
        commands with other variables than those of the call before have a new process that imports.
      later: environment variables to add that no library reads when it is imported.
      drawn: whether runs end with their report.

    Returns:
      A `subprocess.CompletedProcess` for each argument list. Each ran in its own process, forked
      from one that had only imported modules.
    """
    name = module if "." in module else f"xlme_jax.{module}"
    server = _server(tuple(forks.read_early(variables or {}).items()))
    added = environment(variables=(variables or {}) | (later or {}))
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    modules = _imports(name)
    changes, done = _changes(modules, drawn), []
    for arguments in commands:
        words = ["-m", name, *map(str, arguments)]
        with forks.Popen(server, modules, changes, words, env=added, text=True, **pipes) as process:
            said = _communicate(process)
        done.append(subprocess.CompletedProcess(words[1:], process.returncode, *said))
    return done


def _changes(modules, drawn):
    """Returns what a copy that trains imports to leave out its report."""
    trains = "xlme_jax.runs.assembly" in modules
    return ("tests.helpers.undrawn",) if trains and not drawn else ()


def _communicate(process, timeout=600):
    """Waits for a process to end, which is killed if it hangs; returns its outputs."""
    try:
        return process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        raise


# Those used last; one ends when it is forgotten, since its requests do.
@functools.lru_cache(maxsize=2)
def _server(variables=()):
    """Returns a server of copies that imports modules with these variables, (name, value)."""
    return forks.Server(environment(variables=dict(variables)))


def _imports(module):
    """Returns what a module of xlme_jax imports, if it is one: itself, and what it loads later."""
    later = {
        "xlme_jax.train": TRAINING,
        "xlme_jax.inspect": ("xlme_jax.runs.batch_inspection",),
        # What its runs and evaluations import.
        "tests.helpers.forked_sweep": (*TRAINING, "xlme_jax.runs.evaluating"),
    }
    is_ours = module.startswith(("xlme_jax.", "tests.helpers."))
    return (module, *later.get(module, ())) if is_ours else ()


def finish(process, timeout=600):
    """Waits for a process to end with code 0; returns its output."""
    output, _ = _communicate(process, timeout)
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
