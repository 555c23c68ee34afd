"""Saves, verifies and restores checkpoints with Orbax, and handles warm starts.

Orbax makes each save atomic, but restores damaged bytes silently. So every checkpoint has digests
of its arrays, and of its files once they are on disk. The newest checkpoint is used only if they
match, a damaged one is set aside, and a run whose checkpoints are all damaged does not start over.
"""

import collections
import contextlib
import dataclasses
import datetime
import logging
import shutil
import threading
import time
import types
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from xlme_jax.checkpoints import digests
from xlme_jax.checkpoints.digests import Damaged
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.objectives.base import Params
from xlme_jax.storage.sealed_json import checksum

_log = logging.getLogger(__name__)
FOLDER = "checkpoints"
DAMAGED_FOLDER = "damaged_checkpoints"
_UNFINISHED = "*.orbax-checkpoint-tmp*"


class CheckpointError(ValueError):
    """A checkpoint could not be written, or none can be read."""


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """What a checkpoint stores besides the state, as JSON.

    Attributes:
      data: state of the data iterator: the batch after the last one used is the next one.
      dataset: digest of the prepared data set that the iterator belongs to.
      config: the operative configuration.
      window: sums of the metrics since the last line of the log, {name: (numerator, denominator)}.
      skipped: updates skipped in a row up to this step.
      vocabulary: digest of the vocabulary; empty in checkpoints that lack it.
      origin: absolute path of the checkpoint, or of the Hugging Face folder, that the run's weights
        were taken from; empty if they were fresh, or in checkpoints that lack it.
      flops_per_step: floating-point operations of a pre-training step, 0 in fine-tuning; None in
        checkpoints that lack it.
      inherited_flops: floating-point operations of pre-training of the weights at step 0; None if
        unknown.
      encoder_parameters: parameters of the exported encoder, without vocabulary padding; None in
        checkpoints that lack it.
    """

    data: dict[str, Any]
    dataset: str
    config: str
    window: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    skipped: int = 0
    vocabulary: str = ""
    origin: str = ""
    flops_per_step: float | None = None
    inherited_flops: float | None = None
    encoder_parameters: int | None = None


