"""Saves and restores the checkpoints of a run with Orbax.

Orbax makes each save atomic, but restores damaged bytes silently. So every checkpoint contains
digests of its arrays, and of its files once they are on disk. The newest checkpoint is used only if
the digests match, a damaged checkpoint is set aside, and a run whose checkpoints are all damaged
does not start over.
"""

import contextlib
import dataclasses
import datetime
import logging
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint import checkpoint_managers as policies

from xlme_jax.checkpoints import digests
from xlme_jax.checkpoints.digests import Damaged
from xlme_jax.checkpoints.saved import (
    COMMIT_FILE,
    FOLDER,
    CheckpointError,
    RunRecord,
    check_files,
    compare_digests,
    compare_shapes,
    damage_if_unsealed,
    is_committed,
    read_fields,
    saved_steps,
    state_metadata,
    tree_shapes,
)
from xlme_jax.checkpoints.state import CARRIED, TrainState
from xlme_jax.storage.files import move_folder, remove_folder, renames_folders, replace_file
from xlme_jax.storage.sealed_json import checksum

_log = logging.getLogger(__name__)
DAMAGED_FOLDER = "damaged_checkpoints"
_UNFINISHED = "*.orbax-checkpoint-tmp*"


class Checkpoints:
    """The checkpoints of one run, MODEL_DIR/checkpoints/STEP, each written atomically.

    A complete checkpoint was renamed to its final name, or, where the file system does not rename
    folders, contains a marker. A run may change from one way to the other.

    The constructor removes the remains of a killed save. It moves each checkpoint that is newer
    than the newest undamaged one to MODEL_DIR/damaged_checkpoints, with a `reason.txt`.

    Args:
      model_dir: the run's folder.
      keep: number of newest checkpoints to keep.
      keep_every: checkpoints of steps that are multiples of this number are kept too; None to keep
        only the newest.

    Raises:
      CheckpointError: there are checkpoints, and all are damaged.
      OSError: the folder cannot be written.
    """

    def __init__(self, model_dir: Path, keep: int, keep_every: int | None = None):
        self._folder = (model_dir / FOLDER).absolute()  # Orbax requires absolute paths.
        self._damaged = self._folder.with_name(DAMAGED_FOLDER)
        renames = True
        if self._is_primary():
            self._folder.mkdir(parents=True, exist_ok=True)
            renames = renames_folders(self._folder.parent)
            self._clear_unfinished()
            for step in sorted(saved_steps(self._folder), reverse=True):
                try:
                    check_files(self._folder / str(step))
                    break
                except Damaged as error:
                    self._move(step, error)
            self._add_markers()
        _wait_for_all("checkpoints verified")
        modes = ocp.options.AtomicityMode
        mode = modes.ATOMIC_RENAME if _of_primary(renames) else modes.COMMIT_FILE
        self._kept: list[policies.PreservationPolicy] = [policies.LatestN(keep)]
        if keep_every:
            self._kept.append(policies.EveryNSteps(keep_every))
        # `save` replaces the entries, to keep further checkpoints.
        self._policy = policies.AnyPreservationPolicy(self._kept)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self._policy,
            create=True,
            atomicity_options=ocp.options.AtomicityOptions(mode),
        )
        self._manager = ocp.CheckpointManager(
            epath.Path(str(self._folder)), options=options, item_names=("state", "run")
        )
        self._sealer: threading.Thread | None = None
        self._refuse_to_start_over()

    def latest_step(self) -> int | None:
        """Returns the newest saved step; None if there is none."""
        return self._manager.latest_step()

    def check(self, abstract: TrainState, dataset_digest: str) -> None:
        """Checks that the newest checkpoint belongs to this model and data; reads no weights.

        Checkpoints whose metadata is damaged are set aside.

        Args:
          abstract: state of this model, as ShapeDtypeStructs.
          dataset_digest: digest of this run's data set.

        Raises:
          ValueError: the checkpoint has other weights, or was trained on other data.
          CheckpointError: there are checkpoints, and all are damaged.
        """
        while (step := self.latest_step()) is not None:
            folder = self._folder / str(step)
            try:
                with damage_if_unsealed(folder):
                    metadata, record = state_metadata(folder), read_fields(folder)
            except Damaged as error:
                self._set_aside(step, error)
                continue
            from xlme_jax.checkpoints.layer_forms import in_form_of

            for part, tree in (("params", abstract.params), (CARRIED, abstract.carried)):
                shapes = tree_shapes(metadata.get(part) or {})
                compare_shapes(
                    shapes,
                    in_form_of(tree, shapes),
                    f"The checkpoint of step {step} in {self._folder} belongs to another model",
                    "Resume with the configuration that the run began with, or choose a new "
                    "MODEL_DIR.",
                )
            if record["dataset"] != dataset_digest:
                raise ValueError(
                    f"The checkpoint of step {step} in {self._folder} belongs to other data "
                    f"(checksum {record['dataset'][:12]}, DATA_DIR has {dataset_digest[:12]}). Set "
                    "DATA_DIR to the data that the run began with, or begin a new MODEL_DIR with "
                    "INIT_FROM."
                )
            return

    def save(
        self, step: int, state: TrainState, record: RunRecord, best: Collection[int] = ()
    ) -> None:
        """Starts writing a checkpoint; returns as soon as the state has left the devices.

        Args:
          step: step of the checkpoint.
          state: state after this step.
          record: contents besides the state. If its last updates were skipped, the newest
            checkpoint whose update was not skipped is not deleted.
          best: steps of earlier checkpoints that are not deleted.

        Raises:
          CheckpointError: this checkpoint or the previous one could not be written.
        """
        contents = dataclasses.asdict(record) | {"digests": digests.tree_digests(state)}
        contents["sha256"] = checksum(contents)
        with self._write_errors(step):
            self._wait()  # Orbax may delete older checkpoints, which must not be sealed meanwhile.
            finite_step = self._newest_finite() if record.skipped else None
            kept_steps = (*best, finite_step) if finite_step is not None else tuple(best)
            self._policy.policies = [*self._kept, policies.CustomSteps(kept_steps)]
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(state), run=ocp.args.JsonSave(contents)
                ),
            )
        if self._is_primary():
            self._sealer = threading.Thread(target=self._seal, args=(step,), daemon=True)
            self._sealer.start()

    def restore_newest(self, abstract: TrainState) -> tuple[TrainState, RunRecord] | None:
        """Restores the newest good checkpoint directly into the shardings of `abstract`.

        Damaged checkpoints are set aside.

        Args:
          abstract: ShapeDtypeStructs of the state, with shardings.

        Returns:
          `(state, record)`; None if there is no checkpoint.

        Raises:
          CheckpointError: there are checkpoints, and all are damaged.
        """
        while (step := self.latest_step()) is not None:
            try:
                return self.restore(step, abstract)
            except Damaged as error:
                self._set_aside(step, error)
        return None

    def roll_back(self, abstract: TrainState) -> tuple[TrainState, RunRecord] | None:
        """Restores the newest checkpoint whose last update was not skipped; deletes later ones.

        Later checkpoints contain the same weights, but the run goes through their steps again, and
        saves them again.

        Args:
          abstract: ShapeDtypeStructs of the state, with shardings.

        Returns:
          `(state, record)`; None if there is no such checkpoint, and none is deleted.

        Raises:
          CheckpointError: there are checkpoints, and all are damaged.
        """
        finite_step = self._newest_finite()
        if finite_step is None:
            return None
        while (step := self.latest_step()) is not None and step > finite_step:
            self._manager.delete(step)
        return self.restore_newest(abstract)

    def _newest_finite(self) -> int | None:
        """Returns the newest step whose update was not skipped; None if there is none."""
        for step in sorted(self._manager.all_steps(), reverse=True):
            with contextlib.suppress(OSError, ValueError):  # A damaged checkpoint.
                if not read_fields(self._folder / str(step))["skipped"]:
                    return int(step)
        return None

    def restore(self, step: int, abstract: TrainState) -> tuple[TrainState, RunRecord]:
        """Restores one checkpoint directly into the shardings of `abstract`.

        Layers may be stacked in the checkpoint and separate in `abstract`, or the other way round.

        Args:
          step: step of the checkpoint.
          abstract: ShapeDtypeStructs of the state, with shardings.

        Returns:
          `(state, record)`.

        Raises:
          Damaged: the checkpoint is not what was saved.
        """
        from xlme_jax.checkpoints.layer_forms import converted, in_form_of

        folder = self._folder / str(step)
        with damage_if_unsealed(folder):
            record = read_fields(folder)
            expected = record.pop("digests")
            args = ocp.args.StandardRestore(in_form_of(abstract, expected))
            state = self._manager.restore(step, args=ocp.args.Composite(state=args))["state"]
        compare_digests(state, expected)
        return converted(state, abstract), RunRecord(**record)

    def check_writes(self) -> None:
        """Raises CheckpointError if a background write has failed; does not wait."""
        with self._write_errors(None):
            self._manager.check_for_errors()

    def wait(self) -> None:
        """Waits for pending writes; raises CheckpointError if they fail."""
        with self._write_errors(None):
            self._wait()

    def _wait(self) -> None:
        """Waits until the pending checkpoint is written and sealed; raises Orbax's errors."""
        self._manager.wait_until_finished()
        if self._sealer is not None:
            self._sealer.join()
            self._sealer = None

    def close(self) -> None:
        """Waits for pending writes, and ends Orbax's threads.

        Raises:
          CheckpointError: a pending checkpoint could not be written.
        """
        with self._write_errors(None):
            try:
                self._wait()
            finally:
                self._manager.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type | None, *_: Any) -> None:
        # A pending checkpoint is finished on errors too, but its failure must not hide the cause.
        hidden = (CheckpointError,) if kind is not None else ()
        with contextlib.suppress(*hidden):
            self.close()

    def _seal(self, step: int) -> None:
        """Writes the digests of a checkpoint's files when Orbax has written the checkpoint."""
        while self._manager.is_saving_in_progress():
            time.sleep(0.02)
        folder = self._folder / str(step)
        if is_committed(folder):  # Otherwise writing failed, which the main thread will report.
            try:
                digests.seal_files(folder)
            except OSError as error:
                # The checkpoint is still good: it contains the digests of its arrays.
                _log.warning("%s could not be sealed: %s", folder, error)

    @contextlib.contextmanager
    def _write_errors(self, step: int | None) -> Iterator[None]:
        """Converts errors of the block to CheckpointError.

        Args:
          step: step of the checkpoint being saved; None while waiting for earlier ones.
        """
        try:
            yield
        except Exception as error:
            subject = "A checkpoint" if step is None else f"The checkpoint of step {step} or before"
            saved = saved_steps(self._folder)
            fallback = f"that of step {max(saved)} is kept" if saved else "there is no earlier one"
            reason = str(error).strip().splitlines() or [repr(error)]
            raise CheckpointError(
                f"{subject} could not be written to {self._folder}; {fallback}. {reason[0]} (free "
                "some space or fix the folder, and run the same command again)"
            ) from error

    def _set_aside(self, step: int, reason: Damaged) -> None:
        """Moves a damaged checkpoint away, in all processes at once.

        Raises:
          CheckpointError: no checkpoint is left.
        """
        if self._is_primary():
            self._move(step, reason)
        _wait_for_all(f"set aside {step}")
        self._manager.reload()
        self._refuse_to_start_over()

    def _move(self, step: int, reason: Damaged) -> None:
        """Moves a damaged checkpoint to a new folder in `damaged_checkpoints`, with the reason."""
        self._damaged.mkdir(exist_ok=True)
        targets = (self._damaged / name for name in _numbered(str(step)))
        target = next(target for target in targets if not target.exists())
        move_folder(self._folder / str(step), target)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        (target / "reason.txt").write_text(f"{now} {reason}\n", encoding="utf-8")
        _log.warning("The checkpoint of step %d is damaged: %s. Moved to %s", step, reason, target)

    def _refuse_to_start_over(self) -> None:
        """Raises CheckpointError if there are damaged checkpoints and no others."""
        if self.latest_step() is not None or not self._damaged.is_dir():
            return
        files = sorted(self._damaged.glob("*/reason.txt"))
        reasons = "; ".join(
            f"step {file.parent.name}: {file.read_text().strip()}" for file in files
        )
        raise CheckpointError(
            f"All checkpoints of {self._folder.parent} are damaged ({reasons}). They are in "
            f"{self._damaged}. Copy an undamaged one to {self._folder}, or delete "
            f"{self._damaged} to start over, or choose a new MODEL_DIR."
        )

    def _clear_unfinished(self) -> None:
        """Removes the folders of saves that were interrupted."""
        unfinished = list(self._folder.glob(_UNFINISHED))
        steps = [path for path in self._folder.glob("*") if path.name.isdigit()]
        unfinished += [path for path in steps if not is_committed(path)]
        for path in unfinished:
            _log.info("Removing %s, an interrupted save.", path)
            remove_folder(path)

    def _add_markers(self) -> None:
        """Marks complete checkpoints that have no marker, which Orbax might delete otherwise."""
        for step in saved_steps(self._folder):
            marker = self._folder / str(step) / COMMIT_FILE
            if not marker.exists():
                replace_file(marker, b"")

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


def _of_primary(value: bool) -> bool:
    """Returns the value of process 0, in every process."""
    if jax.process_count() == 1:
        return value
    return bool(multihost_utils.broadcast_one_to_all(np.bool_(value)))


def _wait_for_all(name: str) -> None:
    """Waits until all processes call this with the same name."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)
