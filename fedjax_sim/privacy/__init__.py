"""Differential privacy of clients: clipping, noise at the server, and accounting."""
