"""The methods of the FAVANO experiments, each an algorithm and the schedule it runs on.

From "FAVANO: Federated AVeraging with Asynchronous Nodes" (arXiv 2305.16099), Section 5 and App. C.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import fedjax_sim as fs
from experiments.favano.variants import quafl_of_the_program
from fedjax_sim.algorithms.staleness import StalenessWeight, expected_steps, realised_steps
from fedjax_sim.timelines import contacts

Law = Literal["renewal", "strict", "pending", "literal"]
LAWS: tuple[Law, ...] = ("renewal", "strict", "pending", "literal")
# Of the clients' models around the server's, with or without their steps since the last contact.
Variance = Literal["none", "lazy", "exact"]


@dataclasses.dataclass(frozen=True)
class Clock:
    """Appendix C.2: share of slow clients, lengths of steps, and when the server acts."""

    slow_fraction: float = 1 / 3
    horizon: float = 5000.0  # time units
    num_clients: int = 100  # n
    cohort_size: int = 20  # s
    max_steps: int = 20  # K
    buffer: int = 10  # Z
    fast: float = 1 / 2  # chance that a step ends within a time unit
    slow: float = 1 / 16
    waiting: float = 4.0
    interaction: float = 3.0
    law: Law = "renewal"  # of the steps between two contacts

    @property
    def interval(self) -> float:
        return self.waiting + self.interaction


class Method(NamedTuple):
    """An algorithm and the schedule it runs on."""

    label: str
    schedule: Literal["rounds", "contacts", "mixing contacts", "buffer", "every report"]
    algorithm: Callable[[Array, Array], fs.FedAlgorithm]  # (lr, constants of the clients)
    constants: Callable[[Clock, np.ndarray], np.ndarray] = lambda clock, success: np.zeros(
        len(success)
    )
    lr_factor: float = 1.0  # of the local rate
    num_steps: int | None = None  # per report; None: the clock's cap
    codecs: tuple[fs.compression.Codec, fs.compression.Codec] = (
        fs.compression.identity(),
        fs.compression.identity(),
    )  # of messages up and down


def fedavg() -> Method:
    return Method("FedAvg", "rounds", lambda lr, _: fs.fedavg(lr))


def quafl(*, rate_factor: bool = False) -> Method:
    label = "QuAFL" + (", rate (s + 1) / s" if rate_factor else "")
    algorithm = partial(quafl_of_the_program, rate_factor=True) if rate_factor else fs.quafl
    return Method(label, "mixing contacts", lambda lr, _: algorithm(lr))


def fedbuff(
    server_lr: float, *, scaled: bool = True, warm_up: int = 0, buffer: int = 10, n: int = 100
) -> Method:
    """FedBuff; ``scaled``: the local rate times Z / n, as in QuAFL's program.

    The local rate rises linearly over the first ``warm_up`` server updates.
    """
    label = f"FedBuff, server rate {server_lr:g}" + ("" if scaled else ", lr unscaled")
    label += f", warm-up of {warm_up}" if warm_up else ""
    factor = buffer / n if scaled else 1.0

    def algorithm(lr: Array, constants: Array) -> fs.FedAlgorithm:
        del constants
        if not warm_up:
            return fs.fedbuff(lr, server_lr)
        return fs.fedbuff(lambda t: lr * jnp.minimum(1.0, (t + 1) / warm_up), server_lr)

    return Method(label, "buffer", algorithm, lr_factor=factor)


def favano(version: Literal["stochastic", "deterministic"] = "stochastic") -> Method:
    if version == "stochastic":
        return Method(
            "FAVANO", "contacts", lambda lr, p: fs.favano(lr, realised_steps(p)),
            lambda clock, success: capped(clock, success).p_active,
        )  # fmt: skip
    return favano_divided("deterministic alpha", lambda clock, success: capped(clock, success).mean)


def favano_divided(name: str, alpha: Callable[[Clock, np.ndarray], np.ndarray]) -> Method:
    """FAVANO with one alpha per client."""
    return Method(
        f"FAVANO, {name}", "contacts", lambda lr, mean: fs.favano(lr, expected_steps(mean)), alpha
    )


def quafl_coded(bits: int, cell: float) -> Method:
    """QuAFL on its program's lattice in both directions."""
    codec = fs.compression.lattice(bits, cell)
    return quafl()._replace(
        label=f"QuAFL, lattice of {bits} bits, cell {cell:g}",
        algorithm=lambda lr, _: fs.quafl(lr, codec.through, codec.through),
        codecs=(codec, codec),
    )


def coded(
    method: Method, name: str, up: fs.compression.Codec, down: fs.compression.Codec
) -> Method:
    """A method whose uploads are models, with its messages through codecs."""
    return method._replace(
        label=f"{method.label}, {name}",
        algorithm=lambda lr, constants: fs.compressed(method.algorithm(lr, constants), up, down),
        codecs=(up, down),
    )


