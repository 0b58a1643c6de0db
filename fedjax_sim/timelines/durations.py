"""Laws of the duration of a local step, with one parameter per client.

A law ``law(rng, clients [S], count) -> [S, count]`` runs on the host and returns, in float64, the
durations of ``count`` successive steps of each client, in simulated time.  Fast and slow clients
share one law; :func:`two_speeds` assigns its parameters.  A law with fewer parameters than there
are clients raises ValueError.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import jax
import numpy as np
from jax import Array

from fedjax_sim.checks import (
    called,
    check_count,
    check_key,
    check_one_number,
    check_share,
    has_real_numbers,
)
from fedjax_sim.types import plain_integers

Generator = np.random.Generator
Durations = Callable[[Generator, np.ndarray, int], np.ndarray]


def geometric(success: np.ndarray | float) -> Durations:
    r"""Geometric durations in whole time units.

    .. math:: P(\tau = j) = \lambda (1 - \lambda)^{j - 1}, \quad j \ge 1

    A step ends in every time unit with probability ``success``; its mean duration is
    ``1 / success``.

    Args:
        success: lambda in (0, 1], ``[M]`` or one number for all clients.

    Raises:
        ValueError: a probability outside (0, 1].

    Example:
        >>> law = geometric(np.array([0.5, 1.0]))
        >>> law(np.random.default_rng(0), np.array([1, 1]), 3).tolist()
        [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    success = numbers("success", success)
    if not ((success > 0) & (success <= 1)).all():
        raise ValueError(f"success is {success}; expected probabilities in (0, 1]")

    def law(rng: Generator, clients: np.ndarray, count: int) -> np.ndarray:
        p = _per_client("success", success, clients)
        return rng.geometric(p, (len(clients), count)).astype(np.float64)

    return law


def exponential(mean: np.ndarray | float) -> Durations:
    """Exponential durations with the given means, ``[M]`` or one number for all clients.

    Raises:
        ValueError: a mean that is not positive.

    Example:
        >>> law = exponential(np.array([2.0, 16.0]))
        >>> bool(law(np.random.default_rng(0), np.array([1]), 1000).mean() > 10)
        True
    """
    mean = _positive("mean", mean)

    def law(rng: Generator, clients: np.ndarray, count: int) -> np.ndarray:
        return _per_client("mean", mean, clients) * rng.standard_exponential((len(clients), count))

    return law


def deterministic(duration: np.ndarray | float) -> Durations:
    """Constant durations per client, ``[M]`` or one number for all clients.

    Raises:
        ValueError: a duration that is not positive.

    Example:
        >>> deterministic(3.0)(np.random.default_rng(0), np.array([0, 4]), 2).tolist()
        [[3.0, 3.0], [3.0, 3.0]]
    """
    duration = _positive("duration", duration)

    def law(rng: Generator, clients: np.ndarray, count: int) -> np.ndarray:
        del rng
        return np.broadcast_to(_per_client("duration", duration, clients), (len(clients), count))

    return law


def log_normal(mean: np.ndarray | float, sigma: float) -> Durations:
    r"""Log-normal durations, :math:`\tau = m\, e^{\sigma Z - \sigma^2 / 2}`, with mean m.

    Args:
        mean: m, ``[M]`` or one number for all clients.
        sigma: standard deviation of the logarithm; 1 gives a heavy tail.

    Raises:
        ValueError: a mean that is not positive, a sigma that is negative or not finite.

    Example:
        >>> log_normal(2.0, 0.0)(np.random.default_rng(0), np.array([0]), 2).tolist()
        [[2.0, 2.0]]
    """
    mean = _positive("mean", mean)
    check_one_number(sigma=sigma)
    if not 0 <= sigma < np.inf:
        raise ValueError(f"sigma is {sigma}; expected a finite number >= 0")

    def law(rng: Generator, clients: np.ndarray, count: int) -> np.ndarray:
        z = rng.standard_normal((len(clients), count))
        return _per_client("mean", mean, clients) * np.exp(sigma * z - sigma**2 / 2)

    return law


def from_trace(durations: np.ndarray) -> Durations:
    """Measured durations, drawn with replacement from the records of each client.

    Args:
        durations: ``[M, L]``; NaN where a client has fewer than L records.  :func:`read_trace`
            reads them from a file.

    Raises:
        ValueError: a client without a record, or a duration that is not positive.

    Example:
        >>> law = from_trace(np.array([[1.0, 1.0], [5.0, np.nan]]))
        >>> law(np.random.default_rng(0), np.array([0, 1]), 2).tolist()
        [[1.0, 1.0], [5.0, 5.0]]
    """
    durations = numbers("durations", durations)
    known = ~np.isnan(durations)
    if durations.ndim != 2 or not known.any(axis=1).all() or not (durations[known] > 0).all():
        raise ValueError(
            f"durations has shape {durations.shape}; expected [M, L] of positive numbers, "
            "at least one per client"
        )
    order = np.argsort(~known, axis=1, kind="stable")
    durations = np.take_along_axis(durations, order, axis=1)
    lengths = known.sum(axis=1)

    def law(rng: Generator, clients: np.ndarray, count: int) -> np.ndarray:
        last = int(clients.max(initial=0))
        if last >= len(durations):
            raise ValueError(
                f"durations has shape {durations.shape}; expected a row for each client, and there "
                f"is client {last}"
            )
        picks = rng.integers(0, lengths[clients][:, None], (len(clients), count))
        return durations[clients[:, None], picks]

    return law


@plain_integers
def read_trace(path: str | pathlib.Path, num_clients: int) -> np.ndarray:
    """Records ``[M, L]`` of a CSV file with the header ``client,duration``.

    Raises:
        ValueError: another header, a row that is not an integer and a number, or a client outside
            0 .. num_clients - 1.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w", suffix=".csv", delete=False) as file:
        ...     _ = file.write("client,duration\\n0,1.5\\n1,4\\n0,2.5\\n")
        >>> read_trace(file.name, 2).tolist()
        [[1.5, 2.5], [4.0, nan]]
    """
    check_count(num_clients=num_clients)
    try:
        lines = pathlib.Path(path).read_text().splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"path {str(path)!r} is no text: {error}; expected a CSV file") from error
    if not lines or lines[0].replace(" ", "") != "client,duration":
        raise ValueError(f"path {str(path)!r} begins with {lines[:1]}; expected 'client,duration'")
    rows: list[list[float]] = [[] for _ in range(num_clients)]
    for number, line in enumerate(lines[1:], start=2):
        try:
            client, duration = line.split(",")
            # NaN would mean a missing record.
            valid = 0 <= int(client) < num_clients and not np.isnan(float(duration))
            if valid:
                rows[int(client)].append(float(duration))
        except ValueError:
            valid = False
        if not valid:
            raise ValueError(
                f"path {str(path)!r}, line {number} is {line!r}; expected a client of "
                f"0 .. {num_clients - 1} and a number"
            )
    table = np.full((num_clients, max(map(len, rows), default=0)), np.nan)
    for client, values in enumerate(rows):
        table[client, : len(values)] = values
    return table


