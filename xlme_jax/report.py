r"""Compares results with the papers': tables, layer curves, scores against FLOPs, alignments.

    python -m xlme_jax.report --output=report --results=small=runs/small/evaluation \
        --results="small=runs/xnli_sweep" --results="small, no TRTD=runs/no_trtd/evaluation"

Writes report.md, report.html (one self-contained file) and the pictures. Results with the same NAME
are runs of one system with different seeds. From a sweep, only the selected point is used. A NAME
that contains "translate-train" is listed in the tables of that setting, not in the zero-shot ones.

    python -m xlme_jax.report --paper=xylent --results=small=runs/small/evaluation

Prints what is there of each table and figure of a paper (xlme, xylent, infoxlm, veco), the command
of what is missing, and the commands that this machine is too small for, with the reasons; with
--output, also writes them in full, with the paper's rows.

    python -m xlme_jax.report --paper=xylent --runs=runs/pubmed --results=small=runs/small_xnli \
        --results="small, continued=runs/pubmed_xnli"

Adds what continued training on another domain changes: tables and a picture of the relative drop
of results "NAME, continued", and the held-out text of the runs before and after.

    python -m xlme_jax.report --paper=veco --runs=runs/en_de_random_6,runs/en_de_last_6

Adds the learning curves of translators: the BLEU of held-out pairs over steps.

    python -m xlme_jax.report --translations=references.txt,baseline.txt,ours.txt

Prints BLEU and chrF of translations with sacreBLEU's signatures and, for two systems or more, the
paired bootstrap of differences to the first; with --output, writes it to translations.txt there.
--target=zh says the language, which chooses BLEU's tokenizer; --tokenize=char names one.

    python -m xlme_jax.report --runs=runs/small,runs/no_trtd

Prints what differs between training runs: configuration, code, packages, devices, and the ends of
the curves; with --output, writes it to runs.md and runs.tsv there. `tensorboard --logdir=runs`
shows the curves of all runs below a folder.
"""

import logging
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from xlme_jax.configuration import command_line, values
from xlme_jax.data.languages import canonical
from xlme_jax.data.text.lines import read_lines
from xlme_jax.evaluation.results import Results
from xlme_jax.evaluation.translation_scores import compare, to_text
from xlme_jax.runs import demands
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.paths import as_path
from xlme_jax.studies.papers import bleu_tables, continued, inventory
from xlme_jax.studies.papers.comparison_page import load, to_markdown, write
from xlme_jax.studies.papers.entries import entries
from xlme_jax.studies.papers.items import PAPERS, Paper
from xlme_jax.studies.papers.sheets import Picture, Sheet
from xlme_jax.studies.reports import run_comparison
from xlme_jax.validation import shell

_log = logging.getLogger("xlme_jax.report")
_RESULTS = flags.DEFINE_multi_string(
    "results",
    [],
    "NAME=PATH or PATH of a results.json, or of a folder with such files below it (repeatable). "
    "NAME defaults to the folder's name.",
)
_RUNS = flags.DEFINE_list(
    "runs",
    [],
    "MODEL_DIR,MODEL_DIR,...: training runs to compare, or of continued training (--paper=xylent), "
    "or of translators (--paper=veco).",
)
_PAPER = flags.DEFINE_enum(
    "paper", None, list(PAPERS), "All tables and figures of this paper, and what is missing."
)
_TRANSLATIONS = flags.DEFINE_list(
    "translations", [], "REFERENCES,SYSTEM,...: files of lines, or WMT's .sgm, to score."
)
_TARGET = flags.DEFINE_string(
    "target",
    None,
    "--translations: their language, whose script chooses sacreBLEU's tokenizer for BLEU (default: "
    "the script of most letters of the references).",
)
_TOKENIZE = flags.DEFINE_string(
    "tokenize", None, "--translations: sacreBLEU's tokenizer for BLEU, such as zh or char."
)
_OUTPUT = flags.DEFINE_string("output", None, "Folder of the report.")


