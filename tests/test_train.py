import json
import re
import shlex
import shutil
import subprocess
import sys

import jax.numpy as jnp
import pytest
from helpers import tiny

from xlme_jax.configuration import command_line, loading
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.runs import assembly, datasets
from xlme_jax.storage import locks
from xlme_jax.studies.reports import run_page
from xlme_jax.training import loop, starting


@pytest.fixture
def no_compilation(monkeypatch):
    """Fails the test if anything is initialised or compiled."""

    def fail(*_):
        raise AssertionError("the error came too late")

    monkeypatch.setattr(starting, "fresh_state", fail)
    monkeypatch.setattr(loop, "compile_step", fail)


def load(model_dir, data_dir, *bindings, objective="xlme"):
    files = [flag.split("=")[1] for flag in tiny.flags(model_dir, data_dir, objective)[:2]]
    folders = [f"MODEL_DIR = {str(model_dir)!r}", f"DATA_DIR = {str(data_dir)!r}"]
    return loading.load(files, [*folders, *bindings], "Train")


# Refused by the loop and the data, whatever the system.
OF_EACH_RUN = [
    ("Train.vocab_size = 300", r"vocab_size = 300, but the data in .* vocabulary of 200"),
    ("monolingual/TextStream.rows = 6\nLoop.micro_batches = 4", r"rows = 6.*divisible by 4 .* 8"),
    ("TRAIN_STEPS = 4", r"warmup_steps = 4 must be smaller than TRAIN_STEPS = 4"),
    ("Mesh.tensor = 3", r"does not fit 1 devices"),
    ("Mesh.fsdp = -1", r"at most one may be -1"),
    ("bitext/PairStream.tasks = ('en-xx',)", r"'en-xx' matches none of the 3 bitext tasks"),
    ("Train.evaluators = (@RetrievalProbe(),)", r"RetrievalProbe.* 128 tokens"),
    ("INIT_FROM = '/no/such/run'", r"/no/such/run.*does not exist.*INIT_FROM"),
]
# By what a system says of its streams and its encoder.
OF_EACH_SYSTEM = [
    ("bitext/PairStream.length = 64", r"'bitext' has rows of 64 .*Encoder.max_length = 32"),
    ("Train.streams = (@monolingual/TextStream(),)", r"Train.streams lacks \['bitext'.*\]"),
    (
        "Train.evaluators = (@RetrievalProbe(),)\nRetrievalProbe.length = 32\n"
        "RetrievalProbe.layer = 9",
        r"has 1 layers",
    ),
]


@pytest.mark.parametrize(
    ("objective", "binding", "expected"),
    [
        *(("xlme", *case) for case in OF_EACH_RUN),
        *(
            pytest.param(
                system, *case, marks=() if system in ("xlme", "veco") else pytest.mark.slow
            )
            for system in ("xlme", "xylent", "xlm", "infoxlm", "veco")
            for case in OF_EACH_SYSTEM
        ),
    ],
)
def test_what_cannot_run_is_refused_before_compilation(
    tmp_path, tiny_data, no_compilation, objective, binding, expected
):
    config = load(tmp_path / "run", tiny_data, *binding.split("\n"), objective=objective)
    with pytest.raises(ValueError, match=expected):
        assembly.train(config)
    assert not list((tmp_path / "run").glob("checkpoints/*"))