class Checkpoints:
    """The checkpoints of one run, MODEL_DIR/checkpoints/STEP, each written atomically.

    Opening them removes the remains of a killed save, and moves the newest checkpoints, if their
    files are damaged, to MODEL_DIR/damaged_checkpoints with a `reason.txt`.

    Args:
      model_dir: the run's folder.
      keep: number of newest checkpoints to keep.

    Raises:
      CheckpointError: there are checkpoints, and all are damaged.
    """

    def __init__(self, model_dir: Path, keep: int):
        self._folder = (model_dir / FOLDER).absolute()  # Orbax requires absolute paths.
        self._damaged = self._folder.with_name(DAMAGED_FOLDER)
        if self._is_primary():
            self._clear_unfinished()
            for step in sorted(_steps(self._folder), reverse=True):
                try:
                    _check_files(self._folder / str(step))
                    break
                except Damaged as error:
                    self._move(step, error)
        _wait_for_all("checkpoints verified")
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True)
        self._manager = ocp.CheckpointManager(
            self._folder, options=options, item_names=("state", "run")
        )
        self._sealer: threading.Thread | None = None
        self._refuse_to_start_over()

    def latest_step(self) -> int | None:
        """Returns the newest saved step; None if there is none."""
        return self._manager.latest_step()

    def check(self, abstract: TrainState, dataset_digest: str) -> None:
        """Raises ValueError if the newest checkpoint is of another model or data.

        Reads no weights.
        """
        while (step := self.latest_step()) is not None:
            folder = self._folder / str(step)
            try:
                with _damage_if_unsealed(folder):
                    found, record = _metadata(folder), _read_record(folder)
            except Damaged as error:
                self._set_aside(step, error)
                continue
            for part, wanted in (("params", abstract.params), ("aux", abstract.aux)):
                _compare_shapes(
                    _tree_shapes(found.get(part) or {}),
                    wanted,
                    f"The checkpoint of step {step} in {self._folder} belongs to another model",
                    "Resume with the configuration that the run began with, or choose a new "
                    "MODEL_DIR.",
                )
            if record["dataset"] != dataset_digest:
                raise ValueError(
                    f"The checkpoint of step {step} in {self._folder} belongs to other data "
                    f"(digest {record['dataset'][:12]}, DATA_DIR has {dataset_digest[:12]}). Set "
                    "DATA_DIR to the data that the run began with, or begin a new MODEL_DIR with "
                    "INIT_FROM."
                )
            return

    def save(self, step: int, state: TrainState, record: RunRecord) -> None:
        """Starts writing a checkpoint; returns as soon as the state has left the devices.

        Raises:
          CheckpointError: this checkpoint or the previous one could not be written.
        """
        run = dataclasses.asdict(record) | {"digests": digests.tree_digests(state)}
        run["sha256"] = checksum(run)
        with self._write_errors(step):
            self._wait()  # Orbax may delete older checkpoints, which must not be sealed meanwhile.
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(state),
                    run=ocp.args.JsonSave(run),
                ),
            )
        if self._is_primary():
            self._sealer = threading.Thread(target=self._seal, args=(step,), daemon=True)
            self._sealer.start()

    def restore_newest(self, abstract: TrainState) -> tuple[TrainState, RunRecord] | None:
        """Restores the newest good checkpoint directly into the shardings of `abstract`.

        Returns:
          State and record, None if there is no checkpoint.

        Raises:
          CheckpointError: there are checkpoints, and all are damaged.
        """
        while (step := self.latest_step()) is not None:
            try:
                return self.restore(step, abstract)
            except Damaged as error:
                self._set_aside(step, error)
        return None

    def restore(self, step: int, abstract: TrainState) -> tuple[TrainState, RunRecord]:
        """Restores one checkpoint; raises Damaged if it is not what was saved."""
        folder = self._folder / str(step)
        with _damage_if_unsealed(folder):
            record = _read_record(folder)
            args = ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
            state = self._manager.restore(step, args=args)["state"]
        _compare_digests(state, record.pop("digests"))
        return state, RunRecord(**record)

    def check_writes(self) -> None:
        """Raises CheckpointError if a background write has failed; does not wait."""
        with self._write_errors(None):
            self._manager.check_for_errors()

    def wait(self) -> None:
        """Waits for pending writes; raises CheckpointError if they fail."""
        with self._write_errors(None):
            self._wait()

    def _wait(self) -> None:
        self._manager.wait_until_finished()
        if self._sealer is not None:
            self._sealer.join()
            self._sealer = None

    def close(self) -> None:
        """Waits for pending writes, and ends Orbax's threads."""
        with self._write_errors(None):
            try:
                self._wait()
            finally:
                self._manager.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type | None, *_: Any) -> None:
        # A pending checkpoint is finished on errors too, but its failure must not hide the cause.
        with contextlib.suppress(*([CheckpointError] if kind else [])):
            self.close()

    def _seal(self, step: int) -> None:
        while self._manager.is_saving_in_progress():
            time.sleep(0.02)
        folder = self._folder / str(step)
        if folder.is_dir():  # Otherwise writing failed, which the main thread will report.
            try:
                digests.seal_files(folder)
            except OSError as error:
                # The checkpoint is still good: it contains the digests of its arrays.
                _log.warning("%s could not be sealed: %s", folder, error)

    @contextlib.contextmanager
    def _write_errors(self, step: int | None) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            which = "A checkpoint" if step is None else f"The checkpoint of step {step} or before"
            good = _steps(self._folder)
            kept = f"that of step {max(good)} is kept" if good else "there is no earlier one"
            reason = str(error).strip().splitlines() or [repr(error)]
            raise CheckpointError(
                f"{which} could not be written to {self._folder}; {kept}. {reason[0]} (free some "
                "space or fix the folder, and run the same command again)"
            ) from error

    def _set_aside(self, step: int, reason: Damaged) -> None:
        if self._is_primary():
            self._move(step, reason)
        _wait_for_all(f"set aside {step}")
        self._manager.reload()
        self._refuse_to_start_over()

    def _move(self, step: int, reason: Damaged) -> None:
        self._damaged.mkdir(exist_ok=True)
        places = (self._damaged / name for name in _numbered(str(step)))
        place = next(place for place in places if not place.exists())
        (self._folder / str(step)).rename(place)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        (place / "reason.txt").write_text(f"{now} {reason}\n", encoding="utf-8")
        _log.warning("The checkpoint of step %d is damaged: %s. Moved to %s", step, reason, place)

    def _refuse_to_start_over(self) -> None:
        if self.latest_step() is not None or not self._damaged.is_dir():
            return
        files = sorted(self._damaged.glob("*/reason.txt"))
        said = "; ".join(f"step {file.parent.name}: {file.read_text().strip()}" for file in files)
        raise CheckpointError(
            f"All checkpoints of {self._folder.parent} are damaged ({said}). They are in "
            f"{self._damaged}. Copy an undamaged one to {self._folder}, or delete "
            f"{self._damaged} to start over, or choose a new MODEL_DIR."
        )

    def _clear_unfinished(self) -> None:
        for path in self._folder.glob(_UNFINISHED):
            _log.info("Removing %s, an interrupted save.", path)
            shutil.rmtree(path)

    @staticmethod
    def _is_primary() -> bool:
        return jax.process_index() == 0


