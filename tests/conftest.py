"""Test configuration: several host devices, strict promotion, NaN checks, a compilation cache.

The environment must be set before jax initialises its backends, and so at import.
"""

import ctypes
import gc
import os
import pathlib
import resource
import sys

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
    """Lets garbage collections skip the modules and tests, and happen less often.

    Every process imports all modules, so what they compile is compiled by every process.
    """
    if len(programs) > _MOST_COLLECTED:
        raise pytest.UsageError(
            f"test modules compile {len(programs)} programs while they are imported; expected at "
            f"most {_MOST_COLLECTED}: call functions of JAX in fixtures, tests or lambdas"
        )
    release_programs()  # of values that modules compute
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


# A program of one operation takes 1.4 MB, of which JAX keeps 1 MB for its lowered module. A process
# may have 65,530 memory maps, of which a program takes 4 to 8; XLA crashes beyond.
_MOST_MEMORY = 1100 * 2**20  # bytes of a process, 550 MB of them modules; a test adds up to 360
_MOST_PROGRAMS = 5_000  # where the system tells no memory
_MOST_COLLECTED = 100  # of keys and small arrays
programs = []  # seconds of every compilation since the last release


def count_program(event, duration_secs, **options):
    """Listener to JAX's events."""
    if event == "/jax/core/compile/backend_compile_duration":
        programs.append(duration_secs)


jax.monitoring.register_event_duration_secs_listener(count_program)


def release_programs():
    """Returns the memory of all compiled programs to the system."""
    jax.clear_caches()
    if "fedjax_sim.runs.programs" in sys.modules:
        sys.modules["fedjax_sim.runs.programs"]._functions.clear()
    gc.collect()
    programs.clear()
    if sys.platform == "linux":  # the allocator would keep the memory
        ctypes.CDLL(None).malloc_trim(0)


def resident_memory():
    """Returns the bytes of memory of this process, None where the system does not tell."""
    path = pathlib.Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * resource.getpagesize() if path.exists() else None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    """Makes room for the programs of later tests."""
    memory = resident_memory()
    full = len(programs) > _MOST_PROGRAMS if memory is None else memory > _MOST_MEMORY
    if full:
        release_programs()


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
