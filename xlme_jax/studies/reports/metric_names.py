"""Names of metrics in words: the same in report, log and comparison of runs.

The live progress line has no room for "accuracy@1" and writes "held-out retrieval 0.068"
(`training.progress.format_line`); its losses are the last words of the names here.
"""

RETRIEVAL = "held-out retrieval, accuracy@1"
_WHOLE = {
    "loss": "loss",
    "probe/retrieval_accuracy": RETRIEVAL,
    "probe/retrieval_untrained": f"{RETRIEVAL}, the untrained encoder",
    "probe/retrieval_chance": f"{RETRIEVAL}, chance",
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


def in_words(metric: str) -> str:
    """Returns the name of a metric in words, such as "bitext: detection F1"; "" if it has none."""
    stream, _, name = metric.rpartition("/")
    if stream and name in _OF_STREAM:
        return f"{stream}: {_OF_STREAM[name]}"
    return _WHOLE.get(metric, "")
