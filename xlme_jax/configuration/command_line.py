"""Shared parts of the commands: gin flags, --help, and user errors without a traceback."""

import errno
import importlib
import logging
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags
from absl import logging as absl_logging

from xlme_jax.storage.buckets import explain

_OUR_PACKAGES = ("xlme_jax", "tasks")
flags.DEFINE_list(
    "trusted_modules", [], "Python modules that the configurations of checkpoints may import."
)


def define_flags() -> None:
    """Defines --gin_file and --gin_bindings."""
    flags.DEFINE_multi_string("gin_file", [], "Gin configuration file (repeatable).")
    flags.DEFINE_multi_string(
        "gin_bindings", [], "A binding that overrides the files; short form: --gin.NAME=VALUE."
    )


def gin_flags(argv: Sequence[str]) -> list[str]:
    """Returns arguments with `--gin.NAME=VALUE`, as in T5X, as `--gin_bindings=NAME = VALUE`."""
    pattern = re.compile(r"^--gin\.([^=]+)=(.*)$", re.DOTALL)
    return [pattern.sub(r"--gin_bindings=\1 = \2", arg) for arg in argv]


def run_app(
    main: Callable[..., int | None], reads_gin: bool = True, arguments: bool = False
) -> None:
    """Runs a command and exits; reports user errors on one line, without a traceback.

    Args:
      main: the command; returns the exit code, or None for 0.
      reads_gin: whether the command has the flags --gin_file and --gin.X=Y.
      arguments: whether arguments without dashes are passed to `main`; else they are an error.
    """
    if reads_gin:
        define_flags()

    def guarded(argv: Sequence[str]) -> int | None:
        if not flags.FLAGS["verbosity"].present:
            _silence_libraries()
        for package in _OUR_PACKAGES:
            logging.getLogger(package).setLevel(logging.INFO)
        if len(argv) > 1 and not arguments:
            print(f"Unknown argument {argv[1]!r}; flags begin with --.", file=sys.stderr)
            return 1
        try:
            for module in flags.FLAGS["trusted_modules"].value or ():
                _import(module)
            return main(*argv[1:])
        except KeyboardInterrupt:
            print("Interrupted. Run the same command again.", file=sys.stderr)
            sys.stdout.flush()
            # A normal exit would be a segmentation fault while JAX's threads still compute.
            os._exit(128 + signal.SIGINT)
        except Exception as error:
            message = _explanation(error)
            if os.environ.get("XLME_TRACEBACK") or not message:
                raise
            print(f"{type(error).__name__}: {_printable(message)}", file=sys.stderr)
            return 1

    argv = gin_flags(sys.argv) if reads_gin else sys.argv
    app.run(guarded, argv=argv, flags_parser=_parse_flags)


def _import(module: str) -> None:
    """Imports a module of --trusted_modules; raises ValueError if it cannot be imported."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"--trusted_modules={module}: {error}. Install it, or set PYTHONPATH to its folder."
        ) from error


def _silence_libraries() -> None:
    """Hides the logs of libraries; --verbosity=0 shows them.

    Orbax logs dozens of lines per checkpoint. If a checkpoint cannot be written, Orbax, asyncio and
    TensorStore report every other pending write too, even after the error was raised and reported.
    """
    absl_logging.set_verbosity(absl_logging.WARNING)
    absl_logging.get_absl_handler().addFilter(
        lambda record: "orbax" not in record.pathname and record.name != "asyncio"
    )
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # Its errors are raised as well.
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
    report = sys.unraisablehook

    def report_unless_closed(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            report(unraisable)

    sys.unraisablehook = report_unless_closed


def _explanation(error: Exception) -> str:
    """Returns the message of a user error; "" for a bug, whose traceback is to be shown."""
    if isinstance(error, OSError):
        if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return ""
        where = "" if error.filename is None else f"{error.filename}: "
        return (
            f"{where}{error.strerror}; check the path, its permissions and the free disk "
            "space (XLME_TRACEBACK=1 shows the traceback)"
        )
    if isinstance(error, ValueError) and _is_ours(error):
        return str(error)
    return explain(error)


def _is_ours(error: BaseException) -> bool:
    """Returns whether this project raised the error; errors of other modules are bugs."""
    # The stack of an error from a worker process ends elsewhere, so that the error's class tells.
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    modules = (type(error).__module__, frame.f_globals.get("__name__", ""))
    return any(module.split(".")[0] in (*_OUR_PACKAGES, "__main__") for module in modules)


def _printable(message: str) -> str:
    """Returns a message with control characters escaped, which file names may contain."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in message)


def _parse_flags(argv: Sequence[str]) -> list[str]:
    """Returns the arguments that are not flags; exits after --help, and on invalid flags."""
    if any(arg in ("--help", "-h", "--helpfull") for arg in argv):
        print(sys.modules["__main__"].__doc__, "\n")
        print(flags.FLAGS.main_module_help())
        if "gin_file" in flags.FLAGS:
            print(flags.FLAGS.module_help(define_flags.__module__))
            # Imports JAX and all systems, which preparation does not need.
            from xlme_jax.configuration.registry import describe

            print(describe())
        sys.exit(0)
    try:
        return flags.FLAGS(argv)
    except (flags.Error, UnicodeError) as error:  # UnicodeError: from a --flagfile
        print(f"{type(error).__name__}: {_printable(str(error))}", file=sys.stderr)
        print("--help lists the flags.", file=sys.stderr)
        sys.exit(1)
