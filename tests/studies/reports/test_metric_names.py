"""Metrics have the same names in words wherever they are shown."""

import jax
import pytest
from helpers import tiny

from xlme_jax.configuration import loading
from xlme_jax.evaluation import readouts
from xlme_jax.objectives.xlme import XLMEConfig
from xlme_jax.studies.reports import curves, run_page, verdict
from xlme_jax.studies.reports.metric_names import in_words
from xlme_jax.tools.planning.compiling import lower_step
from xlme_jax.tools.planning.machines import parse_topology
from xlme_jax.training.progress import Throughput, format_line

RETRIEVAL = "held-out retrieval, accuracy@1"
PROBE = {
    "probe/retrieval_accuracy": 0.5,
    "probe/retrieval_chance": 0.1,
    "probe/retrieval_layer/centred": 0.0,
}


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("loss", "weighted sum of all losses"),
        ("probe/retrieval_accuracy", "held-out retrieval, accuracy@1"),
        ("bitext/rtd_f1", "bitext: detection F1"),
        ("bitext/sampled_diversity", "bitext: different samples over different originals"),
        ("held_out/fr/mlm_loss", "held_out/fr: masked LM loss"),
        ("probe/retrieval_accuracy/en-ru", f"{RETRIEVAL}: en-ru"),
        ("probe/raw/layer_0", f"{RETRIEVAL}, cosine, layer 0"),
        ("probe/csls/layer_12/en-ru", f"{RETRIEVAL}, CSLS, layer 12: en-ru"),
        ("probe/generator/csls/layer_1", f"{RETRIEVAL}, CSLS, layer 1, the generator"),
        ("probe/untrained/raw/layer_1", f"{RETRIEVAL}, cosine, layer 1, untrained"),
        (
            "probe/untrained/generator/centred/layer_1",
            f"{RETRIEVAL}, centred cosine, layer 1, the generator, untrained",
        ),
        ("translation/bleu/en-ru", "held-out translation, BLEU: en-ru"),
        (
            "translation/dictionary_exact_match/mean",
            "held-out translation, exact match, a word-by-word dictionary: mean",
        ),
        ("eval/tatoeba/accuracy", "evaluation: tatoeba, accuracy"),
        ("probe/other/layer_0", ""),
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


SYSTEMS = ("xlme", "xylent", "xlm", "infoxlm", "veco", "translate", "contrast")


def step_metrics(system, *bindings):
    """Returns the metrics that a train step of a system logs, and the system's diagnostics."""
    of_system = tiny.REPOSITORY / "tests" / f"{system}.gin"
    files = [
        f"gin_configs/models/{system}.gin",
        *([of_system] if of_system.is_file() else []),
        "tests/tiny.gin",
    ]
    config = loading.load(list(map(str, files)), ["Train.vocab_size = 200", *bindings], "Train")
    lowered = lower_step(config, parse_topology("cpu:1"), jax.devices()[:1])
    return set(lowered.program.out_info[1]), config.objective.build(200).diagnostics


@pytest.mark.parametrize("system", tiny.slow_except({"xlme"}, SYSTEMS))
def test_all_metrics_of_a_step_have_a_name(system):
    bindings = ["Contrast.distillation_weight = 0.5"] if system == "contrast" else []
    names, diagnostics = step_metrics(system, *bindings)
    assert {"loss", "grad_norm"} <= names
    derived = {f"bitext/{name}" for name in diagnostics.derived}
    nameless = {name for name in names | derived if not in_words(name)}
    assert not nameless
    losses = {name.split("/")[1] for name in names if name.endswith("loss") and "/" in name}
    # The label smoothing of translators is in the loss, but in no metric.
    assert set(diagnostics.loss_weights) >= losses - ({"loss"} if system == "translate" else set())


def test_all_readouts_have_a_name():
    for readout in readouts.READOUTS:
        assert in_words(f"probe/{readout}/layer_0")
