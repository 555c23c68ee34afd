"""Assembles runs from configurations, and loads trained checkpoints."""
