"""Vocabulary, text sources, benchmarks, prepared data sets and batches."""
