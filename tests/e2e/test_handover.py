"""Import from Hugging Face, training, evaluation, fine-tuning and export."""

import json

import numpy as np
import pytest
from helpers import finetuning, hf_folders, tiny
from test_imports import imported, report

from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation.encoding import fill_rows
from xlme_jax.evaluation.results import read
from xlme_jax.huggingface import writing

torch = pytest.importorskip("torch", reason="reads what is exported")
transformers = pytest.importorskip("transformers", reason="writes and reads the folders")


HEAVY = ("torch", "transformers", "tokenizers", "tensorflow", "seqio", "tasks")
RUN = """
import json, runpy, sys
sys.argv = {argv!r}
try:
    runpy.run_module("xlme_jax.{command}", run_name="__main__", alter_sys=True)
except SystemExit as status:
    assert not status.code, status.code
"""


def run(command, *flags, unwanted=HEAVY):
    """Runs a command in a subprocess and checks that it did not import unwanted modules."""
    code = RUN.format(command=command, argv=[command, *flags]) + report(unwanted)
    output = tiny.run(["-c", code])
    assert imported(output) == [], output
    return output


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return Vocabulary.load(finetuning.write_vocabulary(tmp_path_factory.mktemp("vocabulary")))


@pytest.fixture(scope="module")
def taken_over(tmp_path_factory, vocabulary):
    """Returns the MODEL_DIR imported from a folder of XLM-R."""
    folder = tmp_path_factory.mktemp("handover")
    hf_folders.write_xlmr(
        folder / "xlmr",
        vocab_size=vocabulary.size,
        hidden_size=32,
        num_attention_heads=2,
        num_hidden_layers=1,
        intermediate_size=64,
        max_position_embeddings=finetuning.LENGTH + 2,
    )
    (folder / "xlmr" / hf_folders.TOKENIZER).write_bytes(vocabulary.model)
    flags = [f"--source={folder / 'xlmr'}", f"--output={folder / 'run'}", "--noscan_layers"]
    assert "Start from it with" in run("import_hf", *flags)
    return folder / "run"


def table(model_dir):
    """Returns the token table of the newest checkpoint, without padding."""
    exported = writing.load(str(model_dir), None)
    return exported.tree["tokens"]["embedding"][: exported.layout.vocab_size]


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective",
    ["xlm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("infoxlm", "veco"))],
)
def test_pretraining_continues_and_is_exported(tmp_path, taken_over, vocabulary, objective):
    start = {"INIT_FROM": str(taken_over), "Optimizer__learning_rate": 1e-4}
    if objective == "infoxlm":
        start |= {"contrast/PairStream__length": 64, "XLCo__queue_size": 16}
    trained = finetuning.pretrain(tmp_path, vocabulary, objective, **start)
    moved = np.abs(table(trained) - table(taken_over)).max()
    assert 0 < moved < 1e-3  # Two updates of at most the rate.
    run("export", f"--checkpoint={trained}", f"--output={tmp_path / 'exported'}")
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "exported")
    found = model.get_input_embeddings().weight.detach().numpy()
    np.testing.assert_array_equal(found, table(trained))
    card = (tmp_path / "exported" / "README.md").read_text()
    assert '- "en"\n- "ru"\n' in card
    assert "1. XLM-R, weights of `xlmr`." in card and ", 2 steps." in card
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert tokenizer("русский язык")["input_ids"][1:-1] == vocabulary.encode("русский язык")


@pytest.mark.slow
def test_a_folder_with_its_own_model_file(tmp_path, vocabulary):
    """An exported XLM-E encoder loads with AutoModel, as in the README."""
    trained = finetuning.pretrain(tmp_path, vocabulary)
    run("export", f"--checkpoint={trained}", f"--output={tmp_path / 'exported'}")
    with hf_folders.separate_modules(tmp_path / "modules"):
        tokenizer, model = (
            kind.from_pretrained(tmp_path / "exported", trust_remote_code=True)
            for kind in (transformers.AutoTokenizer, transformers.AutoModel)
        )
    texts = ["русский и английский", "English"]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = model(**batch, output_hidden_states=True)
    assert output.logits.shape == batch["input_ids"].shape
    objective, params = hf_folders.read_checkpoint(trained)
    encoded = [[0, *vocabulary.encode(text), 2] for text in texts]
    rows = fill_rows(encoded, len(texts), batch["input_ids"].shape[1])
    np.testing.assert_array_equal(batch["input_ids"], rows["tokens"])
    states = objective.encode(params, rows)
    assert hf_folders.largest_difference(states, output.hidden_states, rows) < 1e-5


@pytest.mark.slow
def test_fine_tuning_and_evaluation_inherit_from_it(tmp_path, taken_over, vocabulary):
    data = finetuning.write_labelled(tmp_path / "data", "cldr_tagging", vocabulary)
    flags = finetuning.finetune_flags(tmp_path / "tuned", data, taken_over, "cldr_tagging")
    finetuning.run(flags)
    run("export", f"--checkpoint={tmp_path / 'tuned'}", f"--output={tmp_path / 'exported'}")
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert config["architectures"] == ["XLMRobertaModel"]
    model = transformers.AutoModel.from_pretrained(tmp_path / "exported")
    found = model.get_input_embeddings().weight.detach().numpy()
    np.testing.assert_array_equal(found, table(tmp_path / "tuned"))
    assert "FineTune (cldr_tagging)" in (tmp_path / "exported" / "README.md").read_text()


@pytest.mark.slow
def test_evaluation_finds_everything_in_it(tmp_path, taken_over):
    data = tmp_path / "eval" / "tatoeba"
    data.mkdir(parents=True)
    for name in ("rus", "eng"):
        texts = [f"{name} {number}" for number in range(30)]
        (data / f"tatoeba.rus-eng.{name}").write_text("\n".join(texts) + "\n")
    flags = [f"--checkpoint={taken_over}", "--tasks=tatoeba", f"--data={tmp_path / 'eval'}"]
    tiny.run(["-m", "xlme_jax.evaluate", *flags, f"--output={tmp_path / 'results'}"])
    found = read(tmp_path / "results")
    assert found.header.step == 0 and found.header.flops == {}
    assert 0 < found.headline["tatoeba/accuracy"] <= 1
