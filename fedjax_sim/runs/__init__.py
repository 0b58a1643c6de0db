"""Runs with progress reports, files, checkpoints and resuming."""
