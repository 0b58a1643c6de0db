"""Fixtures of the experiments' tests."""

import jax
import pytest


@pytest.fixture(scope="module")
def compiled_without_optimizations():
    """Compiles without optimizations, for programs that run for a moment only."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