def main() -> int:
    """Prints or writes the report that the flags choose; returns the exit code."""
    if _TRANSLATIONS.value:
        return _score_translations()
    if _RUNS.value and _PAPER.value not in (None, "xylent", "veco"):
        raise values.ConfigError("--runs goes with --paper=xylent or veco, or without --paper.")
    if _RUNS.value and not _PAPER.value:
        if _RESULTS.value:
            raise values.ConfigError("--runs and --results make different reports; give one.")
        return _compare_runs()
    if not _PAPER.value and not (_RESULTS.value and _OUTPUT.value):
        raise values.ConfigError(
            "--results=NAME=PATH and --output=FOLDER are needed, or --paper=NAME, or "
            "--runs=MODEL_DIR,MODEL_DIR, or --translations=REFERENCES,SYSTEM. The page of one run, "
            "MODEL_DIR/report.html, is written by `train` at the end of the run; its command again "
            "writes it anew."
        )
    named = load(_RESULTS.value)
    paper: Any = _PAPER.value  # DEFINE_enum checks it.
    run_sheets, drawn = _of_runs(_RUNS.value, paper) if _RUNS.value else ([], [])
    if paper:
        sizes = _print_inventory(paper, named)
        print("".join(f"\n{to_markdown(sheet)}" for sheet in run_sheets), end="")
        run_sheets = [*run_sheets, sizes]
    if _OUTPUT.value:
        command = shell.join(["python", "-m", "xlme_jax.report", *sys.argv[1:]])
        output = as_path(_OUTPUT.value)
        _log.info("Report: %s", write(named, output, command, paper, run_sheets, drawn))
    return 0


def _print_inventory(paper: Paper, named: Sequence[tuple[str, Results]]) -> Sheet:
    """Prints which results of a paper there are, and what is missing.

    Returns:
      The sheet of the commands that this machine is too small for.
    """
    statuses = inventory.statuses(paper, entries(named))
    commands = (line for status in statuses for line in (*status.commands, *status.runs))
    too_large = demands.too_large(commands, demands.this_machine())
    print(inventory.to_text(statuses, too_large), end="")
    return inventory.to_sheet_of_sizes(too_large)


def _compare_runs() -> int:
    """Prints what differs between --runs; returns the exit code."""
    comparison = run_comparison.compare(_RUNS.value)
    output = as_path(_OUTPUT.value) if _OUTPUT.value else None
    file = run_comparison.MARKDOWN
    where = f"in {output / file}" if output else f"with --output=FOLDER in FOLDER/{file}"
    print(run_comparison.to_markdown(comparison, elsewhere=where), end="")
    if output:
        page = run_comparison.to_markdown(comparison)
        replace_file(output / file, page.encode())
        replace_file(output / run_comparison.TABLE, run_comparison.to_tsv(comparison).encode())
    return 0


def _of_runs(runs: Sequence[str], paper: Paper) -> tuple[list[Sheet], list[Picture]]:
    """Returns the tables and pictures that --runs adds to the report of a paper."""
    if paper == "xylent":
        return [continued.held_out(runs)], []
    sheet, picture = bleu_tables.learning_curves(runs)
    return [sheet], [picture]


def _score_translations() -> int:
    """Prints the scores of --translations; returns the exit code."""
    if _RESULTS.value or _PAPER.value or _RUNS.value or len(_TRANSLATIONS.value) < 2:
        raise values.ConfigError(
            "--translations=REFERENCES,SYSTEM,... needs references and a system, and goes without "
            "--results, --paper and --runs."
        )
    references, *systems = map(read_lines, _TRANSLATIONS.value)
    names = _TRANSLATIONS.value[1:]
    if len(set(names)) < len(names):
        raise values.ConfigError(f"--translations names a system twice: {', '.join(names)}")
    language = "" if _TARGET.value is None else canonical(_TARGET.value)
    comparison = compare(references, dict(zip(names, systems)), _TOKENIZE.value, language)
    text = to_text(comparison, names)
    print(text, end="")
    if _OUTPUT.value:
        replace_file(as_path(_OUTPUT.value) / "translations.txt", text.encode())
    return 0


if __name__ == "__main__":
    command_line.run_app(main, reads_gin=False)
