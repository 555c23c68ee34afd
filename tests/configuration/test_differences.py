"""Which fields of a configuration determine the weights, and how two configurations differ."""

import dataclasses

import pytest

from xlme_jax.configuration import differences, loading
from xlme_jax.configuration.differences import Effect
from xlme_jax.configuration.registry import SYSTEMS, class_of
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.data.batches.streams import LabelledStream, PairStream, TextStream
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.mesh import MeshConfig
from xlme_jax.training.optimizer import OptimizerConfig

FILE = "gin_configs/runs/quickstart.gin"
STREAMS = ("monolingual", "bitext")


def load(*bindings, file=FILE):
    return loading.load([file], list(bindings), "Train")


def compared(before, now, streams=STREAMS, platform="cpu"):
    return [str(x) for x in differences.differences(before, now, streams, platform)]


def test_the_listed_fields_exist():
    for table in (differences._NO_EFFECT, differences._ROUNDING):
        for cls, names in table.items():
            assert names <= {field.name for field in dataclasses.fields(cls)}, cls
    assert not any(
        differences._NO_EFFECT[cls] & names for cls, names in differences._ROUNDING.items()
    )


def test_a_field_determines_the_weights_unless_it_is_listed():
    free = {
        TrainConfig: "objective streams loop optimizer compute_dtype phases",
        LoopConfig: "seed init_from init_optimizer head_steps branch_from",
    }
    for cls, names in free.items():
        found = {
            f.name
            for f in dataclasses.fields(cls)
            if differences.effect_of(cls, f.name) is Effect.WEIGHTS
        }
        assert found == set(names.split())
    for cls in (OptimizerConfig, TextStream, PairStream, LabelledStream, *map(class_of, SYSTEMS)):
        effects = {differences.effect_of(cls, field.name) for field in dataclasses.fields(cls)}
        assert effects == {Effect.WEIGHTS}, cls

    @dataclasses.dataclass(frozen=True)
    class Later(EncoderConfig):
        window: int = 0

    assert differences.effect_of(Later, "window") is Effect.WEIGHTS
    assert differences.effect_of(Later, "remat") is Effect.NONE


@pytest.mark.parametrize(
    ("bindings", "expected"),
    [
        (("SEED = 7",), ["Loop.seed: 0 there, 7 now"]),
        (
            ("Optimizer.learning_rate = 2e-3", "Optimizer.b2 = 0.9"),
            [
                "Optimizer.learning_rate: 0.001 there, 0.002 now",
                "Optimizer.b2: 0.98 there, 0.9 now",
            ],
        ),
        (
            ("generator/Encoder.num_layers = 1",),
            ["generator/Encoder.num_layers: 2 there, 1 now"],
        ),
        (("bitext/PairStream.rows = 8",), ["bitext/PairStream.rows: 16 there, 8 now"]),
        (
            ("bitext/Joint.positions = 'restart'",),
            ["bitext/Joint.positions: 'continuous' there, 'restart' now"],
        ),
        (
            ("bitext/PairStream.layout = @Sides()",),
            ["bitext/PairStream.layout: @Joint() there, @Sides() now"],
        ),
        (("Masking.rate = 0.3",), ["Masking.rate: 0.2 there, 0.3 now"]),
        (
            ("bitext/PairStream.robust = @RobustSampling()",),
            ["bitext/PairStream.robust: None there, @RobustSampling() now"],
        ),
        (("Train.compute_dtype = 'bfloat16'",), ["Train.compute_dtype: 'float32' there"]),
        (("INIT_FROM = '/runs/other'",), ["Loop.init_from: None there, '/runs/other' now"]),
    ],
)
def test_other_weights(bindings, expected):
    found = compared(load(), load(*bindings))
    assert len(found) == len(expected)
    for line, start in zip(found, expected):
        assert line.startswith(start)


@pytest.mark.parametrize(
    "bindings",
    [
        ("MODEL_DIR = 'elsewhere'", "DATA_DIR = 'moved'", "Train.data_cache_gb = 1"),
        ("TRAIN_STEPS = 9999", "CHECKPOINT_EVERY = 7", "Loop.keep_every = 14"),
        ("Loop.log_every = 3", "Loop.evaluate_every = 5", "Train.evaluators = ()"),
        ("Train.trackers = (@WandB(),)", "Train.stop_rules = ()", "Loop.profile_steps = (3, 4)"),
        ("Encoder.remat = True", "Encoder.scan_layers = True", "Loop.max_skipped = 3"),
        # Spelled differently, equal in effect.
        ("Optimizer.b1 = 0.9", "Loop.micro_batches = 1", "bitext/PairStream.tasks = ()"),
        ("Train.compute_dtype = 'float32'",),
        ("bitext/PairStream.weights = ((0, 1.0),)",),
    ],
)
def test_the_same_weights(bindings):
    assert compared(load(), load(*bindings)) == []


def test_the_same_warm_up_in_another_unit():
    start = ("TRAIN_STEPS = 200", "Optimizer.warmup_steps = 20")
    same = ("TRAIN_STEPS = 200", "Optimizer.warmup_steps = None", "Optimizer.warmup_fraction = 0.1")
    assert compared(load(*start), load(*same)) == []
    other = (*same[:2], "Optimizer.warmup_fraction = 0.2")
    assert compared(load(*start), load(*other)) == ["Optimizer.warmup_steps: 20 there, 40 now"]


def test_one_source_under_several_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "run")
    names = ("run", "./run/", "other/../run", str(tmp_path / "run"), "link")
    configs = [load(f"INIT_FROM = {name!r}") for name in names]
    assert all(compared(configs[0], config) == [] for config in configs)
    assert compared(configs[0], load("INIT_FROM = 'run2'"))


def test_what_only_rounds_otherwise_is_told_apart():
    now = dataclasses.replace(load("Loop.micro_batches = 2"), mesh=MeshConfig(fsdp=2))
    found = differences.differences(load(), now, STREAMS, "cpu")
    assert {(x.name, x.effect) for x in found} == {
        ("Loop.micro_batches", Effect.ROUNDING),
        ("Mesh.fsdp", Effect.ROUNDING),
    }


def test_the_compute_type_is_compared_on_the_devices_at_hand():
    automatic, explicit = load(), load("Train.compute_dtype = 'bfloat16'")
    assert compared(automatic, explicit, platform="gpu") == []
    assert len(compared(automatic, explicit, platform="cpu")) == 1


def test_streams_that_the_objective_does_not_read_are_not_compared():
    before, now = load(), load("bitext/PairStream.rows = 8")
    assert compared(before, now, ["monolingual"]) == []
    fewer = dataclasses.replace(before, streams=before.streams[:1])
    other = before.streams[1].name
    assert compared(fewer, before) == [f"Train.streams: None there, @{other}/PairStream() now"]


def test_another_system_is_one_difference():
    found = compared(load(), load(file="gin_configs/runs/xlm_base.gin"))
    assert "Train.objective: @XLME() there, @XLM() now" in found
    assert not any("Masking" in line or "Encoder" in line for line in found)


def test_a_written_configuration_does_not_differ_from_what_it_was_written_of():
    for file in (FILE, "gin_configs/runs/veco_large.gin", "gin_configs/runs/infoxlm_base.gin"):
        config = load(file=file)
        again = loading.load_text(loading.operative_config(), "Train", "config.gin")
        names = [stream.name for stream in config.streams]
        assert compared(again, config, names) == []
