"""Measures: functions of weights that return an `Outcome`; and evaluators, which the loop runs."""
