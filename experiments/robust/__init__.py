"""Robust rules under attacks and heterogeneity on MNIST, with and without mixing."""
