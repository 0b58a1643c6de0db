"""Programs compiled for accelerators that this machine does not have, and figures of the result."""
