"""Devices to compile for, and their rates.

``jax.experimental.topologies`` describes devices that are not present.  A program lowered with
shardings on them is compiled by the compiler that runs on the real device.
"""

import pathlib
import re
from typing import Any, NamedTuple

H200 = pathlib.Path(__file__).parent / "h200.txtpb"


class Chip(NamedTuple):
    """Published rates of one device."""

    flops: float  # per second: products of float32 arrays at JAX's default precision
    bandwidth: float  # bytes per second of its memory
    memory: float  # bytes
    clock: float  # cycles per second, for compilers that estimate cycles; 0: they do not
    source: str


CHIPS = {
    "h200": Chip(
        494e12, 4.8e12, 141e9, 0,
        "NVIDIA H200 data sheet: TF32 without sparsity, HBM3e",
    ),
    "v5e": Chip(
        197e12, 819e9, 16e9, 1.5e9,
        "Google Cloud, TPU v5e: bfloat16, HBM; clock = rate / (4 MXUs x 128 x 128 x 2)",
    ),
    "v5p": Chip(
        459e12, 2765e9, 95e9, 1.75e9,
        "Google Cloud, TPU v5p: bfloat16, HBM; clock = rate / (8 MXUs x 128 x 128 x 2)",
    ),
    "v6e": Chip(
        918e12, 1640e9, 32e9, 1.75e9,
        "Google Cloud, TPU v6e: bfloat16, HBM; clock assumed equal to that of v5p",
    ),
}  # fmt: skip


class Target(NamedTuple):
    """Devices of one kind, for example ``h200:8`` or ``v5e:2x2``."""

    name: str
    chip: str  # in CHIPS
    size: str  # number of GPUs, or a TPU topology

    @property
    def platform(self) -> str:
        """JAX's name of the platform."""
        return "cuda" if self.chip == "h200" else "tpu"

    @property
    def rates(self) -> Chip:
        """Published rates of one of the devices."""
        return CHIPS[self.chip]

    @property
    def num_devices(self) -> int:
        """Number of devices of the topology."""
        count = 1
        for side in self.size.split("x"):
            count *= int(side)
        return count

    def devices(self) -> list[Any]:
        """Returns the devices; only in an environment with the platform's compiler."""
        import jax
        from jax.experimental import topologies

        if self.platform == "tpu":
            topology = topologies.get_topology_desc(platform="tpu", topology_name=self.name)
            return list(topology.devices)
        jax.devices()  # loads the plugin
        topology = topologies.get_topology_desc(
            platform="cuda",
            topology_name=self.chip,
            topology=f"1x1x{self.size}",
            target_config=H200.read_text(),
        )
        return list(topology.devices)


def target(name: str) -> Target:
    """Returns the target of a name.

    Example:
        >>> target("h200:8").num_devices, target("v5p:2x2x1").platform
        (8, 'tpu')
    """
    chip, _, size = name.partition(":")
    pattern = {"h200": r"[1-9]\d*"}.get(chip, r"\d+x\d+(x\d+)?")
    size = size or ("1" if chip == "h200" else "")
    if chip not in CHIPS or not re.fullmatch(pattern, size):
        raise ValueError(
            f"target is {name!r}; expected h200, h200:N, or a topology of v5e, v5p or v6e, "
            "for example v5e:2x2"
        )
    return Target(name, chip, size)
