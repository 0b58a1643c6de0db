"""Test configuration: several host devices, strict promotion, NaN checks, a compilation cache.

The environment must be set before jax initialises its backends, hence at import.
"""

import itertools
import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
)
# Threads for the devices to wait for each other in, also on a machine of two cores.
os.environ.setdefault("NPROC", "16")

import hypothesis
import jax
import pytest

_CACHE = pathlib.Path(__file__).parent.parent / ".jax_cache"

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_debug_nans", True)
jax.config.update("jax_compilation_cache_dir", str(_CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

# Compilation makes the first example of a property slow; speed is not what is tested.
hypothesis.settings.register_profile("fedjax_sim", deadline=None, derandomize=True)
hypothesis.settings.load_profile("fedjax_sim")


def pytest_collection_modifyitems(items):
    """Keeps the tests of one file in one process, which then compiles each program once."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


_NUM_TESTS = itertools.count(1)
_MAPS = pathlib.Path("/proc/self/maps")  # on Linux
_MOST_MAPS = 30_000  # of the 65,530 that Linux allows a process by default


@pytest.fixture(autouse=True, scope="module")
def released_programs():
    """The programs of all modules together would run into the kernel's limit of memory maps."""
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def room_for_programs():
    """Those of one large module may, too; beyond the limit XLA crashes."""
    yield
    looks = next(_NUM_TESTS) % 20 == 0 and _MAPS.exists()
    if looks and len(_MAPS.read_bytes().splitlines()) > _MOST_MAPS:
        jax.clear_caches()


@pytest.fixture
def x64():
    """Runs a test in double precision."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def allow_nans():
    """For tests whose subject is a diverging run."""
    with jax.debug_nans(False):
        yield
