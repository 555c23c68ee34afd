"""Chooses among implementations of the same operation by measuring them on this machine."""
