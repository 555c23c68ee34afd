"""How two configurations differ in what determines the weights of a run.

A field determines the weights unless it is listed here. So a new field that nobody has listed makes
a resumed run stop, rather than train something else.
"""

import dataclasses
import enum
import os
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp

from xlme_jax.configuration.registry import gin_name
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.configuration.values import value_text
from xlme_jax.data.batches.streams import Stream
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.storage.paths import is_bucket
from xlme_jax.training.loop_config import LoopConfig


class Effect(enum.IntEnum):
    """What another value of a field does to the weights after a number of steps.

    Attributes:
      NONE: no bit changes.
      ROUNDING: sums are rounded in another order.
      WEIGHTS: the weights become those of another run.
    """

    NONE = 0
    ROUNDING = 1
    WEIGHTS = 2


# Fields without an effect: they say where a run and its data are, what is measured and kept and
# when, when a run ends early, whether it goes on after updates that are not finite, and how memory
# is used. Other modules compare the data (by its digest), the vocabulary's size (with the data) and
# the number of steps (by the schedule, `runs.resuming`).
_NO_EFFECT: dict[type, frozenset[str]] = {
    TrainConfig: frozenset(
        {
            "model_dir",
            "data_dir",
            "prepare",
            "prepare_if_missing",
            "verify_data",
            "data_cache",
            "data_cache_gb",
            "vocab_size",
            "evaluators",
            "evaluate_epochs",
            "epochs",
            "stop_rules",
            "best",
            "trackers",
        }
    ),
    LoopConfig: frozenset(
        {
            "train_steps",
            "checkpoint_every",
            "keep_checkpoints",
            "keep_every",
            "log_every",
            "evaluate_every",
            "samples_every",
            "alarms_after",
            "profile_steps",
            "max_skipped",
            "on_divergence",
        }
    ),
    EncoderConfig: frozenset({"scan_layers", "remat"}),
}
# Fields that say how the same computation is divided, and which implementation does it.
_ROUNDING: dict[type, frozenset[str]] = {
    TrainConfig: frozenset({"mesh"}),
    LoopConfig: frozenset({"micro_batches", "compiler_options"}),
    EncoderConfig: frozenset({"attention"}),
}


class Difference(NamedTuple):
    """A field that two configurations set to different values.

    Attributes:
      name: name of the field as in gin files, such as "bitext/PairStream.rows". The scope is left
        out if the dataclass occurs once.
      before: value in the first configuration, as text.
      now: value in the second configuration, as text.
      effect: what the difference does to the weights.
    """

    name: str
    before: str
    now: str
    effect: Effect

    def __str__(self) -> str:
        """Returns name and values on one line."""
        return f"{self.name}: {self.before} there, {self.now} now"


def differences(
    before: TrainConfig, now: TrainConfig, streams: Collection[str], platform: str
) -> list[Difference]:
    """Returns how two configurations differ in what has an effect on the weights.

    Values are compared by what they do, defaults included: spelling out a default makes no
    difference, nor does giving the same warm-up in another unit.

    Args:
      before: the configuration of a run.
      now: the configuration to compare with it.
      streams: names of the streams that the objective reads; other streams are not compared.
      platform: platform of the devices ("cpu", "gpu", "tpu"), for `compute_dtype = "auto"`.
    """
    steps = now.loop.train_steps
    old, new = (_normalized(config, streams, platform, steps) for config in (before, now))
    return list(_compared(old, new, "Train", ""))


def effect_of(cls: type, field: str) -> Effect:
    """Returns the effect of a field of a configuration class."""
    if any(field in fields for base, fields in _NO_EFFECT.items() if issubclass(cls, base)):
        return Effect.NONE
    if any(field in fields for base, fields in _ROUNDING.items() if issubclass(cls, base)):
        return Effect.ROUNDING
    return Effect.WEIGHTS


