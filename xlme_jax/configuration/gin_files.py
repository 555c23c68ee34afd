"""Reads gin files, with limits, and with errors that name the file and line."""

import ast
import codecs
import contextlib
import dataclasses
import io
import os
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from gin import config_parser

from xlme_jax.configuration.references import suggestion
from xlme_jax.configuration.registry import CONFIGURABLES, add_named, class_of
from xlme_jax.configuration.values import MAX_SHOWN, ConfigError, value_text
from xlme_jax.storage.paths import as_path, is_bucket

# Limits far above any real configuration, so that damaged or malicious files end with an error.
_MAX_BYTES = 256 << 10  # Of all files together, each counted once per include.
_MAX_STRINGS = 1000  # Of adjacent string literals: gin's time is quadratic in their number.

# Byte order marks; UTF-32's little-endian mark begins with the one of UTF-16.
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

# Names whose values may stand without quotes on the command line.
_MACROS = ("MODEL_DIR", "DATA_DIR", "INIT_FROM", "BRANCH_FROM", "EVAL_DIR", "VOCABULARY")
_PATHS = (*_MACROS, "Teacher.checkpoint")

# The folder with gin_configs/ next to this package.
ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class _Reading:
    """What has been read since the last `clear`, for limits and for circles of includes.

    Attributes:
      files: the open files, each of which includes the next.
      size: bytes of all files so far.
      has_earlier_names: whether a text names streams as earlier versions did.
    """

    files: list[str] = dataclasses.field(default_factory=list)
    size: int = 0
    has_earlier_names: bool = False

    def clear(self) -> None:
        self.files, self.size, self.has_earlier_names = [], 0, False


reading = _Reading()


@contextlib.contextmanager
def opened(path: str) -> Iterator[TextIO]:
    """Yields a checked gin file, open while gin parses it.

    Raises:
      ConfigError: the file includes itself, all files together are too large, or the file is not
        text that gin can parse in reasonable time.
    """
    file = path if is_bucket(path) else os.path.realpath(path)
    if file in reading.files:
        raise ConfigError(f"{path}: includes itself; remove one `include`.")
    with as_path(path).open("rb") as binary:
        data = binary.read(_MAX_BYTES + 1)
    reading.size += len(data)
    if reading.size > _MAX_BYTES:
        raise ConfigError(
            f"{path}: the configuration has more than {_MAX_BYTES:,} bytes, each file "
            "counted once per include; is this a gin file?"
        )
    with explained(path):
        text = _text(data, path)
        check_source(text)
        add_names(text)
    reading.files.append(file)
    stream = io.StringIO(text)
    stream.name = path  # type: ignore[attr-defined]  # Gin shows it in errors.
    try:
        yield stream
    finally:
        reading.files.remove(file)


def _text(data: bytes, path: str) -> str:
    """Returns the text of a gin file without its byte order mark; its lines end with LF.

    Raises:
      ConfigError: the file is UTF-16 or UTF-32, or has the line ends of two systems.
      UnicodeError: the file is not UTF-8.
    """
    is_plain = not data.startswith(_MARKS) and b"\r" not in data and b"\0" not in data
    if is_plain:
        return data.decode()
    # Imported here because most gin files do not need these readers of corpora.
    from xlme_jax.data.text.decompression import DataError
    from xlme_jax.data.text.opening import text_blocks

    try:
        return b"".join(text_blocks([data], path)).decode()
    except DataError as error:  # The message names the file.
        raise ConfigError(str(error)) from error


def add_names(text: str) -> None:
    """Registers with gin all configurables that a text names, by names of earlier versions too."""
    add_named(text)
    if re.search(r"\bStream\b", text):
        from xlme_jax.configuration import earlier_names

        earlier_names.register()
        reading.has_earlier_names = True


def with_quotes(binding: str) -> str:
    """Returns `MODEL_DIR = 'runs/a'` for `MODEL_DIR = runs/a`, and other bindings as they are."""
    name, _, value = map(str.strip, binding.partition("="))
    if name not in _PATHS or not value or value[0] in "%@'\"([{":
        return binding
    try:
        ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return f"{name} = {os.path.expanduser(value)!r}"
    return binding


