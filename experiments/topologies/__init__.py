"""Networks without a server: accuracy against spectral gap and heterogeneity."""
