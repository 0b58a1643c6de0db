"""Personalised methods on the benchmark of PFLlib (Zhang et al., 2023)."""
