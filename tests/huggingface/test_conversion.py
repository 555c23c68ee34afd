"""Hugging Face folders in place of a MODEL_DIR."""

import dataclasses
import os
import shutil

import jax
import numpy as np
import pytest
from helpers import finetuning, hf_folders

from xlme_jax.checkpoints.saved import read_record
from xlme_jax.configuration import loading
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation.results import read
from xlme_jax.huggingface import importing
from xlme_jax.huggingface.conversion import as_run
from xlme_jax.runs import evaluating, models
from xlme_jax.training.mesh import MeshConfig


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Keeps conversions apart from the user's, and other tests' from the hook."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(loading, "_conversions", [])
    return tmp_path / "cache" / "xlme_jax" / "huggingface"


@pytest.fixture(scope="module")
def exported_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    run = hf_folders.write_checkpoint(folder / "run", "xlm", Encoder__relative_bias="gated")
    return hf_folders.export(run, folder / "exported")


@pytest.fixture
def exported(tmp_path, exported_once):
    """Returns a folder of an exported encoder, to change."""
    return shutil.copytree(exported_once, tmp_path / "exported")


@pytest.mark.parametrize(
    ("objective", "bindings"),
    [
        pytest.param(
            "xlme",
            {
                "XLME__embedding_sharing": "gdes",
                "Encoder__gate_input": "hidden",
                "Encoder__pre_norm": True,
            },
            marks=pytest.mark.slow,
        ),
        ("xlm", {"Encoder__relative_bias": "plain", "Encoder__absolute_positions": False}),
        pytest.param("infoxlm", {}, marks=pytest.mark.slow),
    ],
)
def test_an_exported_encoder_is_the_encoder(tmp_path, objective, bindings):
    run = hf_folders.write_checkpoint(tmp_path / "run", objective, **bindings)
    hf_folders.export(run, tmp_path / "exported")
    ours, params = hf_folders.read_checkpoint(run)
    found, its = hf_folders.read_checkpoint(as_run(str(tmp_path / "exported")))
    same = dataclasses.replace(ours.encoder.config, scan_layers=True)
    for name in ("relative_bias", "gate_input", "pre_norm", "absolute_positions", "num_layers"):
        assert getattr(found.encoder.config, name) == getattr(same, name)
    batch = hf_folders.rows()
    real = batch["segment_ids"] > 0
    states = (jax.jit(x.encoder.encode)(w, batch) for x, w in ((ours, params), (found, its)))
    for one, other in zip(*states):
        np.testing.assert_allclose(np.asarray(one)[real], np.asarray(other)[real], atol=2e-6)
    assert found.encoder.config.hidden_size == ours.encoder.config.hidden_size


def test_a_folder_is_converted_once_and_again_if_it_changes(exported, cache, monkeypatch):
    first = as_run(str(exported))
    assert os.listdir(cache / os.path.basename(first)) and first.startswith(str(cache))
    assert read_record(exported.__class__(first)).origin == str(exported)
    with monkeypatch.context() as patch:
        patch.setattr(importing, "import_folder", None)  # Would raise.
        assert as_run(str(exported)) == first
    os.utime(exported / "model.safetensors", ns=(1, 1))
    assert as_run(str(exported)) != first


def test_other_paths_stay_as_they_are(tmp_path):
    run = hf_folders.write_checkpoint(tmp_path / "run")
    (run / "config.json").write_text("{}")
    for path in (str(run), str(tmp_path / "missing"), "FacebookAI/xlm-roberta-base"):
        assert as_run(path) == path


def test_several_processes_are_told_the_command(exported, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match=r"import_hf --source=.*exported --output=MODEL_DIR"):
        as_run(str(exported))


@pytest.mark.slow
def test_the_card_of_an_export_of_an_export_names_it(tmp_path):
    hf_folders.export(hf_folders.write_checkpoint(tmp_path / "run"), tmp_path / "exported")
    again = hf_folders.export(as_run(str(tmp_path / "exported")), tmp_path / "again")
    card = (again / "README.md").read_text()
    assert "1. An exported encoder, weights of `exported`." in card
    assert "converted from An exported encoder (`exported`)" in card and "Conneau" not in card


# ---- As a subject ------------------------------------------------------------------------------


