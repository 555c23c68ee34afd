"""Decides once per run which implementation of attention its encoders use.

Implementations round differently, so the choice must not change within a run: checkpoints record
the choice, and a run that resumes keeps it. If a device has one implementation, as CPUs have,
nothing is measured.
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import jax
import numpy as np
from jax.experimental import multihost_utils

from xlme_jax.checkpoints.saved import recorded_choices
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.data.batches.streams import Stream
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.ops.implementations import Heads, Implementation, Rows, implementations
from xlme_jax.storage.paths import as_path
from xlme_jax.training import mesh as meshes

_log = logging.getLogger(__name__)
FILE = "attention.json"


class Decision(NamedTuple):
    """The attention of a run's encoders.

    Attributes:
      objective: the objective's configuration, with the choices instead of "auto".
      choices: {dotted path of an encoder in `objective`: implementation}, for checkpoints.
      text: the reasons, for people; empty in all processes but the first.
      content: the measurements as JSON; None if nothing was measured.
    """

    objective: Any
    choices: dict[str, str]
    text: str = ""
    content: str | None = None


def decide(
    config: TrainConfig, streams: Sequence[Stream], mesh: jax.sharding.Mesh, dtype: Any
) -> Decision:
    """Chooses the implementation of `Encoder.attention = "auto"` in an objective.

    The first process decides for all. A choice in the newest checkpoint of MODEL_DIR is kept if
    this device has that implementation. Otherwise all implementations of the device are measured,
    or an earlier measurement is taken from the cache, unless there is only one.

    Args:
      config: configuration of the run.
      streams: the streams that the objective reads.
      mesh: the devices.
      dtype: the compute type.
    """
    encoders = automatic_encoders(config.objective)
    if not encoders:
        return Decision(config.objective, {})
    decision = Decision(None, dict.fromkeys(encoders, "xla"))
    if jax.process_index() == 0:
        rows = rows_per_device(streams, mesh, config.loop.micro_batches)
        heads = {path: heads_per_device(x, mesh, dtype) for path, x in encoders.items()}
        recorded = recorded_choices(as_path(config.model_dir))
        decision = _decide(heads, rows, mesh.local_devices[0], recorded)
    choices = _agreed(decision.choices)
    objective = with_attention(config.objective, choices)
    return decision._replace(objective=objective, choices=choices)


def rows_per_device(streams: Sequence[Stream], mesh: jax.sharding.Mesh, micro_batches: int) -> Rows:
    """Returns {stream: (rows that a device processes at once, their length)}."""
    parts = meshes.batch_shards(mesh) * micro_batches
    return {stream.name: (max(stream.rows // parts, 1), stream.length) for stream in streams}


def heads_per_device(encoder: EncoderConfig, mesh: jax.sharding.Mesh, dtype: Any) -> Heads:
    """Returns the heads of an encoder's attention on one device.

    The heads are split over the tensor axis if it divides their number; otherwise each device has
    all of them.
    """
    count = encoder.num_heads
    split = mesh.shape["tensor"]
    return Heads(
        count // split if count % split == 0 else count,
        encoder.hidden_size // encoder.num_heads,
        encoder.relative_bias,
        encoder.attention_dropout,
        np.dtype(dtype).name,
    )


def _decide(
    heads: Mapping[str, Heads], rows: Rows, device: Any, recorded: Mapping[str, str]
) -> Decision:
    """Returns the decision for some encoders, without `objective`, and logs the reasons.

    Args:
      heads: {path of an encoder: its heads on a device}.
      rows: rows of each stream on a device.
      device: the device.
      recorded: the choices in the newest checkpoint, by path; {} for none.
    """
    names = {
        path: implementations(device.platform, device.device_kind, shape)
        for path, shape in heads.items()
    }
    choices: dict[str, str] = {
        path: old for path, old in recorded.items() if old in names.get(path, ())
    }
    reasons = dict.fromkeys(choices, "as in the checkpoint")
    for path in heads.keys() - choices.keys():
        if len(names[path]) == 1:
            choices[path] = names[path][0]
            reasons[path] = f"the only implementation for {device.device_kind}"
    _warn_of_missing(names, recorded, device)
    text, content = "", None
    if undecided := {path: shape for path, shape in heads.items() if path not in choices}:
        # Imported here because runs on CPUs, and runs that resume, measure nothing.
        from xlme_jax.tools.tuning import attention_measurement

        measured = {
            shape: attention_measurement.recall_or_measure(shape, rows, device)
            for shape in dict.fromkeys(undecided.values())
        }
        for path, shape in undecided.items():
            choices[path] = measured[shape].name
            reasons[path] = f"the fastest on {device.device_kind}, see {FILE}"
        text = attention_measurement.tables(measured, heads, rows)
        content = attention_measurement.to_json(measured, rows, device, choices)
    choices = {path: choices[path] for path in heads}
    lines = [f"{path}.attention = {choices[path]!r}: {reasons[path]}" for path in heads]
    for line in lines:
        _log.info("%s.", line)
    return Decision(None, choices, "\n".join(lines) + "\n" + text, content)


def _warn_of_missing(
    names: Mapping[str, Sequence[str]], recorded: Mapping[str, str], device: Any
) -> None:
    """Logs a warning for each choice in `recorded`, the newest checkpoint's, that `names` lacks."""
    for path, implementation_names in names.items():
        if path in recorded and recorded[path] not in implementation_names:
            _log.warning(
                "The checkpoint was trained with %s.attention = %r, which %s does not have: the "
                "run continues with another one, whose sums are rounded differently.",
                path,
                recorded[path],
                device.device_kind,
            )


