"""The names that gin configures, and the dataclasses behind them, imported when they are used."""

import dataclasses
import inspect
import pkgutil
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

import gin

from xlme_jax.configuration.values import ConfigError, convert
from xlme_jax.evaluation import measures

# Macros that every configuration defines, so that every run can override them.
MACROS = {
    "MODEL_DIR": "Folder of the run: checkpoints, log and report.",
    "DATA_DIR": "Folder of the prepared data set.",
    "INIT_FROM": "Run or checkpoint whose weights begin the run; None: random ones.",
    "BRANCH_FROM": "Checkpoint of a run that this one continues in a folder of its own.",
    "TRAIN_STEPS": "Steps of the run.",
    "CHECKPOINT_EVERY": "Steps between checkpoints.",
    "SEED": "Seed of the weights and the data's order.",
}

# {gin name: "module:class" in this package}. A run imports only the classes that its files name.
SYSTEMS = {
    "XLME": "objectives.xlme:XLMEConfig",
    "XLM": "objectives.xlme:XLMConfig",
    "InfoXLM": "objectives.infoxlm:InfoXLMConfig",
    "VECO": "objectives.veco:VecoConfig",
    "FineTune": "objectives.finetune:FineTuneConfig",
    "Translate": "objectives.translator:TranslateConfig",
    "Contrast": "objectives.pair_contrast:ContrastConfig",
}
# {gin name: "module:class", or a class that another package has added (`add`)}.
CONFIGURABLES: dict[str, str | type] = {
    "Train": "configuration.train_config:TrainConfig",
    "Loop": "training.loop_config:LoopConfig",
    "Optimizer": "training.optimizer:OptimizerConfig",
    "Linear": "training.optimizer:Linear",
    "Constant": "training.schedules:Constant",
    "Cosine": "training.schedules:Cosine",
    "WSD": "training.schedules:WSD",
    "AdamW": "training.optimizer:AdamW",
    "StableAdamW": "training.update_rules:StableAdamW",
    "Muon": "training.update_rules:Muon",
    "StopRule": "training.stop_rule:StopRule",
    "Phase": "configuration.phase_config:PhaseConfig",
    "Best": "configuration.best_config:BestConfig",
    "TensorBoard": "training.trackers:TensorBoard",
    "WandB": "training.trackers:WandB",
    "Mesh": "training.mesh:MeshConfig",
    "TextStream": "data.batches.streams:TextStream",
    "PairStream": "data.batches.streams:PairStream",
    "LabelledStream": "data.batches.streams:LabelledStream",
    "Joint": "data.batches.pair_layouts:Joint",
    "Sides": "data.batches.pair_layouts:Sides",
    "Translations": "data.batches.pair_layouts:Translations",
    "Triplets": "data.batches.triplets:Triplets",
    "RobustSampling": "data.batches.robust_sampling:RobustSampling",
    **SYSTEMS,
    "Teacher": "objectives.pair_contrast:TeacherConfig",
    "XLCo": "objectives.infoxlm:XLCoConfig",
    "Masking": "objectives.masked_lm:MaskingConfig",
    "Encoder": "model.encoder:EncoderConfig",
    "ModernEncoder": "model.modern_encoder:ModernEncoderConfig",
    **measures.EVALUATORS,
    "Prepare": "preparation.prepare_config:PrepareConfig",
    "Sweep": "configuration.sweep_config:SweepConfig",
    "CldrCorpus": "preparation.prepare_config:CldrCorpus",
    "Cldr": "data.cldr_config:CldrConfig",
}
# Names that gin knows.
_in_gin: set[str] = set()


def add(name: str, cls: type) -> None:
    """Makes a dataclass configurable by gin, as `NAME.field = value` and `@NAME()`.

    Another package calls this function for its own system or measure. Its gin files then begin with
    `import my_package.my_system`, and checkpoints keep this line with their configuration. For a
    measure, `evaluate` and `report` need `--trusted_modules=my_package.my_measure`.

    Args:
      name: name in gin files.
      cls: a dataclass. A system derives from `objectives.system_config.SystemConfig`, a measure
        from `evaluation.measure.Measure`.

    Raises:
      ValueError: another class has this name, or `cls` is not a dataclass.
    """
    if not dataclasses.is_dataclass(cls):
        raise ValueError(f"{cls!r} is not a dataclass; only dataclasses are configurable.")
    CONFIGURABLES.setdefault(name, cls)
    if (owner := class_of(name)) is not cls:
        raise ValueError(f"{name} is the gin name of {owner.__qualname__}; choose another name.")
    if CONFIGURABLES[name] is cls:  # A class of another package: this package's are paths.
        measures.add(cls)
    if name not in _in_gin:
        gin.external_configurable(checked(name, cls), name=name, module="xlme_jax")
        _in_gin.add(name)


def add_named(text: str) -> None:
    """Registers with gin every configurable whose name occurs in the text of a gin file."""
    for name in set(re.findall(r"\w+", text)) & CONFIGURABLES.keys():
        add(name, class_of(name))


def class_of(name: str) -> type:
    """Returns the dataclass of a gin name; imports its module if needed."""
    entry = CONFIGURABLES[name]
    if not isinstance(entry, str):
        return entry
    return pkgutil.resolve_name(f"xlme_jax.{entry}")


def classes() -> Mapping[str, type]:
    """Returns {gin name: dataclass} of all configurables; imports all of them."""
    return {name: class_of(name) for name in CONFIGURABLES}


def outside_modules() -> list[str]:
    """Returns the modules of the classes that other packages have added, sorted."""
    return sorted({x.__module__ for x in CONFIGURABLES.values() if isinstance(x, type)})


def gin_name(cls: type) -> str:
    """Returns the name of a dataclass in gin files; the class's name if it is not configurable."""
    path = f"{cls.__module__.removeprefix('xlme_jax.')}:{cls.__qualname__}"
    names = (name for name, entry in CONFIGURABLES.items() if entry in (cls, path))
    return next(names, cls.__name__)


def default_of(field: dataclasses.Field) -> str:
    """Returns a field's default for --help, such as " = 1"; " (required)" if it has none."""
    if field.default is not dataclasses.MISSING:
        return f" = {field.default!r}"
    if field.default_factory is not dataclasses.MISSING:
        return f" = {type(field.default_factory()).__name__}(...)"
    return " (required)"


def checked(name: str, cls: type) -> Callable[..., Any]:
    """Returns a function for gin that builds `cls` from keyword arguments.

    The function checks values against the annotations, and converts lists to tuples. It raises
    ConfigError for a missing or wrong value.

    Args:
      name: name of the dataclass in gin files.
      cls: the dataclass.
    """
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