def _numbered(name: str) -> Iterator[str]:
    """Yields name, name-1, name-2, ..."""
    yield name
    number = 0
    while True:
        number += 1
        yield f"{name}-{number}"


def _wait_for_all(what: str) -> None:
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


def _steps(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.glob("*") if path.name.isdigit()]


def _check_files(checkpoint: Path) -> None:
    """Raises Damaged if a checkpoint's files are; without `files.json` only if state is missing."""
    if digests.is_sealed(checkpoint):
        digests.verify_files(checkpoint)
    elif not (checkpoint / "state").is_dir():
        raise Damaged("state is missing")


@contextlib.contextmanager
def _damage_if_unsealed(checkpoint: Path) -> Iterator[None]:
    """Raises Damaged if a checkpoint that has no `files.json` cannot be read."""
    try:
        yield
    except Damaged:
        raise
    except Exception as error:
        if digests.is_sealed(checkpoint):
            raise
        reason = str(error).strip().splitlines() or [repr(error)]
        raise Damaged(f"it cannot be read ({reason[0]})") from error


def _compare_digests(tree: Any, expected: Mapping[str, str]) -> None:
    """Raises Damaged if an array of a tree is not what was saved."""
    for name, digest in digests.tree_digests(tree).items():
        if expected.get(name) != digest:
            raise Damaged(f"{name} is not what was saved (digests differ)")


def has_checkpoint(model_dir: Path) -> bool:
    """Returns whether a run has saved a checkpoint."""
    return bool(_steps(model_dir / FOLDER))


def latest_checkpoint(run: Path) -> Path:
    """Returns the newest checkpoint of a run, or the checkpoint itself if `run` is one.

    Raises:
      ValueError: there is none.
    """
    if (run / "state").is_dir():
        return run.absolute()
    folder = run.absolute() / FOLDER
    if not (steps := _steps(folder)):
        raise ValueError(
            f"INIT_FROM = {str(run)!r} holds no checkpoint; give the MODEL_DIR of a run, or one "
            f"of its {FOLDER}/STEP folders."
        )
    return folder / str(max(steps))


