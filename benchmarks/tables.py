"""Writes the tables of docs/lab/speed.md and docs/lab/plan_tables.md from benchmarks/results.

    python benchmarks/tables.py                              # from what was measured
    python benchmarks/tables.py --measure=all                # measure first
    python benchmarks/tables.py --measure=train_step,head

A table stands between `<!-- table: NAME -->` and `<!-- end -->`, above the command, commit and load
of its measurement. Without --measure this takes no time and changes nothing else, so that no
figure of these tables is typed. Measure on a quiet machine; `COMMANDS` says how. These environment
variables are needed by some:

- PEER: script of the train step's peer, which knows the word bfloat16 (`train_step.py`);
- DATA: folder with mono/<language>.txt.xz and eval/, as in docs/lab/real_text.md;
- VOCABULARY: SentencePiece model, for `prepare.py`.
"""

import argparse
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from xlme_jax.tools.planning import table as planning

ROOT = Path(__file__).parent.parent
RESULTS = Path("benchmarks/results")
# By name of the file of results.
COMMANDS = {
    "train_step": "benchmarks/train_step.py --peer=$PEER --bfloat16 --rounds=3 --steps=3",
    "train_step_small": "benchmarks/train_step.py --peer=$PEER --bfloat16 "
    "--shapes=quickstart,laptop --rounds=5 --steps=10 "
    "--output=benchmarks/results/train_step_small.json",
    "head": "benchmarks/head.py",
    "head_memory": "benchmarks/head.py --compile_for=v5e:1x1,h100:1 "
    "--output=benchmarks/results/head_memory.json",
    "attention": "benchmarks/attention.py --compile_for=v5e,h100",
    "prepare_real_text": "benchmarks/prepare.py --text_dir=$DATA/mono --vocabulary=$VOCABULARY "
    "--workers=1,2 --repeats=3 --output=benchmarks/results/prepare_real_text.json",
    "filters": "benchmarks/filters.py --text_dir=$DATA/mono",
    "prepare": "benchmarks/prepare.py --megabytes=200 --workers=1,2 --beam --repeats=2",
    "train_vocabulary": "benchmarks/train_vocabulary.py --text_dir=$DATA/mono",
    "startup": "benchmarks/startup.py --rounds=2",
    "stacked_layers": "benchmarks/stacked_layers.py --rounds=4",
    "evaluation": "benchmarks/evaluation.py --data=$DATA/eval --languages=2 --rounds=1 "
    "--corpora=en-fr,en-es_xlwa_dev",
    "finetune_step": "benchmarks/finetune_step.py --rounds=3 --steps=2 "
    "--file=$DATA/eval/xnli/dev-en.tsv",
    "lazy_tokens": "benchmarks/finetune_step.py --shapes=e5 --rounds=3 --steps=4 "
    "--output=benchmarks/results/lazy_tokens.json",
    "traffic": "benchmarks/traffic.py",
    "plans": "-m xlme_jax.plan --table=all --output=benchmarks/results/plans.json",
}
# Of steps beside those of a peer: both get large pages.
LARGE_PAGES = {"train_step", "train_step_small", "finetune_step", "lazy_tokens"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--measure", default="", help=f"all, or any of {', '.join(COMMANDS)}; default: none."
    )
    options = parser.parse_args()
    os.chdir(ROOT)
    names = list(COMMANDS) if options.measure == "all" else options.measure.split(",")
    for name in filter(None, names):
        command = [sys.executable, *map(os.path.expandvars, shlex.split(COMMANDS[name]))]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        settings = {"PYTHONPATH": path}
        if name in LARGE_PAGES:
            settings["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        # A plan that does not fit is exit code 1, and a row of the table.
        subprocess.run(command, env=os.environ | settings, check=name != "plans")
    for page in ("docs/lab/speed.md", "docs/lab/plan_tables.md"):
        text = Path(page).read_text(encoding="utf-8")
        Path(page).write_text(filled(text), encoding="utf-8")


def filled(page: str) -> str:
    """Returns a page with its tables as they follow from benchmarks/results."""

    def table(found: re.Match[str]) -> str:
        name = found[1]
        results = json.loads((ROOT / RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        rows = TABLES[name](results)
        return f"<!-- table: {name} -->\n{rows}\n\n{_source(results)}\n<!-- end -->"

    return re.sub(r"<!-- table: (.+?) -->\n.*?<!-- end -->", table, page, flags=re.DOTALL)


def _source(results: dict[str, Any]) -> str:
    """Returns the sentence under a table."""
    if "command" not in results:  # Plans, each with its date and versions.
        dates = " and ".join(sorted({plan["date"] for plan in results.values()}))
        versions = sorted(
            {f"{k} {v}" for plan in results.values() for k, v in plan["versions"].items()}
        )
        return (
            f"`python {COMMANDS['plans']}`, a row at a time, compiled on {dates} with "
            f"{', '.join(versions)}."
        )
    cores = f"{results['cores']} {'core' if results['cores'] == 1 else 'cores'}"
    return (
        f"`{results['command']}`, commit {results['commit']}, {results['date']}, "
        f"{cores} of {results['cpu']}, load average "
        f"{results['load_average_at_start']:.1f} at the start."
    )


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _shape(hidden: int, layers: int | str, vocabulary: int, rows: int, length: int) -> str:
    return f"hidden {hidden}, {layers} layers, V {vocabulary:,}, {rows} x {length}"


def _train_step(results: dict[str, Any]) -> str:
    rows = []
    for found in results["shapes"].values():
        hidden, deep, shallow, *rest = found["shape"]
        peak = found["peak_flops_per_second"]["median"] / 1e9
        shape = _shape(hidden, f"{deep}+{shallow}", *rest)
        for kind, row in found["table"].items():
            ratios = (row.get(f"speed_over_{peer}") for peer in ("peer", "bfloat16"))
            cells = ["", ""] if "mfu" not in row else [f"{ratio:.2f}" for ratio in ratios if ratio]
            mfu = f"{row['mfu']:.0%} of {peak:.0f} GFLOP/s" if kind == "ours" else ""
            rows.append([shape, kind, f"{row['median']:.4f} s", *cells, mfu])
            shape = ""
    faster = "speed over the faster peer in"
    return markdown(["shape", "", "step", f"{faster} float32", f"{faster} bfloat16", "MFU"], rows)


def _head(results: dict[str, Any]) -> str:
    rows = []
    for shape, found in results["seconds"].items():
        streamed, dense = (found["seconds"][kind]["median"] for kind in ("streamed", "dense"))
        ratio = found["streamed_over_dense"]
        rows.append(
            [
                shape.replace("x", " x "),
                f"{streamed:.3f} s ({ratio:.2f} of dense)",
                f"{dense:.3f} s",
            ]
        )
    return markdown(["M x D x V", "streamed", "dense"], rows)


def _head_memory(results: dict[str, Any]) -> str:
    rows = [
        [name, *(f"{found[kind] / 1e9:.3f} GB" for kind in ("streamed", "kept", "dense"))]
        for name, found in results["temporary_bytes"].items()
    ]
    return markdown(["temporaries", "streamed", "logits kept", "dense"], rows)


def _attention(results: dict[str, Any]) -> str:
    lengths = sorted({row["length"] for row in results["memory"]})
    machines = dict.fromkeys(row["machine"] for row in results["memory"])
    cells = {
        (row["machine"], kind, row["length"]): f"{row[f'{kind} MB']:.0f}"
        for row in results["memory"]
        for kind in ("kernel", "xla")
    }
    rows = [
        [f"{name}, {text}", *(cells[name, kind, length] for length in lengths)]
        for name in machines
        for kind, text in (("kernel", "kernel"), ("xla", "plain XLA"))
    ]
    return markdown(["MB at L =", *(f"{length:,}" for length in lengths)], rows)


_WAYS = {
    "encode": "SentencePiece, lines in memory, lists of ids (its default)",
    "encode to arrays": "SentencePiece, documents in memory, arrays of ids (its fastest)",
    "read and encode": "SentencePiece reads the same files, lists of ids",
    "prepare": "`prepare`, from the configuration to `dataset.json`",
    "prepare on Beam": "`prepare` on Beam's local runner, worker processes",
}


def _prepare(results: dict[str, Any]) -> str:
    runs = results["runs"]
    head = [f"{results['bytes'] / 1e6:.0f} MB, V {results['vocabulary']:,}"]
    for run in runs:
        number = f"{run['workers']} process{'es' if run['workers'] > 1 else ''}"
        head += [f"{number}: s", "CPU s", "speed of `prepare`, by CPU time"]
    rows = []
    for way in runs[0]["seconds"]:
        row = [_WAYS[way]]
        for run in runs:
            times = run["seconds"][way]
            ratio = run["share"].get(f"prepare / {way}, by cpu time")
            # Not all of Beam's processes have ended when CPU time is read.
            cpu = "" if "Beam" in way else f"{times['cpu']['median']:.1f}"
            row += [f"{times['wall']['median']:.1f}", cpu, f"{ratio:.0%}" if ratio else ""]
        rows.append([*row, f"{results['speed_up'][way]:.2f}"])
    return markdown([*head, "speed of most processes over fewest"], rows)


def _filters(results: dict[str, Any]) -> str:
    head = f"{results['languages']} languages, {results['bytes'] / 1e6:.0f} MB"
    rows = []
    for name, rate in results["megabytes_per_second"].items():
        skipped = sum(results["skipped"].get(name, {}).values())
        way = "reading, which `prepare` does anyway" if name == "read" else f"`--{name}`"
        rows.append([way, f"{rate:.0f}", f"{skipped:,}" if skipped else ""])
    return markdown([head, "MB per CPU second", "skipped documents and lines"], rows)


def _train_vocabulary(results: dict[str, Any]) -> str:
    rows = [
        [
            f"`{name}`",
            f"{times['wall']['median']:.1f} s",
            f"{times['cpu']['median']:.1f} s",
        ]
        for name, times in results["seconds"].items()
    ]
    share = results["share"]["spm_train / train_vocabulary, by cpu time"]
    rows.append(["speed of `train_vocabulary`, by CPU time", "", f"{share:.0%}"])
    size = f"{results['languages']} languages, {results['sentences']:,} sentences"
    return markdown([size, "time", "CPU time"], rows)


def _startup(results: dict[str, Any]) -> str:
    rows = []
    for kind, found in results["compile_seconds"].items():
        times = found["seconds"].items()
        depths = ", ".join(f"{values['median']:.1f} s ({depth} layers)" for depth, values in times)
        rows.append([f"trace and compile the train step, {kind}", depths])
    for kind, values in results["first_step_seconds"].items():
        rows.append([f"quickstart, command to first step, {kind}", f"{values['median']:.1f} s"])
    return markdown(["", "time"], rows)


def _stacked_layers(results: dict[str, Any]) -> str:
    rows = [
        [kind, f"{results['compilation'][kind]:.1f} s", f"{values['median']:.3f} s"]
        for kind, values in results["step_seconds"].items()
    ]
    return markdown(["layers", "compilation, CPU time", "step, CPU time"], rows)


def _evaluation(results: dict[str, Any]) -> str:
    rows = [
        [task, *(f"{found['ratios'][kind]['cpu']:.2f}" for kind in ("same rows", "no padding"))]
        for task, found in results["tasks"].items()
    ]
    head = "CPU time of the evaluation over that of forward passes of"
    return markdown(["", f"{head} the same padded rows", "the same tokens without padding"], rows)


def _finetune_step(results: dict[str, Any]) -> str:
    rows = []
    for found in results["shapes"].values():
        table = found["table"]
        ratios = [table[kind]["speed_over_peer"] for kind in ("train", "predict", "file")]
        ratios.append(table["8 batches"]["speed_over_padded"])
        rows.append([_shape(*found["shape"]), *(f"{ratio:.2f}" for ratio in ratios)])
    kinds = ["train step", "prediction, full rows", "prediction, XNLI's development set"]
    kinds.append("eight train steps with rows as long as their texts, over full rows")
    return markdown(["speed over the peer", *kinds], rows)


def _lazy_tokens(results: dict[str, Any]) -> str:
    rows = []
    for measured in results["shapes"].values():
        kinds = [measured["table"][kind] for kind in ("train", "lazy")]
        milliseconds = [kind["seconds"]["ours"]["median"] * 1e3 for kind in kinds]
        cells = [f"{value:.0f} ms" for value in milliseconds]
        cells += [f"{kind['speed_over_peer']:.2f}" for kind in kinds]
        rows.append([_shape(*measured["shape"]), *cells])
    columns = ["train step", "with `lazy_tokens`", "speed over the peer", "with `lazy_tokens`"]
    return markdown(["", *columns], rows)


def _traffic(results: dict[str, Any]) -> str:
    rows = [
        [name, f"{found['seconds']['median'] * 1e3:.1f}", f"{ratios['max']:.2f}"]
        for name, found in results["programs"].items()
        for ratios in [found["estimate_over_measured"]]
    ]
    off = [abs(math.log(float(ratio))) for _, _, ratio in rows]
    mean = math.exp(fmean(off))
    rows.append(["mean factor by which the estimate is off", "", f"{mean:.2f}"])
    return markdown(["program", "measured, ms", "estimate / measured"], rows)


def _plans(results: dict[str, Any]) -> str:
    del results  # The table reads them in its own order.
    rows = planning.recorded(RESULTS / "plans.json", planning.SHIPPED)
    return planning.markdown(rows).rstrip()


TABLES: dict[str, Callable[..., str]] = {
    "train_step": _train_step,
    "train_step_small": _train_step,
    "head": _head,
    "head_memory": _head_memory,
    "attention": _attention,
    "prepare": _prepare,
    "prepare_real_text": _prepare,
    "filters": _filters,
    "train_vocabulary": _train_vocabulary,
    "startup": _startup,
    "stacked_layers": _stacked_layers,
    "evaluation": _evaluation,
    "finetune_step": _finetune_step,
    "lazy_tokens": _lazy_tokens,
    "traffic": _traffic,
    "plans": _plans,
}

if __name__ == "__main__":
    main()
