"""Readers of file formats: bytes to NumPy arrays, with errors that name the file."""
