r"""Trains every point of a grid with several seeds and selects the best on the development set.

    python -m xlme_jax.sweep --gin_file=gin_configs/finetune/xnli.gin --output=runs/xnli_sweep \
        --grid="Optimizer.learning_rate=5e-6,6e-6" --seeds=5 --select=xnli/accuracy/en

Each run is a process of `python -m xlme_jax.train` with MODEL_DIR = OUTPUT/POINT/seed_K. Rerun the
same command to continue an interrupted sweep: it skips finished runs and resumes the others.
With `--shard=i/n` it runs only share i of n, on one of n machines that share OUTPUT; with
`--print_commands` it prints a command for each unfinished run, for a scheduler, and runs none.
Arguments after `--` are passed to the train command as they are. {seed} in a --gin flag is replaced
by the seed of the run: --gin.INIT_FROM="'runs/xlm/default/seed_{seed}'".

    python -m xlme_jax.sweep --gin_file=gin_configs/finetune/xnli.gin --along=runs/xlme_base \
        --output=runs/xnli_along --seeds=3

fine-tunes every checkpoint of a pre-training run instead of a grid, and draws the metric that would
select over its steps and FLOPs (`curve.png`, `curve.json`).
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from xlme_jax.configuration import command_line, loading
from xlme_jax.configuration.sweep_config import SweepConfig
from xlme_jax.configuration.values import ConfigError
from xlme_jax.huggingface.conversion import as_run
from xlme_jax.storage.paths import as_path
from xlme_jax.studies.sweeps import grids
from xlme_jax.studies.sweeps.runner import Sweep, checked_steps
from xlme_jax.training.stopping import EXIT_STOPPED
from xlme_jax.validation import shell

_GRID = flags.DEFINE_multi_string(
    "grid",
    [],
    "NAME=VALUE,VALUE,...: a binding and its values in gin syntax; repeatable, for a product. "
    "Overrides Sweep.grid.",
)
_SEEDS = flags.DEFINE_integer("seeds", None, "Number of runs per point, with SEED = 0, 1, ...", 1)
_OUTPUT = flags.DEFINE_string("output", None, "Folder for all runs, sweep.json and sweep.md.")
_SELECT = flags.DEFINE_string(
    "select", None, "Logged metric that selects a point, such as xnli/accuracy/en."
)
_MINIMIZE = flags.DEFINE_bool("minimize", None, "Select the smallest value instead of the largest.")
_SHOW = flags.DEFINE_multi_string("show", [], "Another logged metric for the table (repeatable).")
_EVALUATE = flags.DEFINE_string(
    "evaluate",
    None,
    "Command to run afterwards for each run of the selected point (of all points if none is "
    "selected); {model_dir} is replaced by the run's folder.",
)
_SHARD = flags.DEFINE_string(
    "shard",
    "0/1",
    "i/n: run only share i of n, with i from 0 to n - 1. Together the shares are the whole sweep; "
    "the one that finishes last selects and evaluates. Without --select, each evaluates its "
    "own runs.",
)
_ALONG = flags.DEFINE_string(
    "along",
    None,
    "MODEL_DIR of a pre-training run: start from each of its checkpoints, instead of a grid.",
)
_PRINT_COMMANDS = flags.DEFINE_bool(
    "print_commands",
    False,
    "Print a shell command for each unfinished run (of the shard), one per line, and exit.",
)


_SHARE_TRUNKS = flags.DEFINE_bool(
    "share_trunks",
    None,
    "Train the steps that points have in common once: until the learning rate leaves its peak, as "
    "with Optimizer.schedule=@WSD(), or until their first phase.",
)


def sweep_config(files: Sequence[str], bindings: Sequence[str]) -> SweepConfig:
    """Returns the configuration of the sweep, with fields overridden by the flags that were passed.

    Args:
      files: gin files.
      bindings: lines `NAME = VALUE`, applied after the files.

    Raises:
      ConfigError: the configuration is invalid, or --along and --grid are both given.
    """
    start = [f"INIT_FROM = {_ALONG.value!r}"] if _ALONG.value else []
    config = loading.load(files, [*bindings, *start], "Sweep")
    # Gin has parsed the values; their repr is gin syntax again.
    grid = tuple((name, tuple(map(repr, values))) for name, values in config.grid)
    if _GRID.value:
        grid = tuple(map(grids.parse_grid, _GRID.value))
    fields: dict[str, Any] = {
        "seeds": _SEEDS.value,
        "select": _SELECT.value,
        "minimize": _MINIMIZE.value,
        "show": tuple(_SHOW.value) or None,
        "share_trunks": _SHARE_TRUNKS.value,
    }
    chosen = {name: value for name, value in fields.items() if value is not None}
    if _ALONG.value:
        if _GRID.value:
            raise ConfigError("--along has a point for each checkpoint; leave out --grid.")
        metrics = (chosen.get("select", config.select), *chosen.get("show", config.show))
        overrides = {"show": tuple(filter(None, metrics)), "select": "", "task": ""}
        return dataclasses.replace(
            config, **{**chosen, **overrides, "grid": ()}, along=_ALONG.value
        )
    if "select" in chosen:  # --select replaces the metric that `Sweep.task` selects by.
        chosen["task"] = ""
    return dataclasses.replace(config, grid=grid, **chosen)


def main(*train_arguments: str) -> int:
    """Runs the sweep, or prints its commands; returns the exit code.

    Args:
      *train_arguments: arguments after `--`, which are passed to each run.
    """
    if not _OUTPUT.value:
        raise ConfigError("--output=FOLDER is needed: the folder of the sweep.")
    shard = grids.parse_shard(_SHARD.value)
    loading.convert_init_from(as_run)
    files, bindings = flags.FLAGS.gin_file, flags.FLAGS.gin_bindings
    config = sweep_config(files, bindings)
    train_flags = [f"--gin_file={file}" for file in files]
    train_flags += [f"--gin.{binding.replace(' = ', '=', 1)}" for binding in bindings]
    output = as_path(_OUTPUT.value)
    sweep = Sweep(
        config,
        output,
        [*train_flags, *train_arguments],
        checked_steps(files, bindings, _EVALUATE.value),
        shell.join([Path(sys.executable).name, "-m", "xlme_jax.sweep", *sys.argv[1:]]),
        evaluate=_EVALUATE.value,
        shard=shard,
        load=lambda point: loading.load(
            files, [*bindings, *(f"{name} = {value}" for name, value in point.items())], "Train"
        ),
    )
    if _PRINT_COMMANDS.value:
        print("".join(f"{command}\n" for command in sweep.commands()), end="")
        return 0
    status = sweep.run()
    if status != EXIT_STOPPED:
        print((output / "sweep.md").read_text(encoding="utf-8"), end="")
    return status


if __name__ == "__main__":
    command_line.run_app(main, arguments=True)
