"""Platforms by the names that JAX has for them."""

import pytest

from fedjax_sim.engine.execution.devices import platform_named


@pytest.mark.parametrize(
    ("name", "platform"), [("cpu", "cpu"), ("tpu", "tpu"), ("cuda", "gpu"), ("rocm", "gpu")]
)
def test_platforms_by_name(name, platform):
    """JAX calls GPUs by their maker's software: CUDA is NVIDIA's, ROCm is AMD's."""
    assert platform_named(name) == platform
