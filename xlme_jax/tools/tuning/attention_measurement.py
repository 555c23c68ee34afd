"""Measures the implementations of attention on a device, or recalls an earlier measurement."""

import dataclasses
import hashlib
import inspect
import json
import logging
import types
from collections.abc import Mapping
from typing import Any

import jax

from xlme_jax.ops import attention, attention_blocks, attention_kernel
from xlme_jax.ops import implementations as implementations_of_attention
from xlme_jax.ops.implementations import Heads, Rows, fitting, implementations
from xlme_jax.tools.tuning import attention_candidates, choosing, kept_choices
from xlme_jax.tools.tuning.choosing import Candidate, Choice

_log = logging.getLogger(__name__)


def measure(
    heads: Heads,
    rows: Rows,
    device: Any,
    more: Mapping[str, Candidate] = types.MappingProxyType({}),
) -> Choice:
    """Measures all implementations of attention on a device of this process.

    Implementations are compared without dropout, as in evaluation, and also with dropout if the
    attention has any.

    Args:
      heads: the attention.
      rows: {stream: (rows, length)} to measure on.
      device: the device.
      more: {name: candidate} besides the implementations of the device.
    """
    names = implementations(device.platform, device.device_kind, heads)
    max_length = max(length for _, length in rows.values())
    candidates: dict[str, Candidate] = {
        name: attention_candidates.candidate(name, heads.dropout)
        for name in fitting(names, max_length)
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


def recall_or_measure(heads: Heads, rows: Rows, device: Any) -> Choice:
    """Returns the choice of an earlier measurement of the same code and device.

    Measures and keeps the choice if there is none. The arguments are those of `measure`.
    """

    def now() -> Choice:
        _log.info("Measuring the implementations of attention on %s.", device.device_kind)
        return measure(heads, rows, device)

    return kept_choices.recall({**_versions(device), **_key(heads, rows)}, now)


def _key(heads: Heads, rows: Rows) -> dict[str, Any]:
    """Returns the attention and the rows of a measurement as JSON."""
    return {"heads": dataclasses.asdict(heads), "rows": {n: list(x) for n, x in rows.items()}}


def _versions(device: Any) -> dict[str, str]:
    """Returns the device and the software on which a measurement depends."""
    modules = (
        attention,
        attention_blocks,
        attention_kernel,
        implementations_of_attention,
        attention_candidates,
        choosing,
    )
    code = "".join(inspect.getsource(module) for module in modules)
    return {
        "device": device.device_kind,
        "runtime": device.client.platform_version,
        "jax": jax.__version__,
        "code": hashlib.sha256(code.encode()).hexdigest()[:12],
    }


def tables(measured: Mapping[Heads, Choice], heads: Mapping[str, Heads], rows: Rows) -> str:
    """Returns the measurements as text tables.

    Args:
      measured: {attention: its measurements}.
      heads: {path of an encoder: its attention}.
      rows: the rows that were measured.
    """
    parts = []
    for shape, choice in measured.items():
        encoders = ", ".join(path for path in heads if heads[path] == shape)
        parts.append(f"\n{encoders}: {shape}, rows {dict(rows)}\n{choosing.table(choice)}")
    return "".join(parts)


def to_json(
    measured: Mapping[Heads, Choice], rows: Rows, device: Any, choices: Mapping[str, str]
) -> str:
    """Returns the measurements and the choices as JSON text.

    Args:
      measured: {attention: its measurements}.
      rows: the rows that were measured.
      device: the device that was measured.
      choices: {path of an encoder: name of its implementation}.
    """
    facts = {
        **_versions(device),
        "choices": choices,
        "measurements": [
            {**_key(shape, rows), **kept_choices.to_json(choice)}
            for shape, choice in measured.items()
        ],
    }
    return json.dumps(facts, indent=1) + "\n"
