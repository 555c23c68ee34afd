"""What differs between runs: configuration, manifest, and the ends of their curves, as tables.

Trackers draw the curves of several runs (`tensorboard --logdir`).
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from xlme_jax.evaluation.results import Spread
from xlme_jax.storage.paths import as_path
from xlme_jax.studies.reports import text_table
from xlme_jax.studies.reports.curves import Curves, finite, last_tenth
from xlme_jax.studies.reports.metric_names import in_words
from xlme_jax.training import manifest
from xlme_jax.training.metrics import probe_readout, read_metrics

MARKDOWN, TABLE = "runs.md", "runs.tsv"
_ABSENT = "–"
# Facts of a start that differ between any two runs.
_OF_EACH_RUN = ("started", "command")
# Runs whose tokens differ by more are of different lengths; packed rows of equal runs may differ by
# less.
_EQUAL_TOKENS = 1.05
# Metrics that say most; the others are folded.
_HEADLINE = re.compile(
    r"(.*[/_])?loss|.*_f1|probe/retrieval_(accuracy|untrained|chance)"
    r"|(.*/)?(accuracy|f1|exact_match|aer|bleu)(/mean)?"
)


@dataclasses.dataclass(frozen=True)
class DifferenceTable:
    """A table of differences.

    Attributes:
      title: heading.
      head: headings of the columns; the first is empty, the others name runs.
      rows: cells; the first names what differs.
      note: explanation of the values; "" for none.
      is_folded: whether its rows are shown on demand.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    is_folded: bool = False


@dataclasses.dataclass(frozen=True)
class Lengths:
    """How long runs have trained.

    Attributes:
      names: the runs.
      steps: the last logged step of each run.
      tokens: real tokens that each run has read; NaN if the log does not say.
    """

    names: Sequence[str]
    steps: Sequence[int]
    tokens: Sequence[float]

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Name, steps and tokens of each run."""
        return [
            (name, f"{step:,}", _count(tokens))
            for name, step, tokens in zip(self.names, self.steps, self.tokens)
        ]

    @property
    def are_equal(self) -> bool:
        """Whether all runs have the same number of steps, and about the same number of tokens.

        Runs whose tokens are unknown are compared by their steps alone.
        """
        finite = [tokens for tokens in self.tokens if math.isfinite(tokens)]
        alike = not finite or max(finite) <= _EQUAL_TOKENS * min(finite)
        return alike and len(set(self.steps)) == 1

    @property
    def warning(self) -> str:
        """Warning that the runs are of different lengths; empty if they are equal."""
        if self.are_equal:
            return ""
        each = (
            f"{name} has {steps} steps and {tokens} tokens" for name, steps, tokens in self.rows
        )
        return (
            f"These runs are of different lengths: {'; '.join(each)}. The ends of their curves "
            "compare a shorter run with a longer one; TensorBoard shows both at the same step."
        )


@dataclasses.dataclass(frozen=True)
class RunComparison:
    """What differs between runs.

    Attributes:
      lengths: the folders as they were given, and their steps and tokens.
      tables: the differences of configuration, manifest and final values.
      readout: how the runs' probes retrieve; of several ways all, joined with "or".
    """

    lengths: Lengths
    tables: Sequence[DifferenceTable]
    readout: str = ""


def compare(model_dirs: Sequence[str]) -> RunComparison:
    """Compares runs.

    Args:
      model_dirs: folders of two or more runs, which may still be running.

    Raises:
      ValueError: a folder is not the folder of a run, or there are fewer than two folders.
    """
    if len(model_dirs) < 2:
        raise ValueError("--runs=A,B needs the folders of two runs.")
    folders = [as_path(folder) for folder in model_dirs]
    curves = [read_metrics(folder) for folder in folders]  # Raises if it is not a run.
    names = [str(folder) for folder in model_dirs]
    steps = [max((curve[-1][0] for curve in run.values()), default=0) for run in curves]
    lengths = Lengths(names, steps, list(map(_tokens, curves)))
    tables = (
        _differences("Configuration", names, [manifest.bindings(_text(f)) for f in folders]),
        _differences("Manifest", names, [_facts(folder) for folder in folders]),
        *_ends(lengths, curves),
    )
    ends = ({name: curve[-1][1] for name, curve in run.items() if curve} for run in curves)
    said = dict.fromkeys(filter(None, map(probe_readout, ends)))
    return RunComparison(lengths, tables, " or ".join(said))


def _tokens(run: Curves) -> float:
    """Returns the tokens that a run has read according to its log; NaN if the log does not say."""
    tokens = 0.0
    before = 0
    for step, mean in finite(run.get("tokens_per_step", [])):
        tokens = tokens + mean * (step - before)
        before = step
    return tokens if before else math.nan


def _count(number: float) -> str:
    return f"{number:,.0f}" if math.isfinite(number) else _ABSENT


def _text(folder: Path) -> str:
    """Returns the text of a run's config.gin; empty if it has none."""
    path = folder / "config.gin"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _facts(folder: Path) -> dict[str, str]:
    """Returns the facts of a run's last start, and the number of its starts."""
    starts = manifest.read(folder).get("starts", [])
    last = manifest.flat(starts[-1]) if starts else {}
    facts = {name: value for name, value in last.items() if name not in _OF_EACH_RUN}
    return {**facts, "number of starts": str(len(starts))}


