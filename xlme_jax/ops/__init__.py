"""Numerics without parameters: masking, the streamed vocabulary head. Imports JAX alone."""
