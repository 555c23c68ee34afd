"""Processes that were started differently end before they wait for each other."""

import itertools
import sys
import threading
import types

import pytest
from helpers import tiny
from helpers.runs import load

from xlme_jax.configuration import loading, registry
from xlme_jax.runs import agreement
from xlme_jax.training import peers

FACTS = {"Optimizer.learning_rate": "0.001", "Loop.seed": "0", "package jax": "0.10.2"}


class Client:
    """The key-value store of the coordination service, in one process of threads."""

    def __init__(self, processes):
        self.values, self.barriers = {}, {}
        self.processes, self.lock = processes, threading.Lock()

    def key_value_set(self, key, value):
        self.values[key] = value

    def wait_at_barrier(self, key, timeout):
        with self.lock:
            barrier = self.barriers.setdefault(key, threading.Barrier(self.processes))
        barrier.wait(timeout / 1000)

    def key_value_dir_get(self, prefix):
        return [(key, x) for key, x in self.values.items() if key.startswith(f"{prefix}/")]


@pytest.fixture
def check_same(monkeypatch):
    """Returns a function from the facts of each process to the error that each raises."""
    local = threading.local()
    monkeypatch.setattr(peers, "_state", lambda: local.state)
    monkeypatch.setattr(peers, "_gathered", itertools.repeat(0))

    def check(*facts):
        client, errors = Client(len(facts)), [None] * len(facts)

        def run(index):
            local.state = type(
                "State",
                (),
                {"client": client, "process_id": index, "num_processes": len(facts)},
            )
            try:
                peers.check_same("start", facts[index])
            except ValueError as error:
                errors[index] = str(error)

        threads = [threading.Thread(target=run, args=(index,)) for index in range(len(facts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return errors

    return check


def test_equal_facts_are_accepted(check_same):
    assert check_same(FACTS, dict(reversed(FACTS.items())), FACTS) == [None] * 3


def test_all_processes_name_the_field_and_the_process(check_same):
    (message,) = set(check_same(FACTS, FACTS, FACTS | {"Loop.seed": "1"}))
    assert message.startswith("Loop.seed differs: 1 in process 2, 0 in process 0. Start all")
    assert "\n" not in message


def test_further_fields_and_processes_are_told(check_same):
    without = {name: x for name, x in FACTS.items() if name != "package jax"}
    other = FACTS | {"Optimizer.learning_rate": "0.002", "Loop.seed": "1"}
    (message,) = set(check_same(FACTS, other, FACTS, without))
    assert message.startswith(
        "Loop.seed differs: 1 in process 1, 0 in process 0 (1 more differ: process 3). So do: "
        "Optimizer.learning_rate."
    )
    (message,) = set(check_same(FACTS, without))
    assert message.startswith("package jax differs: None in process 1, 0.10.2 in process 0.")


def facts_of(tiny_data, folder, **bindings):
    config = load(folder, tiny_data, **bindings)
    return dict(agreement._facts(config, loading.operative_config(), False))


def test_what_determines_a_run_is_compared(tmp_path, tiny_data):
    before = facts_of(tiny_data, tmp_path / "run")
    for name, value in {
        "Optimizer__learning_rate": 3e-3,
        "Loop__log_every": 7,
        "TRAIN_STEPS": 99,
        "Loop__seed": 5,
        "Mesh__fsdp": 2,
    }.items():
        assert facts_of(tiny_data, tmp_path / "run", **{name: value}) != before, name
    assert facts_of(tiny_data, tmp_path / "other") != before
    # Hosts may keep the same data under other paths.
    copied = tmp_path / "copied"
    assert facts_of(copied, tmp_path / "run") == before
    assert {"code of xlme_jax", "version of jax", "XLA_FLAGS", "jax_enable_x64"} <= before.keys()


def test_code_and_checkpoints_are_compared(tmp_path, tiny_data, monkeypatch):
    before = facts_of(tiny_data, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "8").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "8" / "commit_success.txt").touch()
    after = facts_of(tiny_data, tmp_path / "run")
    assert {name for name in before if before[name] != after[name]} == {
        "newest checkpoint in MODEL_DIR"
    }
    package = tmp_path / "xlme_jax"
    package.mkdir()
    (package / "__init__.py").write_text("changed = True\n")
    monkeypatch.setattr(agreement, "_PACKAGE", package)
    assert facts_of(tiny_data, tmp_path / "run")["code of xlme_jax"] != after["code of xlme_jax"]


def test_systems_of_a_notebook_have_no_file(tmp_path, tiny_data, monkeypatch):
    notebook, package = types.ModuleType("notebook"), types.ModuleType("package")
    package.__file__ = str(tmp_path / "package.py")
    (tmp_path / "package.py").write_text("changed = True\n")
    for module in (notebook, package):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        system = type("System", (), {"__module__": module.__name__})
        monkeypatch.setitem(registry.CONFIGURABLES, module.__name__, system)
    config = load(tmp_path / "run", tiny_data)
    names = dict(agreement._facts(config, loading.operative_config(), False)).keys()
    assert "code of package" in names and "code of notebook" not in names


DIFFERENCES = {
    "Optimizer.learning_rate": ["--gin.Optimizer.learning_rate=0.01"],
    "Loop.log_every": ["--gin.Loop.log_every=3"],
    "TRAIN_STEPS": ["--gin.TRAIN_STEPS=7"],
    "SEED": ["--gin.SEED=9"],
    "digest of the data in DATA_DIR": ["other data"],
}


@pytest.mark.slow
@pytest.mark.parametrize("field", DIFFERENCES)
def test_two_processes_end_in_one_line(tmp_path, tiny_data, field):
    other = DIFFERENCES[field]
    if other == ["other data"]:
        data = tiny.write_tiny_data(tmp_path / "data", seed=1)
        other = [f"--gin.DATA_DIR={str(data)!r}"]
    flags = tiny.flags(tmp_path / "run", tiny_data, TRAIN_STEPS=20)
    port = tiny.free_port()
    join = [f"--coordinator_address=localhost:{port}", "--num_processes=2"]
    processes = [
        tiny.start(["-m", "xlme_jax.train", *flags, *more, *join, f"--process_id={index}"])
        for index, more in enumerate(([], other))
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for index, (process, output) in enumerate(zip(processes, outputs, strict=True)):
        assert process.returncode == 1, output
        (line,) = [line for line in output.splitlines() if "differs" in line]
        assert f"Process {index}: ValueError: " in line and f"{field} differs: " in line
        assert "in process 1," in line
        assert "Traceback" not in output and "Compiling" not in output
