"""A run decides once which attention it uses, and its checkpoints keep it."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import runs, tiny

from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.checkpoints.saved import RunRecord, read_record, recorded_choices
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.configuration import loading
from xlme_jax.data.batches.streams import PairStream
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.ops.implementations import Heads
from xlme_jax.runs import attention_choice
from xlme_jax.runs.attention_choice import automatic_encoders, with_attention
from xlme_jax.tools.tuning import attention_measurement
from xlme_jax.tools.tuning.choosing import Choice, Measured
from xlme_jax.training import mesh as meshes


def objective_of(file, *bindings):
    return loading.load([file], list(bindings), "Train").objective


def test_every_encoder_of_a_configuration_is_found():
    config = objective_of("gin_configs/runs/quickstart.gin")
    assert automatic_encoders(config).keys() == {"generator", "discriminator"}
    own = objective_of(
        "gin_configs/runs/quickstart.gin", "generator/Encoder.attention = 'kernel_64'"
    )
    assert automatic_encoders(own).keys() == {"discriminator"}
    replaced = with_attention(own, {"discriminator": "xla"})
    assert replaced.generator.attention == "kernel_64"
    assert replaced.discriminator == dataclasses.replace(own.discriminator, attention="xla")
    assert with_attention(own, {}) is own

    @dataclasses.dataclass(frozen=True)
    class Nested:
        pretrained: object
        encoder: EncoderConfig

    nested = Nested(config, EncoderConfig())
    paths = ["pretrained.generator", "pretrained.discriminator", "encoder"]
    assert sorted(automatic_encoders(nested)) == sorted(paths)
    assert not automatic_encoders(with_attention(nested, dict.fromkeys(paths, "xla")))
    assert automatic_encoders(object()) == {}


def test_the_shapes_are_those_of_one_device():
    devices = np.array(jax.devices() * 8).reshape(2, 2, 2)
    mesh = jax.sharding.AbstractMesh(devices.shape, meshes.AXES)
    streams = [PairStream("bitext", rows=64, length=128)]
    assert attention_choice.rows_per_device(streams, mesh, 4) == {"bitext": (4, 128)}
    encoder = EncoderConfig(hidden_size=48, num_heads=6, attention_dropout=0.2)
    found = attention_choice.heads_per_device(encoder, mesh, np.float32)
    assert found == Heads(3, 8, "gated", 0.2, "float32")
    odd = dataclasses.replace(encoder, num_heads=3)
    assert attention_choice.heads_per_device(odd, mesh, np.float32).count == 3


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Lets the CPU have a second implementation; returns the measurements, and what they say."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def measure(heads, rows, device):
        made.append((heads, rows))
        slow = Measured("kernel", 2.0, {"output": 1e-7})
        return Choice(said[-1], (Measured("xla", 1.0, {"output": 0.0}), slow))

    made, said = [], ["xla"]
    monkeypatch.setattr(attention_choice, "implementations", lambda *_: ("xla", "kernel"))
    monkeypatch.setattr(attention_measurement, "measure", measure)
    return made, said


def run(folder, data, steps=2):
    settings = {"TRAIN_STEPS": steps, "Optimizer__warmup_steps": 1, "CHECKPOINT_EVERY": 1}
    return runs.run(folder, data, objective="xlm", **settings)


@pytest.mark.slow
def test_a_resumed_run_keeps_the_choice(machine, tmp_path, tiny_data):
    made, said = machine
    folder = tmp_path / "run"
    run(folder, tiny_data)
    assert len(made) == 1
    content = json.loads((folder / "attention.json").read_text())
    assert content["choices"] == {"encoder": "xla"} and content["device"] == "cpu"
    (table,) = content["measurements"]
    assert [row["ms"] for row in table["measured"]] == [1.0, 2.0]
    info = (folder / "model-info.txt").read_text()
    assert "encoder.attention = 'xla': the fastest on cpu, see attention.json" in info
    assert f"  {'xla':16}     1.000   0.0e+00             chosen\n" in info
    assert read_record(folder).choices == {"encoder": "xla"}
    said.append("kernel")  # Which would not even compile here.
    (tmp_path / "cache").rename(tmp_path / "lost")
    run(folder, tiny_data, steps=3)
    assert len(made) == 1 and recorded_choices(folder) == {"encoder": "xla"}
    assert json.loads((folder / "attention.json").read_text()) == content
    assert "encoder.attention = 'xla': as in the ch" in (folder / "model-info.txt").read_text()


def decide(folder, data):
    config = runs.load(folder, data, objective="xlme")
    mesh = meshes.make_mesh(meshes.MeshConfig(), jax.devices()[:1])
    return attention_choice.decide(config, config.streams, mesh, np.float32)


def test_a_second_start_does_not_measure(machine, tmp_path, tiny_data):
    made, said = machine
    said.append("kernel")
    first = decide(tmp_path / "one", tiny_data)
    assert len(made) == 2  # The generator has no dropout.
    assert first.choices == {"generator": "kernel", "discriminator": "kernel"}
    assert first.objective.generator.attention == first.objective.discriminator.attention
    assert not automatic_encoders(first.objective)
    assert decide(tmp_path / "two", tiny_data) == first and len(made) == 2


def save(folder, step, choices):
    """Saves a checkpoint with a record of choices."""
    with Checkpoints(folder, keep=5) as checkpoints:
        state = TrainState(jnp.int32(step), {"w": jnp.zeros(2)}, {}, {})
        checkpoints.save(step, state, RunRecord({}, "", "", choices=choices))


def test_choices_are_those_of_the_checkpoint_or_replaced(machine, tmp_path, tiny_data, caplog):
    save(tmp_path, 1, {"generator": "xla"})
    save(tmp_path, 2, {"generator": "xla", "discriminator": "cudnn"})
    machine[1].append("kernel")
    found = decide(tmp_path, tiny_data)
    assert found.choices == {"generator": "xla", "discriminator": "kernel"}
    (line,) = [line for line in caplog.messages if "rounded differently" in line]
    assert "discriminator.attention = 'cudnn', which cpu does not have" in line
    (metadata,) = (tmp_path / "checkpoints" / "2").rglob("run/metadata")
    metadata.write_text(metadata.read_text().replace("cudnn", "other"))  # Damaged.
    assert recorded_choices(tmp_path) == {"generator": "xla"}


def test_nothing_is_measured_on_a_cpu(tmp_path, tiny_data, monkeypatch):
    monkeypatch.setattr(attention_measurement, "measure", None)
    found = decide(tmp_path, tiny_data)
    assert found.choices == {"generator": "xla", "discriminator": "xla"} and found.content is None
    assert "generator.attention = 'xla': the only implementation for cpu" in found.text


@pytest.mark.slow
def test_measuring_compares_with_and_without_dropout(monkeypatch):
    monkeypatch.setattr(attention_measurement, "implementations", lambda *_: ("xla", "kernel"))
    rows = {"bitext": (2, 8), "monolingual": (2, 16)}
    heads = Heads(2, 4, "gated", 0.1, "float32")
    found = attention_measurement.measure(heads, rows, jax.devices()[0])
    assert found.name == "xla" and found.measured[0].ms > 0
    assert set(found.measured[0].deviations) == {
        "output",
        *(f"gradient of {name}" for name in ("q", "k", "v", "distance_bias", "gate")),
    }
    assert "on GPUs and TPUs" in found.measured[1].problem
    assert found.measured[1].problem.endswith("(bitext 2 x 8)")


def test_processes_take_the_choice_of_the_first(monkeypatch):
    told = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(
        attention_choice.multihost_utils,
        "broadcast_one_to_all",
        lambda x: told.append(x) or told[0],
    )
    first = {"generator": "kernel_64", "discriminator": "xla"}
    assert attention_choice._agreed(first) == first
    assert attention_choice._agreed(dict.fromkeys(first, "xla")) == first


@pytest.mark.slow
def test_two_processes_choose_the_same():
    code = """
import sys, jax
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
from xlme_jax.runs import attention_choice
own = {"encoder": ("kernel_64", "xla")[jax.process_index()]}
print("AGREED", attention_choice._agreed(own)["encoder"])
"""
    where = f"localhost:{tiny.free_port()}"
    processes = [tiny.start(["-c", code, where, str(index)]) for index in range(2)]
    for process in processes:
        assert "AGREED kernel_64" in tiny.finish(process)
