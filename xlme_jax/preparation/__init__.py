"""Preparation of data sets: text sources, jobs, worker processes and vocabulary text."""
