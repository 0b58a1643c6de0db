"""Host devices: one a core unless the user has chosen, and the memory that each may use."""

import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

import jax
import pytest

from fedjax_sim.engine.execution import devices


def run(code: str, flags: str = "") -> str:
    """The output of a fresh process, since the number of host devices is fixed when JAX starts."""
    env = dict(os.environ, JAX_PLATFORMS="cpu", XLA_FLAGS=flags)
    env.pop("JAX_NUM_CPU_DEVICES", None)
    names = "num_cores, use_all_cores"
    code = f"import jax\nfrom fedjax_sim.engine.execution.devices import {names}\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, check=True, timeout=120, capture_output=True
    )
    return done.stdout.decode().strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "flags", "expected"),
    [
        ("use_all_cores()", "", "{cores}"),
        ("use_all_cores(3)", "", "3"),
        # The user's choice is kept, however it was made.
        ("use_all_cores(3)", "--xla_force_host_platform_device_count=5", "5"),
        ("jax.config.update('jax_num_cpu_devices', 2) or use_all_cores(3)", "", "2"),
        # Twice is no harm.
        ("use_all_cores(3) and use_all_cores(3)", "", "3"),
    ],
)
def test_a_host_device_a_core(call, flags, expected):
    printed = run(f"print({call}, jax.device_count(), num_cores())", flags)
    devices, seen, cores = printed.split()
    assert devices == seen == expected.format(cores=cores)
    assert int(cores) == devices_of_this_process()


@pytest.mark.slow
@pytest.mark.parametrize(("chosen", "expected"), [(None, 4 * devices.num_cores()), ("5", 5)])
def test_threads_of_the_pool_unless_the_user_has_chosen(monkeypatch, chosen, expected):
    monkeypatch.delenv("NPROC")
    if chosen:
        monkeypatch.setenv("NPROC", chosen)
    code = "import os\nuse_all_cores(threads=4)\nprint(os.environ['NPROC'])"
    assert run(code) == str(expected)


class Plugin(NamedTuple):
    """Entry point of a package that JAX loads."""

    name: str


@pytest.mark.parametrize(
    ("plugin", "environ", "expected"),
    [
        ("xla_cuda12", {}, "--{0}=+WHILE --{1}=1 --{2}"),
        ("xla_cuda13", {"JAX_PLATFORMS": "cuda,cpu"}, "--{0}=+WHILE --{1}=1 --{2}"),
        # What the user has chosen stays.
        ("xla_cuda12", {"XLA_FLAGS": "--{0}= --a=b"}, "--{0}= --a=b --{1}=1 --{2}"),
        ("xla_cuda12", {"JAX_PLATFORMS": "cpu"}, None),
        ("tpu", {}, None),
    ],
)
def test_flags_for_command_buffers(monkeypatch, plugin, environ, expected):
    names = list(devices.COMMAND_BUFFER_FLAGS)
    environ = {name: value.format(*names) for name, value in environ.items()}
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Plugin(plugin)])
    assert devices.use_command_buffers(environ) is (expected is not None)
    if expected is None:
        assert "XLA_FLAGS" not in environ
        return
    last = f"{names[2]}=fusion-dynamic-memcpy-rewriter"
    assert environ["XLA_FLAGS"] == expected.format(*names[:2], last)
    assert not devices.use_command_buffers(environ)  # once


def devices_of_this_process() -> int:
    return len(os.sched_getaffinity(0))


@pytest.mark.slow
def test_too_late_to_ask():
    code = """
jax.devices()
try:
    use_all_cores(3)
except RuntimeError:
    print("refused")
"""
    assert run(code) == "refused"


def test_a_number_below_one_is_refused():
    with pytest.raises(ValueError, match="num_devices is 0; expected at least 1"):
        devices.use_all_cores(0)
    with pytest.raises(ValueError, match="threads is 0; expected at least 1"):
        devices.use_all_cores(threads=0)


def test_no_more_workers_than_cores(monkeypatch):
    """Four host devices are forced here, whatever the machine has."""
    everything = jax.local_devices()
    assert len(everything) == 4
    for cores in (1, 3, 64):
        monkeypatch.setattr(devices, "num_cores", lambda cores=cores: cores)
        assert devices.workers() == everything[:cores]


def test_host_devices_divide_half_of_the_memory(monkeypatch):
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    total = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal"))
    for cores in (1, 2):
        monkeypatch.setattr(devices, "num_cores", lambda cores=cores: cores)
        limit = devices.memory_limit(jax.devices()[0])
        assert limit == total // 2 // cores


class Accelerator(NamedTuple):
    """Device with the attributes that ``memory_limit`` reads."""

    statistics: dict | None
    platform: str = "gpu"

    def memory_stats(self):
        return self.statistics


def test_nine_tenths_of_an_accelerators_memory():
    assert devices.memory_limit(Accelerator({"bytes_limit": 1000, "bytes_in_use": 999})) == 900
    for silent in (None, {}):
        with pytest.raises(ValueError, match="expected the bytes as `memory`"):
            devices.memory_limit(Accelerator(silent))
