"""Vocabulary, text, benchmarks and prepared data sets: everything between files and batches."""
