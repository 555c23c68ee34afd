"""Memory of steps that run on CPUs."""

import ctypes
import importlib.metadata
import importlib.util
import logging
import sys
from typing import NamedTuple

import jax


class _Setting(NamedTuple):
    """A setting of glibc's malloc.

    Attributes:
      name: the parameter of `mallopt`.
      number: the number of the parameter in malloc.h.
      variable: the environment variable that sets it too.
      value: the value that keeps freed memory.
    """

    name: str
    number: int
    variable: str
    value: int


_KEEP = (
    # One arena for all threads: the arenas of other threads cannot hold large blocks.
    _Setting("M_ARENA_MAX", -8, "MALLOC_ARENA_MAX", 1),
    # No block by mmap, which would be unmapped when it is freed.
    _Setting("M_MMAP_MAX", -4, "MALLOC_MMAP_MAX_", 0),
    _Setting("M_TRIM_THRESHOLD", -1, "MALLOC_TRIM_THRESHOLD_", 2**31 - 1),
)

_log = logging.getLogger(__name__)


def keep_freed() -> bool:
    """Lets this process keep the memory that a step frees, for the next step, on CPUs.

    XLA's CPU client allocates the temporaries of a step anew in each step. By default, glibc
    returns so large a block to the system, which then has to clear every page of it again
    (docs/lab/speed.md has the share of a step). Resident memory may grow, as free memory is
    divided.

    Call it before JAX starts its threads. It does nothing where an accelerator may be used (one of
    JAX's plugins is installed, unless JAX_PLATFORMS is "cpu"), and without glibc.

    Returns:
      Whether memory is kept: False, with a warning, if malloc refuses a setting.
    """
    if not (sys.platform == "linux" and _is_for_cpus()):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    refused = [setting.name for setting in _KEEP if not mallopt(setting.number, setting.value)]
    if refused:
        _log.warning("malloc does not take %s; steps may be slower.", ", ".join(refused))
    return not refused


def environment() -> dict[str, str]:
    """Returns environment variables that let a process started with them keep freed memory.

    They are the settings of `keep_freed`, for programs that do not call it.
    """
    return {setting.variable: str(setting.value) for setting in _KEEP}


def _is_for_cpus() -> bool:
    """Returns whether JAX can use CPUs alone; does not start JAX's backends."""
    platforms = jax.config.values["jax_platforms"]
    if platforms:
        return bool(platforms == "cpu")
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return not plugins and importlib.util.find_spec("libtpu") is None
