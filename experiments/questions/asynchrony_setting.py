"""The setting of the study of asynchrony: speeds, sizes, and names of methods and problems."""

import numpy as np

from experiments.questions.asynchrony_limits import System

FAST, SLOW, STEPS, INTERVAL = 1 / 2, 1 / 16, 20, 7
LR, SERVER_LR, POWER = 0.05, 0.1, 0.5
SETTLED = 0.5  # share of the simulated time that is left out; limits are means over the rest
CURVATURES = np.linspace(0.5, 1.0, 4)
PARTS = ("speed", "scatter", "speed, other Hessians", "scatter, other Hessians")
CONTACTS = ("FAVANO", "QuAFL")
BUFFERED = ("FedBuff",)
SINGLE = ("FedAsync", "FedAsync, stale less")
METHODS = (*CONTACTS, *BUFFERED, *SINGLE)


def slow_clients(count: int, fraction: float) -> np.ndarray:
    """The first clients are slow, ``[M]``; data are drawn independently of the number."""
    return np.arange(count) < int(np.ceil(fraction * count - 1e-9))


def system(method: str, clients: int, slow: float) -> System:
    """Speeds and sizes of a method."""
    success = np.where(slow_clients(clients, slow), SLOW, FAST)
    buffer = 1 if method in SINGLE else clients // 10
    return System(success, STEPS, clients // 5, INTERVAL, buffer)
