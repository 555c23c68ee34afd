"""`mteb` evaluates a checkpoint, and its scores are those of `evaluate`."""

import numpy as np
import pytest
from helpers import hf_folders

from xlme_jax import api
from xlme_jax.evaluation.tatoeba import Tatoeba
from xlme_jax.huggingface.mteb_encoder import MtebEncoder


def test_bitext_mining_has_the_scores_of_evaluate(tmp_path, monkeypatch):
    monkeypatch.setenv("MTEB_CACHE", str(tmp_path / "cache"))
    mteb = pytest.importorskip("mteb")
    mocks = pytest.importorskip("mteb.mocks.mock_tasks")
    datasets = pytest.importorskip("datasets")
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefgh"), 2)) for _ in range(60)]
    texts = [" ".join(rng.choice(words, 4)) for _ in range(40)]
    others = [" ".join([*text.split()[:3], rng.choice(words)]) for text in texts]
    for side, lines in (("rus", others), ("eng", texts)):
        (tmp_path / f"tatoeba.rus-eng.{side}").write_text("\n".join(lines) + "\n")
    model = api.load(hf_folders.write_checkpoint(tmp_path / "run", "xlm", Encoder__num_layers=3))
    outcome = Tatoeba(str(tmp_path), layer=1).build(model.loaded.subject())(model.loaded.params)
    ours = {
        row.metric: row.value
        for row in outcome.results
        if (row.language, row.layer, row.readout) == ("ru", 1, "raw")
    }

    class Reversed(mocks.MockBitextMiningTask):
        def load_data(self, **_):
            sides = {"sentence1": others, "sentence2": texts}
            self.dataset = datasets.DatasetDict({"test": datasets.Dataset.from_dict(sides)})
            self.data_loaded = True

    result = mteb.evaluate(
        MtebEncoder(model, 1), Reversed(), cache=None, co2_tracker=False, raise_error=True
    )
    scores = result.task_results[0].scores["test"][0]
    assert 0.1 < ours["f1_to_en"] < ours["accuracy_to_en"] < 1
    # The cosines are the same arrays; the scores are rounded to six decimals.
    assert scores["f1"] == pytest.approx(ours["f1_to_en"], abs=1e-6)
    assert scores["accuracy"] == pytest.approx(ours["accuracy_to_en"], abs=1e-6)
