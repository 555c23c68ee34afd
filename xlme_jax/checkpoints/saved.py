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
# Key of the manifest of a checkpoint whose MLM head an import made at random.
UNTRAINED_HEAD = "untrained_head"
_METADATA_FILE = "_CHECKPOINT_METADATA"


class CheckpointError(ValueError):
    """Error for checkpoints that cannot be written, or of which no good one can be read."""


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """Contents of a checkpoint besides the state, stored as JSON.

    Attributes:
      data: state of the data iterator, from which it continues with the batch after the last one
        that was used.
      dataset: digest of the prepared data set that the iterator belongs to.
      config: the operative configuration.
      window: {name: (numerator, denominator)}, sums of the metrics since the last line of the log.
      skipped: number of consecutive updates that were skipped up to this step.
      vocabulary: digest of the vocabulary; empty in checkpoints that lack it.
      origin: absolute path of the checkpoint, or of the Hugging Face folder, that the run's weights
        were taken from; empty if the weights were fresh, and in checkpoints that lack this field.
      origin_digest: digest of the arrays of `origin` (`weights_digest`), the same for copies;
        empty if `origin` is empty.
      flops_per_step: {convention of `model.flop_conventions`: floating-point operations of a
        pre-training step}, 0 in fine-tuning; conventions with an unknown number are left out.
      inherited_flops: {convention of `model.flop_conventions`: floating-point operations spent on
        pre-training the weights at step 0}; conventions with an unknown number are left out.
      encoder_parameters: number of parameters of the exported encoder, without vocabulary padding;
        None in checkpoints that lack this field.
      manifest: description of the program and machine that made the checkpoint
        (`training.manifest`); empty in checkpoints that lack this field.
      choices: {path of an encoder in the objective's configuration: implementation of attention},
        for encoders whose configuration leaves the implementation open; empty in checkpoints that
        lack this field.
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
    """Returns the path of a run's result: the best checkpoint if one is recorded, else the newest.

    Args:
      run: MODEL_DIR; or the folder of a checkpoint, which is returned itself.

    Raises:
      ValueError: there is no checkpoint, or the best one is missing.
    """
    if (run / "state").is_dir():
        return run.absolute()
    folder = run.absolute() / FOLDER
    if not (steps := saved_steps(folder)):
        problem = "has no checkpoint" if run.exists() else f"does not exist{_suggestion(run)}"
        raise ValueError(
            f"{str(run)!r} {problem}; pass the MODEL_DIR of a run, or one of its {FOLDER}/STEP "
            "folders (commands: as INIT_FROM, Teacher.checkpoint, BRANCH_FROM or --checkpoint)."
        )
    best = read_best(run)
    step = next(iter(best.values()))[0] if best else max(steps)
    if step not in steps:
        raise ValueError(
            f"{run / BEST_FILE} names the checkpoint of step {step}, which {folder} does not "
            f"have; pass one of {folder}/{{{','.join(map(str, sorted(steps)))}}}."
        )
    return folder / str(step)


def _suggestion(run: Path) -> str:
    """Returns a question that proposes a folder beside `run` with a similar name; "" if none."""
    parent = run.absolute().parent
    names = [path.name for path in parent.iterdir()] if parent.is_dir() else []
    close = difflib.get_close_matches(run.name, names, n=1)
    return f" (did you mean {str(run.parent / close[0])!r}?)" if close else ""


def write_best(model_dir: Path, best: Mapping[str, tuple[int, float]]) -> None:
    """Records which checkpoints of a run are best.

    Args:
      model_dir: folder of the run.
      best: {metric: (step, value)} in the order of importance: the first step is the run's result.
        {} removes the record.
    """
    file = model_dir / BEST_FILE
    if best:
        rows = [{"metric": name, "step": s, "value": v} for name, (s, v) in best.items()]
        replace_file(file, seal({"best": rows}))
    else:
        file.unlink(missing_ok=True)


def read_best(model_dir: Path) -> dict[str, tuple[int, float]]:
    """Returns {metric: (step, value)} of the best checkpoints of a run; {} if none are recorded.

    Raises:
      ValueError: the record is damaged.
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
    """Returns the record of a checkpoint.

    Args:
      run: MODEL_DIR, for the checkpoint of the run's result; or the folder of a checkpoint.

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

    Weights are neither read nor verified: a run that resumes may still set this checkpoint aside as
    damaged, and resume from an older one.
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

    The number is steps x FLOPs per step, plus the number of the run from which the weights were
    initialized. `model.flops` has the formula: only matrix products count, a multiply-add counts as
    two, backward as twice forward; rematerialization is not counted, padding is. Fine-tuning steps
    do not count (XLM-E, Table 4 and Figure 1).

    Args:
      run: MODEL_DIR, for the checkpoint of the run's result; or the folder of a checkpoint.

    Returns:
      {convention of `model.flop_conventions`: FLOPs}. Conventions with an unknown number are left
      out; all are left out for imported weights, and for checkpoints that do not record FLOPs.

    Raises:
      ValueError: there is no checkpoint, or it is damaged.
    """
    checkpoint = checkpoint_of(run)
    record = read_record(checkpoint)
    if not checkpoint.name.isdigit():
        return {}  # Imported weights, which have no step.
    step = int(checkpoint.name)
    return {
        convention: record.inherited_flops[convention] + step * flops
        for convention, flops in record.flops_per_step.items()
        if convention in record.inherited_flops
    }


