"""Finds and sets the implementation of attention of the encoders in a configuration."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from xlme_jax.model.encoder import EncoderConfig


def automatic_encoders(config: Any) -> dict[str, EncoderConfig]:
    """Returns the encoders in a dataclass with attention = "auto", by the dotted path of fields."""
    if isinstance(config, EncoderConfig):
        return {"": config} if config.attention == "auto" else {}
    encoders = {}
    for name, value in _dataclass_fields(config).items():
        for path, encoder in automatic_encoders(value).items():
            encoders[f"{name}.{path}" if path else name] = encoder
    return encoders


def with_attention(config: Any, chosen: Mapping[str, str]) -> Any:
    """Returns a dataclass with the attention of encoders replaced.

    Args:
      config: the dataclass.
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
    """Returns the fields that are dataclasses; none if `config` is none itself."""
    if not dataclasses.is_dataclass(config):
        return {}
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {name: x for name, x in values.items() if dataclasses.is_dataclass(x)}
