"""Registry of the dataclasses that gin configures, and their part of --help."""

import dataclasses
import inspect
import typing
from collections.abc import Callable
from typing import Any

import gin

from xlme_jax.configuration.best_config import BestConfig
from xlme_jax.configuration.sweep_config import SweepConfig
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.configuration.values import ConfigError, convert, type_name
from xlme_jax.data.batches.robust_sampling import RobustSampling
from xlme_jax.data.batches.streams import Stream
from xlme_jax.data.cldr.corpus import CldrConfig
from xlme_jax.evaluation.alignment import WordAlignment
from xlme_jax.evaluation.bucc import Bucc
from xlme_jax.evaluation.finetuned import TaskEvaluation
from xlme_jax.evaluation.held_out_losses import HeldOut
from xlme_jax.evaluation.held_out_translation import HeldOutTranslation
from xlme_jax.evaluation.retrieval import RetrievalProbe
from xlme_jax.evaluation.tatoeba import Tatoeba
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives import SYSTEMS
from xlme_jax.preparation.config import CldrCorpus, PrepareConfig
from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.mesh import MeshConfig
from xlme_jax.training.optimizer import OptimizerConfig
from xlme_jax.training.stop_rule import StopRule
from xlme_jax.training.trackers import TensorBoard, WandB

# Defined by every configuration, so that every run can override them.
MACROS = ("MODEL_DIR", "DATA_DIR", "INIT_FROM", "TRAIN_STEPS", "CHECKPOINT_EVERY", "SEED")


CONFIGURABLES: dict[str, type] = {
    "Train": TrainConfig,
    "Loop": LoopConfig,
    "Optimizer": OptimizerConfig,
    "StopRule": StopRule,
    "Best": BestConfig,
    "TensorBoard": TensorBoard,
    "WandB": WandB,
    "Mesh": MeshConfig,
    "Stream": Stream,
    "RobustSampling": RobustSampling,
    **SYSTEMS,
    "Encoder": EncoderConfig,
    "RetrievalProbe": RetrievalProbe,
    "HeldOut": HeldOut,
    "Tatoeba": Tatoeba,
    "WordAlignment": WordAlignment,
    "Bucc": Bucc,
    "TaskEvaluation": TaskEvaluation,
    "HeldOutTranslation": HeldOutTranslation,
    "Prepare": PrepareConfig,
    "Sweep": SweepConfig,
    "CldrCorpus": CldrCorpus,
    "Cldr": CldrConfig,
}


_in_gin: set[str] = set()


def add(name: str, cls: type) -> None:
    """Makes a dataclass configurable by gin, as `NAME.field = value` and `@NAME()`.

    A package outside this one calls it for its own system; its gin file then begins with
    `import my_package.my_system`, which checkpoints keep with their configuration.

    Args:
      name: name in gin files.
      cls: a dataclass. A system needs the methods `build(vocab_size, dtype)` -> `Objective`,
        `with_dropout(rate)` and `held_out()`.

    Raises:
      ValueError: another class has this name, or `cls` is not a dataclass.
    """
    if not dataclasses.is_dataclass(cls):
        raise ValueError(f"{cls!r} is not a dataclass; only dataclasses are configurable.")
    if (known := CONFIGURABLES.setdefault(name, cls)) is not cls:
        raise ValueError(f"{name} is the gin name of {known.__qualname__}; choose another name.")
    if name not in _in_gin:
        gin.external_configurable(checked(name, cls), name=name, module="xlme_jax")
        _in_gin.add(name)


def gin_name(cls: type) -> str:
    """Returns the name of a dataclass in gin files; of one that gin does not know, its own."""
    return next((name for name, known in CONFIGURABLES.items() if known is cls), cls.__name__)


def describe() -> str:
    """Returns a list of all configurables with types and defaults, for --help."""
    lines = ["Configurables (--gin.NAME=VALUE, or in a file):"]
    for name, cls in CONFIGURABLES.items():
        lines.append(f"  {name}: {(cls.__doc__ or '').strip().splitlines()[0]}")
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            default = default_of(field)
            lines.append(f"    {name}.{field.name}: {type_name(hints[field.name])}{default}")
    lines.append("Macros that every run defines: " + ", ".join(MACROS))
    return "\n".join(lines)


def default_of(field: dataclasses.Field) -> str:
    """Returns a field's default for --help; " (required)" if it has none."""
    if field.default is not dataclasses.MISSING:
        return f" = {field.default!r}"
    if field.default_factory is not dataclasses.MISSING:
        return f" = {type(field.default_factory()).__name__}(...)"
    return " (required)"


def checked(name: str, cls: type) -> Callable[..., Any]:
    """Wraps `cls` for gin: checks values against the annotations and converts lists to tuples."""
    hints = typing.get_type_hints(cls)

    def make(**values: Any) -> Any:
        scope = gin.current_scope_str()
        where = f"{scope}/{name}" if scope else name  # As in a binding.
        missing = [
            field.name
            for field in dataclasses.fields(cls)
            if default_of(field) == " (required)" and field.name not in values
        ]
        if missing:
            raise ConfigError(f"{where}.{missing[0]} has no value; bind it in a gin file.")
        return cls(
            **{key: convert(f"{where}.{key}", value, hints[key]) for key, value in values.items()}
        )

    make.__name__ = make.__qualname__ = name
    make.__doc__ = cls.__doc__
    parameters = inspect.signature(cls).parameters.values()
    # Keyword-only with defaults: gin knows the names, and missing values are reported above.
    make.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None) for p in parameters]
    )
    return make
