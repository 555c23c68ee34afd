"""What a run's pre-training cost, in floating-point operations (XLM-E Table 4 and Figure 1).

    FLOPs = steps x FLOPs of a step + FLOPs of the run that it took its weights from

FLOPs of a step are what the run wrote into its `model-info.txt`, with the formula (`model.flops`):
matrix products only, a multiply-add counting as two, forward and twice that backward, nothing
recomputed, generator and discriminator both, over full rows with their padding. Fine-tuning does
not count: it costs the same whatever the encoder. Of a run that was begun from a MODEL_DIR the
newest checkpoint there counts, hence name the checkpoint if that run goes on.
"""

import logging
import re
from pathlib import Path

from xlme_jax.checkpoints.checkpoints import FOLDER, latest_checkpoint

_log = logging.getLogger(__name__)
_MAX_RUNS = 100


def pretraining_flops(run: Path | str) -> float | None:
    """Returns the floating-point operations that a run's weights have cost in pre-training.

    Args:
      run: MODEL_DIR, whose newest checkpoint counts, or one of its checkpoints
        (MODEL_DIR/checkpoints/STEP).

    Returns:
      The FLOPs, to the four digits of `model-info.txt`; None if they are not known, because this
      run or one that it goes back to is not there with its files, or is no run of ours. Why is
      logged.
    """
    try:
        return _flops(Path(run), _MAX_RUNS)
    except (ValueError, OSError) as error:
        _log.info("The cost of the pre-training of %s is not known: %s", run, error)
        return None


def _flops(run: Path, runs: int) -> float:
    if not runs:
        raise ValueError("the runs go back to each other in a circle")
    checkpoint = latest_checkpoint(run)
    if not checkpoint.name.isdigit() or checkpoint.parent.name != FOLDER:
        raise ValueError(f"{checkpoint} is not MODEL_DIR/{FOLDER}/STEP")
    model_dir = checkpoint.parent.parent
    config = (model_dir / "config.gin").read_text(encoding="utf-8")
    source = _bound(config, "INIT_FROM") or _bound(config, "Loop.init_from")
    inherited = _flops(Path(source[1:-1]), runs - 1) if source and source[0] in "'\"" else 0.0
    if _bound(config, "Train.objective").endswith("FineTune()"):
        return inherited
    return int(checkpoint.name) * flops_per_step(model_dir) + inherited


def flops_per_step(model_dir: Path | str) -> float:
    """Returns the FLOPs of a train step, as a run has noted them.

    Raises:
      ValueError: `model-info.txt` does not say.
      OSError: it cannot be read.
    """
    return float(_noted(Path(model_dir), r"^FLOPs per step: ([0-9.e+]+);"))


def encoder_parameters(run: Path | str) -> int | None:
    """Returns the parameters of a run's encoder, as the papers count them; None if not known.

    Args:
      run: MODEL_DIR, or one of its checkpoints.
    """
    try:
        model_dir = latest_checkpoint(Path(run)).parent.parent
        found = _noted(model_dir, r"^Parameters: .* in all, ([0-9,]+) in the (?:exported )?encoder")
    except (ValueError, OSError):
        return None
    return int(found.replace(",", ""))


def _noted(model_dir: Path, pattern: str) -> str:
    """What a run's `model-info.txt` says."""
    path = model_dir / "model-info.txt"
    found = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    if not found:
        raise ValueError(f"{path} has no line like {pattern!r}")
    return found.group(1)


def _bound(config: str, name: str) -> str:
    """What a name is bound to in an operative configuration; empty if it is not."""
    # Long values stand on a line of their own, after a backslash.
    found = re.search(rf"^{re.escape(name)} = (?:\\\n\s*)?(.*)$", config, re.M)
    return found.group(1).strip() if found else ""
