"""Translates a file, or standard input, line by line.

    python -m xlme_jax.translate --checkpoint=runs/translate --target=fr < en.txt > fr.txt

The checkpoint is one of gin_configs/models/translate.gin. With --n_best above 1, each line of the
output has the number of the input's line, the score (log-probability over length^length_penalty)
and a translation, separated by tabs.
"""

import sys
from collections.abc import Sequence

from absl import flags

from xlme_jax.configuration import command_line
from xlme_jax.evaluation.beam_search import BeamSearch
from xlme_jax.runs.translating import Translation, read_lines, split_lines, translate
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.paths import as_path

_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "MODEL_DIR of a run, or one of its checkpoints/STEP.", required=True
)
_TARGET = flags.DEFINE_string("target", None, "Language to translate into.", required=True)
_SOURCE = flags.DEFINE_string("source", "-", "File of lines, or WMT's .sgm; - for standard input.")
_OUTPUT = flags.DEFINE_string("output", "-", "File to write; - for standard output.")
_VOCABULARY = flags.DEFINE_string(
    "vocabulary", None, "SentencePiece model (default: the one in the run's DATA_DIR)."
)
_BEAMS = flags.DEFINE_integer("beams", 5, "Hypotheses that are followed at once; 1 is greedy.", 1)
_LENGTH_PENALTY = flags.DEFINE_float(
    "length_penalty", 1.0, "Above 1 favours long translations, below 1 short ones."
)
_EARLY_STOPPING = flags.DEFINE_enum(
    "early_stopping",
    "no",
    ["yes", "no", "never"],
    "When a line is done: as Hugging Face's option of this name (yes: True, no: False).",
)
_N_BEST = flags.DEFINE_integer("n_best", 1, "Translations of each line.", 1)


def main() -> None:
    """Reads the lines, translates them and writes the translations."""
    stopping = {"yes": True, "no": False}.get(_EARLY_STOPPING.value, "never")
    search = BeamSearch(_BEAMS.value, _LENGTH_PENALTY.value, stopping)  # type: ignore[arg-type]
    if _SOURCE.value == "-":
        name = "standard input"
        lines = split_lines(sys.stdin.buffer.read(), name)
    else:
        name, lines = _SOURCE.value, read_lines(_SOURCE.value)
    found = translate(
        *(_CHECKPOINT.value, lines, _TARGET.value, search, _N_BEST.value, _VOCABULARY.value),
        name=name,
    )
    text = "".join(f"{line}\n" for translations in found for line in _written(translations))
    if _OUTPUT.value == "-":
        sys.stdout.write(text)
    else:
        replace_file(as_path(_OUTPUT.value), text.encode())


def _written(translations: Sequence[Translation]) -> list[str]:
    """Returns the output's lines for a line of the input."""
    if _N_BEST.value == 1:
        return [translations[0].text if translations else ""]
    return [f"{one.line}\t{one.score:.6f}\t{one.text}" for one in translations]


if __name__ == "__main__":
    command_line.run_app(main, reads_gin=False)
