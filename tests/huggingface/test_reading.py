"""Folders that cannot be converted raise an error with the problem and the remedy."""

import json
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy
from helpers import hf_folders

from xlme_jax.data.vocabulary import train_vocabulary
from xlme_jax.huggingface import importing
from xlme_jax.huggingface.folder_reading import FolderError, HuggingFaceFolder
from xlme_jax.huggingface.importing import import_folder

pytest.importorskip("transformers", reason="writes the folders")
WORDS, HEAD = "roberta.embeddings.word_embeddings.weight", "lm_head.dense.weight"
QUERY = "roberta.encoder.layer.1.attention.self.query.weight"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("xlmr")
    hf_folders.write_xlmr(folder)
    return folder


@pytest.fixture
def folder(good, tmp_path):
    return shutil.copytree(good, tmp_path / "xlmr")


def change_config(folder, **fields):
    file = folder / "config.json"
    config = json.loads(file.read_text()) | fields
    kept = {name: value for name, value in config.items() if value is not ...}
    file.write_text(json.dumps(kept))


def change_tensors(folder, **tensors):
    """Sets or, with `...`, deletes tensors; `_` in a name stands for the dot after its prefix."""
    file = folder / "model.safetensors"
    found = {**safetensors.numpy.load_file(file), **tensors}
    safetensors.numpy.save_file({k: v for k, v in found.items() if v is not ...}, file)


def tensor(folder, name):
    return safetensors.numpy.load_file(folder / "model.safetensors")[name]


def refused(folder, expected):
    """Checks that the import fails with this error and leaves no files."""
    output = folder.parent / "run"
    with pytest.raises(ValueError, match=expected):
        import_folder(folder, output, True)
    assert not output.exists()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model_type": "roberta"}, r"config.json: model_type is 'roberta' .*byte-level BPE"),
        ({"model_type": "camembert"}, r"model_type is 'camembert' .*special ids"),
        ({"model_type": "xlm-roberta-xl"}, r"model_type is 'xlm-roberta-xl' .*pre-norm"),
        ({"model_type": "xmod"}, r"model_type is 'xmod' .*adapter"),
        ({"model_type": "bert"}, r"XLMRobertaForMaskedLM'; only BertModel can be converted"),
        ({"model_type": "deberta-v2"}, r"model_type is 'deberta-v2' .*contents and positions"),
        ({"model_type": "xlme"}, r"XLMRobertaForMaskedLM'; only XLMEForMaskedLM and XLMEModel"),
        (
            {"model_type": "xlme", "architectures": ["XLMEModel"], "relative_bias": None},
            r"absolute_positions is None, but must be of type bool; export the checkpoint again",
        ),
        ({"model_type": ...}, r"model_type is None; only 'xlm-roberta', 'xlme'"),
        (
            {"architectures": ["XLMRobertaForTokenClassification"]},
            r"architectures has 'XLMRobertaForTokenClassification'.*without its task head",
        ),
        ({"hidden_act": "relu"}, r"hidden_act is 'relu', but the encoder only supports 'gelu'"),
        ({"position_embedding_type": "relative_key"}, r"position_embedding_type is"),
        ({"pad_token_id": 0}, r"pad_token_id is 0, but the encoder only supports 1"),
        ({"is_decoder": True}, r"is_decoder is True"),
        ({"tie_word_embeddings": False}, r"tie_word_embeddings is False"),
        ({"num_hidden_layers": "three"}, r"num_hidden_layers is 'three', but must be an integer"),
        ({"hidden_size": ...}, r"hidden_size is None, but must be an integer"),
        ({"max_position_embeddings": 2}, r"max_position_embeddings is 2, .* at least 3"),
        ({"num_attention_heads": 5}, r"config.json: .*hidden_size = 24 is not divisible"),
        ({"layer_norm_eps": "1e-5"}, r"layer_norm_eps is '1e-5', but must be a number"),
        ({"hidden_dropout_prob": 1.5}, r"config.json: .*dropout = 1.5 must lie in"),
        ({"vocab_size": 301}, r"sentencepiece.bpe.model has 300 ids .* vocab_size = 301"),
        (
            {"intermediate_size": 41},
            r"intermediate.dense.weight has shape \(40, 24\), .*\(41, 24\)",
        ),
        (
            {"num_hidden_layers": 4},
            r"has the tensor roberta.encoder.layer.3.*download is incomplete",
        ),
        ({"num_hidden_layers": 2}, r"unexpected tensor roberta.encoder.layer.2"),
        ({"type_vocab_size": 2}, r"token_type_embeddings.weight has shape \(1, 24\)"),
    ],
)
def test_configurations_that_are_refused(folder, fields, expected):
    change_config(folder, **fields)
    refused(folder, expected)


