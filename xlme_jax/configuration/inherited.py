"""Bindings that follow from checkpoints: how the encoders of a run were trained before.

With them the configuration of such a run says all by itself: it can be run again without changes,
and loaded without those checkpoints.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gin

from xlme_jax.configuration.registry import gin_name
from xlme_jax.configuration.values import ConfigError
from xlme_jax.data.prepared.format import VOCABULARY_FILE
from xlme_jax.objectives.system_config import SystemConfig
from xlme_jax.storage.paths import as_path

# {(scope, gin name): {field: value}}; macros have the scope NAME, gin name "macro", field "value".
_Bound = Mapping[tuple[str, str], Mapping[str, Any]]


def bindings(name: str, trained: Callable[[str, str], Any]) -> str:
    """Returns the text of bindings of `pretrained`, for a run that goes on with an encoder.

    The encoder's configuration is read from the checkpoint INIT_FROM, and that of a teacher from
    `Teacher.checkpoint`, unless `pretrained` is bound. The path of the vocabulary of INIT_FROM is
    added, unless VOCABULARY is bound.

    Args:
      name: gin name of the objective, a `TunedConfig`.
      trained: function of the path of a run and of the field that names it, which returns the run's
        configuration. It makes gin forget what it has parsed.

    Raises:
      ConfigError: a path is missing, or a configuration cannot be read.
    """
    bound = {
        (scope, selector.split(".")[-1]): fields
        for (scope, selector), fields in gin.config._CONFIG.items()
    }
    lines: list[str] = []
    if "pretrained" not in bound["", name]:
        lines += _of_init_from(name, bound, trained)
    for (scope, selector), fields in bound.items():
        if selector == "Teacher" and "teacher" not in bound["", name]:
            raise ConfigError(f"Nothing reads {selector}: set --gin.{name}.teacher=@{selector}().")
        if selector == "Teacher" and "checkpoint" in fields and "pretrained" not in fields:
            lines += _of_teacher(scope, fields["checkpoint"], trained)
    return "\n".join(lines)


def _of_init_from(name: str, bound: _Bound, trained: Callable[[str, str], Any]) -> list[str]:
    """Returns the bindings that follow from INIT_FROM; see `bindings`."""
    source, vocabulary = (
        bound.get((macro, "macro"), {}).get("value") for macro in ("INIT_FROM", "VOCABULARY")
    )
    if not isinstance(source, str):
        raise ConfigError(
            f"{name} needs an encoder to start from: give the MODEL_DIR of its pre-training, "
            "--gin.INIT_FROM=\"'runs/xlme_base'\"."
        )
    run = trained(source, "INIT_FROM")
    lines = _binding(f"{name}.pretrained", run.objective.pretraining, "pretrained")
    if vocabulary is None:
        lines.append(f"VOCABULARY = {str(as_path(run.data_dir) / VOCABULARY_FILE)!r}")
    return lines


def _of_teacher(scope: str, source: Any, trained: Callable[[str, str], Any]) -> list[str]:
    """Returns the bindings that follow from the checkpoint `source` of a teacher; see `bindings`.

    A teacher that `Contrast` trained has its layer and pooling, but no teacher of its own.
    """
    from xlme_jax.objectives.pair_contrast import ContrastConfig

    teacher, inner = ("/".join(filter(None, (scope, part))) for part in ("Teacher", "teacher"))
    if not isinstance(source, str):
        raise ConfigError(
            f"{teacher}.checkpoint = {source!r}: give the path of a run, of a checkpoint or of a "
            "Hugging Face folder."
        )
    objective = trained(source, f"{teacher}.checkpoint").objective
    is_contrast = isinstance(objective, ContrastConfig)
    of_vectors = objective.held_out() if is_contrast else objective.pretraining
    return _binding(f"{teacher}.pretrained", of_vectors, inner)


def _binding(name: str, objective: SystemConfig, scope: str) -> list[str]:
    """Returns bindings of a field to an objective whose own fields are bound in a scope."""
    reference = f"{name} = @{scope}/{gin_name(type(objective))}()"
    return [reference, *_field_bindings(objective, scope)]


def _field_bindings(config: Any, scope: str) -> Iterator[str]:
    """Yields bindings of a dataclass's fields in a scope; nested dataclasses get nested scopes."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _field_bindings(value, f"{scope}/{field.name}")
            text = f"@{scope}/{field.name}/{gin_name(type(value))}()"
        else:
            text = repr(value)
        yield f"{scope}/{gin_name(type(config))}.{field.name} = {text}"
