"""The names that programs may rely on, and configurations from Python."""

import inspect
import json
from pathlib import Path

import pytest
from helpers import hf_folders, tiny

import xlme_jax
from xlme_jax import api
from xlme_jax.configuration import command_line, loading

NAMES = {"find_text", "inspect_batch", "inspect_text", "load", "load_config", "prepare", "train"}


def test_the_names_are_stable():
    assert set(api.__all__) == set(xlme_jax.__all__) == NAMES
    assert set(dir(xlme_jax)) >= NAMES
    assert xlme_jax.load is api.load
    for name in NAMES:
        function = getattr(api, name)
        assert function.__doc__
        hints = inspect.get_annotations(function)
        assert set(hints) == {*inspect.signature(function).parameters, "return"}, name
    with pytest.raises(AttributeError, match="'xlme_jax' has no attribute 'nothing'"):
        xlme_jax.nothing  # noqa: B018


IMPORTS = """
import json, sys
import xlme_jax
heavy = ("jax", "numpy", "tensorflow", "seqio", "xlme_jax.api")
before = [name for name in heavy if name in sys.modules]
assert callable(xlme_jax.train)
after = [name for name in ("jax", "tensorflow", "seqio") if name in sys.modules]
print("IMPORTED", json.dumps([before, after]))
"""


def test_the_package_imports_what_is_used():
    output = tiny.run(["-c", IMPORTS])
    assert json.loads(output.split("IMPORTED ")[1].splitlines()[0]) == [[], []]


def test_a_configuration_is_that_of_the_command(tmp_path):
    flags = tiny.flags(tmp_path / "run", tmp_path, TRAIN_STEPS=5)
    files, lines = [], []
    for flag in command_line.gin_flags(flags):
        name, value = flag.split("=", 1)
        (files if name == "--gin_file" else lines).append(value)
    expected = loading.load(files, lines, "Train")
    text = loading.operative_config()
    overrides = {"MODEL_DIR": tmp_path / "run", "DATA_DIR": str(tmp_path), "TRAIN_STEPS": 5}
    for given in (lines, overrides):
        found = api.load_config(files, given)
        assert found.train == expected
        assert found.text == text
        assert f"--output={tmp_path}" in found.prepare_command
    one = "gin_configs/runs/quickstart.gin"
    assert api.load_config(one).train == api.load_config([Path(one)]).train
    with pytest.raises(ValueError, match="TRAIN_STEP: no file defines it"):
        api.load_config(files, {"TRAIN_STEP": 5})


def test_training_returns_what_is_loaded(tmp_path, monkeypatch):
    from helpers import finetuning

    from xlme_jax.studies.reports import run_page
    from xlme_jax.studies.reports.explore import Explorable

    # Drawing takes seconds; tests/studies/reports/test_run_page.py does it.
    monkeypatch.setattr(run_page, "draw", lambda *args, title: b"a picture")
    monkeypatch.setattr(run_page, "explorable", lambda *args: Explorable("", ()))

    words = finetuning.write_vocabulary(tmp_path)
    from xlme_jax.data.vocabulary import Vocabulary

    one_stream = {"XLM__translation_pairs": False}  # Compiles in half the time.
    flags = finetuning.pretrain_flags(tmp_path, Vocabulary.load(words), "xlm", **one_stream)
    config = api.load_config(*finetuning.files_and_bindings(flags))
    run = api.train(config)
    model = api.load(run)
    assert model.loaded.folder == tmp_path / "pretrained" / "checkpoints" / "2"
    assert (tmp_path / "pretrained" / "report.html").is_file()
    again = api.load_config(tmp_path / "pretrained" / "config.gin")
    assert (again.train, again.text) == (config.train, config.text)
    assert model.encode(["русский"]).shape == (1, 32)


@pytest.mark.slow
def test_hf_folders_are_models(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hf_folders.write_xlmr(tmp_path / "xlmr")
    model = api.load(tmp_path / "xlmr")
    assert model.num_layers == 3
    assert model.encode(["abc"]).shape == (1, 24)
