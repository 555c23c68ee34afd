"""XLM-E and its relatives: cross-lingual encoders pre-trained the ELECTRA way, in JAX.

The functions of `xlme_jax.api` are also names of this package, imported when they are used. In a
program that imports the module of a command (`import xlme_jax.train`), that name is the module;
`xlme_jax.api.train` is always the function.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xlme_jax.api import find_text as find_text
    from xlme_jax.api import inspect_batch as inspect_batch
    from xlme_jax.api import inspect_text as inspect_text
    from xlme_jax.api import load as load
    from xlme_jax.api import load_config as load_config
    from xlme_jax.api import prepare as prepare
    from xlme_jax.api import train as train

__version__ = "0.1.0"
__all__ = ("find_text", "inspect_batch", "inspect_text", "load", "load_config", "prepare", "train")


def __getattr__(name: str) -> Any:
    """Returns a function of `xlme_jax.api`, for names that the package does not have."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from xlme_jax import api

    return getattr(api, name)


def __dir__() -> list[str]:
    """Returns the names of the package, with the functions of `xlme_jax.api`."""
    return sorted({*globals(), *__all__})
