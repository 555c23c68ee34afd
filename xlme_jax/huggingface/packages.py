"""safetensors, with a hint where it is not installed."""

try:
    import safetensors
    import safetensors.numpy
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "Hugging Face folders need safetensors: pip install 'xlme_jax[hf]'", name="safetensors"
    ) from error

__all__ = ("safetensors",)
