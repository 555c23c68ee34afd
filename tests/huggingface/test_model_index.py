"""The metadata of cards, as the hub reads it."""

import pytest
from helpers import hf_folders

from xlme_jax.evaluation import results
from xlme_jax.evaluation.outcome import Outcome, Result
from xlme_jax.huggingface.model_index import front_matter

huggingface_hub = pytest.importorskip("huggingface_hub")

ROWS = (
    Result("tatoeba", "mean", "accuracy", 0.5, layer=1),
    Result("tatoeba", "mean", "accuracy", 0.7, layer=2, readout="centred"),
    Result("tatoeba", "mean", "accuracy", 0.7, layer=3),
    Result("tatoeba", "mean", "accuracy", 0.9, layer=3, readout="procrustes"),
    Result("tatoeba", "mean", "accuracy", 0.1, layer=2, system="untrained"),
    Result("wordalign", "mean", "aer", 0.3, layer=1),
    Result("wordalign", "mean", "aer", 0.6, system="diagonal"),
    Result("xnli", "no", "accuracy", 0.4),
    Result("xnli", "mean", "accuracy", 0.4),
    Result("held_out", "bitext", "rtd_loss", float("nan"), split="validation"),
    Result("held_out", "bitext", "mlm_loss", 2e-5, split="validation"),
    Result("wmt14_en_fr", "fr", "bleu", 0.25),
    Result("wmt14_en_fr", "fr", "chrf", 0.5),
)
HEADLINE = {
    "tatoeba/accuracy": 0.5,
    "tatoeba/centred/layer_2": 0.7,
    "tatoeba/procrustes/layer_3": 0.9,  # Of an older results.json; no figure of a card.
    "tatoeba/accuracy (untrained)": 0.1,
    "wordalign/aer": 0.3,
    "wordalign/diagonal": 0.6,
    "xnli/accuracy": 0.4,
    "xnli/accuracy/no": 0.4,
    "xnli/accuracy/mean": 0.4,
    "held_out/bitext/rtd_loss": float("nan"),
    "held_out/bitext/mlm_loss": 2e-5,
    "wmt14_en_fr/bleu": 0.25,
    "wmt14_en_fr/chrf": 0.5,
}
FIELDS = ("task_type", "dataset_type", "dataset_config", "dataset_split")
FIELDS += ("metric_type", "metric_value", "metric_name")
# fmt: off
FOUND = [
    ("sentence-similarity", "tatoeba", "mean", "test", "accuracy", 0.5, "accuracy, layer 1"),
    ("sentence-similarity", "tatoeba", "mean", "test", "accuracy", 0.7,
     "accuracy, layer 2, centred"),
    ("token-classification", "wordalign", "mean", "test", "aer", 0.3, "aer, layer 1"),
    ("text-classification", "xnli", "mean", "test", "accuracy", 0.4, "accuracy"),
    ("text-classification", "xnli", "mean", "test", "accuracy", 0.4, "accuracy"),
    ("text-classification", "xnli", "no", "test", "accuracy", 0.4, "accuracy"),
    ("fill-mask", "held_out", "bitext", "validation", "mlm_loss", 2e-5, "mlm_loss"),
    ("translation", "wmt14_en_fr", "fr", "test", "bleu", 0.25, "bleu"),
    ("translation", "wmt14_en_fr", "fr", "test", "chrf", 0.5, "chrf"),
]
# fmt: on


def evaluated(run):
    folder = run / "checkpoints" / str(hf_folders.STEP)
    outcome = Outcome(ROWS, HEADLINE)
    results.write(outcome, run / "evaluation" / folder.name, results.Header("x", str(folder)))
    return run


def results_in(readme):
    card = huggingface_hub.ModelCard.load(readme)
    assert huggingface_hub.metadata_load(readme)["model-index"]
    return card.data.model_name, [
        tuple(getattr(x, name) for name in FIELDS) for x in card.data.eval_results
    ]


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["xlme", "translate"])
def test_the_hub_reads_the_results_of_a_card(tmp_path, objective):
    more = {"Encoder__num_layers": 2} if objective == "translate" else {}
    run = evaluated(hf_folders.write_checkpoint(tmp_path / "run", objective, **more))
    hf_folders.export(run, tmp_path / 'my "model" \u00e9')
    readme = tmp_path / 'my "model" \u00e9' / "README.md"
    assert results_in(readme) == ('my "model" \u00e9', FOUND)
    text = readme.read_text()
    assert "procrustes" not in text and "| tatoeba/accuracy | 0.5000 | 0.1000 |" in text
    assert "tatoeba (centred, layer 2), accuracy@1 0.700." in text
    assert "Accuracy of retrieval without a layer is by cosine, at the middle layer" in text
    assert text.count("accuracy@1") == 1  # That of classification is none.
    # What the hub's own writer of results makes of it can be read again.
    added = huggingface_hub.metadata_eval_result(
        model_pretty_name='my "model" \u00e9', task_pretty_name="x", task_id="text-classification",
        metrics_pretty_name="f1", metrics_id="f1", metrics_value=0.1, dataset_pretty_name="x",
        dataset_id="x",
    )  # fmt: skip
    huggingface_hub.metadata_save(readme, {**huggingface_hub.metadata_load(readme), **added})
    assert len(results_in(readme)[1]) == 1


def test_cards_without_results_have_no_index(tmp_path):
    run = hf_folders.write_checkpoint(tmp_path / "run", "xlm")
    assert front_matter("model", run / "checkpoints" / str(hf_folders.STEP)) == []