@pytest.fixture
def eval_folder(tmp_path):
    """Writes tiny sets of Tatoeba, word alignment and BUCC in two languages."""
    folder = tmp_path / "eval"
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefgh"), 2)) for _ in range(60)]
    texts = [" ".join(rng.choice(words, 3)) for _ in range(24)]
    others = [text[::-1] for text in texts]
    files = {"tatoeba/tatoeba.rus-eng.rus": others, "tatoeba/tatoeba.rus-eng.eng": texts}
    files |= {"wordalign/en-ru/test.en": texts, "wordalign/en-ru/test.ru": others}
    links = [f"{i} {j} {j} S" for i in range(1, 25) for j in range(1, 4)]
    files["wordalign/en-ru/align.txt"] = links
    for split in ("dev",):
        for code, side in (("ru", others), ("en", texts)):
            files[f"bucc2018/ru-en.{split}.{code}"] = [
                f"{code}-{i:06}\t{text}" for i, text in enumerate(side)
            ]
        gold = [f"ru-{i:06}\ten-{i:06}" for i in range(0, 24, 2)]
        files[f"bucc2018/ru-en.{split}.gold"] = gold
    for name, lines in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.slow
def test_zero_shot_tasks_find_the_same_as_in_the_run(tmp_path, eval_folder):
    run = hf_folders.write_checkpoint(tmp_path / "run", Encoder__scan_layers=True)
    hf_folders.export(run, tmp_path / "exported")
    options = evaluating.Options(
        tasks=("tatoeba", "wordalign", "bucc"),
        data=str(eval_folder),
        layer=1,
        untrained=False,
    )
    values = []
    for name, source in (("a", str(run)), ("b", as_run(str(tmp_path / "exported")))):
        chosen = dataclasses.replace(options, output=str(tmp_path / name))
        evaluating.evaluate(source, chosen)
        rows = [row for row in read(tmp_path / name).results if row.system == "model"]
        values.append({dataclasses.replace(row, value=0.0): row.value for row in rows})
    ours, found = values
    assert ours.keys() == found.keys()
    kinds = {(row.task, row.readout) for row in found}
    assert {("tatoeba", "csls"), ("tatoeba", "centred_transductive"), ("wordalign", "raw"),
            ("bucc", "raw")} <= kinds  # fmt: skip
    assert list(found.values()) == pytest.approx(list(ours.values()), abs=1e-6)
    assert len(set(ours.values())) > 5


@pytest.fixture
def tuning(tmp_path):
    """Returns a run, and flags that fine-tune its export."""
    run = hf_folders.write_checkpoint(tmp_path / "run", Encoder__max_length=finetuning.LENGTH)
    hf_folders.export(run, tmp_path / "exported")
    vocabulary = Vocabulary.load(run / "vocabulary.model")
    data = finetuning.write_labelled(tmp_path / "data", "cldr_tagging", vocabulary, 8)
    flags = finetuning.finetune_flags(
        tmp_path / "tuned", data, tmp_path / "exported", "cldr_tagging"
    )
    return run, [*flags, "--gin.Train.evaluators=()"]


def test_a_configuration_takes_the_system_of_a_folder(tmp_path, exported):
    flags = finetuning.finetune_flags(tmp_path / "tuned", "data", exported, "cldr_tagging")
    with pytest.raises(ValueError, match="has no checkpoint"):
        finetuning.load(flags)
    loading.convert_init_from(as_run)
    config = finetuning.load(flags)
    assert config.loop.init_from == as_run(str(exported))
    assert config.objective.pretrained.encoder.relative_bias == "gated"


@pytest.mark.slow
def test_fine_tuning_starts_from_a_folder(tuning):
    run, flags = tuning
    loading.convert_init_from(as_run)
    with pytest.raises(ValueError, match=r"no state of the optimizer, .* from Hugging Face"):
        finetuning.run([*flags, "--gin.Loop.init_optimizer=True"])
    tuned = finetuning.run(flags).params
    _, params = hf_folders.read_checkpoint(run)
    before = params["discriminator"]["encoder"]["embedding_norm"]["scale"]
    moved = np.abs(tuned["encoder"]["embedding_norm"]["scale"] - before).max()
    assert 0 < moved < 0.01  # One update of at most the rate, 1e-3.


@pytest.mark.slow
def test_an_untrained_head_fills_no_gap(tmp_path):
    """An exported discriminator has no MLM head, and the import makes one at random."""
    run = hf_folders.write_checkpoint(tmp_path / "run", "xlme")
    hf_folders.export(run, tmp_path / "exported")
    model = models.load(as_run(str(tmp_path / "exported")), None, MeshConfig())
    with pytest.raises(ValueError, match=r"imported from a folder without one, and its head is"):
        model.fill("<mask> a")
    assert len(model.encode(["a"])) == 1
