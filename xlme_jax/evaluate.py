"""Evaluates a checkpoint.

Pre-trained encoders are evaluated at every layer with `--tasks=tatoeba,wordalign` and others of the
list below. The same encoder before training, and others that were trained with it (XLM-E's
generator), are evaluated for comparison. Retrieval is measured
with several readouts, each at the layer selected on held-out lines of the training corpora, whose
languages are drawn in a plane.
`--tasks=held_out` computes losses on the validation split of the run's DATA_DIR. Fine-tuned models
are evaluated on their task in every language that has a file:

    python -m xlme_jax.evaluate --checkpoint=runs/xlme_base --tasks=tatoeba,wordalign --data=eval
    python -m xlme_jax.evaluate --checkpoint=runs/xnli --data=eval --split=test

--data has a subfolder of official files for each task. Figures are written to `results.json`,
predictions next to it. --trusted_modules=MODULE imports measures of other packages, whose tasks
--tasks can name then.
"""

import sys

from absl import flags

from xlme_jax.configuration import command_line
from xlme_jax.evaluation import measures, readouts, results
from xlme_jax.evaluation.encoding import POOLINGS
from xlme_jax.huggingface.conversion import as_run
from xlme_jax.runs import evaluating, probing
from xlme_jax.storage.paths import as_path
from xlme_jax.studies.reports import evaluation_text
from xlme_jax.training import host_memory, peers
from xlme_jax.training.stopping import say
from xlme_jax.validation import shell

_CHECKPOINT = flags.DEFINE_string(
    "checkpoint",
    None,
    "MODEL_DIR of a run, or one of its checkpoints/STEP; or a Hugging Face folder of XLM-R or of "
    "an export, which is converted once.",
    required=True,
)
_TASKS = flags.DEFINE_list(
    "tasks",
    [],
    f"{', '.join(measures.names())}; or benchmarks with the same labels as the one that the model "
    f"was fine-tuned on (default: that one, or {' and '.join(measures.defaults())} for a "
    "pre-trained encoder).",
)
_DATA = flags.DEFINE_string("data", "", "Folder with a subfolder of official files for each task.")
_DATA_DIR = flags.DEFINE_string(
    "data_dir",
    None,
    "Prepared data set for the language means (from training text) and for selecting layers (on "
    "held-out translations) (default: the run's DATA_DIR).",
)
_OUTPUT = flags.DEFINE_string(
    "output",
    None,
    "Folder for the results (default: MODEL_DIR/evaluation/STEP, or FOLDER/evaluation of a Hugging "
    "Face folder).",
)
_VOCABULARY = flags.DEFINE_string(
    "vocabulary", None, "SentencePiece model (default: the one in the run's DATA_DIR)."
)
_SPLIT = flags.DEFINE_enum(
    "split",
    None,
    ["validation", "test"],
    "Split of a fine-tuned task or of mined text (default: test, or the validation split if there "
    "is no other). The threshold of mining is always that of the validation split.",
)
_LANGUAGES = flags.DEFINE_list(
    "languages",
    [],
    "Evaluate only these languages (default: all found). Pairs such as en-fr are sets of word "
    "alignments.",
)
_LAYER = flags.DEFINE_integer(
    "layer",
    None,
    "Layer of the headline figures in results.json, which contains all layers (default: the best "
    "on held-out translations; without these, the middle one).",
    0,
)
_LENGTH = flags.DEFINE_integer("length", None, "Maximum tokens per row.", 8)
_LIMIT = flags.DEFINE_integer(
    "limit", None, "Maximum examples per language (fine-tuned tasks, held-out translations).", 1
)
_POOLING = flags.DEFINE_enum(
    "pooling", "mean", list(POOLINGS), "How a sentence's hidden states are pooled."
)
_READOUTS = flags.DEFINE_list(
    "readouts",
    list(readouts.RETRIEVAL),
    "How sentences are compared in retrieval; procrustes, a diagnostic fitted on training pairs, "
    "is the slowest, as it encodes the most text.",
)
_UNTRAINED = flags.DEFINE_bool("untrained", True, "Evaluate the encoder before training too.")

_ALONG = flags.DEFINE_bool(
    "along",
    False,
    "Evaluate every checkpoint of the run and draw the headline figures by steps and FLOPs "
    "(curve.png, curve.json); the same command continues.",
)


def main() -> None:
    """Evaluates the checkpoint and prints its figures."""
    host_memory.keep_freed()
    peers.check_single()
    peers.check_devices(say)
    source = _CHECKPOINT.value
    run = as_run(source)
    # The results of a converted folder are written into that folder, not into the cache of runs.
    output = None if run == source else str(as_path(source) / "evaluation")
    options = evaluating.Options(
        tasks=tuple(_TASKS.value),
        data=_DATA.value,
        data_dir=_DATA_DIR.value,
        output=_OUTPUT.value or output,
        vocabulary=_VOCABULARY.value,
        split=_SPLIT.value,  # type: ignore[arg-type]  # DEFINE_enum checks it.
        languages=tuple(_LANGUAGES.value),
        layer=_LAYER.value,
        length=_LENGTH.value,
        limit=_LIMIT.value,
        pooling=_POOLING.value,  # type: ignore[arg-type]
        readouts=tuple(_READOUTS.value),
        untrained=_UNTRAINED.value,
        command=shell.join(["python", "-m", "xlme_jax.evaluate", *sys.argv[1:]]),
    )
    if _ALONG.value:
        print(f"Written: {probing.evaluate_along(as_path(source), options)}")
        return
    outcomes, path = evaluating.evaluate(run, options)
    print(evaluation_text.to_text(outcomes))
    print(f"\nWritten: {path}")
    for outcome in outcomes:
        for name in outcome.files:
            if name.endswith(".png"):
                print(f"Written: {path.parent / name}")
    if command := evaluation_text.next_command(run, results.read(path).header.step, outcomes):
        print(f"Next: {command}")


if __name__ == "__main__":
    command_line.run_app(main, reads_gin=False)
