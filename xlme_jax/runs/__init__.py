"""Assembling a run from a configuration, and loading a trained one."""