@pytest.mark.parametrize(
    ("objective", "binding", "expected"),
    [
        (
            "xlme",
            "bitext/PairStream.layout = @Sides()",
            r"'bitext' has the layout 'sides', .* 'joint'",
        ),
        (
            "veco",
            "bitext/PairStream.layout = @Joint()",
            r"bitext/PairStream.layout = @Sides",
        ),
        ("veco", "monolingual/TextStream.split_pieces = False", r"TextStream.split_pieces = True"),
        ("infoxlm", "contrast/Sides.pairs_per_row = None", r"set contrast/Sides.pairs_per_row"),
        (
            "xlme",
            "Train.streams = (@monolingual/TextStream(), @bitext/TextStream())\n"
            "bitext/TextStream.name = 'bitext'\nbitext/TextStream.rows = 8\n"
            "bitext/TextStream.length = 32",
            r"'bitext' is a TextStream, .* a PairStream there; name @bitext/PairStream\(\)",
        ),
        ("infoxlm", "XLCo.queue_size = 1", r"XLCo.queue_size = 1 must not be below the \d+ keys"),
        (
            "infoxlm",
            "XLCo.queue_size = 100_000\ncontrast/Sides.mixup = 'none'",
            r"100000 is more than the \d+ pairs that stream 'contrast' has",
        ),
        ("infoxlm", "XLCo.layer = 2", r"XLCo.layer = 2 is above .* Encoder.num_layers = 1"),
        (
            "infoxlm",
            "contrast/Sides.mixup = 'both'",
            r"contrast/Sides.mixup = 'both': expected one of",
        ),
        ("infoxlm", "contrast/PairStream.pivot = 'xx'", r"has the language pivot='xx'"),
        ("veco", "VECO.cross_attention_steps = -1", r"VECO.cross_attention_steps = -1"),
        ("veco", "VECO.alone_every = 0", r"VECO.alone_every = 0 must be at least 1"),
        (
            "xlme",
            "bitext/PairStream.sampling = 'lp'",
            r"bitext/PairStream.sampling = 'lp': expected one of",
        ),
        (
            "xlm",
            "bitext/Joint.positions = 'restart'\nEncoder.absolute_positions = False",
            r"'bitext' has positions = 'restart', which nothing sees",
        ),
        (
            "xlme",
            "bitext/PairStream.weights = ((3, 1.0), (2, 0.0))",
            r"'bitext': weights=.* and increase",
        ),
        ("xlme", "bitext/PairStream.flip = 1.5", r"flip=1.5 must be a probability"),
    ],
)
def test_what_a_system_cannot_read_is_refused_before_compilation(
    tmp_path, tiny_data, no_compilation, objective, binding, expected
):
    with pytest.raises(ValueError, match=expected):
        bindings = binding.split("\n")
        assembly.train(load(tmp_path / "run", tiny_data, *bindings, objective=objective))


def test_held_out_losses_without_held_out_text_are_refused_before_compilation(
    tmp_path, tiny_data, no_compilation
):
    alone = ("XLME.translation_pairs = False", "Train.evaluators = (@HeldOut(),)")
    config = load(tmp_path / "run", tiny_data, *alone)
    with pytest.raises(ValueError, match=r"streams 'monolingual': .*--validation=every:20"):
        assembly.train(config)


def test_missing_data_names_the_command_that_makes_it(tmp_path, no_compilation):
    config = load(tmp_path / "run", tmp_path / "nothing here")
    command = ["python", "-m", "xlme_jax.prepare", "--gin.DATA_DIR='a b'"]
    with pytest.raises(ValueError, match="holds no prepared data set") as error:
        assembly.train(config, "", command)
    assert shlex.split(str(error.value).splitlines()[-1]) == command


