"""Compressed uploads with and without memory: accuracy against bits."""
