"""The boundary to gin: which dataclasses it configures, flags, and errors that say what to do.

Everything else takes plain typed values and can be built from Python without gin.
"""

import contextlib
import dataclasses
import difflib
import functools
import inspect
import logging
import os
import re
import sys
import tokenize
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import gin
from absl import app, flags
from absl import logging as absl_logging

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
_MACRO = "gin.macro"
_OUR_PACKAGES = ("xlme_jax", "tasks")
# Holds gin_configs/ beside this package.
_ROOT = Path(__file__).resolve().parent.parent


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
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
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
    gin.clear_config()
    if not files:
        raise ConfigError(
            "No configuration: pass --gin_file=gin_configs/runs/quickstart.gin (or another file "
            "of gin_configs/)."
        )
    for file in files:
        with _explained(file):
            gin.parse_config_file(file)
    defined, scopes = _macros(), _scopes()
    for binding in bindings:
        with _explained(f"--gin.{binding.replace(' = ', '=', 1)}"):
            gin.parse_config(binding)
    for name in sorted(_macros() - defined):
        raise ConfigError(f"--gin.{name}: no file defines it.{_suggestion(name, defined)}")
    scopes |= _check_references()
    for name in sorted(_scopes() - scopes):  # Gin would take them and use them nowhere.
        raise ConfigError(f"--gin.{name}/: no file has this scope.{_suggestion(name, scopes)}")
    return build(root)


def build(root: str) -> Any:
    """Builds a configurable from what gin has been told."""
    try:
        return gin.get_configurable(root)()
    except ValueError as error:
        # Without what gin adds: in which call of which function object.
        raise ConfigError(str(error).split("\n  In call to ")[0]) from error


def operative_config() -> str:
    """All that was read, as a file that can be run again as it is."""
    return gin.config_str(max_line_length=100)


@functools.cache
def register() -> None:
    """Makes dataclasses and configuration files known. Importing this module changes nothing."""
    for name, cls in CONFIGURABLES.items():
        gin.external_configurable(_checked(name, cls), name=name, module="xlme_jax")
    # Finds gin_configs/ in a checkout and in an installed wheel, from any working folder.
    gin.add_config_file_search_path(str(_ROOT))


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
        return f" = {field.default!r}"
    if field.default_factory is not dataclasses.MISSING:
        return f" = {type(field.default_factory()).__name__}(...)"
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

    make.__name__ = make.__qualname__ = name
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
    if hint in (type(None), Ellipsis):
        return "None" if hint is type(None) else "..."
    return str(getattr(hint, "__name__", hint))


@contextlib.contextmanager
def _explained(source: str) -> Iterator[None]:
    """Turns errors of gin's parser into ones that say where, and what was meant."""
    # Gin logs every file that it does not find, beside the error that says so.
    logging.disable(logging.ERROR)
    try:
        yield
    except tokenize.TokenError as error:
        raise ConfigError(f"{source}: a bracket or quote is not closed.") from error
    except SyntaxError as error:
        where = f"{error.filename}, line {error.lineno}" if error.filename else source
        what = str(error.msg).strip().splitlines()[-1].strip().rstrip(".")
        raise ConfigError(
            f"{where}: {what}. Lines are NAME = VALUE, and values Python literals: quote strings, "
            "as in --gin.MODEL_DIR=\"'runs/a'\"."
        ) from error
    except (ValueError, OSError, ImportError) as error:
        what, *location = str(error).splitlines()
        # Gin appends '  In file "x.gin", line 3', innermost first.
        if location and "In file" in location[0]:
            source = location[0].replace("In file", "").replace('"', "").strip()
        raise ConfigError(f"{source}: {what}{_hint(what)}") from error
    finally:
        logging.disable(logging.NOTSET)


def _hint(message: str) -> str:
    """What the wrong name in a message of gin's was meant to be."""
    # The last part of each quoted name: 'XLME' of '@some/scope/xlme_jax.XLME()'.
    names = re.findall(r"'(?:[^']*[@/.])?(\w+)(?:\(\))?'", message)
    if message.startswith("No configurable matching") and names:
        return _suggestion(names[0], CONFIGURABLES)
    if "doesn't have a parameter named" in message:
        fields = dataclasses.fields(CONFIGURABLES[names[0]])
        return _suggestion(names[-1], [field.name for field in fields])
    if message.startswith("Unable to open file: "):
        name = message.removeprefix("Unable to open file: ").split(". Searched")[0]
        files = [str(path.relative_to(_ROOT)) for path in _ROOT.glob("gin_configs/**/*.gin")]
        return _suggestion(name, files)
    return ""


def _check_references() -> set[str]:
    """ConfigError for a macro that nothing defines; returns the scopes that things are built in."""
    macros, scopes = _macros(), set()
    for (scope, selector), values in gin.config._CONFIG.items():
        for name, value in values.items():
            for reference in gin.config.iterate_references([value]):
                wanted, target = reference.config_key
                if target != _MACRO:
                    scopes |= _parts(wanted)
                elif wanted not in macros:
                    field = scope if selector == _MACRO else f"{selector.split('.')[-1]}.{name}"
                    raise ConfigError(
                        f"{field} = %{wanted}: nothing defines {wanted}."
                        f"{_suggestion(wanted, macros)}"
                    )
    return scopes


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]}?" if close else f" Known: {', '.join(sorted(set(known)))}."


def _macros() -> set[str]:
    """Names of the macros that are bound."""
    return {scope for (scope, selector) in gin.config._CONFIG if selector == _MACRO}


def _scopes() -> set[str]:
    """Scopes that something is bound in."""
    bound = (scope for (scope, selector) in gin.config._CONFIG if selector != _MACRO)
    return set().union(*map(_parts, bound))


def _parts(scope: str) -> set[str]:
    return {part for part in scope.split("/") if part}


def run_app(main: Callable[[Sequence[str]], int | None]) -> None:
    """Runs a command: --gin.X=Y understood, and what people can mend said without a traceback."""
    define_flags()

    def guarded(argv: Sequence[str]) -> int | None:
        # Ours alone: Orbax logs dozens of lines a checkpoint. --verbosity=0 shows everybody's.
        if not flags.FLAGS["verbosity"].present:
            absl_logging.set_verbosity(absl_logging.WARNING)
        for package in _OUR_PACKAGES:
            logging.getLogger(package).setLevel(logging.INFO)
        try:
            return main(argv)
        except ValueError as error:
            if os.environ.get("XLME_TRACEBACK") or not _is_ours(error):
                raise
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 1

    app.run(guarded, argv=gin_flags(sys.argv), flags_parser=_parse_flags)


def _is_ours(error: BaseException) -> bool:
    """Whether this project raised it, as it does for what people can mend; else it is a bug."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").split(".")[0] in (*_OUR_PACKAGES, "__main__")


def _parse_flags(argv: Sequence[str]) -> list[str]:
    if any(arg in ("--help", "-h", "--helpfull") for arg in argv):
        print(sys.modules["__main__"].__doc__, "\n")
        print(flags.FLAGS.main_module_help())
        print(flags.FLAGS.module_help(define_flags.__module__))
        print(describe())
        sys.exit(0)
    return flags.FLAGS(argv)
