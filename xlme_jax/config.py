"""The boundary to gin: which dataclasses it configures, flags, and errors that say what to do.

Everything else takes plain typed values and can be built from Python without gin.
"""

import contextlib
import dataclasses
import difflib
import functools
import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import gin
from absl import app, flags

from xlme_jax.data.cldr import CldrConfig
from xlme_jax.data.pipeline import Stream
from xlme_jax.data.preparation import CldrCorpus, PrepareConfig
from xlme_jax.evaluation.retrieval import RetrievalProbe
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.xlme import MaskingConfig, XLMConfig, XLMEConfig
from xlme_jax.training.loop import LoopConfig
from xlme_jax.training.mesh import MeshConfig
from xlme_jax.training.optimizer import OptimizerConfig

# Every configuration defines these, so that they can be overridden in every run.
MACROS = ("MODEL_DIR", "DATA_DIR", "TRAIN_STEPS", "CHECKPOINT_EVERY", "SEED")


class ConfigError(ValueError):
    """A configuration that cannot be run, and how to mend it."""


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """A training run.

    Attributes:
      model_dir: where checkpoints, metrics and the report go.
      data_dir: prepared data set (`python -m xlme_jax.prepare`).
      objective: what is learned, `@XLME()` or `@XLM()`.
      streams: data of each kind; those that the objective does not ask for stay unused.
      loop: length, logging, checkpoints.
      optimizer: Adam and its schedule.
      mesh: devices.
      evaluators: what is measured on the way.
      vocab_size: ids of the vocabulary; None takes it from the prepared data.
      compute_dtype: "bfloat16", "float32", or "auto": bfloat16 on accelerators, float32 on CPUs.
      prepare: how the data is made; with `prepare_if_missing` training does so itself.
      prepare_if_missing: for data that can be made anywhere, as the embedded corpus can.
    """

    model_dir: str
    data_dir: str
    objective: Any
    streams: tuple[Stream, ...]
    loop: LoopConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    mesh: MeshConfig = MeshConfig()
    evaluators: tuple[RetrievalProbe, ...] = ()
    vocab_size: int | None = None
    compute_dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    prepare: PrepareConfig | None = None
    prepare_if_missing: bool = False

    def __post_init__(self):
        if not hasattr(self.objective, "build"):
            raise ValueError(
                f"Train.objective = {self.objective!r} is no objective; bind @XLME() or @XLM()."
            )
        names = [stream.name for stream in self.streams]
        if len(set(names)) < len(names):
            raise ValueError(f"Train.streams = {names}: each stream needs a name of its own.")


CONFIGURABLES: dict[str, type] = {
    "Train": TrainConfig,
    "Loop": LoopConfig,
    "Optimizer": OptimizerConfig,
    "Mesh": MeshConfig,
    "Stream": Stream,
    "XLME": XLMEConfig,
    "XLM": XLMConfig,
    "Masking": MaskingConfig,
    "Encoder": EncoderConfig,
    "RetrievalProbe": RetrievalProbe,
    "Prepare": PrepareConfig,
    "CldrCorpus": CldrCorpus,
    "Cldr": CldrConfig,
}


def define_flags() -> None:
    """Defines --gin_file and --gin_bindings; `gin_flags` turns --gin.X=Y into the latter."""
    flags.DEFINE_multi_string("gin_file", [], "Gin configuration file (repeatable).")
    flags.DEFINE_multi_string(
        "gin_bindings", [], "A binding that overrides the files; --gin.NAME=VALUE is short for it."
    )


def gin_flags(argv: Sequence[str]) -> list[str]:
    """Rewrites `--gin.NAME=VALUE` as `--gin_bindings=NAME = VALUE`, as T5X users know it."""
    pattern = re.compile(r"^--gin\.([^=]+)=(.*)$", re.DOTALL)
    return [pattern.sub(r"--gin_bindings=\1 = \2", arg) for arg in argv]


def load(files: Sequence[str], bindings: Sequence[str], root: str) -> Any:
    """Reads files and bindings and builds one configurable.

    Args:
      files: gin files; looked for here and where the package is installed.
      bindings: `NAME = VALUE`, after the files.
      root: name of the configurable to build, say "Train".

    Raises:
      ConfigError: naming the file or field, and what was meant.
    """
    register()
    _add_search_paths()
    gin.clear_config()
    if not files:
        raise ConfigError(
            "No configuration: pass --gin_file=gin_configs/runs/quickstart.gin (or another file "
            "of gin_configs/)."
        )
    with _explained(f"in {', '.join(files)}"):
        gin.parse_config_files_and_bindings(list(files), [], finalize_config=False)
    defined = _macros()
    for binding in bindings:
        with _explained(f"in --gin.{binding.replace(' = ', '=')}"):
            gin.parse_config(binding)
    for name in _macros() - defined:
        raise ConfigError(f"--gin.{name}: no file defines {name}.{_suggestion(name, defined)}")
    return build(root)


def build(root: str) -> Any:
    """Builds a configurable from what gin has been told."""
    with _explained(f"in the configuration of {root}"):
        return gin.get_configurable(root)()


def operative_config() -> str:
    """All that was read, as a file that can be run again as it is."""
    return gin.config_str(max_line_length=100)


@functools.cache
def register() -> None:
    """Makes the dataclasses known to gin. Importing this module changes nothing."""
    for name, cls in CONFIGURABLES.items():
        gin.external_configurable(_checked(name, cls), name=name, module="xlme_jax")


