"""The boundary to gin: which dataclasses it configures, flags, and errors that say what to do.

Everything else takes plain typed values and can be built from Python without gin.
"""

import contextlib
import dataclasses
import difflib
import errno
import functools
import inspect
import io
import itertools
import logging
import os
import re
import sys
import tokenize
import traceback
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import gin
from absl import app, flags
from absl import logging as absl_logging

from xlme_jax.config_values import MAX_SHOWN, ConfigError, convert, shown, type_name
from xlme_jax.data.cldr import CldrConfig
from xlme_jax.data.pipeline import Stream
from xlme_jax.data.preparation import CldrCorpus, PrepareConfig
from xlme_jax.data.prepared_format import VOCABULARY_FILE
from xlme_jax.evaluation.alignment import WordAlignment
from xlme_jax.evaluation.bucc import Bucc
from xlme_jax.evaluation.finetuned import TaskEvaluation
from xlme_jax.evaluation.held_out import HeldOut
from xlme_jax.evaluation.retrieval import RetrievalProbe
from xlme_jax.evaluation.tatoeba import Tatoeba
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.finetune import FineTuneConfig
from xlme_jax.objectives.infoxlm import InfoXLMConfig, XLCoConfig
from xlme_jax.objectives.veco import VecoConfig
from xlme_jax.objectives.xlme import MaskingConfig, XLMConfig, XLMEConfig
from xlme_jax.sweeping import SweepConfig
from xlme_jax.train_config import TrainConfig
from xlme_jax.training.checkpoints import read_record
from xlme_jax.training.loop import LoopConfig
from xlme_jax.training.mesh import MeshConfig
from xlme_jax.training.optimizer import OptimizerConfig
from xlme_jax.training.stop_rule import StopRule

# Every configuration defines these, so that they can be overridden in every run.
MACROS = ("MODEL_DIR", "DATA_DIR", "TRAIN_STEPS", "CHECKPOINT_EVERY", "SEED")
_MACRO = "gin.macro"
_OUR_PACKAGES = ("xlme_jax", "tasks")
# No configuration comes near these bounds; a damaged or malicious one is to end with an error.
_MAX_BYTES = 256 << 10  # of all files together, each as often as it is included
_MAX_STRINGS = 1000  # side by side: gin's time is quadratic in them
_MAX_VALUES = 100_000  # that macros and references expand to
# Holds gin_configs/ beside this package.
_ROOT = Path(__file__).resolve().parent.parent


