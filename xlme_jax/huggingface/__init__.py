"""Converts checkpoints to and from Hugging Face `transformers` folders.

Reading and writing them needs safetensors and NumPy, but neither PyTorch nor transformers.
"""
