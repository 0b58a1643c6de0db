"""Devices of connected processes: which GPUs a process takes, and the line about idle ones."""

import jax
import pytest

from fedjax_sim.engine.execution import devices, distributed

SLURM = {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_NODEID": "1", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        # srun's SLURM_STEP_TASKS_PER_NODE: tasks per node, with repetitions in brackets.
        (SLURM, []),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, None),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "4,1"}, []),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1,4"}, None),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"}, []),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "2"}, None),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, []),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, None),
        (SLURM | {"JAX_LOCAL_DEVICE_IDS": "2"}, None),  # the user's choice
        ({}, None),
    ],
)
def test_gpus_of_a_process(environ, expected):
    assert distributed.local_device_ids(environ) == expected


@pytest.mark.parametrize(
    ("platform", "num_devices", "environ", "idle"),
    [
        ("gpu", 4, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 0),
        ("gpu", 1, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 3),
        ("gpu", 1, {"SLURM_GPUS_ON_NODE": "4"}, 3),
        ("gpu", 1, {"SLURM_GPUS_ON_NODE": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, 2),
        # The first process of a node speaks for all.
        ("gpu", 1, {"SLURM_GPUS_ON_NODE": "4", "SLURM_LOCALID": "1"}, 0),
        ("cpu", 16, {"SLURM_GPUS_ON_NODE": "4"}, 4),  # jaxlib without CUDA
        ("cpu", 16, {"CUDA_VISIBLE_DEVICES": ""}, 0),
        ("tpu", 4, {}, 0),
    ],
)
def test_idle_gpus(platform, num_devices, environ, idle):
    assert distributed.idle_gpus(num_devices, platform, SLURM | environ) == idle


def test_connect_takes_all_gpus_and_reports(monkeypatch, capsys):
    given = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **options: given.update(options))
    for name, value in (SLURM | {"SLURM_GPUS_ON_NODE": "4"}).items():
        monkeypatch.setenv(name, value)
    for name in ("CUDA_VISIBLE_DEVICES", "JAX_LOCAL_DEVICE_IDS"):
        monkeypatch.delenv(name, raising=False)
    distributed.connect()
    assert given["local_device_ids"] == []
    count = jax.local_device_count()
    assert capsys.readouterr().out == (
        f"1 process, {count} devices (cpu, {count} per process); idle: 4 GPUs (by process 4)\n"
    )


def test_connect_outside_of_a_cluster(monkeypatch):
    def initialize(*_, **options):
        raise ValueError("coordinator_address should be defined.")  # as JAX does

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(
        ValueError, match=r"coordinator is None and .* no cluster .*expected coordin"
    ):
        distributed.connect()


def test_the_number_of_host_devices_is_not_asked_of_a_backend(monkeypatch):
    """Processes can be connected until a backend starts."""
    monkeypatch.setattr(jax, "devices", lambda *_: pytest.fail("started"))
    assert devices.use_all_cores() >= 1