def fedasync(name: str, weight: StalenessWeight) -> Method:
    """Every report is mixed in with 0.6 times a weight by its staleness."""
    return Method(f"FedAsync, {name}", "every report", lambda lr, _: fs.fedasync(lr, 0.6, weight))


def async_sgd(lr_factor: float, *, adaptive: bool) -> Method:
    """One step per report; adaptive: the rate falls with a staleness above the clients' number."""
    label = f"AsyncSGD, lr x {lr_factor:g}" + (", delay-adaptive" if adaptive else "")

    def algorithm(lr: Array, constants: Array) -> fs.FedAlgorithm:
        n = constants.shape[0]
        return fs.async_sgd(lr, patience=n, bound=lr * n) if adaptive else fs.async_sgd(lr)

    return Method(label, "every report", algorithm, lr_factor=lr_factor, num_steps=1)


def capped(clock: Clock, success: np.ndarray) -> fs.theory.step_counts.CappedSteps:
    """The law of the steps between two contacts, per client."""
    contact = clock.cohort_size / clock.num_clients
    if clock.law == "literal":
        return fs.theory.step_counts.geometric(success, clock.max_steps)
    if clock.law == "pending":  # no closed form: a long schedule, by speed
        return _simulated(clock, success)
    strict = clock.law == "strict"
    return fs.theory.step_counts.renewal(
        success, clock.max_steps, int(clock.interval), contact, strict=strict
    )


def _simulated(clock: Clock, success: np.ndarray) -> fs.theory.step_counts.CappedSteps:
    long = dataclasses.replace(clock, horizon=20_000 * clock.interval)
    timeline = _contacts(long, jax.random.key(17), success)
    first = np.asarray(timeline.version) == 0  # since the start, not since a contact
    clients, steps = np.asarray(timeline.clients)[~first], np.asarray(timeline.num_steps)[~first]
    laws = {
        chance: fs.theory.step_counts.empirical(steps[success[clients] == chance], clock.max_steps)
        for chance in set(success)
    }
    columns = zip(*(laws[chance] for chance in success), strict=True)
    return fs.theory.step_counts.CappedSteps(*map(np.array, columns))


def _steps(clock: Clock, success: np.ndarray):
    if clock.law == "literal":
        return fs.timelines.independent_counts(fs.timelines.geometric(success))
    if clock.law == "pending":
        return fs.timelines.renewal_counts(
            fs.timelines.exponential(1 / success), strict=True, pending=True
        )
    return fs.timelines.renewal_counts(
        fs.timelines.geometric(success), strict=clock.law == "strict"
    )


def _contacts(clock: Clock, key: Array, success: np.ndarray, **options: Any) -> fs.Timeline:
    return contacts(
        key,
        _steps(clock, success),
        horizon=clock.horizon,
        num_clients=clock.num_clients,
        cohort_size=clock.cohort_size,
        max_steps=clock.max_steps,
        interval=clock.interval,
        **options,
    )


def timeline(method: Method, clock: Clock, key: Array, success: np.ndarray) -> fs.Timeline:
    """The method's schedule."""
    shared = {"horizon": clock.horizon, "num_clients": clock.num_clients}
    if method.schedule == "rounds":
        return fs.timelines.synchronous(
            key, fs.timelines.geometric(success), cohort_size=clock.cohort_size,
            num_steps=clock.max_steps, interaction=clock.interaction, **shared,
        )  # fmt: skip
    if method.schedule == "buffer":
        return fs.timelines.arrivals(
            key, fs.timelines.geometric(success), num_steps=clock.max_steps, buffer=clock.buffer,
            interaction=clock.interaction, **shared,
        )  # fmt: skip
    if method.schedule == "every report":
        num_steps = method.num_steps or clock.max_steps
        return fs.timelines.arrivals(
            key, fs.timelines.geometric(success), num_steps=num_steps, **shared
        )
    receives = "current" if method.schedule == "mixing contacts" else "new"
    return _contacts(clock, key, success, receives=receives)


def in_flight(
    method: Method, clock: Clock, key: Array, success: np.ndarray, every: int
) -> fs.timelines.InFlight:
    """The clients' visits in progress after every ``every``-th update of the same schedule."""
    shared = {"every": every, "horizon": clock.horizon, "num_clients": clock.num_clients}
    if method.schedule == "buffer":
        return fs.timelines.arrivals_in_flight(
            key, fs.timelines.geometric(success), num_steps=clock.max_steps, buffer=clock.buffer,
            interaction=clock.interaction, **shared,
        )  # fmt: skip
    return fs.timelines.contacts_in_flight(
        key, _steps(clock, success), cohort_size=clock.cohort_size, max_steps=clock.max_steps,
        interval=clock.interval, **shared,
    )  # fmt: skip
