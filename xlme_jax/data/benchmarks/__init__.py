"""Labelled and parallel sets: where their files are, how they are read, what their labels mean."""
