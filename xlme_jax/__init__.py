"""XLM-E and its relatives: cross-lingual encoders pre-trained the ELECTRA way, in JAX."""

__version__ = "0.1.0"