def check_source(text: str) -> None:
    """Raises ValueError for text that gin parses too slowly, and for gin's dynamic registration."""
    strings = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            strings = strings + 1 if token.type == tokenize.STRING else 0
        if strings > _MAX_STRINGS:
            raise ValueError(f"line {token.start[0]} has too many adjacent strings; join them.")
        if token.string == "__gin__":
            raise ValueError("dynamic registration is not supported; remove this import.")


class _NoReferences(config_parser.ParserDelegate):
    """Parses references without looking them up."""

    def configurable_reference(self, name: str, evaluate: bool) -> None:
        """Ignores it."""

    def macro(self, name: str) -> None:
        """Ignores it."""


def check_stored(text: str, source: str) -> None:
    """Raises ConfigError if the configuration of a checkpoint would run code or open files.

    The checkpoint may come from somebody else. A module that the user has imported is allowed, as
    it runs nothing when it is imported again.

    Args:
      text: the configuration.
      source: origin of the text, for errors.
    """
    for statement in config_parser.ConfigParser(text, _NoReferences()):
        if isinstance(statement, config_parser.IncludeStatement):
            raise ConfigError(
                f"{source}: the stored configuration includes {value_text(statement.filename)}, "
                "which no run writes; it is not read. Ask where the checkpoint comes from."
            )
        imports = isinstance(statement, config_parser.ImportStatement)
        if imports and statement.module not in sys.modules:
            raise ConfigError(
                f"{source}: the stored configuration imports the Python module "
                f"{statement.module}, whose code would run here. If you know and trust it, add "
                f"--trusted_modules={statement.module}, or import it first in Python."
            )


@contextlib.contextmanager
def explained(source: str) -> Iterator[None]:
    """Returns a context that turns errors into ConfigErrors with a location and a remedy.

    Args:
      source: file or binding that is parsed, which errors without a location name.
    """
    source = source[:MAX_SHOWN].replace("\n", " ")
    try:
        yield
    except ConfigError as error:
        raise ConfigError(str(error).split("\n  In file ")[0]) from error
    except tokenize.TokenError as error:
        deep = "too many nested" in str(error)  # Python 3.12 and later; a RecursionError before.
        problem = "brackets are nested too deep" if deep else "a bracket or quote is not closed"
        raise ConfigError(f"{source}: {problem}.") from error
    except SyntaxError as error:
        # From Python's tokenizer: "<tokenize>" or "<string>".
        named = error.filename and not error.filename.startswith("<")
        where = f"{error.filename}, line {error.lineno}" if named else source
        problem = str(error.msg).strip().splitlines()[-1].strip().rstrip(".")
        raise ConfigError(
            f"{where}: {problem[:MAX_SHOWN]}. Lines must be NAME = VALUE, values Python literals: "
            "quote strings, as in --gin.Encoder.relative_bias=\"'none'\"."
        ) from error
    except RecursionError as error:
        raise ConfigError(f"{source}: brackets or includes are nested too deep.") from error
    except UnicodeError as error:
        raise ConfigError(f"{source}: not UTF-8 text; convert the file.") from error
    except Exception as error:  # Any kind, including errors of imported modules.
        problem, *location = str(error).splitlines() or [type(error).__name__]
        # Gin appends '  In file "x.gin", line 3', innermost first.
        if location and "In file" in location[0]:
            source = location[0].replace("In file", "").replace('"', "").strip()
        raise ConfigError(f"{source}: {problem[:MAX_SHOWN]}{_hint(problem)}") from error


def _hint(message: str) -> str:
    """Returns a suggestion for the unknown name in one of gin's error messages; "" for others."""
    # The last part of each quoted name: 'Encoder' of '@some/scope/xlme_jax.Encoder()'.
    names = re.findall(r"'(?:[^']*[@/.])?(\w+)(?:\(\))?'", message[:MAX_SHOWN])
    if message.startswith("No configurable matching") and names:
        return suggestion(names[0], CONFIGURABLES)
    if "doesn't have a parameter named" in message and names and names[0] in CONFIGURABLES:
        fields = dataclasses.fields(class_of(names[0]))
        return suggestion(names[-1], [field.name for field in fields])
    if message.startswith("Unable to open file: "):
        name = message.removeprefix("Unable to open file: ").split(". Searched")[0]
        files = [str(path.relative_to(ROOT)) for path in ROOT.glob("gin_configs/**/*.gin")]
        same_name = [file for file in files if Path(file).name == Path(name).name]
        return suggestion(name, same_name or files)
    return ""
