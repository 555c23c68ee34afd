"""Reads and verifies saved checkpoints: their paths, records, shapes and digests."""

import contextlib
import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from xlme_jax.checkpoints import digests
from xlme_jax.checkpoints.digests import Damaged
from xlme_jax.model.flop_conventions import upgraded
from xlme_jax.objectives.base import Params
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.sealed_json import checksum, parse, seal, unseal

FOLDER = "checkpoints"
BEST_FILE = "best.json"
COMMIT_FILE = ocp.path.atomicity.COMMIT_SUCCESS_FILE
_METADATA_FILE = "_CHECKPOINT_METADATA"


class CheckpointError(ValueError):
    """Raised if a checkpoint cannot be written or none can be read."""


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """Contents of a checkpoint besides the state, stored as JSON.

    Attributes:
      data: state of the data iterator: the batch after the last one used is the next one.
      dataset: digest of the prepared data set that the iterator belongs to.
      config: the operative configuration.
      window: sums of the metrics since the last line of the log, {name: (numerator, denominator)}.
      skipped: updates skipped in a row up to this step.
      vocabulary: digest of the vocabulary; empty in checkpoints that lack it.
      origin: absolute path of the checkpoint, or of the Hugging Face folder, that the run's weights
        were taken from; empty if they were fresh, or in checkpoints that lack it.
      origin_digest: digest of that checkpoint's arrays (`weights_digest`), the same for copies;
        empty as `origin`.
      flops_per_step: {convention of `model.flop_conventions`: floating-point operations of a
        pre-training step}, 0 in fine-tuning; without those that are not known.
      inherited_flops: likewise those of pre-training of the weights at step 0.
      encoder_parameters: parameters of the exported encoder, without vocabulary padding; None in
        checkpoints that lack it.
      manifest: what made the checkpoint (`training.manifest`); empty in checkpoints that lack it.
      choices: {path of an encoder in the objective's configuration: implementation of attention},
        where the configuration leaves it open; empty in checkpoints that lack it.
    """

    data: dict[str, Any]
    dataset: str
    config: str
    window: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    skipped: int = 0
    vocabulary: str = ""
    origin: str = ""
    origin_digest: str = ""
    flops_per_step: Mapping[str, float] = dataclasses.field(default_factory=dict)
    inherited_flops: Mapping[str, float] = dataclasses.field(default_factory=dict)
    encoder_parameters: int | None = None
    manifest: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    choices: Mapping[str, str] = dataclasses.field(default_factory=dict)


def has_checkpoint(model_dir: Path) -> bool:
    """Returns whether a run has saved a checkpoint."""
    return bool(saved_steps(model_dir / FOLDER))


def checkpoint_of(run: Path) -> Path:
    """Returns the checkpoint of a run's result: the best one, if it keeps that, else the newest.

    Args:
      run: MODEL_DIR, or one of its checkpoints, which is returned.

    Raises:
      ValueError: there is none, or the best one is missing.
    """
    if (run / "state").is_dir():
        return run.absolute()
    folder = run.absolute() / FOLDER
    if not (steps := saved_steps(folder)):
        problem = "has no checkpoint" if run.exists() else f"does not exist{_like(run)}"
        raise ValueError(
            f"{str(run)!r} (INIT_FROM or --checkpoint) {problem}; pass the MODEL_DIR of a run, or "
            f"one of its {FOLDER}/STEP folders."
        )
    best = read_best(run)
    step = next(iter(best.values()))[0] if best else max(steps)
    if step not in steps:
        raise ValueError(
            f"{run / BEST_FILE} names the checkpoint of step {step}, which {folder} does not "
            f"have; pass one of {folder}/{{{','.join(map(str, sorted(steps)))}}}."
        )
    return folder / str(step)


def _like(run: Path) -> str:
    """Returns a question for the folder that was meant, if one beside has a similar name."""
    parent = run.absolute().parent
    names = [path.name for path in parent.iterdir()] if parent.is_dir() else []
    close = difflib.get_close_matches(run.name, names, n=1)
    return f" (did you mean {str(run.parent / close[0])!r}?)" if close else ""


