"""Gin configuration: configurable dataclasses, files, values and the command line."""
