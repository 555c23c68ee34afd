"""Every metric of a run has a name, and the report says truly what the loss is the sum of."""

import re

import pytest
from helpers import runs, tiny

from xlme_jax.studies.reports.metric_names import in_words
from xlme_jax.studies.reports.run_page import loss_in_parts
from xlme_jax.training.metrics import read_metrics

BINDINGS = {
    "TRAIN_STEPS": 2,
    "Optimizer__warmup_steps": 1,
    "Loop__evaluate_every": 2,
    "Train__evaluators": runs._Gin("(@HeldOut(), @RetrievalProbe())"),
    "RetrievalProbe__length": 32,
    "RetrievalProbe__batch_rows": 8,
    "bitext/PairStream__weight": 0.5,
}
OF_SYSTEM = {
    "xlme": {"XLME__rtd_weight": 10.0},
    "xlm": {},
    "infoxlm": {},
    "contrast": {"Contrast__distillation_weight": 0.25},
    "translate": {"Translate__label_smoothing": 0.0, "Train__evaluators": ()},
}


@pytest.mark.slow
@pytest.mark.parametrize("system", OF_SYSTEM)
def test_metrics_have_names_and_the_loss_is_their_sum(tmp_path, tiny_data, system):
    bindings = {**BINDINGS, **OF_SYSTEM[system]}
    runs.run(tmp_path, tiny_data, objective=system, **bindings)
    curves = read_metrics(tmp_path / "metrics.jsonl")
    assert [name for name in curves if not in_words(name)] == []
    diagnostics = runs.load(tmp_path, tiny_data, objective=system, **bindings)
    diagnostics = diagnostics.objective.build(tiny.VOCABULARY).diagnostics
    text = loss_in_parts(curves, diagnostics)
    assert text.startswith("loss = ") and "0.5 × " in text
    for step, loss in curves["loss"]:
        values = {name: dict(curve).get(step) for name, curve in curves.items()}
        terms = text.removeprefix("loss = ").replace("×", "*")
        total = eval(re.sub(r"\w+/\w+", r"values['\g<0>']", terms), {"values": values})
        assert total == pytest.approx(loss, rel=1e-5)
