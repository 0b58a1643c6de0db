"""Measurements of trained models: flatness, generalisation, stability."""

from fedjax_sim.diagnostics import generalization, lanczos, sharpness, stability, surfaces

__all__ = ["generalization", "lanczos", "sharpness", "stability", "surfaces"]
