"""To and from folders as Hugging Face's `transformers` reads and writes them.

Needs safetensors and NumPy; neither PyTorch nor transformers.
"""

try:
    import safetensors  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "Hugging Face folders need safetensors: pip install 'xlme_jax[hf]'", name="safetensors"
    ) from error
