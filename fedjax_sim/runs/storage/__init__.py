"""Folders of runs: files that survive kills and damage."""
