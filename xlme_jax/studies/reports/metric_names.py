"""Names of metrics in words: the same in report, log and comparison of runs.

The live progress line has no room for "accuracy@1" and writes "held-out retrieval (raw, layer 1)
0.068" (`training.progress.format_line`); its losses are the last words of the names here.
"""

import re

from xlme_jax.training.metrics import retrieval_name

_OF_PROBE = {
    "probe/retrieval_accuracy": "",
    "probe/retrieval_untrained": ", the untrained encoder",
    "probe/retrieval_chance": ", chance",
}
_TRANSLATION = "held-out translation"
_WHOLE = {
    "loss": "weighted sum of all losses",
    "grad_norm": "norm of the gradient before clipping",
    "skipped": "share of updates left out because loss or gradient was not finite",
    "learning_rate": "learning rate",
    "tokens_per_step": "tokens a step, without padding",
    "tokens_per_second": "tokens a second, without padding",
    "mfu": "FLOPs of the model a second over the peak of the devices",
    "input_seconds": "seconds a step to get a batch",
    "device_seconds": "seconds a step that the host waits for its devices",
}
# Of metrics STREAM/NAME.
_OF_STREAM = {
    "weight": "weight in the loss",
    "left_out": "share of pairs left out because they are longer than a row",
    "mlm_loss": "masked LM loss",
    "mlm_accuracy": "masked LM accuracy",
    "sampled_accuracy": "samples that are the original token",
    "sampled_diversity": "different samples over different originals",
    "replace_rate": "tokens replaced",
    "tlm_loss": "translation LM loss",
    "tlm_accuracy": "translation LM accuracy",
    "cs_mlm_loss": "cross-sequence masked LM loss",
    "cs_mlm_accuracy": "cross-sequence masked LM accuracy",
    "cs_mlm_accuracy_alone": "cross-sequence masked LM accuracy without the other segment",
    "rtd_loss": "detection loss",
    "rtd_f1": "detection F1",
    "all_replaced_f1": "detection F1 of calling every token replaced",
    "rtd_auc": "detection AUC",
    "rtd_precision": "detection precision",
    "rtd_recall": "detection recall",
    "xlco_loss": "contrast with the queue, loss",
    "xlco_accuracy": "contrast with the queue, accuracy",
    "queue_norm": "mean norm of the queue's vectors",
    "queue_spread": "spread of the queue's directions",
    "contrast_loss": "contrast within the batch, loss",
    "anchor_loss": "squared distance from the vectors at the start, or the teacher's",
    "distillation_loss": "squared distance from the translation's vector there",
    "candidates": "sentences that one chooses among",
    "duplicates": "sentences that are left out of the candidates as duplicates",
    "positive_cosine": "cosine with the translation",
    "negative_cosine": "mean cosine with other sentences",
    "temperature": "temperature of the contrast",
    "loss": "loss",
    "accuracy": "accuracy",
}
_READOUTS = {
    "raw": "cosine",
    "centred": "centred cosine",
    "centred_transductive": "cosine centred on the candidates",
    "csls": "CSLS",
    "centred_csls": "centred CSLS",
    "procrustes": "cosine after an orthogonal map",
}
_LAYER = re.compile(r"probe/(untrained/)?(?:(\w+)/)?(\w+)/layer_(\d+)(?:/(.+))?")
_TRANSLATED = re.compile(r"translation/(dictionary_)?(exact_match|bleu|chrf)/(.+)")
_SCORES = {"exact_match": "exact match", "bleu": "BLEU", "chrf": "chrF"}


def in_words(metric: str, readout: str = "") -> str:
    """Returns the name of a metric in words, such as "bitext: detection F1"; "" if it has none.

    Args:
      metric: the metric.
      readout: how the run's probe retrieves, as `training.metrics.probe_readout` returns it.
    """
    if metric in _WHOLE:
        return _WHOLE[metric]
    if metric in _OF_PROBE:
        return f"{retrieval_name(readout)}, accuracy@1{_OF_PROBE[metric]}"
    if metric.startswith("eval/"):
        return "evaluation: " + metric.removeprefix("eval/").replace("/", ", ").replace("_", " ")
    stream, _, name = metric.rpartition("/")
    if stream == "probe/retrieval_accuracy":
        return f"{retrieval_name(readout)}, accuracy@1: {name}"
    if stream == "probe/retrieval_layer":
        return f"layer of held-out retrieval ({name})"
    if (match := _LAYER.fullmatch(metric)) and match[3] in _READOUTS:
        untrained, encoder, readout, layer, pair = match.groups()
        parts = [f"held-out retrieval, accuracy@1, {_READOUTS[readout]}, layer {layer}"]
        parts += [f"the {encoder}"] if encoder else []
        parts += ["untrained"] if untrained else []
        return ", ".join(parts) + (f": {pair}" if pair else "")
    if match := _TRANSLATED.fullmatch(metric):
        by = ", a word-by-word dictionary" if match[1] else ""
        return f"{_TRANSLATION}, {_SCORES[match[2]]}{by}: {match[3]}"
    return f"{stream}: {_OF_STREAM[name]}" if stream and name in _OF_STREAM else ""
