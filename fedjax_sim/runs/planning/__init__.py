"""What a run needs and how fast it is, before it starts."""
