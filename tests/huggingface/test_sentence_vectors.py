"""Folders for sentence-transformers: their vectors are those of `Model.encode`."""

import functools
import json
import shutil

import numpy as np
import pytest
import safetensors.numpy
from helpers import hf_folders

from xlme_jax import api
from xlme_jax.evaluation import encoding, results
from xlme_jax.evaluation.encoding import POOLINGS
from xlme_jax.evaluation.outcome import Outcome, Result
from xlme_jax.huggingface import writing
from xlme_jax.huggingface.sentence_vectors import SentenceOptions

TEXTS = ["bada gode", "a", "nofo " * 60, "cabd  ef gabc", "k l m n o p"]


def exported(run, output, **options):
    """Exports a run for sentence-transformers, and returns the folder."""
    writing.export(str(run), None, output, "a command", SentenceOptions(**options))
    return output


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("objective", "layer", "pooling"),
    [
        ("xlme", 1, "mean"),
        ("xlm", 0, "mean"),
        pytest.param("xlm", 2, "first", marks=pytest.mark.slow),
        pytest.param("xlme", 0, "mean", marks=pytest.mark.slow),
    ],
)
def test_vectors_are_those_of_encode(tmp_path, objective, layer, pooling):
    package = pytest.importorskip("sentence_transformers")
    run = hf_folders.write_checkpoint(tmp_path / "run", objective, Encoder__num_layers=layer + 1)
    samples = {"one.txt": "bada\n\nnofo gabc\n", "two.txt": "gode\n"}
    for name, text in samples.items():
        (tmp_path / name).write_text(text)
    folder = exported(
        run,
        tmp_path / "out",
        layer=layer,
        pooling=pooling,
        centre=[str(tmp_path / name) for name in samples],
        prompts={"query": "cab: "},
    )
    with hf_folders.separate_modules(tmp_path / "modules"):
        model = package.SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    trained = api.load(run)

    def encode(texts):
        return trained.encode(texts, layer=layer, pooling=pooling)

    # Blank lines are no texts, and each file counts the same.
    centre = (encode(["bada", "nofo gabc"]).mean(axis=0) + encode(["gode"])[0]) / 2
    for prompt, name in (("", None), ("cab: ", "query")):
        ours = encode([prompt + text for text in TEXTS])
        centred = ours - centre
        theirs = model.encode(TEXTS, prompt_name=name)
        # Vectors of a random encoder are nearly equal, so that the centre takes most of them, and
        # rounding counts the more.
        lost = np.linalg.norm(ours, axis=1) / np.linalg.norm(centred, axis=1)
        np.testing.assert_allclose(theirs, unit(centred), atol=1e-5 * lost.max())
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    assert sum("attention.self.query.weight" in name for name in tensors) == layer
    assert not any("head" in name for name in tensors)


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "layer"), [("xlm", 1), ("xlme", 1), ("xlm", 0)])
def test_programs_have_the_vectors(tmp_path, objective, layer):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    run = hf_folders.write_checkpoint(tmp_path / "run", objective, Encoder__num_layers=2)
    folder = exported(run, tmp_path / "out", layer=layer, onnx=("float32", "int8"))
    batch = hf_folders.rows(count=3, length=14)
    feed = {
        "input_ids": batch["tokens"].astype(np.int64),
        "attention_mask": batch["segment_ids"].astype(np.int64),
    }
    objective, params = hf_folders.read_checkpoint(run)
    states = objective.encoder.encode(params, batch)[layer]
    expected = unit(np.asarray(encoding.pool(states, batch)))
    for name, least in (("model.onnx", 1 - 1e-5), ("model_int8.onnx", 0.5)):
        session = runtime.InferenceSession(folder / "onnx" / name)
        (vectors,) = session.run(["sentence_embedding"], feed)
        assert (vectors * expected).sum(axis=1).min() > least
    sizes = [file.stat().st_size for file in sorted((folder / "onnx").iterdir())]
    assert len(sizes) == 2 and sizes[1] < 0.9 * sizes[0]


def test_the_card_has_the_figures_of_the_layer(tmp_path, three_layers):
    run = shutil.copytree(three_layers(False), tmp_path / "run")
    setting = f"{POOLINGS['mean']}; {{}}"
    rows = [
        Result("tatoeba", "de", "accuracy_to_en", 0.25 * layer, layer=layer, setting=setting)
        for layer in (1, 2, 3)
    ]
    rows.append(Result("wordalign", "de-en", "aer", 0.375, layer=2))
    outcome = Outcome(tuple(rows), {"tatoeba/accuracy_to_en/de": 0.75})
    header = results.Header("a command", str(run / "checkpoints" / str(hf_folders.STEP)))
    results.write(outcome, run / "evaluation" / str(hf_folders.STEP), header)
    folder = exported(run, tmp_path / "out", layer=2, prompts={"query": "q: "})
    text = (folder / "README.md").read_text()
    assert "| tatoeba | accuracy_to_en |\n|---|---|\n| de | 0.500 |" in text
    assert "| de-en | 0.375 |" in text and "0.75" not in text
    assert 'SentenceTransformer("out")' in text and 'prompt_name="query"' in text
    assert "library_name: sentence-transformers" in text and "model-index" not in text
    config = json.loads((folder / "config_sentence_transformers.json").read_text())
    assert config["prompts"] == {"query": "q: "} and config["default_prompt_name"] is None


@pytest.fixture(scope="module")
def three_layers(tmp_path_factory):
    """Returns a function from whether layers are pre-norm to a run of three layers."""

    @functools.cache
    def run(pre_norm):
        folder = tmp_path_factory.mktemp("run") / "run"
        bindings = {"Encoder__num_layers": 3, "Encoder__pre_norm": pre_norm}
        return hf_folders.write_checkpoint(folder, "xlm", **bindings)

    return run


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 4}, "--layer = 4, but the encoder has 3 layers"),
        ({"layer": -1}, r"choose 0 \(embeddings\) to 3"),
        ({"layer": 3, "centre": ["missing.txt"]}, "missing.txt"),
        ({"layer": 3, "centre": ["empty.txt"]}, "there is no text in empty.txt"),
        ({"layer": 3, "onnx": ["int4"]}, "--onnx=int4: expected some of float32, int8"),
        ({"layer": 3, "default_prompt": "query"}, "--default_prompt=query is not the name"),
        pytest.param({"layer": 2, "pre_norm": True}, "give --layer=3", marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_exported_is_refused(tmp_path, monkeypatch, three_layers, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n \n")
    run = three_layers(options.get("pre_norm", False))
    options = {name: value for name, value in options.items() if name != "pre_norm"}
    with pytest.raises((ValueError, OSError), match=message):
        exported(run, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
