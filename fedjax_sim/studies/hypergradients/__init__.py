"""Derivatives of a run's result with respect to its hyper-parameters."""
