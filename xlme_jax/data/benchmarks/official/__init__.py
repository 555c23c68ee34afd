"""Readers of benchmarks as they are distributed: one module for each format, none for a benchmark.

`files` finds what a folder has, `tables`, `tagged` and `squad` read it. Which benchmark comes in
which files is a table in `xlme_jax.data.benchmarks.registry`.
"""