def saved_steps(folder: Path) -> list[int]:
    """Returns the steps of the checkpoints in a folder, in any order."""
    folders = [path for path in folder.glob("*") if path.name.isdigit()]
    return [int(path.name) for path in folders if is_committed(path)]


def is_committed(checkpoint: Path) -> bool:
    """Returns whether Orbax has completed a checkpoint.

    Orbax writes a marker last. Before 0.12.3, Orbax wrote no marker if it renamed the folder
    instead, but it recorded the time of the commit. If the recorded time is unreadable, a sealed
    checkpoint is complete, but damaged.
    """
    if (checkpoint / COMMIT_FILE).exists():
        return True
    try:
        metadata = parse((checkpoint / _METADATA_FILE).read_bytes())
        return bool(metadata["commit_timestamp_nsecs"])
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return digests.is_sealed(checkpoint)


def check_files(checkpoint: Path) -> None:
    """Raises Damaged if a file differs from `files.json`.

    A checkpoint without `files.json` is damaged only if its folder `state` is missing.
    """
    if digests.is_sealed(checkpoint):
        digests.verify_files(checkpoint)
    elif not (checkpoint / "state").is_dir():
        raise Damaged("state is missing")


@contextlib.contextmanager
def damage_if_unsealed(checkpoint: Path) -> Iterator[None]:
    """Converts errors of the block to Damaged if the checkpoint has no `files.json`.

    The files of a sealed checkpoint were verified earlier, so that errors of reading it have other
    causes.
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
    """Converts Damaged to a CheckpointError for the checkpoint that a new run starts from.

    The damaged checkpoint, which belongs to another run, is not moved.
    """
    try:
        yield
    except Damaged as error:
        raise CheckpointError(
            f"The checkpoint {checkpoint} to start from is damaged: {error}. Choose another one in "
            f"{checkpoint.parent}, or unset the field that names it, such as INIT_FROM."
        ) from error


def compare_digests(tree: Any, expected: Mapping[str, str]) -> None:
    """Raises Damaged if an array of a tree is not what was saved.

    Args:
      tree: arrays that were read.
      expected: {dotted name: digest} of the saved arrays; it may have more names than `tree`.
    """
    for name, digest in digests.tree_digests(tree).items():
        if expected.get(name) != digest:
            raise Damaged(f"{name} is not what was saved (checksums differ)")


def read_arrays(checkpoint: Path, abstract: Any, expected: Mapping[str, str]) -> Any:
    """Reads parts of the state of another run's checkpoint.

    Args:
      checkpoint: folder of the checkpoint.
      abstract: tree of the parts to read, with the names of the state, as ShapeDtypeStructs with
        shardings.
      expected: {dotted name: digest} of the saved arrays.

    Returns:
      The tree `abstract` with arrays instead of ShapeDtypeStructs.

    Raises:
      ValueError: the checkpoint is damaged; the message names it.
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
    """Returns the fields of a checkpoint's `RunRecord`, and as "digests" those of its arrays.

    Raises:
      Damaged: the fields do not match their checksum.
    """
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
    """Compares the shapes of saved weights with those of a model.

    Args:
      saved_shapes: {dotted name: shape} of the saved weights.
      abstract_params: weights of the model, as ShapeDtypeStructs.
      where: begins the message: which weights were compared.
      remedy: ends the message.

    Raises:
      ValueError: a weight is missing, has another shape, or is unknown to the model; the message
        names the first such weight.
    """
    expected = tree_shapes(abstract_params)
    for name, shape in expected.items():
        if saved_shapes.get(name) != shape:
            problem = f"has shape {saved_shapes[name]}" if name in saved_shapes else "is missing"
            raise ValueError(
                f"{where}: weight {name} {problem}, this model needs {shape}. {remedy}"
            )
    if extra := sorted(saved_shapes.keys() - expected.keys()):
        raise ValueError(f"{where}: this model has no weight {extra[0]}. {remedy}")