def write_best(model_dir: Path, best: Mapping[str, tuple[int, float]]) -> None:
    """Writes which checkpoints of a run are best, {metric: (step, value)}; {} for none.

    The first one is the run's result.
    """
    file = model_dir / BEST_FILE
    if best:
        rows = [{"metric": name, "step": s, "value": v} for name, (s, v) in best.items()]
        replace_file(file, seal({"best": rows}))
    else:
        file.unlink(missing_ok=True)


def read_best(model_dir: Path) -> dict[str, tuple[int, float]]:
    """Returns the best checkpoints of a run, {metric: (step, value)}; {} if it keeps none.

    Raises:
      ValueError: the file is damaged.
    """
    file = model_dir / BEST_FILE
    try:
        rows = unseal(file.read_bytes())["best"]
        return {row["metric"]: (int(row["step"]), float(row["value"])) for row in rows}
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(
            f"{file} {error}. Delete it and resume the run, which writes it again, or "
            f"pass one of the folders of {model_dir / FOLDER}."
        ) from None


def read_record(run: Path) -> RunRecord:
    """Returns the record of a run's checkpoint (`checkpoint_of`), or of one of its checkpoints.

    Raises:
      ValueError: there is no checkpoint, or it is damaged.
    """
    checkpoint = checkpoint_of(run)
    with named_source(checkpoint), damage_if_unsealed(checkpoint):
        record = read_fields(checkpoint)
        record.pop("digests")
        return RunRecord(**record)


def newest_record(model_dir: Path) -> tuple[int, RunRecord] | None:
    """Returns step and record of a run's newest readable checkpoint; None if there is none.

    Reads and verifies no weights: a run may find this checkpoint damaged, and resume an older one.
    """
    folder = model_dir / FOLDER
    for step in sorted(saved_steps(folder), reverse=True):
        # ValueError: damaged, or JSON that cannot be parsed.
        with contextlib.suppress(ValueError, FileNotFoundError):
            record = read_fields(folder / str(step))
            record.pop("digests")
            return step, RunRecord(**record)
    return None


def weights_digest(checkpoint: Path) -> str:
    """Returns a digest of the arrays of a checkpoint, the same for copies; reads no arrays.

    Raises:
      ValueError: the checkpoint is damaged.
    """
    with named_source(checkpoint), damage_if_unsealed(checkpoint):
        return checksum(read_fields(checkpoint)["digests"])[:16]


def recorded_choices(model_dir: Path) -> Mapping[str, str]:
    """Returns `RunRecord.choices` of a run's newest readable checkpoint; {} if there is none."""
    newest = newest_record(model_dir)
    return {} if newest is None else newest[1].choices


def pretraining_flops(run: Path) -> dict[str, float]:
    """Returns the floating-point operations spent on pre-training a run's weights.

    They are steps x FLOPs per step (`model.flops` has the formula: matrix products only, a
    multiply-add counts as two, backward as twice forward, rematerialization not counted, padding
    counted), plus those of the run that the weights were initialized from. Fine-tuning steps do not
    count (XLM-E, Table 4 and Figure 1).

    Args:
      run: MODEL_DIR (`checkpoint_of`), or one of its checkpoints.

    Returns:
      {convention of `model.flop_conventions`: FLOPs}; they are unknown, and left out, of imported
      weights, and of checkpoints that do not record them.

    Raises:
      ValueError: there is no checkpoint, or it is damaged.
    """
    checkpoint = checkpoint_of(run)
    record = read_record(checkpoint)
    if not checkpoint.name.isdigit():
        return {}
    return {
        name: record.inherited_flops[name] + int(checkpoint.name) * of_step
        for name, of_step in record.flops_per_step.items()
        if name in record.inherited_flops
    }


def saved_steps(folder: Path) -> list[int]:
    """Returns the steps of the checkpoints in a folder, in any order."""
    folders = [path for path in folder.glob("*") if path.name.isdigit()]
    return [int(path.name) for path in folders if is_committed(path)]


def is_committed(checkpoint: Path) -> bool:
    """Returns whether Orbax has completed a checkpoint.

    It writes a marker last. Before 0.12.3 it wrote none where it renamed the folder instead; but it
    noted the time of the commit. If that is unreadable, a sealed checkpoint is complete, but
    damaged.
    """
    if (checkpoint / COMMIT_FILE).exists():
        return True
    try:
        metadata = parse((checkpoint / _METADATA_FILE).read_bytes())
        return bool(metadata["commit_timestamp_nsecs"])
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return digests.is_sealed(checkpoint)


