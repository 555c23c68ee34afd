"""Estimates memory, traffic and time of a run on accelerators that are not attached.

`python -m xlme_jax.plan --gin_file=gin_configs/runs/xlme_base.gin --topology=v5e:16x16` compiles
the train step ahead of time and reports what it needs. TPU topologies need
`pip install 'xlme_jax[tpu]'`, NVIDIA GPUs `pip install 'xlme_jax[cuda13]'`. Neither an accelerator
nor prepared data is needed.
"""

import os

# Set before JAX starts. JAX must run on the CPU and leave any accelerator alone. libtpu must not
# query the metadata server for the TPU type, nor fail because another process is compiling.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import get_args

from absl import flags

from xlme_jax.configuration import command_line, loading, values
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.ops.implementations import Implementation
from xlme_jax.runs.attention_choice import automatic_encoders, with_attention
from xlme_jax.storage.paths import as_path
from xlme_jax.tools.planning import compiling, digest, search, summary, table
from xlme_jax.tools.planning.machines import parse_topology

_TOPOLOGIES = flags.DEFINE_multi_string(
    "topology", [], "Machines to plan for, such as v5e:16x16, v4-128 or h100:64 (repeatable)."
)
_SUGGEST = flags.DEFINE_enum(
    "suggest",
    "auto",
    ["auto", "always", "never"],
    "When to search for a mesh, micro-batches and remat that fit and are fast: only if the "
    "configuration does not fit (auto), always, or never.",
)
_COMPILATIONS = flags.DEFINE_integer(
    "compilations", 6, "Maximum number of candidates that --suggest compiles, minutes each.", 1
)
_TABLE = flags.DEFINE_string(
    "table",
    None,
    "Plan the shipped runs of the papers instead, and print the table of docs/lab/plan_tables.md: "
    "'all', or a part of their names, such as xlme_xl or v5e-256.",
)
_ATTENTION = flags.DEFINE_enum(
    "attention",
    "auto",
    get_args(Implementation),
    "What Encoder.attention = 'auto' stands for, as a run measured it (attention.json); 'auto' "
    "takes the kernel for long rows.",
)
_PHASE = flags.DEFINE_string(
    "phase",
    None,
    "Which phase to plan of a run with Train.phases; the part before them is 'start'.",
)
_OUTPUT = flags.DEFINE_string(
    "output",
    None,
    "Also write the plans to this file, as JSON. With --table, each is added to the file once it "
    "is compiled; a plan that the file already has of the same program, compilers and planner is "
    "not compiled again.",
)


def main() -> int:
    """Compiles the training step for each --topology, and prints and writes the plans.

    Returns:
      The exit code: 0, or 1 if any plan does not fit.
    """
    files, bindings = flags.FLAGS.gin_file, flags.FLAGS.gin_bindings
    if _TABLE.value is not None:
        return _table(table.chosen(_TABLE.value), bindings)
    if not _TOPOLOGIES.value:
        raise values.ConfigError("No machine: pass --topology=v5e:16x16 (or another, see --help).")
    plans = [_plan(files, bindings, name, _SUGGEST.value) for name in _TOPOLOGIES.value]
    if _OUTPUT.value:
        facts = [summary.facts(plan) for plan in plans]
        as_path(_OUTPUT.value).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return 0 if all(plan.fits for plan in plans) else 1


def _table(shipped: Sequence[table.Shipped], bindings: Sequence[str]) -> int:
    """Plans shipped runs and prints their table.

    Args:
      shipped: the runs.
      bindings: lines `NAME = VALUE` that override the configuration of each.

    Returns:
      The exit code: 0, or 1 if any run does not fit as configured.
    """
    path = as_path(_OUTPUT.value) if _OUTPUT.value else None
    rows = []
    for run in shipped:
        config = _loader([run.file], [*run.bindings(), *bindings])([])
        topology = parse_topology(run.topology)
        lowered = compiling.lower_step(config, topology, compiling.devices_of(topology))
        # The digest identifies the program, so that a plan in the file is used again.
        key = digest.digest(lowered)
        facts = table.recorded_plan(path, run, key) if path else None
        if facts is None:
            plan = search.without_search(compiling.compile_lowered(lowered))
            print(f"{run.file} on {summary.describe(plan)}", flush=True)
            facts = summary.facts(plan)
            if path:
                table.record(path, run, facts, key)
        rows.append((run, facts))
    print(table.markdown(rows))
    return 0 if all(facts["given"]["fits"] for _, facts in rows) else 1


def _plan(
    files: Sequence[str], bindings: Sequence[str], topology_name: str, suggest: str
) -> search.Plan:
    """Returns the plan of a configuration for a topology, and prints it."""
    load = _loader(files, bindings)
    load([])  # Reports configuration errors before the slow compilation.
    topology = parse_topology(topology_name)
    devices = compiling.devices_of(topology)
    plan = search.plan(load, topology, devices, suggest, _COMPILATIONS.value)
    print(f"{' '.join(files)} on {summary.describe(plan)}", flush=True)
    return plan


def _of_phase(config: TrainConfig) -> TrainConfig:
    """Returns the configuration of the phase that --phase names; raises ConfigError without one."""
    if not config.phases and _PHASE.value is None:
        return config
    from xlme_jax.runs import phases

    by_name = {phase.name: phase for phase in phases.all_of(config)}
    if _PHASE.value not in by_name:
        raise values.ConfigError(
            "Phases differ in memory and time: plan each, with --phase= one of "
            f"{', '.join(by_name)}."
        )
    return by_name[_PHASE.value].config


def _loader(
    files: Sequence[str], bindings: Sequence[str]
) -> Callable[[Sequence[str]], TrainConfig]:
    """Returns the function from further bindings to the configuration, with --attention applied."""

    def load(further: Sequence[str]) -> TrainConfig:
        """Returns the configuration with the bindings `further`."""
        config = _of_phase(loading.load(files, [*bindings, *further], "Train"))
        chosen = dict.fromkeys(automatic_encoders(config.objective), _ATTENTION.value)
        return dataclasses.replace(config, objective=with_attention(config.objective, chosen))

    return load


if __name__ == "__main__":
    command_line.run_app(main)