def test_files_that_are_missing_or_damaged(folder):
    refused(folder / "nothing", r"nothing is not a folder")
    for name, expected in (
        ("config.json", r"config.json is missing; download"),
        (
            hf_folders.TOKENIZER,
            r"sentencepiece.bpe.model is missing: token ids .*tokenizer.json",
        ),
        ("model.safetensors", r"model.safetensors is missing. Download"),
    ):
        kept = (folder / name).read_bytes()
        (folder / name).unlink()
        refused(folder, expected)
        (folder / name).write_bytes(kept[:-9])
        if name != hf_folders.TOKENIZER:  # Its last bytes are settings of the training.
            refused(folder, rf"{name} is not (JSON|a valid safetensors file) .*download it again")
        (folder / name).write_bytes(kept)


def test_pickled_weights_are_not_read(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    refused(folder, r"pytorch_model.bin is not read, since pickles can run code. .*save_pretrained")


def test_another_vocabulary(folder):
    other = train_vocabulary(["a b c d e f g " * 9] * 50, 270, allow_smaller=True)
    (folder / hf_folders.TOKENIZER).write_bytes(other.model)
    refused(
        folder, rf"has {other.size} ids .* vocab_size = 300. Replace it by the SentencePiece model"
    )


def test_tensors_that_are_refused(folder, tmp_path):
    table, query = tensor(folder, WORDS), tensor(folder, QUERY)
    odd = query.copy()
    odd[3, 4] = np.nan
    for tensors, expected in (
        ({HEAD: ...}, rf"no safetensors file has the tensor {HEAD}"),
        ({QUERY: ...}, rf"no safetensors file has the tensor {QUERY}"),
        (
            {WORDS: table[:-1]},
            rf"{WORDS} has shape \(299, 24\), but config.json implies \(300, 24\)",
        ),
        ({QUERY: query.astype("i4")}, rf"{QUERY} has type I32; save the model in float32"),
        ({QUERY: odd}, rf"model.safetensors: the tensor {QUERY} has non-finite values"),
        ({"classifier.bias": query}, r"unexpected tensor classifier.bias"),
        ({"lm_head.decoder.weight": table + 1}, r"lm_head.decoder.weight differs from roberta.emb"),
        ({"lm_head.decoder.bias": query}, r"lm_head.decoder.bias differs from lm_head.bias"),
    ):
        copy = shutil.copytree(folder, tmp_path / "changed" / "xlmr")
        change_tensors(copy, **tensors)
        refused(copy, expected)
        shutil.rmtree(copy.parent)


def test_a_head_that_the_configuration_promises_is_not_made_up(folder):
    names = [n for n in safetensors.numpy.load_file(folder / "model.safetensors") if "lm_" in n]
    change_tensors(folder, **dict.fromkeys(names, ...))
    refused(folder, r"no safetensors file has the tensor lm_head")
    change_config(folder, architectures=["XLMRobertaModel"])
    source = HuggingFaceFolder(folder, True)
    assert not source.has_head and "new MLM head" in source.notes[-1]


@pytest.mark.slow
def test_bert_with_the_vocabulary_of_xlmr_is_converted(tmp_path, monkeypatch, caplog):
    import torch
    import transformers

    size = hf_folders.vocabulary().size
    shape = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = transformers.BertConfig(
        vocab_size=size + 35, intermediate_size=40, max_position_embeddings=24, **shape
    )
    model = transformers.BertModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(mean=0.05, std=0.2)
    model.save_pretrained(tmp_path / "folder")
    refused(tmp_path / "folder", r"model_type is 'bert' .*WordPiece")
    (tmp_path / "folder" / hf_folders.TOKENIZER).write_bytes(hf_folders.vocabulary().model)
    notes = "\n".join(HuggingFaceFolder(tmp_path / "folder", True).notes)
    assert f"left out the last 35 of {size + 35} token embeddings" in notes
    assert "first of 2 token types" in notes and "pooler.dense.weight" in notes
    import_folder(tmp_path / "folder", tmp_path / "run", True)
    objective, params = hf_folders.read_checkpoint(tmp_path / "run")
    batch = hf_folders.rows()
    ours = jax.jit(objective.encoder.encode)(params, batch)
    output = model(**hf_folders.torch_inputs(batch), output_hidden_states=True)
    # Rounding of float32 in two layers with weights of size .2.
    assert hf_folders.largest_difference(ours, output.hidden_states, batch) < 2e-5


def test_unused_weights_are_skipped_and_reported(folder):
    table, bias = tensor(folder, WORDS), tensor(folder, "lm_head.bias")
    change_tensors(
        folder,
        **{
            "roberta.pooler.dense.weight": np.eye(24, dtype="f4"),
            "roberta.pooler.dense.bias": np.zeros(24, "f4"),
            "roberta.embeddings.position_ids": np.arange(34)[None],
            "lm_head.decoder.weight": table.copy(),
            "lm_head.decoder.bias": bias.copy(),
        },
    )
    (note,) = HuggingFaceFolder(folder, True).notes
    assert "roberta.pooler.dense.bias, roberta.pooler.dense.weight" in note


def test_parts_with_an_index(folder):
    expected = safetensors.numpy.load_file(folder / "model.safetensors")
    names = sorted(expected)
    parts = {"model-00001-of-00002.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, chosen in parts.items():
        safetensors.numpy.save_file({name: expected[name] for name in chosen}, folder / file)
    (folder / "model.safetensors").unlink()
    index = {name: file for file, chosen in parts.items() for name in chosen}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    source = HuggingFaceFolder(folder, True)
    assert all(
        np.array_equal(source.read(name), expected[name])
        for weight in source.weights
        for name in weight.names
    )
    (folder / "b.safetensors").unlink()
    refused(folder, r"index.json: the file 'b.safetensors' is not in .*download it too")
    index[names[0]] = "../outside.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    refused(folder, r"index.json: the file '../outside.safetensors' is not in")
    (folder / "model.safetensors.index.json").write_text("{}")
    refused(folder, r"weight_map must map each tensor to a file name")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_widened(good, tmp_path, dtype):
    import torch
    import transformers

    model = transformers.XLMRobertaForMaskedLM.from_pretrained(good).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path / "half")
    shutil.copy(good / hf_folders.TOKENIZER, tmp_path / "half")
    found = HuggingFaceFolder(tmp_path / "half", True).read(WORDS)
    assert found.dtype == np.float32
    expected = model.roberta.embeddings.word_embeddings.weight.detach().float().numpy()
    assert np.array_equal(found, expected)


def test_a_run_is_not_written_over(folder, tmp_path):
    run = hf_folders.write_checkpoint(tmp_path / "run", "xlm")
    before = sorted(path for path in run.rglob("*"))
    with pytest.raises(FolderError, match=r"already contains a run \(checkpoints\)"):
        import_folder(folder, run, True)
    assert sorted(path for path in run.rglob("*")) == before


def test_nor_is_any_other_folder(folder, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "file").touch()
    with pytest.raises(ValueError, match=r"--output=.*notes already exists"):
        import_folder(folder, tmp_path / "notes", True)
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["file"]


@pytest.mark.slow
def test_an_interrupted_import_leaves_nothing_in_the_way(folder, tmp_path, monkeypatch):
    def interrupt(*_):
        assert list(tmp_path.glob("**/checkpoints/0"))  # It comes when the weights are saved.
        raise KeyboardInterrupt

    before = sorted(tmp_path.iterdir())
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(importing, "write_vocabulary", interrupt)
        import_folder(folder, tmp_path / "run", True)
    assert sorted(tmp_path.iterdir()) == before
    killed = tmp_path / ".run.partial" / "checkpoints" / "0"
    killed.mkdir(parents=True)
    (killed / "half").touch()
    import_folder(folder, tmp_path / "run", True)
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "run"])
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "checkpoints",
        "config.gin",
        "model-info.txt",
        "vocabulary.model",
    }
    objective, params = hf_folders.read_checkpoint(tmp_path / "run")
    size = objective.vocab_size
    np.testing.assert_array_equal(params["tokens"]["embedding"][:size], tensor(folder, WORDS))