def _normalized(
    config: TrainConfig, streams: Collection[str], platform: str, steps: int
) -> TrainConfig:
    """Returns a configuration with one spelling of what can be written in several ways."""
    dtype = config.compute_dtype
    if dtype == "auto":
        dtype = jnp.dtype(config.dtype_on(platform)).name
    loop = config.loop
    optimizer = dataclasses.replace(
        config.optimizer, warmup_steps=config.optimizer.warmup(steps), warmup_fraction=None
    )
    return dataclasses.replace(
        config,
        compute_dtype=dtype,
        optimizer=optimizer,
        loop=dataclasses.replace(
            loop, init_from=_absolute(loop.init_from), branch_from=_absolute(loop.branch_from)
        ),
        streams=tuple(
            dataclasses.replace(stream, weight=1.0, weights=_factors(stream))
            for stream in config.streams
            if stream.name in streams
        ),
    )


def _factors(stream: Stream) -> tuple[tuple[int, float], ...]:
    """Returns the schedule of a stream's weight; () if it is always 1."""
    points = stream.weight_points()
    return points if any(factor != 1.0 for _, factor in points) else ()


def _absolute(path: str | None) -> str | None:
    """Returns the absolute path without links; a path in a bucket, and None, as they are."""
    return path if path is None or is_bucket(path) else os.path.realpath(path)


def _compared(before: Any, now: Any, name: str, scope: str) -> Iterator[Difference]:
    """Yields the differences between two dataclasses of one type, which gin calls `name`."""
    for field in dataclasses.fields(now):
        effect = effect_of(type(now), field.name)
        if effect is Effect.NONE:
            continue
        old, new = getattr(before, field.name), getattr(now, field.name)
        yield from _compared_values(old, new, name, scope, field.name, effect, now)


def _compared_values(
    old: Any, new: Any, name: str, scope: str, field: str, effect: Effect, owner: Any
) -> Iterator[Difference]:
    """Yields the differences between two values of a field.

    Args:
      old: the value before.
      new: the value now.
      name: gin name of the dataclass that has the field.
      scope: gin scope of this dataclass; "" for none.
      field: name of the field.
      effect: effect of the field on the weights.
      owner: the dataclass that has `new`.
    """
    if _is_config(new) and type(old) is type(new):
        inner = "/".join(filter(None, (scope, _scope_of(owner, field))))
        inner_differences = _compared(old, new, gin_name(type(new)), inner)
        # A part has at most the effect of the whole.
        yield from (x._replace(effect=min(x.effect, effect)) for x in inner_differences)
    elif isinstance(new, tuple) and any(map(_has_name, (*old, *new))):  # Streams, or phases.
        parts = [{part.name: part for part in value} for value in (old, new)]
        for key in sorted({**parts[0], **parts[1]}):
            left, right = (by_name.get(key) for by_name in parts)
            if left is None or right is None or type(left) is not type(right):
                yield Difference(f"{name}.{field}", _text(left), _text(right), effect)
            else:
                inner = "/".join(filter(None, (key, scope)))
                yield from _compared(left, right, gin_name(type(right)), inner)
    elif old != new:
        yield Difference(f"{scope}/{name}.{field}".lstrip("/"), _text(old), _text(new), effect)


def _is_config(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _has_name(value: Any) -> bool:
    return _is_config(value) and any(x.name == "name" for x in dataclasses.fields(value))


def _scope_of(owner: Any, field: str) -> str:
    """Returns the gin scope of a field's value: the field's name if it is needed, else "".

    It is needed if another field of the dataclass has a value of the same type, and for the field
    `pretrained`, whose parts have a scope of their own (`inherited`); that of a teacher is named
    for it.
    """
    if gin_name(type(owner)) == "Teacher":
        return "teacher"
    values = [getattr(owner, f.name) for f in dataclasses.fields(owner)]
    same_type = [value for value in values if type(value) is type(getattr(owner, field))]
    return field if len(same_type) > 1 or field == "pretrained" else ""


def _text(value: Any) -> str:
    """Returns a value as in gin files; dataclasses as references."""
    if _has_name(value):
        return f"@{value.name}/{gin_name(type(value))}()"
    return f"@{gin_name(type(value))}()" if _is_config(value) else value_text(value)
