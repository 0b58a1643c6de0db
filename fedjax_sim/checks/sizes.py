"""Checks of sizes that no memory can have."""

import os

from fedjax_sim.checks.numbers import INT32_MAX, check_at_most

SLOT_BYTES = 13  # clients, version, num_steps, mask


def check_bytes(**values: float | None) -> None:
    """Raises ValueError for numbers of bytes that no memory can have; None passes."""
    for name, value in values.items():
        if value is not None and not 1 <= value < 2**63:
            raise ValueError(f"{name} is {value}; expected 1 .. 2^63 - 1 bytes")


def check_timeline_size(num_rounds: int, cohort_size: int) -> None:
    """Raises ValueError for a timeline that does not fit in the host's memory."""
    check_at_most(INT32_MAX, num_rounds=num_rounds, cohort_size=cohort_size)
    needed, memory = num_rounds * cohort_size * SLOT_BYTES, host_memory()
    if needed > memory:
        raise ValueError(
            f"num_rounds x cohort_size is {num_rounds} x {cohort_size}, a timeline of "
            f"{needed / 1e9:.3g} GB; expected at most {memory / 1e9:.3g} GB, this machine's memory"
        )


def check_horizon(horizon: float, time: float, num_rounds: int, cohort_size: int) -> None:
    """Raises ValueError for a horizon that needs more rounds than a timeline can have.

    The number of rounds is predicted from that until ``time``, from the 4096th round on and then
    whenever it has doubled.  Durations so short that simulated time stands still are refused, too.
    """
    if num_rounds < 4096 or num_rounds & (num_rounds - 1):
        return
    most = min(INT32_MAX, host_memory() // (SLOT_BYTES * cohort_size))
    if num_rounds * horizon > most * time:
        largest = most / num_rounds * time
        raise ValueError(
            f"horizon is {horizon}, but after {num_rounds} updates the simulated time is "
            f"{time:.3g}, since durations are short; expected at most {largest:.3g}, which gives "
            f"about {most} updates"
        )


def host_memory() -> int:
    """Returns the bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
