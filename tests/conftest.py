"""Test configuration: several host devices, strict promotion, NaN checks, a compilation cache.

The environment must be set before jax initialises its backends, and so at import.
"""

import gc
import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
)
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(__file__).parent.parent / ".jax_cache")
)
# Processes that tests start have this setting, too.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Threads for the devices to wait for each other in, also on a machine of two cores.
os.environ.setdefault("NPROC", "16")

import hypothesis
import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_debug_nans", True)

# Compilation makes the first example of a property slow; speed is not what is tested.
hypothesis.settings.register_profile("fedjax_sim", deadline=None, derandomize=True)
hypothesis.settings.load_profile("fedjax_sim")


def pytest_collection_finish():
    """Lets garbage collections skip the modules and tests, and happen less often."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


class _Programs:
    """Number of programs that this process has compiled since it last released them."""

    count = 0
    most = 5_000  # of 4 to 8 memory maps each; Linux allows 65,530, and XLA crashes beyond

    @classmethod
    def compiled(cls, event, duration, **options):
        cls.count += event == "/jax/core/compile/backend_compile_duration"


jax.monitoring.register_event_duration_secs_listener(_Programs.compiled)


@pytest.fixture(autouse=True)
def room_for_programs():
    """Releases the compiled programs before they use up the process's memory maps."""
    yield
    if _Programs.count > _Programs.most:
        jax.clear_caches()
        _Programs.count = 0


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