def _agreed(choices: dict[str, str]) -> dict[str, str]:
    """Returns the choices of the first process, in all processes; they must have the same paths."""
    if jax.process_count() == 1:
        return choices
    implementations = get_args(Implementation)
    indices = np.array([implementations.index(name) for name in choices.values()], np.int32)
    agreed = multihost_utils.broadcast_one_to_all(indices)
    return {path: implementations[int(index)] for path, index in zip(choices, agreed)}


def automatic_encoders(config: Any) -> dict[str, EncoderConfig]:
    """Returns {dotted path of fields: encoder} of a dataclass's encoders with attention = "auto".

    The path of `config` itself is "".
    """
    if isinstance(config, EncoderConfig):
        return {"": config} if config.attention == "auto" else {}
    encoders = {}
    for name, value in _dataclass_fields(config).items():
        for path, encoder in automatic_encoders(value).items():
            encoders[f"{name}.{path}" if path else name] = encoder
    return encoders


def with_attention(config: Any, chosen: Mapping[str, str]) -> Any:
    """Returns a copy of a dataclass with the attention of encoders replaced.

    Args:
      config: the dataclass, which may be an encoder or have encoders at any depth.
      chosen: {path as in `automatic_encoders`: implementation}.
    """
    if isinstance(config, EncoderConfig):
        changes: dict[str, Any] = {"attention": chosen[""]} if "" in chosen else {}
        return dataclasses.replace(config, **changes) if changes else config
    changed = {}
    for name, value in _dataclass_fields(config).items():
        inner = {
            path.removeprefix(name).removeprefix("."): implementation
            for path, implementation in chosen.items()
            if path == name or path.startswith(f"{name}.")
        }
        if inner:
            changed[name] = with_attention(value, inner)
    return dataclasses.replace(config, **changed) if changed else config


def _dataclass_fields(config: Any) -> dict[str, Any]:
    """Returns {name: value} of the fields that are dataclasses; {} if `config` is no dataclass."""
    if not dataclasses.is_dataclass(config):
        return {}
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {name: x for name, x in values.items() if dataclasses.is_dataclass(x)}