def check_warm_start(
    run: Path,
    abstract_params: Params,
    vocabulary: str = "",
    may_lack: Collection[str] = (),
    counterparts: Mapping[str, str] = types.MappingProxyType({}),
) -> Params:
    """Returns the weights that `warm_start` would load; reads files, but creates no arrays.

    Arguments and errors are those of `warm_start`.
    """
    checkpoint = latest_checkpoint(run)
    with _named_source(checkpoint):
        _check_files(checkpoint)
        with _damage_if_unsealed(checkpoint):
            found = _tree_shapes(_metadata(checkpoint)["params"])
            theirs = _read_record(checkpoint).get("vocabulary")
    if vocabulary and theirs and vocabulary != theirs:
        raise ValueError(
            f"INIT_FROM = {str(run)!r} was trained with another vocabulary (sha256 {theirs[:12]}) "
            f"than the data in DATA_DIR was prepared with ({vocabulary[:12]}). Prepare the data "
            "with the vocabulary.model of that run's DATA_DIR."
        )

    def is_present(part: str) -> bool:
        return _tree_shapes({part: abstract_params[part]}).items() <= found.items()

    sources = _counterparts(found, abstract_params, counterparts)
    if sources:
        # In this model's names. Unused weights stay, and are reported as unexpected.
        unused = {name: found[name] for name in found.keys() - sources.values()}
        found = {name: found[source] for name, source in sources.items()} | unused
        brought = _select(abstract_params, sources)
    else:
        brought = {
            part: weights
            for part, weights in abstract_params.items()
            if part not in may_lack or is_present(part)
        }
    remedy = "Warm starts need the same objective, model sizes and vocabulary."
    stacked, wanted = (
        any(".layers." in name for name in names) for names in (found, _tree_shapes(brought))
    )
    if stacked != wanted:
        remedy = (
            f"It was trained with Encoder.scan_layers = {stacked}; set the same here, or import it "
            "again with the other setting."
        )
    if may_lack and not sources:
        found = {name: found[name] for name in found.keys() & _tree_shapes(brought).keys()}
    _compare_shapes(found, brought, f"INIT_FROM = {str(run)!r}", remedy)
    return brought


def warm_start(
    run: Path,
    abstract_params: Params,
    vocabulary: str = "",
    may_lack: Collection[str] = (),
    counterparts: Mapping[str, str] = types.MappingProxyType({}),
) -> Params:
    """Reads the weights of another run's newest checkpoint into the shardings of this one.

    Args:
      run: MODEL_DIR of the other run or one of its checkpoints.
      abstract_params: ShapeDtypeStructs with shardings.
      vocabulary: digest of the vocabulary that this run reads; empty if it does not matter.
      may_lack: top-level names of weights that may be missing from the checkpoint, or have another
        shape there. It may then also contain weights that this model lacks.
      counterparts: for checkpoints without any of these top-level names (`WarmStart.counterparts`).

    Returns:
      The weights that the checkpoint has.

    Raises:
      ValueError: there is no checkpoint, it is damaged, a weight is missing or of another shape, or
        the vocabulary is another one.
    """
    brought = check_warm_start(run, abstract_params, vocabulary, may_lack, counterparts)
    checkpoint = latest_checkpoint(run)
    found = _tree_shapes(_metadata(checkpoint)["params"])
    sources = _counterparts(found, abstract_params, counterparts)
    wanted = _leaves(brought)
    item = {"params": _nested({sources.get(name, name): leaf for name, leaf in wanted.items()})}
    with _named_source(checkpoint), _damage_if_unsealed(checkpoint):
        expected = _read_record(checkpoint)["digests"]
        params = ocp.PyTreeCheckpointer().restore(
            checkpoint / "state",
            args=ocp.args.PyTreeRestore(
                item=item,
                restore_args=ocp.checkpoint_utils.construct_restore_args(item),
                partial_restore=True,
            ),
        )
        _compare_digests(params, expected)
    fresh = _fresh(_leaves(abstract_params).keys(), wanted.keys())
    rest = f"; missing there, so freshly initialised: {', '.join(fresh)}" if fresh else ""
    _log.info("Warm start: weights from %s%s", checkpoint, rest)
    if not sources:
        return params["params"]
    # Copies, because one weight may initialise two, and the train step donates each buffer.
    read = _leaves(params["params"])
    return _nested(
        {
            name: jax.device_put(jnp.copy(read[sources[name]]), leaf.sharding)
            for name, leaf in wanted.items()
        }
    )


def _counterparts(
    found: Collection[str], abstract_params: Params, counterparts: Mapping[str, str]
) -> dict[str, str]:
    """Returns {weight of this model: weight that initializes it}; {} if names match."""
    if any(name.split(".")[0] in abstract_params for name in found):
        return {}
    sources = {}
    for name in _leaves(abstract_params):
        for part, source in counterparts.items():
            if name.startswith(f"{part}.") and source + name.removeprefix(part) in found:
                sources[name] = source + name.removeprefix(part)
    return sources