def _differences(
    title: str, names: Sequence[str], runs: Sequence[Mapping[str, str]]
) -> DifferenceTable:
    """Returns the table of the values that are not the same in all runs."""
    rows = []
    for name in sorted(set().union(*runs)):
        values = [run.get(name, _ABSENT) for run in runs]
        if len(set(values)) > 1:
            rows.append([name, *values])
    return DifferenceTable(title, ["", *names], rows)


def _ends(lengths: Lengths, runs: Sequence[Curves]) -> list[DifferenceTable]:
    """Returns tables of the final values that differ: the headlines, and the others if there are.

    The last column compares the last run with the first.
    """
    rows = []
    equal = 0
    for metric in sorted(set().union(*runs)):
        ends = [Spread(tuple(last_tenth(run.get(metric, [])))) for run in runs]
        if all(end.values and end.mean == ends[0].mean for end in ends):
            equal += 1
            continue
        first, last = (end.mean if end.values else math.nan for end in (ends[0], ends[-1]))
        ratio = last / first - 1 if first else math.nan
        change = f"{ratio:+.1%}" if math.isfinite(ratio) else _ABSENT
        rows.append([metric, *map(_end, ends), change])
    notes = ["Means over the last tenth of the logged points ± their standard deviation."]
    notes += [f"{equal} metrics are equal and left out."] if equal else []
    notes += [] if lengths.are_equal else ["The runs are of different lengths."]
    head = ["", *lengths.names, f"{lengths.names[-1]} to {lengths.names[0]}"]
    headlines = [row for row in rows if _HEADLINE.fullmatch(row[0])]
    further = [row for row in rows if not _HEADLINE.fullmatch(row[0])]
    tables = [DifferenceTable("Ends of the curves", head, headlines, " ".join(notes))]
    if further:
        tables.append(DifferenceTable("Ends of further curves", head, further, is_folded=True))
    return tables


def _end(end: Spread) -> str:
    """Returns the mean of the end of a curve ± its standard deviation; a dash without values."""
    if not end.values:
        return _ABSENT
    return f"{end.mean:.4g}" + (f" ± {end.deviation:.2g}" if end.n > 1 else "")


def to_markdown(comparison: RunComparison, elsewhere: str = "") -> str:
    """Returns the tables as a page in Markdown.

    Args:
      comparison: the comparison.
      elsewhere: where the rows of folded tables are, which the page then only counts; "" for on
        the page, to be opened.
    """
    lengths = comparison.lengths
    lines = ["# Runs", "", *text_table.markdown(("run", "steps", "tokens"), lengths.rows), ""]
    if lengths.warning:
        lines += [f"**{lengths.warning}**", ""]
    for table in comparison.tables:
        rows = [[_named(name, comparison.readout), *cells] for name, *cells in table.rows]
        body = text_table.markdown(table.head, rows) if rows else ["No differences."]
        if not table.is_folded:
            lines += [f"## {table.title}", ""] + ([table.note, ""] if table.note else [])
            lines += [*body, ""]
        elif not elsewhere:
            lines += [f"<details><summary>{table.title}</summary>", "", *body, "", "</details>", ""]
        else:
            lines += [f"{table.title}: {len(rows)}, {elsewhere}.", ""]
    return "\n".join(lines[:-1]) + "\n"


def _named(name: str, readout: str) -> str:
    """Returns a setting, fact or metric as code, after its name in words if that says more."""
    words = in_words(name, readout)
    return f"{words} (`{name}`)" if words not in ("", name) else f"`{name}`"


def to_tsv(comparison: RunComparison) -> str:
    """Returns all rows as tab-separated values, after a column that names their table."""
    names, steps, tokens = zip(*comparison.lengths.rows)
    head = ("table", "name", *names, "last to first")
    rows = [("Length", "steps", *steps), ("Length", "tokens", *tokens)]
    rows += [(table.title, *row) for table in comparison.tables for row in table.rows]
    # Only the table of the curves' ends has the last column; rows of the others get an empty cell.
    return text_table.tab_separated([head, *((*row, "")[: len(head)] for row in rows)])
