"""To and from folders as Hugging Face's `transformers` reads and writes them.

Needs safetensors and NumPy; neither PyTorch nor transformers.
"""
