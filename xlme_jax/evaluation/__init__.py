"""Evaluators: functions of (params, step) that return metrics."""
