"""safetensors, with a hint where it is not installed."""

from xlme_jax.validation import extras

try:
    import safetensors
    import safetensors.numpy
except ModuleNotFoundError as error:
    raise ValueError(extras.missing("a Hugging Face folder", "safetensors")) from error

__all__ = ("safetensors",)