CONFIGURABLES: dict[str, type] = {
    "Train": TrainConfig,
    "Loop": LoopConfig,
    "Optimizer": OptimizerConfig,
    "StopRule": StopRule,
    "Mesh": MeshConfig,
    "Stream": Stream,
    "XLME": XLMEConfig,
    "XLM": XLMConfig,
    "InfoXLM": InfoXLMConfig,
    "XLCo": XLCoConfig,
    "VECO": VecoConfig,
    "FineTune": FineTuneConfig,
    "Masking": MaskingConfig,
    "Encoder": EncoderConfig,
    "RetrievalProbe": RetrievalProbe,
    "HeldOut": HeldOut,
    "Tatoeba": Tatoeba,
    "WordAlignment": WordAlignment,
    "Bucc": Bucc,
    "TaskEvaluation": TaskEvaluation,
    "Prepare": PrepareConfig,
    "Sweep": SweepConfig,
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
    if not files:
        raise ConfigError(
            "No configuration: pass --gin_file=gin_configs/runs/quickstart.gin (or another file "
            "of gin_configs/)."
        )
    defined, scopes = _parse(files, bindings)
    if inherited := _pretrained():
        defined, scopes = _parse(files, bindings, inherited)
    for name in sorted(_macros() - defined):
        raise ConfigError(f"--gin.{name}: no file defines it.{_suggestion(name, defined)}")
    return _build_checked(root, scopes)


def load_text(text: str, root: str, source: str) -> Any:
    """Builds one configurable of what `operative_config` returned.

    Args:
      text: the configuration.
      root: name of the configurable to build, say "Train".
      source: where the text comes from, for errors.

    Raises:
      ConfigError: naming the field.
    """
    _parse((), ())
    with _explained(source):
        _check_source(text)
        gin.parse_config(text)
    return _build_checked(root, _scopes())


def _parse(
    files: Sequence[str], bindings: Sequence[str], inherited: str = ""
) -> tuple[set[str], set[str]]:
    """Reads files, then `inherited`, then bindings; returns what the first two define.

    Returns:
      Names of macros, and of scopes.
    """
    register()
    gin.clear_config()
    _reading.clear()
    for file in files:
        with _explained(file):
            gin.parse_config_file(file)
    gin.parse_config(inherited)
    defined = _macros(), _scopes()
    for binding in bindings:
        with _explained(f"--gin.{binding.replace(' = ', '=', 1)}"):
            _check_source(binding)
            gin.parse_config(binding)
    return defined


def _pretrained() -> str:
    """Bindings that make FineTune.pretrained what INIT_FROM was trained with; empty if it is bound.

    A fine-tuning configuration need not know the encoder: it is read from the checkpoint, and
    stands in the operative configuration from then on, which can be run again as it is. So is the
    vocabulary, if the configuration says nothing else.
    """
    tuning = gin.config._CONFIG.get(("", "xlme_jax.FineTune"), {})
    if not tuning or "pretrained" in tuning:
        return ""
    source, vocabulary = (
        gin.config._CONFIG.get((name, _MACRO), {}).get("value")
        for name in ("INIT_FROM", "VOCABULARY")
    )
    if not isinstance(source, str):
        raise ConfigError(
            "FineTune needs an encoder to start from: give the MODEL_DIR of its pre-training, "
            "--gin.INIT_FROM=\"'runs/xlme_base'\"."
        )
    run = load_text(read_record(Path(source)).config, "Train", f"INIT_FROM = {source!r}")
    objective = getattr(run.objective, "pretrained", run.objective)
    lines = [f"FineTune.pretrained = @pretrained/{_name_of(objective)}()"]
    lines += _bindings(objective, "pretrained")
    if vocabulary is None:
        lines.append(f"VOCABULARY = {str(Path(run.data_dir) / VOCABULARY_FILE)!r}")
    return "\n".join(lines)


def _name_of(config: Any) -> str:
    return next(name for name, cls in CONFIGURABLES.items() if type(config) is cls)


def _bindings(config: Any, scope: str) -> Iterator[str]:
    """Lines that bind the fields of a dataclass in a scope, those of inner ones in scopes below."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _bindings(value, f"{scope}/{field.name}")
            text = f"@{scope}/{field.name}/{_name_of(value)}()"
        else:
            text = repr(value)
        yield f"{scope}/{_name_of(config)}.{field.name} = {text}"


def _build_checked(root: str, scopes: set[str]) -> Any:
    """Builds a configurable once its references are known to end and its scopes to be used."""
    try:
        scopes |= _check_references()
        for name in sorted(_scopes() - scopes):  # Gin would take them and use them nowhere.
            raise ConfigError(f"--gin.{name}/: no file has this scope.{_suggestion(name, scopes)}")
        return build(root)
    except RecursionError as error:
        raise ConfigError(
            f"{root} refers to itself, directly or through what it is built from, or is nested too "
            "deep; break the circle."
        ) from error


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
    # Not gin's own readers: one of them imports the packages that a file's path may stand for.
    gin.config._FILE_READERS[:] = [(_opened, os.path.isfile)]


@dataclasses.dataclass
class _Reading:
    """What `load` has read: the files that are open (each includes the next), bytes of all."""

    files: list[str] = dataclasses.field(default_factory=list)
    size: int = 0

    def clear(self) -> None:
        self.files, self.size = [], 0


_reading = _Reading()


@contextlib.contextmanager
def _opened(path: str) -> Iterator[TextIO]:
    """Opens a file for gin, for as long as it is parsed, once it is known that it can be."""
    file = os.path.realpath(path)
    if file in _reading.files:
        raise ConfigError(f"{path}: includes itself; take one `include` out.")
    with open(path, "rb") as binary:
        data = binary.read(_MAX_BYTES + 1)
    _reading.size += len(data)
    if _reading.size > _MAX_BYTES:
        raise ConfigError(
            f"{path}: brings the configuration to more than {_MAX_BYTES:,} bytes, each file "
            "counted as often as it is included; is it a gin file?"
        )
    with _explained(path):
        text = data.decode("utf-8-sig")
        _check_source(text)
    _reading.files.append(file)
    stream = io.StringIO(text)
    stream.name = path  # type: ignore[attr-defined]  # for gin to name it in errors
    try:
        yield stream
    finally:
        _reading.files.remove(file)


def _check_source(text: str) -> None:
    """Refuses what gin chokes on, and what would let a file call any function of any package."""
    strings = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            strings = strings + 1 if token.type == tokenize.STRING else 0
        if strings > _MAX_STRINGS:
            raise ValueError(f"line {token.start[0]} has too many strings side by side; join them.")
        if token.string == "__gin__":
            raise ValueError("dynamic registration is not supported; leave this import out.")


def describe() -> str:
    """Every configurable with types and defaults, for --help."""
    lines = ["Configurables (--gin.NAME=VALUE, or in a file):"]
    for name, cls in CONFIGURABLES.items():
        lines.append(f"  {name}: {(cls.__doc__ or '').strip().splitlines()[0]}")
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            default = _default(field)
            lines.append(f"    {name}.{field.name}: {type_name(hints[field.name])}{default}")
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
            **{key: convert(f"{name}.{key}", value, hints[key]) for key, value in values.items()}
        )

    make.__name__ = make.__qualname__ = name
    make.__doc__ = cls.__doc__
    parameters = inspect.signature(cls).parameters.values()
    # Keyword-only: gin then knows the names without insisting on values of its own accord.
    make.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None) for p in parameters]
    )
    return make


@contextlib.contextmanager
def _explained(source: str) -> Iterator[None]:
    """Turns errors of gin's parser into ones that say where, and what was meant."""
    source = source[:MAX_SHOWN].replace("\n", " ")
    try:
        yield
    except ConfigError as error:
        raise ConfigError(str(error).split("\n  In file ")[0]) from error
    except tokenize.TokenError as error:
        deep = "too many nested" in str(error)  # From Python 3.12 on; before, a RecursionError.
        what = "brackets are nested too deep" if deep else "a bracket or quote is not closed"
        raise ConfigError(f"{source}: {what}.") from error
    except SyntaxError as error:
        # Of Python's tokenizer: "<tokenize>" or "<string>".
        named = error.filename and not error.filename.startswith("<")
        where = f"{error.filename}, line {error.lineno}" if named else source
        what = str(error.msg).strip().splitlines()[-1].strip().rstrip(".")
        raise ConfigError(
            f"{where}: {what[:MAX_SHOWN]}. Lines are NAME = VALUE, and values Python literals: "
            "quote strings, as in --gin.MODEL_DIR=\"'runs/a'\"."
        ) from error
    except RecursionError as error:
        raise ConfigError(f"{source}: brackets or includes are nested too deep.") from error
    except UnicodeError as error:
        raise ConfigError(f"{source}: no text in UTF-8, so no gin file; convert it.") from error
    except Exception as error:  # of any kind, and also of modules that a file imports
        what, *location = str(error).splitlines() or [type(error).__name__]
        # Gin appends '  In file "x.gin", line 3', innermost first.
        if location and "In file" in location[0]:
            source = location[0].replace("In file", "").replace('"', "").strip()
        raise ConfigError(f"{source}: {what[:MAX_SHOWN]}{_hint(what)}") from error


def _hint(message: str) -> str:
    """What the wrong name in a message of gin's was meant to be."""
    # The last part of each quoted name: 'XLME' of '@some/scope/xlme_jax.XLME()'.
    names = re.findall(r"'(?:[^']*[@/.])?(\w+)(?:\(\))?'", message[:MAX_SHOWN])
    if message.startswith("No configurable matching") and names:
        return _suggestion(names[0], CONFIGURABLES)
    if "doesn't have a parameter named" in message and names and names[0] in CONFIGURABLES:
        fields = dataclasses.fields(CONFIGURABLES[names[0]])
        return _suggestion(names[-1], [field.name for field in fields])
    if message.startswith("Unable to open file: "):
        name = message.removeprefix("Unable to open file: ").split(". Searched")[0]
        files = [str(path.relative_to(_ROOT)) for path in _ROOT.glob("gin_configs/**/*.gin")]
        return _suggestion(name, files)
    return ""


def _check_references() -> set[str]:
    """ConfigError for what cannot be built; returns the scopes that things are built in."""
    macros, scopes = _macros(), set()
    sizes: dict[tuple[str, str], int] = {}
    for (scope, selector), values in gin.config._CONFIG.items():
        for name, value in values.items():
            field = scope if selector == _MACRO else f"{selector.split('.')[-1]}.{name}"
            if selector.startswith("gin.") and selector != _MACRO:
                raise ConfigError(f"{field}: functions of gin cannot be configured.")
            for reference in filter(_is_reference, _leaves(value)):
                wanted, target = reference.config_key
                if target.startswith("gin.") and (target != _MACRO or not wanted):
                    raise ConfigError(f"{field} = {reference!r}: a function of gin; give a value.")
                if target != _MACRO:
                    scopes |= _parts(wanted)
                elif wanted not in macros:
                    raise ConfigError(
                        f"{field} = %{wanted}: nothing defines {wanted}."
                        f"{_suggestion(wanted, macros)}"
                    )
            if _expanded_size(value, sizes, ()) > _MAX_VALUES:
                raise ConfigError(
                    f"{field}: expands to more than {_MAX_VALUES:,} values; shorten it, or what "
                    "it refers to."
                )
    return scopes


def _is_reference(value: Any) -> bool:
    return isinstance(value, gin.config.ConfigurableReference)


def _leaves(value: Any) -> Iterator[Any]:
    """All that a bound value consists of, without its lists, tuples and dictionaries."""
    if isinstance(value, dict):
        if any(map(_is_reference, itertools.chain.from_iterable(map(_leaves, value)))):
            raise ConfigError(f"{shown(value)}: a key cannot be a reference; give a value.")
        value = value.values()
    elif not isinstance(value, list | tuple):
        yield value
        return
    for item in value:
        yield from _leaves(item)


def _expanded_size(
    value: Any, sizes: dict[tuple[str, str], int], path: tuple[tuple[str, str], ...]
) -> int:
    """How many values there are once every macro and reference is replaced by what it stands for.

    A few lines of `A = (%B, %B)`, `B = (%C, %C)` and so on would fill any memory.

    Args:
      value: as bound, or the bindings of a configurable.
      sizes: those known; filled.
      path: macros and configurables that `value` is within.
    """
    total = 1
    for leaf in _leaves(value):
        total += 1
        if not _is_reference(leaf) or not leaf.evaluate:
            continue
        key = scope, target = leaf.config_key
        if key in path and target == _MACRO:
            circle = [name for name, selector in path[path.index(key) :] if selector == _MACRO]
            names = " -> ".join(f"%{name}" for name in [*circle, scope])
            raise ConfigError(f"{names}: goes round in a circle; give one of them a value.")
        if key in path:  # In another scope, perhaps, where it ends; else building it will tell.
            continue
        if key not in sizes:
            # In whichever scope: an upper bound.
            bound = [
                list(values.values())
                for (where, selector), values in gin.config._CONFIG.items()
                if selector == target and (target != _MACRO or where == scope)
            ]
            sizes[key] = _expanded_size(bound, sizes, (*path, key))
        total += sizes[key]
    return total


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


def run_app(main: Callable[[Sequence[str]], int | None], reads_gin: bool = True) -> None:
    """Runs a command and reports user errors without a traceback.

    Args:
      main: of the arguments; returns the exit code.
      reads_gin: whether it understands --gin_file and --gin.X=Y.
    """
    if reads_gin:
        define_flags()

    def guarded(argv: Sequence[str]) -> int | None:
        if not flags.FLAGS["verbosity"].present:
            _leave_out_what_others_tell()
        for package in _OUR_PACKAGES:
            logging.getLogger(package).setLevel(logging.INFO)
        try:
            return main(argv)
        except (ValueError, OSError) as error:
            message = _explanation(error)
            if os.environ.get("XLME_TRACEBACK") or not message:
                raise
            print(f"{type(error).__name__}: {_printable(message)}", file=sys.stderr)
            return 1

    argv = gin_flags(sys.argv) if reads_gin else sys.argv
    app.run(guarded, argv=argv, flags_parser=_parse_flags)


def _leave_out_what_others_tell() -> None:
    """Shows our own log alone; --verbosity=0 shows everybody's.

    Orbax logs dozens of lines a checkpoint. When one cannot be written, it, asyncio and TensorStore
    go on to tell of every other array's write, even after the error has been raised and said.
    """
    absl_logging.set_verbosity(absl_logging.WARNING)
    absl_logging.get_absl_handler().addFilter(
        lambda record: "orbax" not in record.pathname and record.name != "asyncio"
    )
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
    tell = sys.unraisablehook

    def tell_unless_closed(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            tell(unraisable)

    sys.unraisablehook = tell_unless_closed


def _explanation(error: ValueError | OSError) -> str:
    """The message of a user error; empty for a bug, which shows its traceback."""
    if isinstance(error, OSError):
        if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return ""
        where = "" if error.filename is None else f"{error.filename}: "
        return (
            f"{where}{error.strerror}; check the path, its permissions and the space on its disk "
            "(XLME_TRACEBACK=1 shows what wanted it)"
        )
    return str(error) if _is_ours(error) else ""


def _is_ours(error: BaseException) -> bool:
    """Whether this project raised it, as it does for user errors; else it is a bug."""
    # By its class if it comes from a worker process, where the stack stays behind.
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    modules = (type(error).__module__, frame.f_globals.get("__name__", ""))
    return any(module.split(".")[0] in (*_OUR_PACKAGES, "__main__") for module in modules)


def _printable(message: str) -> str:
    """Without what would steer a terminal; file names may hold anything."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in message)


def _parse_flags(argv: Sequence[str]) -> list[str]:
    if any(arg in ("--help", "-h", "--helpfull") for arg in argv):
        print(sys.modules["__main__"].__doc__, "\n")
        print(flags.FLAGS.main_module_help())
        if "gin_file" in flags.FLAGS:
            print(flags.FLAGS.module_help(define_flags.__module__))
            print(describe())
        sys.exit(0)
    try:
        return flags.FLAGS(argv)
    except (flags.Error, UnicodeError) as error:  # UnicodeError: of a --flagfile
        print(f"{type(error).__name__}: {_printable(str(error))}", file=sys.stderr)
        print("--help lists the flags.", file=sys.stderr)
        sys.exit(1)
