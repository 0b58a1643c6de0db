"""Experiments on the simulator itself: large populations, precision of the arithmetic."""