def test_a_truncated_shard_is_refused(tmp_path, tiny_data, no_compilation):
    data = shutil.copytree(tiny_data, tmp_path / "data")
    shard = next(data.rglob("*.arrayrecord"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ValueError, match=re.escape(shard.name)):
        assembly.train(load(tmp_path / "run", data))


def test_a_changed_byte_of_the_data_is_noticed_before_training(tmp_path, tiny_data, monkeypatch):
    data = shutil.copytree(tiny_data, tmp_path / "data")
    shard = next(data.rglob("*.arrayrecord"))
    raw = bytearray(shard.read_bytes())
    raw[len(raw) // 2] ^= 1
    shard.write_bytes(raw)
    reached = []
    monkeypatch.setattr(loop, "train", lambda *_: reached.append(1))
    monkeypatch.setattr(run_page, "write_report", lambda *_: "")
    with pytest.raises(ValueError, match=re.escape(shard.name)):
        assembly.train(load(tmp_path / "run", data))
    assert not reached
    assembly.train(load(tmp_path / "run", data, "Train.verify_data = False"))
    assert reached


def test_a_folder_is_of_one_run(tmp_path, tiny_data, no_compilation):
    expected = r"MODEL_DIR = .* is in use by another run"
    with locks.hold_run(tmp_path / "run"), pytest.raises(ValueError, match=expected):
        assembly.train(load(tmp_path / "run", tiny_data))
    with locks.hold_run(tmp_path / "run"):
        pass  # free again


def test_the_command_for_missing_data_repeats_files_and_bindings():
    bindings = ("Prepare.tasks = ('cldr',)", "DATA_DIR = 'a = b'")
    files = ("gin_configs/runs/quickstart.gin",)
    command = datasets.prepare_command(loading.load(files, bindings, "Train"), files, bindings)
    assert command == [
        *(sys.executable, "-m", "xlme_jax.prepare", "--gin_file=gin_configs/runs/quickstart.gin"),
        *("--gin.Prepare.tasks=('cldr',)", "--gin.DATA_DIR='a = b'"),
    ]
    rewritten = command_line.gin_flags(command[4:])
    assert [flag.removeprefix("--gin_bindings=") for flag in rewritten] == list(bindings)


def test_without_a_prepare_configuration_the_command_asks_for_the_raw_text():
    files = ("gin_configs/runs/xlme_base.gin",)
    config = loading.load(files, (), "Train")
    command = datasets.prepare_command(config, files, ())
    if config.prepare is None:
        assert f"--output={config.data_dir}" in command
        assert any(part.startswith("--vocabulary=") for part in command)
    else:
        assert "--gin_file=gin_configs/runs/xlme_base.gin" in command


@pytest.mark.parametrize(
    ("name", "on_cpu", "on_tpu"),
    [
        ("auto", jnp.float32, jnp.bfloat16),
        ("float32", jnp.float32, jnp.float32),
        ("bfloat16", jnp.bfloat16, jnp.bfloat16),
        ("mixed", jnp.float32, jnp.float32),
    ],
)
def test_the_compute_type(name, on_cpu, on_tpu):
    config = load("m", "d", f"Train.compute_dtype = {name!r}")
    assert config.dtype_on("cpu") == on_cpu
    assert config.dtype_on("tpu") == on_tpu


def command(*arguments):
    (result,) = tiny.run_each("train", arguments)
    return result


def test_a_mistake_is_one_line_and_no_traceback(tmp_path):
    result = command(*tiny.flags(tmp_path, tmp_path, XLME__rtd_wieght=1.0))
    assert result.returncode == 1
    assert result.stderr.strip() == (
        "ConfigError: --gin.XLME.rtd_wieght=1.0: Configurable 'XLME' doesn't have a parameter "
        "named 'rtd_wieght'. Did you mean rtd_weight?"
    )


def test_missing_data_of_the_command_names_a_command_that_fits(tmp_path):
    flags = ["--gin_file=gin_configs/runs/small.gin", f"--gin.DATA_DIR='{tmp_path}/a b'"]
    result = command(*flags)
    assert result.returncode == 1
    assert shlex.split(result.stderr.splitlines()[-1])[1:] == ["-m", "xlme_jax.prepare", *flags]


def test_help_lists_flags_and_configurables():
    result = command("--help")
    assert result.returncode == 0
    for line in ("--gin_file=", "--coordinator_address=", "Loop.train_steps: int (required)"):
        assert line in result.stdout
    names = ["MODEL_DIR", "DATA_DIR", "INIT_FROM", "TRAIN_STEPS", "SEED", "CHECKPOINT_EVERY"]
    first = result.stdout.partition("\nFlags:")[0]
    assert all(f"\n  --gin.{name}=...\n      " in first for name in names)


def main(monkeypatch, capsys, body):
    """Runs `body` as the main function of a command; returns exit code and stderr."""
    monkeypatch.setattr(command_line.app, "run", lambda main, **_: sys.exit(main(["command"])))
    monkeypatch.setattr(command_line, "define_flags", lambda: None)
    with pytest.raises(SystemExit) as status:
        command_line.run_app(body)
    return status.value.code, capsys.readouterr().err


_LOGS = """
import logging
from xlme_jax.configuration import command_line
def main():
    logging.getLogger("xlme_jax.x").info("%d files", 2)
    logging.getLogger("xlme_jax.x").warning("late")
command_line.run_app(main)
"""


def test_log_lines_are_time_and_text_and_the_level_of_warnings():
    process = subprocess.run([sys.executable, "-c", _LOGS], capture_output=True, text=True)
    time = r"\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.fullmatch(rf"{time} 2 files\n{time} Warning: late\n", process.stderr)


_INTERRUPTED = """
from xlme_jax.configuration import command_line
def main():
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as interruption:
        raise ValueError("a shard could not be read") from interruption
command_line.run_app(main)
"""


def test_an_interruption_that_a_library_wraps_is_one():
    process = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True)
    assert process.returncode == 130
    assert process.stderr == "Interrupted. Run the same command again.\n"


def test_a_bug_keeps_its_traceback(monkeypatch, capsys):
    def mistake():
        PreparedDataset.load("/no/such/folder")

    def bug():
        raise KeyError("x")

    def bug_inside_a_library():
        jnp.zeros(3) + jnp.zeros(4)  # a TypeError
        raise AssertionError

    def value_error_of_a_library():
        json.loads("{")  # JSONDecodeError is a ValueError

    status, printed = main(monkeypatch, capsys, mistake)
    assert status == 1
    assert "/no/such/folder" in printed
    assert "Traceback" not in printed
    for body, kind in [
        (bug, KeyError),
        (bug_inside_a_library, TypeError),
        (value_error_of_a_library, ValueError),
    ]:
        with pytest.raises(kind):
            main(monkeypatch, capsys, body)
    monkeypatch.setenv("XLME_TRACEBACK", "1")
    with pytest.raises(ValueError, match="/no/such/folder"):
        main(monkeypatch, capsys, mistake)
