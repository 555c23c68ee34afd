"""Sweeps over grids of overrides and seeds: points, runs and collected results."""
