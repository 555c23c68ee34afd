"""Metrics have the same names in words wherever they are shown."""

import pytest

from xlme_jax.objectives.xlme import XLMEConfig
from xlme_jax.studies.reports import curves, run_page, verdict
from xlme_jax.studies.reports.metric_names import in_words
from xlme_jax.training.progress import Throughput, format_line

PROBE = {
    "probe/retrieval_accuracy": 0.5,
    "probe/retrieval_chance": 0.1,
    "probe/retrieval_layer/centred": 0.0,
}


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("loss", "loss"),
        ("probe/retrieval_accuracy", "held-out retrieval, accuracy@1"),
        ("bitext/rtd_f1", "bitext: detection F1"),
        ("bitext/sampled_diversity", "bitext: different samples over different originals"),
        ("held_out/fr/mlm_loss", "held_out/fr: masked LM loss"),
        ("probe/raw/layer_0", ""),
        ("rtd_f1", ""),
    ],
)
def test_metrics_in_words(metric, words):
    assert in_words(metric) == words


def test_line_report_evaluation_and_plot_name_retrieval_alike():
    short = "held-out retrieval (centred, layer 0)"
    assert f"| {short} 0.500 (chance 0.100)" in format_line(1, 2, PROBE, Throughput())
    run = {name: [(1, value)] for name, value in PROBE.items()}
    diagnostics = XLMEConfig().build(100).diagnostics
    ((name, *_),) = run_page.verdicts(run, diagnostics)
    assert name == in_words("probe/retrieval_accuracy", "centred, layer 0")
    assert name == f"{short}, accuracy@1"
    evaluated = {"held_out_retrieval/centred/layer_0": 0.5}
    assert verdict.of_retrieval("held_out_retrieval", evaluated).name == name
    (plot,) = (one for one in curves.plots(run, diagnostics) if "etrieval" in one.title)
    assert short.startswith(plot.title.lower())


def test_report_names_detection_as_the_comparison_does():
    diagnostics = XLMEConfig().build(100).diagnostics
    assert [f"bitext: {one.label}" for one in diagnostics.baselines] == [in_words("bitext/rtd_f1")]
