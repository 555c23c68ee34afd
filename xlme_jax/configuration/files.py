"""Reading gin files: where they are found, what is refused, and errors that name file and line."""

import contextlib
import dataclasses
import io
import os
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from xlme_jax.configuration.references import suggestion
from xlme_jax.configuration.registry import CONFIGURABLES
from xlme_jax.configuration.values import MAX_SHOWN, ConfigError

# No configuration comes near these bounds; a damaged or malicious one is to end with an error.
_MAX_BYTES = 256 << 10  # of all files together, each as often as it is included


_MAX_STRINGS = 1000  # side by side: gin's time is quadratic in them


# Holds gin_configs/ beside this package.
ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class _Reading:
    """What `load` has read: the files that are open (each includes the next), bytes of all."""

    files: list[str] = dataclasses.field(default_factory=list)
    size: int = 0

    def clear(self) -> None:
        self.files, self.size = [], 0


reading = _Reading()


@contextlib.contextmanager
def opened(path: str) -> Iterator[TextIO]:
    """Opens a file for gin, for as long as it is parsed, once it is known that it can be."""
    file = os.path.realpath(path)
    if file in reading.files:
        raise ConfigError(f"{path}: includes itself; take one `include` out.")
    with open(path, "rb") as binary:
        data = binary.read(_MAX_BYTES + 1)
    reading.size += len(data)
    if reading.size > _MAX_BYTES:
        raise ConfigError(
            f"{path}: brings the configuration to more than {_MAX_BYTES:,} bytes, each file "
            "counted as often as it is included; is it a gin file?"
        )
    with explained(path):
        text = data.decode("utf-8-sig")
        check_source(text)
    reading.files.append(file)
    stream = io.StringIO(text)
    stream.name = path  # type: ignore[attr-defined]  # for gin to name it in errors
    try:
        yield stream
    finally:
        reading.files.remove(file)


def check_source(text: str) -> None:
    """Refuses what gin chokes on, and what would let a file call any function of any package."""
    strings = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            strings = strings + 1 if token.type == tokenize.STRING else 0
        if strings > _MAX_STRINGS:
            raise ValueError(f"line {token.start[0]} has too many strings side by side; join them.")
        if token.string == "__gin__":
            raise ValueError("dynamic registration is not supported; leave this import out.")


@contextlib.contextmanager
def explained(source: str) -> Iterator[None]:
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
    # The last part of each quoted name: 'Encoder' of '@some/scope/xlme_jax.Encoder()'.
    names = re.findall(r"'(?:[^']*[@/.])?(\w+)(?:\(\))?'", message[:MAX_SHOWN])
    if message.startswith("No configurable matching") and names:
        return suggestion(names[0], CONFIGURABLES)
    if "doesn't have a parameter named" in message and names and names[0] in CONFIGURABLES:
        fields = dataclasses.fields(CONFIGURABLES[names[0]])
        return suggestion(names[-1], [field.name for field in fields])
    if message.startswith("Unable to open file: "):
        name = message.removeprefix("Unable to open file: ").split(". Searched")[0]
        files = [str(path.relative_to(ROOT)) for path in ROOT.glob("gin_configs/**/*.gin")]
        return suggestion(name, files)
    return ""
