"""Readers of official benchmark files: one module per format.

`files` finds the files of a folder; `tables`, `tagged` and `squad` read them. The table of
benchmarks and their file layouts is in `xlme_jax.data.benchmarks.catalogue`.
"""
