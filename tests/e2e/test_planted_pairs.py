"""Sampling by losses finds planted defects among 60 clean tasks (XY-LENT, Figure 4)."""

import json

import numpy as np
import pytest
from helpers import planted_bitext
from helpers.runs import _Gin, run

from xlme_jax.data.batches.pair_losses import extremes
from xlme_jax.training.task_losses import PAIR_WEIGHTS_FILE

RHO, FLOOR = 0.05, 0.2
# As in the paper.
UPDATES = 10
BINDINGS = {
    "TRAIN_STEPS": 1500,
    "CHECKPOINT_EVERY": 1500,
    "Loop__log_every": 100,
    "bitext/PairStream__rows": 32,
    "bitext/PairStream__robust": _Gin("@RobustSampling()"),
    "monolingual/TextStream__rows": 1,
    "monolingual/TextStream__weight": 0.0,
    "RobustSampling__updates": UPDATES,
    "RobustSampling__rho": RHO,
    "RobustSampling__floor": FLOOR,
    "Masking__rate": 0.25,
    "Encoder__num_layers": 2,
    "Encoder__hidden_size": 64,
    "Encoder__ffn_size": 128,
    "Encoder__dropout": 0.0,
    "Encoder__attention_dropout": 0.0,
    "Optimizer__learning_rate": 3e-3,
    "Optimizer__warmup_steps": 50,
}


# {estimator: (its settings, how far the shuffled task rises at least)}
ESTIMATORS = {
    "token_means": ({"RobustSampling__decay": 0.99}, 2.0),
    "batch_means": ({"RobustSampling__estimator": "batch_means"}, 1.4),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "seed"),
    [("token_means", 0), ("token_means", 1), ("token_means", 2), ("batch_means", 0)],
)
def test_shuffled_sides_are_weighted_up_and_identical_ones_down(tmp_path, estimator, seed):
    settings, least = ESTIMATORS[estimator]
    data = planted_bitext.write(tmp_path / "data", seed)
    run(tmp_path / "run", data, objective="xlm", SEED=seed, **BINDINGS, **settings)
    summary = json.loads((tmp_path / "run" / PAIR_WEIGHTS_FILE).read_text())["bitext"]
    assert len(summary["tasks"]) == planted_bitext.CLEAN + 2 == 62
    assert len(summary["phases"]) == UPDATES
    # What is weighted down is seen less, so its loss and its weight rise again in the next phase:
    # the mean of the second half, when the model has learned to translate, shows the tendency.
    late = summary["phases"][UPDATES // 2 :]
    mean = {
        name: np.mean([phase[name] for phase in late], axis=0) for name in ("losses", "weights")
    }
    found = extremes({**summary, "phases": [mean]})
    print(found)
    assert found[0][0] == "shuffled"
    assert "identical" in [row[0] for row in found[10:]]
    # Of the clean tasks, none is mistaken for the shuffled one.
    ratios = [weight / initial for _, initial, weight, _ in found]
    assert ratios[0] > least and ratios[1] < 0.8 * ratios[0]
    if estimator == "batch_means":
        return
    # In theory weights are linear in the standardized losses, as long as none is at the floor.
    losses, initial = np.array(summary["phases"][-1]["losses"]), np.array(summary["initial"])
    average = initial @ losses
    deviation = np.sqrt(initial @ (losses - average) ** 2)
    expected = 1 + np.sqrt(2 * RHO) * (losses - average) / deviation
    assert expected.min() > FLOOR
    np.testing.assert_allclose(summary["phases"][-1]["weights"] / initial, expected, rtol=1e-6)
