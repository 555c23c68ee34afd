"""Turning raw text into a prepared data set: jobs, worker processes, the text of a vocabulary."""
