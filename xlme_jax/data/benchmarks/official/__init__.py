"""Readers of official benchmark files: one module per format.

`finding` finds the files of a folder; `tabular`, `tagged`, `squad`, `choices` and `chemprot` read
files; `random_splits` divides training files of benchmarks that lack a split. The table of
benchmarks and of the layouts of their files is in `xlme_jax.data.benchmarks.catalogue`.
"""