def describe() -> str:
    """Every configurable with types and defaults, for --help."""
    lines = ["Configurables (--gin.NAME=VALUE, or in a file):"]
    for name, cls in CONFIGURABLES.items():
        lines.append(f"  {name}: {(cls.__doc__ or '').strip().splitlines()[0]}")
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            default = _default(field)
            lines.append(f"    {name}.{field.name}: {_type_name(hints[field.name])}{default}")
    lines.append("Macros that every run defines: " + ", ".join(MACROS))
    return "\n".join(lines)


def _default(field: dataclasses.Field) -> str:
    if field.default is not dataclasses.MISSING:
        if dataclasses.is_dataclass(field.default):
            return f" = {type(field.default).__name__}(...)"
        return f" = {field.default!r}"
    if field.default_factory is not dataclasses.MISSING:
        return f" = {field.default_factory()!r}"
    return " (required)"


def _checked(name: str, cls: type) -> Callable[..., Any]:
    """`cls` as gin is to call it: values checked against the annotations, lists made tuples."""
    hints = typing.get_type_hints(cls)

    def make(**values: Any) -> Any:
        missing = [
            field.name
            for field in dataclasses.fields(cls)
            if _default(field) == " (required)" and field.name not in values
        ]
        if missing:
            raise ConfigError(f"{name}.{missing[0]} has no value; bind it in a gin file.")
        return cls(
            **{key: _convert(f"{name}.{key}", value, hints[key]) for key, value in values.items()}
        )

    make.__name__ = name
    make.__doc__ = cls.__doc__
    parameters = inspect.signature(cls).parameters.values()
    # Keyword-only: gin then knows the names without insisting on values of its own accord.
    make.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None) for p in parameters]
    )
    return make


def _convert(where: str, value: Any, hint: Any) -> Any:
    """`value` as `hint` wants it; ConfigError if it is of another type."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        for option in args:
            try:
                return _convert(where, value, option)
            except ConfigError:
                continue
    elif origin is Literal:
        if value in args:
            return value
    elif origin is tuple and isinstance(value, list | tuple):
        if args[-1] is Ellipsis:
            args = (args[0],) * len(value)
        if len(args) == len(value):
            return tuple(
                _convert(f"{where}[{i}]", v, a) for i, (v, a) in enumerate(zip(value, args))
            )
    elif hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    elif isinstance(value, bool) and hint is not bool:
        pass  # bool is an int to Python, but not to a person.
    elif isinstance(hint, type) and isinstance(value, hint):
        return value
    raise ConfigError(f"{where} = {value!r}: expected {_type_name(hint)}.")


def _type_name(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(repr(arg) for arg in args)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_name(arg) for arg in args)
    if origin is not None:
        return f"{origin.__name__}[{', '.join(_type_name(arg) for arg in args)}]"
    return {type(None): "None", Ellipsis: "..."}.get(hint) or getattr(hint, "__name__", str(hint))


@contextlib.contextmanager
def _explained(where: str) -> Iterator[None]:
    """Turns gin's errors into ones that say what was meant."""
    try:
        yield
    except (ValueError, TypeError, SyntaxError, OSError, NameError) as error:
        cause = _root_error(error)
        if isinstance(cause, ConfigError):
            raise cause from None
        raise ConfigError(f"{_first_line(cause)}{_hint(str(cause))} ({where})") from error


def _root_error(error: BaseException) -> BaseException:
    """Gin augments the message of an error in a proxy class: the original stands in its cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _first_line(error: BaseException) -> str:
    return (
        str(error).strip().splitlines()[0].rstrip(".") + "." if str(error).strip() else repr(error)
    )


def _hint(message: str) -> str:
    """What a wrong name in a message of gin's was meant to be."""
    if match := re.search(r"No configurable matching ['\"](?:.*/)?([\w.]+)['\"]", message):
        return _suggestion(match[1], CONFIGURABLES)
    match = re.search(
        r"[Nn]o parameter named ['\"](\w+)['\"]|doesn't have a parameter.*?'(\w+)'", message
    )
    if match:
        fields = [f.name for cls in CONFIGURABLES.values() for f in dataclasses.fields(cls)]
        return _suggestion(match[1] or match[2], fields)
    if "Expected newline" in message or "malformed" in message:
        return " Values are Python literals: quote strings, as in --gin.MODEL_DIR=\"'runs/a'\"."
    return ""


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]}?" if close else f" Known: {', '.join(sorted(set(known)))}."


def _macros() -> set[str]:
    """Names of the macros that are bound."""
    return {scope for (scope, selector) in gin.config._CONFIG if selector == "gin.macro"}


def _add_search_paths() -> None:
    """Finds gin_configs/ in a checkout and in an installed wheel, from any working folder."""
    gin.add_config_file_search_path(str(Path(__file__).resolve().parent.parent))


def run_app(main: Callable[[Sequence[str]], None]) -> None:
    """Runs a command: --gin.X=Y understood, and what people can mend said without a traceback."""
    define_flags()

    def guarded(argv: Sequence[str]) -> int | None:
        try:
            return main(argv)
        except ValueError as error:
            if os.environ.get("XLME_TRACEBACK"):
                raise
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 1

    app.run(guarded, argv=gin_flags(sys.argv), flags_parser=_parse_flags)


def _parse_flags(argv: Sequence[str]) -> list[str]:
    if any(arg in ("--help", "-h", "--helpfull") for arg in argv):
        print(sys.modules["__main__"].__doc__, "\n")
        print(flags.FLAGS.main_module_help())
        print(describe())
        sys.exit(0)
    return flags.FLAGS(argv)
