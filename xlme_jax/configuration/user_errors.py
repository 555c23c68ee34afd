"""Which errors of a command are the user's, and what is printed for them."""

import errno
import os
import sys
import traceback

from xlme_jax.storage.buckets import explain

OUR_PACKAGES = ("xlme_jax", "tasks")


def explanation(error: BaseException) -> str:
    """Returns the message of a user error; "" for a bug, whose traceback is to be shown."""
    if isinstance(error, OSError):
        if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return ""
        where = "" if error.filename is None else f"{error.filename}: "
        return (
            f"{where}{error.strerror}; check the path, its permissions and the free disk "
            "space (XLME_TRACEBACK=1 shows the traceback)"
        )
    if isinstance(error, ValueError) and is_ours(error):
        return str(error)
    return explain(error)


def is_ours(error: BaseException) -> bool:
    """Returns whether this project raised the error; errors of other modules are bugs."""
    # The stack of an error from a worker process ends elsewhere, so that the error's class tells.
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    modules = (type(error).__module__, frame.f_globals.get("__name__", ""))
    return any(module.split(".")[0] in (*OUR_PACKAGES, "__main__") for module in modules)


def printable(message: str) -> str:
    """Returns a message with control characters escaped, which file names may contain."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in message)


def is_interruption(error: BaseException | None) -> bool:
    """Returns whether an error is due to Ctrl-C, which Orbax turns into errors of its own."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def is_output_closed() -> bool:
    """Returns whether what reads the output has ended, such as `head`; then drops the rest."""
    try:
        sys.stdout.write("\n")  # What failed before is no longer in the buffer.
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False
