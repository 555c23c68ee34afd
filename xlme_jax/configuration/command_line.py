"""Shared parts of the commands: gin flags, --help, and user errors without a traceback."""

import importlib
import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags
from absl import logging as absl_logging

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
        absl_logging.get_absl_handler().setFormatter(_TimeAndText())
        if not flags.FLAGS["verbosity"].present:
            _silence_libraries()
        for package in ("xlme_jax", "tasks"):
            logging.getLogger(package).setLevel(logging.INFO)
        if len(argv) > 1 and not arguments:
            print(f"Unknown argument {argv[1]!r}; flags begin with --.", file=sys.stderr)
            return 1
        try:
            for module in flags.FLAGS["trusted_modules"].value or ():
                _import(module)
            code = main(*argv[1:])
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            from xlme_jax.configuration import user_errors

            if not user_errors.is_output_closed():
                raise
            return 128 + signal.SIGPIPE
        except (KeyboardInterrupt, Exception) as error:
            from xlme_jax.configuration import user_errors

            if user_errors.is_interruption(error):
                print("Interrupted. Run the same command again.", file=sys.stderr)
                sys.stdout.flush()
                # A normal exit would be a segmentation fault while JAX's threads still compute.
                os._exit(128 + signal.SIGINT)
            message = user_errors.explanation(error)
            if os.environ.get("XLME_TRACEBACK") or not message:
                raise
            print(f"{type(error).__name__}: {user_errors.printable(message)}", file=sys.stderr)
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


class _TimeAndText(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        """Returns the time, the level if it is not "info", and the text."""
        level = "" if record.levelno == logging.INFO else f"{record.levelname.capitalize()}: "
        return f"{self.formatTime(record, '%m-%d %H:%M:%S')} {level}{record.message}"


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


def _parse_flags(argv: Sequence[str]) -> list[str]:
    """Returns the arguments that are not flags; exits after --help, and on invalid flags."""
    reads_gin = "gin_file" in flags.FLAGS
    if any(arg in ("--help", "-h", "--helpfull") for arg in argv):
        from xlme_jax.configuration import help_text

        help_text.print_help(sys.modules["__main__"].__doc__ or "", reads_gin)
        sys.exit(0)
    try:
        return flags.FLAGS(argv)
    except (flags.Error, UnicodeError) as error:  # UnicodeError: from a --flagfile
        from xlme_jax.configuration import help_text, user_errors

        message = user_errors.printable(help_text.explained(error, reads_gin))
        print(f"{type(error).__name__}: {message}", file=sys.stderr)
        print("--help lists the flags.", file=sys.stderr)
        sys.exit(1)
