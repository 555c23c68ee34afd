"""Flags that select raw text, shared by the commands that read it.

The flags of each source come from the table `xlme_jax.preparation.sources`.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from absl import flags

from xlme_jax.preparation import sources
from xlme_jax.preparation.prepare_config import PrepareConfig

flags.DEFINE_list(
    "tasks",
    ["cldr"],
    f"Text to read: {sources.describe()}, labelled sets such as xnli, panx_translate_train or "
    "tfds_xnli (see tasks/labelled.py), or any SeqIO tasks and mixtures by name.",
)
flags.DEFINE_alias("task", "tasks")
flags.DEFINE_string(
    "eval_dir", None, "Folder with a folder for each labelled set (default: $EVAL_DIR)."
)
flags.DEFINE_list("languages", [], "Languages to use (default: all; cldr: en,ru,zh).")
flags.DEFINE_string(
    "validation",
    "",
    f"Part of {', '.join(sources.with_held_out())} held out of training: every:20 (every 20th "
    "unit), count:1000 (so many of each corpus, evenly spread), ids:FILE (unit ids of multi-way "
    "folders, verses of Bibles) or folder:PATH (text of the same layout); empty: nothing.",
)
flags.DEFINE_list("modules", [], "Python modules that register further SeqIO tasks.")

for _flag in sources.flags():
    if _flag.kind == "list":
        flags.DEFINE_list(_flag.name, _flag.default, _flag.help)
    elif _flag.kind == "integer":
        flags.DEFINE_integer(_flag.name, _flag.default, _flag.help, _flag.minimum)
    elif _flag.kind == "float":
        flags.DEFINE_float(_flag.name, _flag.default, _flag.help)
    else:
        flags.DEFINE_string(_flag.name, _flag.default, _flag.help)

_FIELDS = tuple(field.name for field in dataclasses.fields(PrepareConfig))


def configuration(**fixed: Any) -> PrepareConfig:
    """Returns the configuration from --gin_file and the flags, which override it, or flags alone.

    Args:
      **fixed: Fields of `PrepareConfig` that override gin file and flags.

    Raises:
      ValueError: A value is invalid.
    """
    parsed = flags.FLAGS
    if parsed.gin_file:
        config = _from_gin(fixed)
    else:
        values = parsed.flag_values_dict()
        fields = {name: values[name] for name in _FIELDS if name in values}
        fields["eval_dir"] = fields["eval_dir"] or os.environ.get("EVAL_DIR")
        config = PrepareConfig(**{**fields, **sources.from_flags(values, os.environ), **fixed})
    sources.check(config)
    return config


def given() -> list[str]:
    """Returns the flags of this module that were given, as words of a command line."""
    names = ("tasks", "eval_dir", "languages", "validation", "modules")
    entries = [flags.FLAGS[name] for name in (*names, *(flag.name for flag in sources.flags()))]
    return [entry.serialize() for entry in entries if entry.present]


def _from_gin(fixed: dict[str, Any]) -> PrepareConfig:
    """Returns the configuration from --gin_file, with the flags that were given and `fixed`."""
    from xlme_jax.configuration import loading

    parsed = flags.FLAGS
    config = loading.load(parsed.gin_file, parsed.gin_bindings, "Prepare")
    named = {
        name: parsed[name].value for name in _FIELDS if name in parsed and parsed[name].present
    }
    present = [flag.name for flag in sources.flags() if parsed[flag.name].present]
    options = sources.arguments({name: parsed[name].value for name in present}).get("options", ())
    merged = {**dict(config.options), **dict(options)}
    return dataclasses.replace(config, **{**named, "options": merged, **fixed})