def check_files(checkpoint: Path) -> None:
    """Raises Damaged if a file differs from `files.json`, or if the state is missing."""
    if digests.is_sealed(checkpoint):
        digests.verify_files(checkpoint)
    elif not (checkpoint / "state").is_dir():
        raise Damaged("state is missing")


@contextlib.contextmanager
def damage_if_unsealed(checkpoint: Path) -> Iterator[None]:
    """Converts errors of the block to Damaged if the checkpoint has no `files.json`.

    Others were verified before they are read, so that their errors have other causes.
    """
    try:
        yield
    except Damaged:
        raise
    except Exception as error:
        if digests.is_sealed(checkpoint):
            raise
        reason = str(error).strip().splitlines() or [repr(error)]
        raise Damaged(f"it cannot be read ({reason[0]})") from error


@contextlib.contextmanager
def named_source(checkpoint: Path) -> Iterator[None]:
    """Names the damaged checkpoint of another run in the error; it is not moved."""
    try:
        yield
    except Damaged as error:
        raise CheckpointError(
            f"INIT_FROM: the checkpoint {checkpoint} is damaged: {error}. Choose another one in "
            f"{checkpoint.parent}, or unset INIT_FROM."
        ) from error


def compare_digests(tree: Any, expected: Mapping[str, str]) -> None:
    """Raises Damaged if an array of `tree` differs from the saved one."""
    for name, digest in digests.tree_digests(tree).items():
        if expected.get(name) != digest:
            raise Damaged(f"{name} is not what was saved (digests differ)")


def read_arrays(checkpoint: Path, abstract: Any, expected: Mapping[str, str]) -> Any:
    """Reads parts of a checkpoint's state.

    Args:
      checkpoint: the checkpoint.
      abstract: ShapeDtypeStructs with shardings of the parts to read, as in the state.
      expected: {dotted name: digest}.

    Returns:
      The tree `abstract` with arrays.

    Raises:
      ValueError: the checkpoint is damaged; names it.
    """
    with named_source(checkpoint), damage_if_unsealed(checkpoint):
        read = ocp.PyTreeCheckpointer().restore(
            checkpoint / "state",
            args=ocp.args.PyTreeRestore(
                item=abstract,
                restore_args=ocp.checkpoint_utils.construct_restore_args(abstract),
                partial_restore=True,
            ),
        )
        compare_digests(read, expected)
    return read


def read_fields(checkpoint: Path) -> dict[str, Any]:
    """Returns the fields of a `RunRecord` and the digests of arrays; raises Damaged."""
    content = ocp.JsonCheckpointHandler().restore(checkpoint / "run", ocp.args.JsonRestore())
    if not isinstance(content, dict) or content.pop("sha256", None) != checksum(content):
        raise Damaged("run/metadata is not what was written (SHA-256 differs)")
    return upgraded(content, "flops_per_step", "inherited_flops")


def state_metadata(checkpoint: Path) -> Any:
    """Returns the tree of a checkpoint's state, with shapes instead of arrays."""
    # The handler, because a checkpointer warns that an item has no metadata of its own.
    return ocp.PyTreeCheckpointHandler().metadata(checkpoint / "state").tree


def tree_shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Returns {dotted name: shape} of the leaves of a tree."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {digests.leaf_name(path): tuple(leaf.shape) for path, leaf in leaves}


def compare_shapes(
    saved_shapes: Mapping[str, tuple[int, ...]], abstract_params: Params, where: str, remedy: str
) -> None:
    """Raises ValueError, naming the first weight that is missing, misshapen or unexpected."""
    expected = tree_shapes(abstract_params)
    for name, shape in expected.items():
        if saved_shapes.get(name) != shape:
            problem = f"has shape {saved_shapes[name]}" if name in saved_shapes else "is missing"
            raise ValueError(
                f"{where}: weight {name} {problem}, this model needs {shape}. {remedy}"
            )
    if extra := sorted(saved_shapes.keys() - expected.keys()):
        raise ValueError(f"{where}: this model has no weight {extra[0]}. {remedy}")