def _leaves(tree: Params) -> dict[str, Any]:
    """Returns {dotted name: leaf}."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {digests.leaf_name(path): leaf for path, leaf in leaves}


def _nested(leaves: Mapping[str, Any]) -> Params:
    """Returns the tree whose leaves have these dotted names."""
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *path, last = name.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = leaf
    return tree


def _select(tree: Params, names: Collection[str]) -> Params:
    return _nested({name: leaf for name, leaf in _leaves(tree).items() if name in names})


def _fresh(names: Collection[str], brought: Collection[str]) -> list[str]:
    """Parts of a model, two names deep, that are not loaded, with a count if only some are not."""
    total = collections.Counter(".".join(name.split(".")[:2]) for name in names)
    lacking = total - collections.Counter(".".join(name.split(".")[:2]) for name in brought)
    return [
        part if count == total[part] else f"{count} of {total[part]} weights in {part}"
        for part, count in sorted(lacking.items())
    ]


def read_record(run: Path) -> RunRecord:
    """Returns the record of a run's newest checkpoint, or of one of its checkpoints.

    Raises:
      ValueError: there is no checkpoint, or it is damaged.
    """
    checkpoint = latest_checkpoint(run)
    with _named_source(checkpoint), _damage_if_unsealed(checkpoint):
        record = _read_record(checkpoint)
        record.pop("digests")
        return RunRecord(**record)


def pretraining_flops(run: Path) -> float | None:
    """Returns the floating-point operations spent on pre-training a run's weights.

    They are steps x FLOPs per step (`model.flops` has the formula: matrix products only, a
    multiply-add counts as two, backward as twice forward, rematerialization not counted, padding
    counted), plus those of the run that the weights were initialized from. Fine-tuning steps do not
    count (XLM-E, Table 4 and Figure 1).

    Args:
      run: MODEL_DIR, whose newest checkpoint is used, or one of its checkpoints.

    Returns:
      The FLOPs; None if unknown: for imported weights, and checkpoints that do not record them.

    Raises:
      ValueError: there is no checkpoint, or it is damaged.
    """
    checkpoint = latest_checkpoint(run)
    record = read_record(checkpoint)
    if record.flops_per_step is None or record.inherited_flops is None:
        return None
    if not checkpoint.name.isdigit():
        return None
    return record.inherited_flops + int(checkpoint.name) * record.flops_per_step


@contextlib.contextmanager
def _named_source(checkpoint: Path) -> Iterator[None]:
    """Names the damaged checkpoint of another run in the error; unlike ours, it is not moved."""
    try:
        yield
    except Damaged as error:
        raise CheckpointError(
            f"INIT_FROM: the checkpoint {checkpoint} is damaged: {error}. Choose another one in "
            f"{checkpoint.parent}, or unset INIT_FROM."
        ) from error


def _read_record(checkpoint: Path) -> dict[str, Any]:
    """Returns the fields of a `RunRecord` and the digests of arrays; raises Damaged."""
    content = ocp.JsonCheckpointHandler().restore(checkpoint / "run", ocp.args.JsonRestore())
    if not isinstance(content, dict) or content.pop("sha256", None) != checksum(content):
        raise Damaged("run/metadata is not what was written (SHA-256 differs)")
    return content


def _metadata(checkpoint: Path) -> Any:
    """Returns the tree of a checkpoint's state, with shapes instead of arrays."""
    # The handler, because a checkpointer warns that an item has no metadata of its own.
    return ocp.PyTreeCheckpointHandler().metadata(checkpoint / "state").tree


def _tree_shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {digests.leaf_name(path): tuple(leaf.shape) for path, leaf in leaves}


def _compare_shapes(
    found: Mapping[str, tuple[int, ...]], abstract_params: Params, where: str, remedy: str
) -> None:
    """Raises ValueError, naming the first weight that is missing, misshapen or unexpected."""
    wanted = _tree_shapes(abstract_params)
    for name, shape in wanted.items():
        if found.get(name) != shape:
            problem = f"has shape {found[name]}" if name in found else "is missing"
            raise ValueError(
                f"{where}: weight {name} {problem}, this model needs {shape}. {remedy}"
            )
    if extra := sorted(found.keys() - wanted.keys()):
        raise ValueError(f"{where}: this model has no weight {extra[0]}. {remedy}")
