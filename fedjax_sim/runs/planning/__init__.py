"""Forecasts and measurements of runs: memory, time and arithmetic."""
