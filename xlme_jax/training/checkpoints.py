"""Orbax behind one thin door: what a checkpoint holds, resuming, and warm starts."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from xlme_jax.objectives.base import Params
from xlme_jax.training.step import TrainState

_log = logging.getLogger(__name__)
FOLDER = "checkpoints"


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """What a checkpoint says beside the state, as JSON.

    Attributes:
      data: state of the data iterator: the batch after the last one used is the next one.
      dataset: digest of the prepared data set that the iterator belongs to.
      config: the operative configuration.
    """

    data: dict[str, Any]
    dataset: str
    config: str


class Checkpoints:
    """The checkpoints of one run, MODEL_DIR/checkpoints/STEP, each written atomically."""

    def __init__(self, model_dir: Path, keep: int):
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True)
        # Orbax insists on absolute paths.
        self._manager = ocp.CheckpointManager(
            (model_dir / FOLDER).absolute(), options=options, item_names=("state", "run")
        )

    def latest_step(self) -> int | None:
        """Newest step saved, None if there is none."""
        return self._manager.latest_step()

    def check(self, abstract: TrainState, dataset_digest: str) -> None:
        """ValueError if the newest checkpoint is of another model or data; reads no weights."""
        if (step := self.latest_step()) is None:
            return
        folder = Path(self._manager.directory)
        _check_weights(
            folder / str(step),
            abstract.params,
            f"The checkpoint of step {step} in {folder} is of another model",
            "Resume with the configuration that the run began with, or choose a new MODEL_DIR.",
        )
        args = ocp.args.Composite(run=ocp.args.JsonRestore())
        found = self._manager.restore(step, args=args)["run"]["dataset"]
        if found != dataset_digest:
            raise ValueError(
                f"The checkpoint of step {step} in {folder} belongs to other data (digest "
                f"{found[:12]}, DATA_DIR has {dataset_digest[:12]}). Point DATA_DIR to the data "
                "that it began with, or begin a new MODEL_DIR with INIT_FROM."
            )

    def save(self, step: int, state: TrainState, record: RunRecord) -> None:
        """Starts writing a checkpoint; returns as soon as the state has left the devices."""
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state),
                run=ocp.args.JsonSave(dataclasses.asdict(record)),
            ),
        )

    def restore(self, step: int, abstract: TrainState) -> tuple[TrainState, RunRecord]:
        """Reads a checkpoint straight into the shardings of `abstract`."""
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(abstract), run=ocp.args.JsonRestore()
            ),
        )
        return restored["state"], RunRecord(**restored["run"])

    def close(self) -> None:
        """Waits for the writes under way."""
        self._manager.wait_until_finished()
        self._manager.close()


def latest_checkpoint(run: Path) -> Path:
    """The newest checkpoint of a run, or the checkpoint itself if `run` is one.

    Raises:
      ValueError: if there is none.
    """
    if (run / "state").is_dir():
        return run
    folder = run / FOLDER
    steps = [int(path.name) for path in folder.glob("*") if path.name.isdigit()]
    if not steps:
        raise ValueError(
            f"INIT_FROM = {str(run)!r} holds no checkpoint; give the MODEL_DIR of a run, or one "
            f"of its {FOLDER}/STEP folders."
        )
    return folder / str(max(steps))


def check_warm_start(run: Path, abstract_params: Params) -> None:
    """ValueError if `warm_start` cannot read these weights; reads shapes alone."""
    _check_weights(
        latest_checkpoint(run),
        abstract_params,
        f"INIT_FROM = {str(run)!r}",
        "Warm starts need the same objective, model sizes and vocabulary.",
    )


def warm_start(run: Path, abstract_params: Params) -> Params:
    """Reads the weights of another run's newest checkpoint into the shardings of this one.

    Args:
      run: MODEL_DIR of the other run or one of its checkpoints.
      abstract_params: ShapeDtypeStructs with shardings.

    Raises:
      ValueError: if there is no checkpoint, or a weight is missing or of another shape.
    """
    check_warm_start(run, abstract_params)
    path = latest_checkpoint(run).absolute() / "state"
    reader = ocp.PyTreeCheckpointer()
    item = {"params": abstract_params}
    restored = reader.restore(
        path,
        args=ocp.args.PyTreeRestore(
            item=item,
            restore_args=ocp.checkpoint_utils.construct_restore_args(item),
            partial_restore=True,
        ),
    )
    _log.info("Warm start: weights of %s", path.parent)
    return restored["params"]


def _check_weights(checkpoint: Path, abstract_params: Params, where: str, remedy: str) -> None:
    """ValueError naming the first weight that a checkpoint lacks, or has in another shape."""
    path = checkpoint.absolute() / "state"
    # The handler rather than a checkpointer, which warns that an item has no metadata of its own.
    found = _shapes(ocp.PyTreeCheckpointHandler().metadata(path).tree["params"])
    wanted = _shapes(abstract_params)
    for name, shape in wanted.items():
        if found.get(name) != shape:
            there = f"has shape {found[name]}" if name in found else "is not there"
            raise ValueError(f"{where}: weight {name} {there}, this model needs {shape}. {remedy}")
    if extra := sorted(found.keys() - wanted.keys()):
        raise ValueError(f"{where}: this model has no place for weight {extra[0]}. {remedy}")


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """{dotted name: shape} of a tree of arrays or their metadata."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        ".".join(str(getattr(key, "key", key)) for key in path): tuple(leaf.shape)
        for path, leaf in leaves
    }
