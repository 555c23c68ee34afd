"""Changes random bytes and truncates random files in checkpoints and prepared data.

The test does not depend on how damage is detected: it changes a file, opens the folder as a run
does, and compares the restored bits with those that Orbax restores without this library.
"""

import contextlib
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from fault_runs import Runs, bits, copy_folder, differences

from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.configuration import loading
from xlme_jax.data.prepared import PreparedDataError, PreparedDataset
from xlme_jax.storage.files import remove_folder
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states

_LOCK = ".prepare.lock"


def run_damage(
    runs: Runs, flips: int, truncations: int, unsealed: int, data: int, whole: int, seed: int
) -> dict[str, Any]:
    """Damages copies of a finished run and of its data.

    Args:
      runs: the work folder.
      flips: number of changed bytes in the newest checkpoint, each in a separate copy.
      truncations: number of truncated files of that checkpoint.
      unsealed: number of changed bytes in checkpoints without `files.json`, as left by a kill.
        Changes of unused bytes may then go undetected, but restored bits must never change.
      data: number of changed bytes in the prepared data; a fifth as many files are truncated.
      whole: number of damaged checkpoints from which the real command must resume.
      seed: seed of the random positions.

    Returns:
      {"checkpoints", "data": one row per damaged file, "summary", "verdict", "passed"}.
    """
    rng = random.Random(seed)
    logging.disable(logging.WARNING)  # The table has the warnings about damaged files.
    reference = runs.undisturbed()
    opener = _Opener(runs, reference)
    rows = []
    kinds = [*["flip"] * flips, *["truncation"] * truncations, *["unsealed flip"] * unsealed]
    for number, kind in enumerate(kinds):
        rows.append(opener.damage(kind, rng))
        _tell(number, len(kinds), rows[-1])
    for number in range(whole):
        rows.append(_repaired_by_command(runs, reference, ("flip", "truncation")[number % 2], rng))
        _tell(number, whole, rows[-1])
    data_rows = _damage_data(runs, data, rng)
    everything = [*rows, *data_rows]
    good = sum(row["good"] for row in everything)
    summary: dict[str, dict[str, int]] = {}
    for row in everything:
        outcomes = summary.setdefault(row["kind"], {})
        outcomes[row["outcome"]] = outcomes.get(row["outcome"], 0) + 1
    print(summary)
    return {
        "checkpoints": rows,
        "data": data_rows,
        "summary": summary,
        "verdict": f"{good} of {len(everything)}",
        "passed": good == len(everything),
    }


def _tell(number: int, count: int, row: dict[str, Any]) -> None:
    if not row["good"] or number % 20 == 0 or number == count - 1:
        print(f"  {number + 1}/{count} {row}", flush=True)


