"""Sweeps over grids of overrides and seeds."""
