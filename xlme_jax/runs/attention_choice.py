"""Decides once per run which implementation of attention its encoders use.

Implementations round differently, so the choice must not change within a run: checkpoints record
it, and a run that resumes keeps it. CPUs have one implementation, so nothing is measured there.
"""

import dataclasses
import hashlib
import inspect
import json
import logging
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import jax
import numpy as np
from jax.experimental import multihost_utils

from xlme_jax.checkpoints.saved import recorded_choices
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.data.batches.streams import Stream
from xlme_jax.model.attention_fields import automatic_encoders, with_attention
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.ops import attention, attention_blocks, attention_kernel
from xlme_jax.storage.paths import as_path
from xlme_jax.tools.tuning import attention_candidates, choosing, kept_choices
from xlme_jax.tools.tuning.attention_candidates import Heads
from xlme_jax.tools.tuning.choosing import Candidate, Choice
from xlme_jax.training import mesh as meshes

_log = logging.getLogger(__name__)
FILE = "attention.json"
# {stream: (rows that one device attends over at once, their length)}
Rows = Mapping[str, tuple[int, int]]


class Decision(NamedTuple):
    """The attention of a run's encoders.

    Attributes:
      objective: the objective's configuration, with the choices instead of "auto".
      choices: {path of an encoder in it: implementation}, for checkpoints.
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
    """Replaces `Encoder.attention = "auto"` in the configuration of the objective.

    The first process decides for all. A choice in the newest checkpoint of MODEL_DIR is kept if
    this device has that implementation. Otherwise all implementations are measured, or an earlier
    measurement is taken from the cache.

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
        before = recorded_choices(as_path(config.model_dir))
        decision = _decide(heads, rows, mesh.local_devices[0], before)
    choices = _agreed(decision.choices)
    objective = with_attention(config.objective, choices)
    return decision._replace(objective=objective, choices=choices)


def rows_per_device(streams: Sequence[Stream], mesh: jax.sharding.Mesh, micro_batches: int) -> Rows:
    """Returns the rows of each stream that a device attends over at once, and their length."""
    parts = meshes.batch_shards(mesh) * micro_batches
    return {stream.name: (max(stream.rows // parts, 1), stream.length) for stream in streams}


def heads_per_device(encoder: EncoderConfig, mesh: jax.sharding.Mesh, dtype: Any) -> Heads:
    """Returns the attention of an encoder on one device."""
    count, split = encoder.num_heads, mesh.shape["tensor"]
    return Heads(
        count // split if count % split == 0 else count,
        encoder.hidden_size // encoder.num_heads,
        encoder.relative_bias,
        encoder.attention_dropout,
        np.dtype(dtype).name,
    )


def measure(
    heads: Heads,
    rows: Rows,
    device: Any,
    more: Mapping[str, Candidate] = types.MappingProxyType({}),
) -> Choice:
    """Measures all implementations of attention on a device of this process.

    Each is compared without dropout, as in evaluation, and with the run's dropout if it has any.

    Args:
      heads: the attention.
      rows: the rows to measure on.
      device: the device.
      more: candidates besides those of the device, by name.
    """
    names = attention_candidates.implementations(device.platform, device.device_kind, heads)
    longest = max(length for _, length in rows.values())
    candidates: dict[str, Candidate] = {
        name: attention_candidates.candidate(name, heads.dropout)
        for name in attention_candidates.fitting(names, longest)
    }
    with jax.default_device(device):
        cases = {
            f"{stream} {count} x {length}{', dropout' if has_dropout else ''}": (
                attention_candidates.arguments(heads, count, length, has_dropout)
            )
            for stream, (count, length) in rows.items()
            for has_dropout in ((False, True) if heads.dropout else (False,))
        }
        return choosing.choose(
            "Encoder.attention",
            {**candidates, **more},
            attention_candidates.reference(heads.dropout),
            cases,
            bound(heads, rows),
        )


def bound(heads: Heads, rows: Rows) -> float:
    """Returns the largest deviation of a correct implementation."""
    return choosing.tolerance(heads.dtype, max(count * length for count, length in rows.values()))


def _decide(
    heads: Mapping[str, Heads], rows: Rows, device: Any, before: Mapping[str, str]
) -> Decision:
    """Decides for the encoders with `heads`, given the choices of the checkpoint, and logs why."""
    choices: dict[str, str] = {}
    lines: list[str] = []
    measured: dict[Heads, Choice] = {}
    for path, shape in heads.items():
        names = attention_candidates.implementations(device.platform, device.device_kind, shape)
        old = before.get(path)
        if old in names:
            choices[path], why = old, "as in the checkpoint"
        else:
            if old is not None:
                _log.warning(
                    "The checkpoint was trained with %s.attention = %r, which %s does not have: "
                    "the run continues with another one, whose sums are rounded differently.",
                    *(path, old, device.device_kind),
                )
            if len(names) == 1:
                choices[path], why = names[0], f"the only one for {device.device_kind}"
            else:
                if shape not in measured:
                    measured[shape] = _recalled(shape, rows, device)
                choices[path] = measured[shape].name
                why = f"the fastest on {device.device_kind}, see {FILE}"
        lines.append(f"{path}.attention = {choices[path]!r}: {why}")
        _log.info("%s.", lines[-1])
    tables = []
    for shape, choice in measured.items():
        of = ", ".join(path for path in heads if heads[path] == shape)
        tables.append(f"\n{of}: {shape}, rows {dict(rows)}\n{choosing.table(choice)}")
    content = None
    if measured:
        facts = {
            **_versions(device),
            "choices": choices,
            "measurements": [
                {**_key(shape, rows), **kept_choices.to_json(choice)}
                for shape, choice in measured.items()
            ],
        }
        content = json.dumps(facts, indent=1) + "\n"
    return Decision(None, choices, "\n".join(lines) + "\n" + "".join(tables), content)


def _recalled(heads: Heads, rows: Rows, device: Any) -> Choice:
    """Returns the choice of an earlier measurement, or measures."""

    def now() -> Choice:
        _log.info("Measuring the implementations of attention on %s.", device.device_kind)
        return measure(heads, rows, device)

    return kept_choices.recall({**_versions(device), **_key(heads, rows)}, now)


def _key(heads: Heads, rows: Rows) -> dict[str, Any]:
    return {"heads": dataclasses.asdict(heads), "rows": {n: list(x) for n, x in rows.items()}}


def _versions(device: Any) -> dict[str, str]:
    """Returns the device and the software on which a measurement depends."""
    modules = (attention, attention_kernel, attention_blocks, attention_candidates, choosing)
    code = "".join(inspect.getsource(module) for module in modules)
    return {
        "device": device.device_kind,
        "runtime": device.client.platform_version,
        "jax": jax.__version__,
        "code": hashlib.sha256(code.encode()).hexdigest()[:12],
    }


def _agreed(choices: dict[str, str]) -> dict[str, str]:
    """Returns the choices of the first process."""
    if jax.process_count() == 1:
        return choices
    known = get_args(attention.Implementation)
    indices = np.array([known.index(name) for name in choices.values()], np.int32)
    agreed = multihost_utils.broadcast_one_to_all(indices)
    return {path: known[int(index)] for path, index in zip(choices, agreed)}
