"""Convolutions that stay fast if every client has its own kernels."""