@plain_integers
def two_speeds(
    key: Array, num_clients: int, slow_fraction: float, *, fast: float, slow: float
) -> np.ndarray:
    """One parameter per client, ``[M]``: ``slow`` for ``ceil(slow_fraction * M)`` random clients.

    Raises:
        ValueError: a fraction outside [0, 1].

    Example:
        >>> success = two_speeds(jax.random.key(0), 100, 1 / 3, fast=1 / 2, slow=1 / 16)
        >>> int((success == 1 / 16).sum())
        34
    """
    check_count(num_clients=num_clients)
    check_share(slow_fraction=slow_fraction)
    check_one_number(fast=fast, slow=slow)
    values = np.full(num_clients, fast, np.float64)
    # Without the small term, rounding would make ceil(0.3 * 10) equal to 4.
    count = int(np.ceil(slow_fraction * num_clients - 1e-9))
    values[host_generator(key).permutation(num_clients)[:count]] = slow
    return values


def numbers(name: str, values: object) -> np.ndarray:
    """Values as an array in double precision; refuses what is none."""
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is {values!r:.60}; expected an array of numbers") from error


def drawn_durations(
    name: str, law: Durations, rng: Generator, clients: np.ndarray, count: int
) -> np.ndarray:
    """Durations ``[S, count]`` that a law, which may be a user's, draws for these clients."""
    if not len(clients):  # of a round without clients
        return np.zeros((0, count))
    given = f"(generator, {len(clients)} clients, {count})"
    expected = "a law of durations such as fs.timelines.exponential(2.0)"
    values = np.asarray(called(name, given, expected, law, rng, clients, count))
    # One column would be broadcast as if a visit had one step, one row as if clients were equal.
    if values.shape != (len(clients), count) or not has_real_numbers(values):
        raise ValueError(
            f"{name} returns {values.dtype} {values.shape} for {given}; expected numbers "
            f"{(len(clients), count)}"
        )
    if not (values >= 0).all():
        raise ValueError(
            f"{name} returns {values[~(values >= 0)][0]} for {given}; expected numbers >= 0"
        )
    return values


def host_generator(key: Array) -> Generator:
    """NumPy generator seeded by a JAX key."""
    check_key(key)
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())


def _per_client(name: str, values: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """Parameters of the given clients, ``[S, 1]``."""
    last = int(clients.max(initial=0))
    if values.ndim > 1 or (values.ndim and last >= len(values)):
        raise ValueError(
            f"{name} has shape {values.shape}; expected one number, or one per client, and there "
            f"is client {last}"
        )
    return np.broadcast_to(values[clients] if values.ndim else values, clients.shape)[:, None]


def _positive(name: str, values: np.ndarray | float) -> np.ndarray:
    values = numbers(name, values)
    if not (values > 0).all() or not np.isfinite(values).all():
        raise ValueError(f"{name} is {values}; expected positive finite numbers")
    return values
