"""What all commands share: gin flags, --help, and user errors without a traceback."""

import errno
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags
from absl import logging as absl_logging

from xlme_jax.configuration.registry import describe

_OUR_PACKAGES = ("xlme_jax", "tasks")


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
