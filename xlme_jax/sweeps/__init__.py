"""Grids of overrides and seeds: their points, running them, collecting results."""
