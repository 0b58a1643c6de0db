"""Grids of hyper-parameters and seeds in few compiled programs."""
