"""Readers of official benchmark files: one module per format.

`finding` finds the files of a folder; `tabular`, `tagged`, `squad` and `chemprot` read them;
`random_splits` divides training files of benchmarks that lack a split. The table of benchmarks and
their file layouts is in `xlme_jax.data.benchmarks.catalogue`.
"""
