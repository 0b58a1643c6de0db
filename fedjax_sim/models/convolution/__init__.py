"""Convolutions that stay fast when every client has its own kernels."""
