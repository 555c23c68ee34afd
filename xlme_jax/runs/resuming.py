"""Compares a run with the run that its folder holds, before anything is compiled.

A run resumes from the newest checkpoint of MODEL_DIR. If the checkpoint was trained with other
values of fields that determine the weights, the result would be neither run, so resuming is
refused. These may change: where and how the same computation is done, what is logged, evaluated and
kept, and the number of steps, with which the learning rate changes. All of these are reported but
for what is logged, evaluated and kept.
"""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

import jax

from xlme_jax.checkpoints.saved import (
    FOLDER,
    RunRecord,
    checkpoint_of,
    newest_record,
    weights_digest,
)
from xlme_jax.configuration import loading
from xlme_jax.configuration.differences import Difference, Effect, differences
from xlme_jax.configuration.registry import gin_name
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.configuration.values import ConfigError
from xlme_jax.data.batches.streams import PairStream, Stream
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.runs import parts
from xlme_jax.storage.paths import as_path
from xlme_jax.training import manifest

_log = logging.getLogger(__name__)
_ALLOW = (
    "To resume that run, set these values back; for a new run, choose another MODEL_DIR. "
    "--resume_with_changes (in Python api.train(config, resume_with_changes=True)) continues from "
    "that checkpoint with the values of now."
)


def check(
    config: TrainConfig,
    dataset: PreparedDataset,
    streams: Sequence[Stream],
    train_steps: int,
    with_changes: bool,
) -> dict[str, str]:
    """Compares a run with the newest checkpoint in its folder, and logs how they differ.

    Args:
      config: configuration of the run.
      dataset: data of the run.
      streams: the streams that the run's objective reads.
      train_steps: steps of the run in all.
      with_changes: whether the run may resume although the differences affect the weights.

    Returns:
      {name: "BEFORE -> NOW"} of what differs, for the manifest; {} if nothing can be compared:
      without a checkpoint, or with one of other data or without a readable configuration.

    Raises:
      ValueError: the checkpoint has other values of what determines the weights, or more steps
        than this run has in all, and `with_changes` is False; or its optimizer has moments that
        this run's cannot continue from. The message names what differs, and the remedy.
    """
    folder = as_path(config.model_dir)
    newest = newest_record(folder)
    # A checkpoint of other data is refused later, by `Checkpoints.check`.
    if newest is None or newest[1].dataset != dataset.digest:
        return {}
    step, record = newest
    where = f"MODEL_DIR = {str(folder)!r} has the checkpoint of step {step:,}"
    if not record.config:
        _log.warning("%s without a configuration: nothing shows whether it is of this run.", where)
        return {}
    recorded = _configuration(record, folder / FOLDER / str(step), with_changes, where)
    if recorded is None:
        return {}
    _check_moments(recorded, config, f"{where} of an optimizer with another state")
    _check_sources(recorded, config, folder, where)
    names = [stream.name for stream in streams]
    differing = differences(
        _from_same(recorded, config, record), config, names, jax.default_backend()
    )
    former = parts.total_steps(recorded, dataset, names)
    changes = [difference for difference in differing if difference.effect is Effect.WEIGHTS]
    _refuse_or_report(where, step, train_steps, former, changes, with_changes)
    for difference in differing:
        if difference.effect is Effect.ROUNDING:
            _log.info("%s. Results are equal but for rounding.", difference)
    if note := schedule_change((recorded, former), (config, train_steps), step):
        _log.warning("%s", note)
    versions = _changed_versions(record)
    if versions:
        listed = ", ".join(f"{name} {change}" for name, change in versions.items())
        _log.warning("%s, saved with other versions (%s): bits may differ.", where, listed)
    text = {difference.name: f"{difference.before} -> {difference.now}" for difference in differing}
    text |= {f"version of {name}": change for name, change in versions.items()}
    if former != train_steps:
        text["TRAIN_STEPS"] = f"{former} -> {train_steps}"
    return text


def _changed_versions(record: RunRecord) -> dict[str, str]:
    """Returns {package: "BEFORE -> NOW"} of packages with another version than the checkpoint."""
    before = record.manifest.get("packages", {})
    now = manifest.versions()
    return {
        name: f"{before[name]} -> {version}"
        for name, version in now.items()
        if before.get(name, version) != version
    }


def _configuration(
    record: RunRecord, source: Path, with_changes: bool, where: str
) -> TrainConfig | None:
    """Returns the configuration of a checkpoint.

    Args:
      record: record of the checkpoint.
      source: the checkpoint, for errors.
      with_changes: whether an unreadable configuration is allowed; then None is returned.
      where: beginning of messages.

    Raises:
      ValueError: the configuration is unreadable, and `with_changes` is False.
    """
    try:
        config: TrainConfig = loading.load_text(record.config, "Train", str(source))
    except ConfigError as error:
        problem = f"{where}, whose configuration this version cannot read: {error}"
        if not with_changes:
            raise ValueError(f"{problem}\n{_ALLOW}") from error
        _log.warning("%s Going on with the configuration of now.", problem)
        return None
    return config


