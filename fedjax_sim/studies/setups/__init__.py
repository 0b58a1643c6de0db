"""Setups and algorithms by options: those of presets and of the command line."""
