"""Results of runs and sweeps: selection, statistics and tables."""
