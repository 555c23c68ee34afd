"""Contents of exported folders for every objective."""

import functools
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from helpers import hf_folders, tiny

from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.prepared.writer import MonolingualWriter, write_dataset
from xlme_jax.evaluation import results
from xlme_jax.evaluation.outcome import Outcome, Result
from xlme_jax.huggingface import importing, writing
from xlme_jax.huggingface.model_card import stages
from xlme_jax.huggingface.weights import WeightLayout, to_tensors, to_tree
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.base import EncoderView

FILES = {
    "README.md",
    "config.json",
    "model.safetensors",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Returns a function from an objective and bindings to a run, which is not to be changed."""

    @functools.cache
    def run(objective="xlme", **bindings):
        return hf_folders.write_checkpoint(
            tmp_path_factory.mktemp("shared") / "run", objective, **bindings
        )

    return run


def tensors_of(folder):
    return safetensors.numpy.load_file(folder / "model.safetensors")


@pytest.mark.parametrize("is_xlmr", [True, False])
@pytest.mark.parametrize("scan_layers", [True, False])
@pytest.mark.parametrize("head", [None, "mlm", "rtd_dense", "rtd_linear"])
def test_both_ways_are_inverse(is_xlmr, scan_layers, head):
    bias = "none" if is_xlmr else "gated"
    encoder = EncoderConfig(12, 11, 3, 20, 9, relative_bias=bias, pre_norm=not is_xlmr)
    weights = WeightLayout(encoder, 130, head, is_xlmr, "a.").weights()
    names = [name for weight in weights for name in weight.names]
    assert len(set(names)) == len(names)
    rng = np.random.default_rng(0)
    tensors = {
        name: rng.standard_normal(shape).astype("f4")
        for weight in weights
        for name, shape in zip(weight.names, weight.shapes)
    }
    if is_xlmr:
        tensors["a.embeddings.token_type_embeddings.weight"][:] = 0
        tensors["a.embeddings.position_embeddings.weight"][:2] = 0
    tree = to_tree(weights, tensors.__getitem__, scan_layers)
    assert tree["tokens"]["embedding"].shape == (256, 12)
    again = to_tensors(weights, tree)
    assert again.keys() == tensors.keys()
    assert all(again[name].tobytes() == tensors[name].tobytes() for name in tensors)


def test_weights_without_a_place_are_refused():
    layout = WeightLayout(EncoderConfig(12, 2, 3, 20, 9, relative_bias="none"), 130, None, True)
    weights = layout.weights()
    shapes = {n: s for weight in weights for n, s in zip(weight.names, weight.shapes)}
    tree = to_tree(weights, lambda name: np.zeros(shapes[name], "f4"), False)
    more = {**tree, "cross": {"kernel": np.zeros(3)}}
    with pytest.raises(ValueError, match=r"weight cross.kernel does not belong to"):
        to_tensors(weights, more)
    del tree["encoder"]["layer_1"]["ffn"]["wi"]["bias"]
    with pytest.raises(ValueError, match=r"has no weight encoder.layer_1.ffn.wi.bias"):
        to_tensors(weights, tree)


@pytest.mark.slow
def test_two_tables_are_summed(tmp_path):
    """The discriminator of "gdes" reads the sum of the generator's table and its own."""
    run = hf_folders.write_checkpoint(tmp_path / "run", XLME__embedding_sharing="gdes")
    _, params = hf_folders.read_checkpoint(run)
    tables = [params[part]["tokens"]["embedding"] for part in ("generator", "discriminator")]
    hf_folders.export(run, tmp_path / "exported")
    found = tensors_of(tmp_path / "exported")["embeddings.word_embeddings.weight"]
    np.testing.assert_array_equal(found, np.asarray(sum(tables))[: len(found)])
    assert len(found) == hf_folders.vocabulary().size


class Objective:
    """An unknown objective."""

    def __init__(self, *dropped):
        def kept(params):
            return {name: value for name, value in params.items() if name not in dropped}

        self.encoder = EncoderView(None, None, kept)


def test_any_objective_exports_its_encoder():
    tables = {name: {"embedding": np.ones(3)} for name in ("tokens", "positions")}
    head = {"norm": {}, "bias": np.ones(2)}
    params = {**tables, "encoder": {"layer_0": {}}, "head": head, "projection": {}, "cross": {}}
    tree = writing.exported_params(Objective("head", "projection", "cross"), params)
    assert tree == {**tables, "encoder": {"layer_0": {}}, "head": head}
    tuned = {**params, "task_head": {}}
    assert "head" not in writing.exported_params(Objective("task_head"), tuned)


@pytest.mark.parametrize("objective", tiny.slow_except({"xlm"}, ["xlm", "infoxlm", "veco"]))
def test_masked_language_models_go_out_as_xlmr(tmp_path, shared, objective):
    run = shared(objective)
    hf_folders.export(run, tmp_path / "exported")
    assert {path.name for path in (tmp_path / "exported").iterdir()} == FILES
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert config["architectures"] == ["XLMRobertaForMaskedLM"] and "auto_map" not in config
    assert config["max_position_embeddings"] == hf_folders.LENGTH + 2
    _, params = hf_folders.read_checkpoint(run)
    found, size = tensors_of(tmp_path / "exported"), hf_folders.vocabulary().size
    for name, array in (
        ("roberta.embeddings.word_embeddings.weight", params["tokens"]["embedding"][:size]),
        ("lm_head.dense.weight", np.asarray(params["head"]["dense"]["kernel"]).T),
        ("lm_head.bias", params["head"]["bias"][:size]),
    ):
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.slow
def test_rtd_without_relative_bias_goes_out_as_xlmr_without_head(tmp_path, shared):
    run = shared(Encoder__relative_bias="none")
    hf_folders.export(run, tmp_path / "exported")
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert config["architectures"] == ["XLMRobertaModel"]
    assert not any("head" in name for name in tensors_of(tmp_path / "exported"))


@pytest.mark.parametrize(
    ("objective", "bias", "unexpected", "missing"),
    [
        ("xlm", "none", {"lm_head"}, {"pooler"}),
        pytest.param("xlm", "gated", {"lm_head"}, set(), marks=pytest.mark.slow),
        pytest.param("xlme", "none", set(), set(), marks=pytest.mark.slow),
    ],
)
def test_the_card_foretells_the_load_report(tmp_path, shared, objective, bias, unexpected, missing):
    transformers = pytest.importorskip("transformers")
    run = shared(objective, Encoder__relative_bias=bias)
    folder = tmp_path / "exported"
    hf_folders.export(run, folder)
    card = (folder / "README.md").read_text()
    # The options of the card's call of AutoModel.
    options = {"add_pooling_layer": False} if "add_pooling_layer=False" in card else {}
    with hf_folders.separate_modules(tmp_path / "modules"):
        _, report = transformers.AutoModel.from_pretrained(
            folder, output_loading_info=True, trust_remote_code=True, **options
        )
    assert {name.split(".")[0] for name in report["unexpected_keys"]} == unexpected
    assert {name.split(".")[0] for name in report["missing_keys"]} == missing
    assert ("`lm_head.*` as UNEXPECTED" in card) == bool(unexpected)
    assert ("`pooler.*` (a layer" in card) == bool(missing)


def test_the_model_file_comes_along_where_it_is_needed(tmp_path, shared):
    run = shared()
    hf_folders.export(run, tmp_path / "exported")
    found = {path.name for path in (tmp_path / "exported").iterdir()}
    assert found == FILES | {"modeling_xlme.py", "configuration_xlme.py"}
    for name in writing.MODEL_FILES:
        lines = (tmp_path / "exported" / name).read_text().splitlines()
        imported = [line.split()[1] for line in lines if line.startswith(("import ", "from "))]
        known = {"dataclasses", "functools", "math", "numpy", "torch", "transformers", "typing"}
        assert {n.split(".")[0] for n in imported if not n.startswith(".")} <= known


def test_the_card_says_what_it_is(tmp_path, shared):
    yaml = pytest.importorskip("yaml")
    run = shutil.copytree(shared(), tmp_path / "run")
    rows = (Result("tatoeba", "no", "accuracy", 0.5), Result("tatoeba", "mean", "accuracy", 0.625))
    outcome = Outcome(rows, {"tatoeba/accuracy": 0.625})
    header = results.Header("a command", str(run / "checkpoints" / str(hf_folders.STEP)))
    results.write(outcome, run / "evaluation" / str(hf_folders.STEP), header)
    hf_folders.export(run, tmp_path / "my model")
    text = (tmp_path / "my model" / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    fields = yaml.safe_load(front)
    assert fields["license"] == "other" and fields["library_name"] == "transformers"
    assert fields["pipeline_tag"] == "feature-extraction" and "language" not in fields
    assert fields["model-index"][0]["name"] == "my model"
    for expected in (
        "# my model",
        'AutoModel.from_pretrained("my model", trust_remote_code=True)',
        f"1. XLME, {hf_folders.STEP} steps.",
        "embedding_sharing: 'tokens'",
        "| tatoeba/accuracy | 0.6250 |",
        "XLM-E: Cross-lingual Language Model Pre-training via ELECTRA",
        "Written by `a command`",
        "Ids may differ in texts with:\n\n- the special tokens, `<s>`",
        "- U+FDD0 and U+FDD1, which are no characters",
    ):
        assert expected in body


@pytest.mark.slow
def test_the_history_is_of_the_checkpoints_that_were_used(tmp_path):
    def history(run):
        return [(stage.name, stage.step) for stage in stages(run)]

    first = hf_folders.write_checkpoint(tmp_path / "first", "xlm")
    used = first / "checkpoints" / str(hf_folders.STEP)
    shutil.copytree(used, used.with_name("9"))
    start = {"INIT_FROM": str(first)}
    run = hf_folders.write_checkpoint(
        tmp_path / "run", "infoxlm", record={"origin": str(used)}, INIT_FROM=str(used)
    )
    last = ("InfoXLM", hf_folders.STEP)
    assert history(run) == [last, ("XLM", hf_folders.STEP)]
    shutil.rmtree(used)
    assert history(run) == [last, ("XLM", hf_folders.STEP)]
    silent = hf_folders.write_checkpoint(tmp_path / "silent", "infoxlm", **start)
    assert history(silent) == [last, ("XLM", 9)]
    elsewhere = {"origin": "/elsewhere/first/checkpoints/8"}
    moved = hf_folders.write_checkpoint(tmp_path / "moved", "infoxlm", record=elsewhere, **start)
    assert history(moved) == [last, ("XLM", 8)]
    shutil.rmtree(first)
    assert history(run) == [last, ("Missing run (`first`)", hf_folders.STEP)]
    assert history(silent) == [last]
    hf_folders.export(run, tmp_path / "exported")
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "1. Missing run (`first`), 7 steps.\n2. InfoXLM, 7 steps." in card


@pytest.mark.slow
def test_the_card_says_that_it_comes_from_xlmr(tmp_path):
    pytest.importorskip("transformers", reason="writes the folder")
    hf_folders.write_xlmr(tmp_path / "xlm-roberta-tiny")
    run = tmp_path / "imported"
    importing.import_folder(tmp_path / "xlm-roberta-tiny", run, True)
    xlmr = 'Conneau et al., "Unsupervised Cross-lingual Representation Learning at Scale", 2020'
    hf_folders.export(run, tmp_path / "one")
    card = (tmp_path / "one" / "README.md").read_text()
    assert "converted from XLM-R (`xlm-roberta-tiny`).\n" in card and xlmr in card
    assert (
        "## Training\n\n1. XLM-R, weights of `xlm-roberta-tiny`.\n\n## Results\n\nNot measured"
        in card
    )
    assert "pre-trained" not in card and "Conneau and Lample" not in card
    origin = {"origin": str(run / "checkpoints" / "0")}
    more = hf_folders.write_checkpoint(
        tmp_path / "more", "infoxlm", record=origin, INIT_FROM=str(run)
    )
    hf_folders.export(more, tmp_path / "two")
    card = (tmp_path / "two" / "README.md").read_text()
    assert "XLM-R (`xlm-roberta-tiny`) trained further with xlme_jax.\n" in card and xlmr in card
    assert "1. XLM-R, weights of `xlm-roberta-tiny`.\n2. InfoXLM, 7 steps.\n" in card
    assert "InfoXLM: An Information-Theoretic" in card and "Conneau and Lample" not in card


@pytest.mark.slow
def test_a_run_at_step_0_without_data_in_its_record_is_no_import(tmp_path):
    run = hf_folders.write_checkpoint(tmp_path / "run", steps=(0,))
    hf_folders.export(run, tmp_path / "exported")
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "pre-trained with xlme_jax" in card and "1. XLME, 0 steps.\n" in card
    assert "Conneau et al." not in card and "embedding_sharing: 'tokens'" in card


@pytest.mark.slow
def test_the_card_of_the_data_goes_with_the_model(tmp_path):
    data, words = tmp_path / "data", hf_folders.vocabulary()
    (tmp_path / "words.model").write_bytes(words.model)
    writer = MonolingualWriter(data, "cc100_sw", ["sw"], words.size)
    writer.add([0, 5, 2])
    write_dataset(data, [writer.close()], tmp_path / "words.model", words.size)
    digest = PreparedDataset.load(data).digest
    (data / "data_card.md").write_text(f"Digest of the data set: `{digest}`\n")
    for name, recorded in (("same", digest), ("changed", "0" * 64)):
        run = hf_folders.write_checkpoint(
            tmp_path / name, record={"dataset": recorded}, DATA_DIR=str(data)
        )
        hf_folders.export(run, tmp_path / f"{name}_exported")
    card = (tmp_path / "same_exported" / "README.md").read_text()
    assert "Data: sw ([data card](data_card_1.md)).\n" in card
    copied = tmp_path / "same_exported" / "data_card_1.md"
    assert copied.read_bytes() == (data / "data_card.md").read_bytes()
    assert "data_card" not in (tmp_path / "changed_exported" / "README.md").read_text()
    assert not (tmp_path / "changed_exported" / "data_card_1.md").exists()


def test_nothing_is_written_over_and_nothing_half(tmp_path, shared, monkeypatch):
    exported = writing.load(str(shared()), None)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    with pytest.raises(ValueError, match=r"--output=.*there already exists"):
        writing.write(exported, tmp_path / "there", "")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError, match="No space"):
        writing.write(exported, tmp_path / "new", "")
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_there_is_refused_before_weights_are_read(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    for output in (tmp_path, Path("."), Path("file")):
        with pytest.raises(ValueError, match=r"--output=.* already exists"):
            writing.export("no checkpoint at all", None, output, "")


@pytest.mark.slow
def test_an_empty_working_directory_can_be_filled(tmp_path, shared, monkeypatch):
    run = shared("xlm")
    (tmp_path / "my model").mkdir()
    monkeypatch.chdir(tmp_path / "my model")
    writing.export(str(run), None, Path("."), "")
    assert {path.name for path in (tmp_path / "my model").iterdir()} == FILES
    assert "# my model" in (tmp_path / "my model" / "README.md").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["my model"]


def test_a_missing_vocabulary_is_asked_for(tmp_path):
    run = hf_folders.write_checkpoint(tmp_path / "run")
    moved = (run / "vocabulary.model").rename(tmp_path / "v.model")
    with pytest.raises(ValueError, match=r"the vocabulary of .* is neither .* --vocabulary"):
        writing.load(str(run), None)
    exported = writing.load(str(run), str(moved))
    assert exported.vocabulary.size == hf_folders.vocabulary().size
    assert jax.tree.leaves(exported.tree)


def test_weights_that_cannot_be_written_are_an_error_that_names_the_folder(tmp_path, monkeypatch):
    def full(*_):
        raise safetensors.SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(OSError, match=r"the weights cannot be written \(No space left.*'.*/out'"):
        writing.save({}, {"a": np.zeros(3, "f4")}, tmp_path / "out")
    assert not (tmp_path / "out").exists()
