"""Begins a run at a checkpoint of another one, its trunk, as if it resumed that run.

The checkpoint is copied into the run's folder. So weights, optimizer, step and position in the data
are those of the trunk, and everything else is as the run is configured: typically another schedule
of the learning rate (`training.schedules`), so that one trunk is trained once for many lengths.
"""

import json
import logging
from pathlib import Path

import jax

from xlme_jax.checkpoints.saved import (
    FOLDER,
    check_files,
    checkpoint_of,
    named_source,
    newest_record,
    saved_steps,
    weights_digest,
)
from xlme_jax.storage.files import copy_files, move_folder, remove_folder, replace_file
from xlme_jax.storage.paths import as_path
from xlme_jax.training import peers

_log = logging.getLogger(__name__)
# {"checkpoint", "step", "digest"} of the trunk, in the folder of the branch.
BRANCH_FILE = "branch.json"
_UNFINISHED = "branch.unfinished"


def begin(branch_from: str, model_dir: Path) -> bool:
    """Copies the trunk's checkpoint into a new run's folder; process 0 does it for all.

    A run that has saved a checkpoint of its own resumes from that, and nothing is copied.

    Args:
      branch_from: MODEL_DIR of the trunk, for its result (`checkpoint_of`), or one of its
        checkpoints.
      model_dir: folder of the run.

    Returns:
      Whether the run starts at the trunk's checkpoint.

    Raises:
      ValueError: there is no such checkpoint, it is damaged, or the folder has a run that is no
        branch; the message says what to do. It is raised in all processes.
    """
    trunk, problem = "", ""
    if jax.process_index() == 0:
        try:
            trunk = _prepare(branch_from, model_dir)
        except (ValueError, OSError) as error:
            if jax.process_count() == 1:
                raise
            problem = str(error)
    answer = json.dumps([trunk, problem])
    trunk, problem = json.loads(peers.gather("branch", answer, peers.LONG_SECONDS)[0])
    if problem:
        raise ValueError(problem)
    if trunk:
        _log.info("Branching from %s.", trunk)
    return bool(trunk)


def _prepare(branch_from: str, model_dir: Path) -> str:
    """Copies the checkpoint if it is not there; returns its path, or "" if the run resumes."""
    newest = newest_record(model_dir)
    file = model_dir / BRANCH_FILE
    trunk = json.loads(file.read_bytes()) if file.is_file() else {}
    if newest is not None and newest[0] != trunk.get("step"):
        if not trunk:
            raise ValueError(
                f"MODEL_DIR = {str(model_dir)!r} has the checkpoint of step {newest[0]:,} of a run "
                f"that is no branch, and BRANCH_FROM = {branch_from!r}: choose another MODEL_DIR, "
                "or set BRANCH_FROM = None to resume that run."
            )
        return ""
    checkpoint = checkpoint_of(as_path(branch_from))
    with named_source(checkpoint):
        check_files(checkpoint)
    digest = weights_digest(checkpoint)
    if newest is None or trunk["digest"] != digest:
        _copy(checkpoint, digest, model_dir)
    return str(checkpoint)


def _copy(checkpoint: Path, digest: str, model_dir: Path) -> None:
    """Copies a checkpoint into a run's folder, in place of another trunk's; records its origin."""
    for step in saved_steps(model_dir / FOLDER):
        remove_folder(model_dir / FOLDER / str(step))
    unfinished = model_dir / _UNFINISHED
    remove_folder(unfinished)
    unfinished.mkdir(parents=True)
    copy_files(checkpoint, unfinished)
    trunk = {"checkpoint": str(checkpoint), "step": int(checkpoint.name), "digest": digest}
    replace_file(model_dir / BRANCH_FILE, json.dumps(trunk, indent=1).encode() + b"\n")
    (model_dir / FOLDER).mkdir(exist_ok=True)
    move_folder(unfinished, model_dir / FOLDER / checkpoint.name)
