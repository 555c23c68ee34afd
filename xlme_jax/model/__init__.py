"""Flax linen modules: encoder, attention, gated relative position bias, heads."""
