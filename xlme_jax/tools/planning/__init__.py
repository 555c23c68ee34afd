"""Estimates the cost of a run on accelerators that are not attached: memory, traffic, time."""
