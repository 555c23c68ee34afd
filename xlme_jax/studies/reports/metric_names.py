"""Names of metrics in words: the same in report, log and comparison of runs.

The live progress line has no room for "accuracy@1" and writes "held-out retrieval (raw, layer 1)
0.068" (`training.progress.format_line`); its losses are the last words of the names here.
"""

from xlme_jax.training.metrics import retrieval_name

_OF_PROBE = {
    "probe/retrieval_accuracy": "",
    "probe/retrieval_untrained": ", the untrained encoder",
    "probe/retrieval_chance": ", chance",
}
# Of metrics STREAM/NAME.
_OF_STREAM = {
    "mlm_loss": "masked LM loss",
    "mlm_accuracy": "masked LM accuracy",
    "sampled_accuracy": "samples that are the original token",
    "sampled_diversity": "different samples over different originals",
    "replace_rate": "tokens replaced",
    "tlm_loss": "translation LM loss",
    "rtd_loss": "detection loss",
    "rtd_f1": "detection F1",
    "rtd_auc": "detection AUC",
    "rtd_precision": "detection precision",
    "rtd_recall": "detection recall",
}


def in_words(metric: str, readout: str = "") -> str:
    """Returns the name of a metric in words, such as "bitext: detection F1"; "" if it has none.

    Args:
      metric: the metric.
      readout: how the run's probe retrieves, as `training.metrics.probe_readout` returns it.
    """
    stream, _, name = metric.rpartition("/")
    if stream and name in _OF_STREAM:
        return f"{stream}: {_OF_STREAM[name]}"
    if metric in _OF_PROBE:
        return f"{retrieval_name(readout)}, accuracy@1{_OF_PROBE[metric]}"
    return "loss" if metric == "loss" else ""
