"""Converts checkpoints to and from Hugging Face `transformers` folders.

Needs safetensors and NumPy, but neither PyTorch nor transformers.
"""

try:
    import safetensors  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "Hugging Face folders need safetensors: pip install 'xlme_jax[hf]'", name="safetensors"
    ) from error