def _from_same(before: TrainConfig, now: TrainConfig, record: RunRecord) -> TrainConfig:
    """Returns `before` with the INIT_FROM of `now`, if both name the same weights; else `before`.

    On another machine, the weights that a run started from may be elsewhere, as a copy, or
    converted again.

    Args:
      before: the configuration of the checkpoint.
      now: the configuration of the run that resumes.
      record: the checkpoint's record, with the origin of its weights.
    """
    source = now.loop.init_from
    if source is None or before.loop.init_from is None:
        return before
    taken = record.origin_digest or _digest(record.origin or before.loop.init_from)
    if str(as_path(source).absolute()) != record.origin and _digest(source) != (taken or None):
        return before
    return dataclasses.replace(before, loop=dataclasses.replace(before.loop, init_from=source))


def _check_sources(before: TrainConfig, now: TrainConfig, folder: Path, where: str) -> None:
    """Raises ValueError, which begins with `where`, if `now` names other runs to read from.

    The checkpoint carries the weights of those runs; others would not be read.
    """
    old, new = before.objective.sources(), now.objective.sources()
    if changed := [name for name in {**old, **new} if old.get(name) != new.get(name)]:
        listed = ", ".join(f"{name}: {old.get(name)!r}, now {new.get(name)!r}" for name in changed)
        raise ValueError(
            f"{where}, which carries weights of another run: {listed}. Resume it with "
            f"--gin_file={folder / 'config.gin'}; or begin a run in another MODEL_DIR with the "
            "checkpoint as INIT_FROM."
        )


def _digest(source: str) -> str:
    """Returns the digest of the weights in a MODEL_DIR or checkpoint; "" if none can be read."""
    try:
        return weights_digest(checkpoint_of(as_path(source)))
    except (ValueError, OSError):
        return ""


def _check_moments(before: TrainConfig, now: TrainConfig, problem: str) -> None:
    """Raises ValueError, which begins with `problem`, if moments of another form are needed now."""
    old, new = before.optimizer, now.optimizer
    if old.update_rule.moments != new.update_rule.moments:
        name, values = "update_rule", [f"@{gin_name(type(x.update_rule))}()" for x in (old, new)]
    elif old.decay_all != new.decay_all:
        name, values = "decay_all", [str(x.decay_all) for x in (old, new)]
    else:
        return
    raise ValueError(
        f"{problem}: Optimizer.{name}: {values[0]} there, {values[1]} now. Set "
        f"Optimizer.{name} = {values[0]}; or begin a run in another MODEL_DIR with the "
        "checkpoint as INIT_FROM, not as BRANCH_FROM, which takes its weights alone."
    )


def _refuse_or_report(
    where: str,
    step: int,
    train_steps: int,
    former: int,
    changes: Sequence[Difference],
    with_changes: bool,
) -> None:
    """Reports differences that affect the weights.

    Args:
      where: beginning of the message, which names the checkpoint.
      step: step of the checkpoint.
      train_steps: steps of the run that resumes.
      former: steps of the checkpoint's run in all.
      changes: the differences that affect the weights.
      with_changes: whether they are allowed; then they are logged.

    Raises:
      ValueError: there are differences, or the checkpoint has more steps than the run in all, and
        `with_changes` is False.
    """
    lines = [f"  {difference}" for difference in changes]
    if step > train_steps:
        lines.append(f"  TRAIN_STEPS: {former} there, {train_steps} now, which are behind it")
    if not lines:
        return
    problem = "\n".join([f"{where}, of a run with another configuration:", *lines])
    if not with_changes:
        raise ValueError(f"{problem}\n{_ALLOW}")
    _log.warning("%s\nGoing on with the values of now.", problem)


def schedule_change(
    before: tuple[TrainConfig, int], now: tuple[TrainConfig, int], step: int
) -> str:
    """Returns a text on what changes with the number of steps of a resumed run; "" for nothing.

    Args:
      before: configuration of the checkpoint's run, and its number of steps in all.
      now: configuration of the run that resumes, and its number of steps in all.
      step: step of the checkpoint.
    """
    (old, old_steps), (new, new_steps) = before, now
    if step >= new_steps:
        return ""
    old_rate = old.optimizer.learning_rates(old_steps)
    rate = float(new.optimizer.learning_rates(new_steps)(step))
    former = float(old_rate(min(step, old_steps)))  # The rate is 0 after the end of a run.
    warmups = old.optimizer.warmup(old_steps), new.optimizer.warmup(new_steps)
    if (former, old_steps, warmups[0]) == (rate, new_steps, warmups[1]):
        return ""
    sentences = [
        f"The learning rate follows another schedule from here on (TRAIN_STEPS = {new_steps:,}, "
        f"and {old_steps:,} in the run that saved step {step:,}): it was "
        f"{float(old_rate(step - 1)):.3g} at step {step:,}, and is {rate:.3g} at step {step + 1:,} "
        f"({former:.3g} by the former schedule); the warm-up is {warmups[1]:,} steps long "
        f"({warmups[0]:,} before). Another MODEL_DIR begins anew."
    ]
    sentences += [
        f"The {stream.robust.updates} updates of the sampling weights of stream {stream.name!r} "
        f"are spread over {new_steps:,} steps, not {old_steps:,}."
        for stream in new.streams
        if isinstance(stream, PairStream) and stream.robust is not None and old_steps != new_steps
    ]
    return " ".join(sentences)
