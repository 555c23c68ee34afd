"""Labelled and parallel evaluation sets: file layouts, readers, labels and row encoding."""
