"""Checks of configuration dataclasses that every folder may use."""