class _Opener:
    """Opens damaged copies of a run's checkpoints as a run does.

    Args:
      runs: the work folder.
      reference: MODEL_DIR of a finished run.

    Raises:
      RuntimeError: an undamaged copy cannot be restored.
    """

    def __init__(self, runs: Runs, reference: Path):
        bindings = [
            flag.split(".", 1)[1].replace("=", " = ", 1) for flag in runs.flags(reference)[1:]
        ]
        config = loading.load([runs.flags(reference)[0].split("=", 1)[1]], bindings, "Train")
        dataset = PreparedDataset.load(config.data_dir)
        objective = config.objective.build(dataset.vocabulary_size, jax.numpy.float32)
        optimizer = config.optimizer.build(config.loop.train_steps)
        self._abstract = states.abstract_state(objective, optimizer, meshes.make_mesh(config.mesh))
        self._digest = dataset.digest
        self._folder = reference / "checkpoints"
        names = (path.name for path in self._folder.iterdir())
        self._old, self._new = sorted(int(name) for name in names if name.isdigit())[-2:]
        self._expected = {step: bits(self._folder / str(step)) for step in (self._old, self._new)}
        self._copy = runs.path("damage")
        with self._copied():
            if self._open() != self._new:
                raise RuntimeError("An undamaged copy cannot be restored.")

    @contextlib.contextmanager
    def _copied(self) -> Iterator[Path]:
        remove_folder(self._copy)
        for step in (self._old, self._new):
            copy_folder(self._folder / str(step), self._copy / "checkpoints" / str(step))
        yield self._copy / "checkpoints" / str(self._new)
        remove_folder(self._copy)

    def _open(self) -> int:
        """Restores the copy and returns the step; RuntimeError unless its bits are as saved."""
        checkpoints = Checkpoints(self._copy, keep=3)
        try:
            checkpoints.check(self._abstract, self._digest)
            restored = checkpoints.restore_newest(self._abstract)
        finally:
            checkpoints.close()
        assert restored is not None
        step = int(restored[0].step)
        leaves, _ = jax.tree_util.tree_flatten_with_path(jax.device_get(restored[0]))
        found = {
            jax.tree_util.keystr(path, simple=True, separator="."): leaf.tobytes()
            for path, leaf in leaves
        }
        if found != {name: content for name, (_, content) in self._expected[step].items()}:
            raise RuntimeError(f"Step {step} is restored with other bits.")
        return step

    def damage(self, kind: str, rng: random.Random) -> dict[str, Any]:
        """Damages one file of the newest checkpoint; returns the damage and the outcome."""
        with self._copied() as newest:
            if kind.startswith("unsealed"):
                (newest / "files.json").unlink()
            where = _damage(newest, kind, rng)
            reason = self._copy / "damaged_checkpoints" / str(self._new) / "reason.txt"
            try:
                step = self._open()
                if step == self._old and reason.is_file():
                    outcome = "set aside"
                else:
                    outcome = "the same bits" if step == self._new else "no reason"
            except Exception as error:
                outcome = f"{type(error).__name__}: {error}"[:300]
            good = outcome == "set aside" or (kind.startswith("unsealed") and "same" in outcome)
            said = reason.read_text()[:300] if reason.is_file() else ""
        return {"kind": kind, **where, "outcome": outcome, "reason": said, "good": good}


def _damage(folder: Path, kind: str, rng: random.Random) -> dict[str, Any]:
    """Changes a byte of a random file or truncates it; returns the file and the position."""
    sizes = {path: path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    files = [path for path, size in sizes.items() if size and path.name != _LOCK]
    # Half of the time uniform over files, so that small ones are hit too, else over bytes.
    weights = None if rng.random() < 0.5 else [sizes[path] for path in files]
    (path,) = rng.choices(files, weights)
    place = rng.randrange(sizes[path])
    content, changed = bytearray(path.read_bytes()), 0
    if kind.endswith("truncation"):
        del content[place:]
    else:
        changed = rng.randrange(1, 256)
        content[place] ^= changed
    path.write_bytes(content)
    return {"file": str(path.relative_to(folder)), "place": place, "xor": changed}


def _repaired_by_command(
    runs: Runs, reference: Path, kind: str, rng: random.Random
) -> dict[str, Any]:
    """Damages a finished run and reruns its command; returns the damage and the outcome."""
    name = "damage-whole"
    runs.forget(name)
    copy_folder(reference, runs.path(name))
    where = _damage(runs.path(name) / "checkpoints" / str(runs.steps), kind, rng)
    command = runs.start(name)
    if status := command.end():
        outcome = f"ended with {status}: {command.said()[-300:]}"
    else:
        wrong = differences(runs.folder(name), reference)
        outcome = "repaired" if wrong == ["left over: damaged_checkpoints"] else str(wrong)
    return {"kind": f"{kind}, command", **where, "outcome": outcome, "good": outcome == "repaired"}


def _damage_data(runs: Runs, count: int, rng: random.Random) -> list[dict[str, Any]]:
    """Changes bytes and truncates files of the prepared data; each must be detected."""
    rows = []
    copy = runs.path("damage-data")
    for number in range(count + count // 5):
        remove_folder(copy)
        copy_folder(runs.data_dir, copy)
        kind = "data flip" if number < count else "data truncation"
        where = _damage(copy, kind, rng)
        try:
            PreparedDataset.load(copy).verify()
            outcome = "not noticed"
        except PreparedDataError as error:
            named = where["file"] in str(error) and "prepare" in str(error)
            outcome = "noticed" if named else f"noticed, but says: {error}"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"[:300]
        rows.append({"kind": kind, **where, "outcome": outcome, "good": outcome == "noticed"})
        _tell(number, count + count // 5, rows[-1])
    remove_folder(copy)
    return rows
