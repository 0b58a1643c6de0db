r"""The heterogeneity report's perceptron: clients of whom one is different, FedAvg's paths on them.

20 clients separate Gaussian points around (0, 0) from points around (1, 1), the last client from
points around (4, 4).  Logits are ``w'x + b`` and only b is trained, so a client sees ``w'x`` only;
losses, slopes and suprema are functions of one number.

Dhasade, Kremer and Renard, "An Insight into the impact of Data Heterogeneity on the performance of
the FedAvg algorithm", section 3.1.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.optimize import brentq
from scipy.special import expit

import fedjax_sim as fs
from fedjax_sim.data import partition
from fedjax_sim.execution.strategies import sequential
from fedjax_sim.objectives import binary_cross_entropy
from fedjax_sim.theory.fedavg import convex_bound
from fedjax_sim.theory.heterogeneity_report import saturated_gap

CLIENTS, LR = 20, 0.2
OUTLIER = CLIENTS - 1
TRAIN, TEST = 50, 10  # points of each class and client
GRID = np.linspace(-12.0, 8.0, 4001)  # of b, for suprema

Participation = Literal["pair", "full"]


class Perceptron(NamedTuple):
    """The frozen slope and where b starts."""

    slope: tuple[float, float]
    start: float


MODELS = {"text": Perceptron((1.0, 1.0), 1.0), "code": Perceptron((2.700213, 0.7134238), 2.0)}


class Case(NamedTuple):
    """One line of a figure."""

    tau: int  # local steps
    rounds: int = 50
    mu: float = 0.0  # of FedProx; 0: FedAvg
    iid: bool = False  # the same points, dealt at random

    @property
    def name(self) -> str:
        """For tables and legends."""
        method = f"FedProx {self.mu:g}" if self.mu else "FedAvg"
        return f"{method}, tau {self.tau}{', iid' if self.iid else ''}"


class Points(NamedTuple):
    """All clients' points, or after :func:`projected` their ``w'x``."""

    x: np.ndarray  # [M, n, 2], projected [M, n]
    y: np.ndarray  # [M, n]

    @property
    def pooled(self) -> "Points":
        """Of all clients together: ``[M n]``."""
        return Points(self.x.reshape(-1, *self.x.shape[2:]), self.y.reshape(-1))


def generated(seed: int, std: float) -> tuple[Points, Points]:
    """Train and test points of the report's law."""
    rng = np.random.default_rng(seed)
    centres = np.zeros((CLIENTS, 2, 1, 2))  # by client and class
    centres[:, 1] = 1.0
    centres[OUTLIER, 1] = 4.0

    def points(count: int) -> Points:
        x = centres + std * rng.normal(size=(CLIENTS, 2, count, 2))
        return Points(
            x.reshape(CLIENTS, -1, 2), np.tile(np.repeat([0.0, 1.0], count), (CLIENTS, 1))
        )

    return points(TRAIN), points(TEST)


def authors(folder: pathlib.Path) -> tuple[Points, Points]:
    """Their train/train.json and test/test.json: LEAF's form, users "0" to "19"."""
    parts = []
    for name in ("train", "test"):
        users = json.loads((folder / name / f"{name}.json").read_text())["user_data"]
        clients = [users[str(client)] for client in range(CLIENTS)]
        parts.append(Points(*(np.array([c[key] for c in clients], float) for key in ("x", "y"))))
    return parts[0], parts[1]


def dealt(points: Points, seed: int) -> Points:
    """The same points, each client getting as many at random."""
    pooled = points.pooled
    rows = np.stack(partition.iid(len(pooled.y), CLIENTS, seed))
    return Points(pooled.x[rows], pooled.y[rows])


def projected(points: Points, model: Perceptron) -> Points:
    """``w'x``: all of x that a model with a frozen w sees."""
    return Points(points.x @ np.asarray(model.slope), points.y)


def cohorts(participation: Participation, rounds: int, seed: int) -> np.ndarray:
    """The clients of every round, the last one last: ``[rounds, 2]`` or ``[rounds, 20]``."""
    if participation not in get_args(Participation):
        raise ValueError(f"participation is {participation!r}; expected 'pair' or 'full'")
    if participation == "full":
        return np.tile(np.arange(CLIENTS), (rounds, 1))
    normal = np.random.default_rng([seed, 1]).integers(0, OUTLIER, rounds)
    return np.stack([normal, np.full(rounds, OUTLIER)], axis=1)


_LOSS = binary_cross_entropy(lambda b, x: x + b)
_PROBES = fs.Probes(
    client={"local": lambda visit: visit.message - visit.upload},
    server={"server": lambda update: update.new_state.params},
)


@jax.jit
def _paths(
    points: Points, clients: Array, timeline: fs.Timeline, start: Array, mu: Array
) -> tuple[Array, Array]:
    sizes = np.full(CLIENTS, points.y.shape[2])

    def one(points: Points, clients: Array) -> tuple[Array, Array]:
        examples = {"x": points.x.reshape(-1), "y": points.y.reshape(-1)}
        data = fs.FederatedData(examples, np.concatenate([[0], np.cumsum(sizes)]))
        task = fs.empirical_task(_LOSS, data, fs.full_batch(timeline.max_steps))
        mine = dataclasses.replace(timeline, clients=clients)
        # One client after the other: steps beyond tau are then skipped, not masked.
        options: dict[str, Any] = {"cohort": sequential(), "probes": _PROBES}
        _, history = fs.run(fs.fedprox(LR, mu), task, mine, start, jax.random.key(0), **options)
        return history.probes["server"], history.probes["local"][:, -1]

    return jax.vmap(one)(points, clients)


def paths(
    case: Case, clients: np.ndarray, start: float, points: Sequence[Points], max_steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """b after every round, and the last client's last local b in it: ``[seeds, rounds]`` each.

    In double precision.  FedAvg is FedProx with mu = 0, so that all cases of equally many rounds
    and ``max_steps``, at least their local steps, share a compiled program.

    Args:
        clients: ``[seeds, rounds, cohort]``, as :func:`cohorts` gives them.
        points: projected, of every seed.

    Raises:
        ValueError: fewer ``max_steps`` than the case has.
    """
    if max_steps < case.tau:
        raise ValueError(f"max_steps is {max_steps}; expected at least the case's {case.tau}")
    with jax.enable_x64(True):
        timeline = fs.timelines.full(case.rounds, clients.shape[2], case.tau)
        timeline = dataclasses.replace(timeline, max_steps=max_steps)
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *points)
        mine = jnp.asarray(clients, jnp.int32)
        found = _paths(stacked, mine, timeline, jnp.asarray(start), jnp.asarray(case.mu))
        return np.asarray(found[0]), np.asarray(found[1])


def loss(points: Points, b: Any) -> np.ndarray:
    """The mean logistic loss over the last axis of the points, for every b ``[...]``."""
    z = points.x + np.asarray(b)[..., None]
    return (np.logaddexp(0, z) - points.y * z).mean(-1)


def slope(points: Points, b: Any) -> np.ndarray:
    """The derivative of :func:`loss`."""
    return (expit(points.x + np.asarray(b)[..., None]) - points.y).mean(-1)


def gap(points: Points, b: Any, optimum: float) -> np.ndarray:
    """The loss above its minimum."""
    return loss(points, b) - loss(points, optimum)


def minimiser(*parts: Points) -> float:
    """Of the mean of the parts' losses."""
    total: Any = brentq(lambda b: sum(float(slope(part, b)) for part in parts), -60.0, 60.0)
    return float(total)


class Constants(NamedTuple):
    """What the bounds need, of the projected points of one seed."""

    optimum: float  # b*, of all train points
    test_optimum: float
    L: float  # sup F''
    client_L: float  # of all clients, as the bound asks for
    zeta: float  # sup over clients and b of |F_m' - F'|
    B: float  # |b_0 - b*|, the report's D
    optima: np.ndarray  # [M] of the clients
    pair_optimum: float  # of the mean of the normal clients' objective and the outlier's


def constants(train: Points, test: Points, start: float) -> Constants:
    """Suprema are over a grid of b, of 0.005."""
    clients = [Points(x, y) for x, y in zip(train.x, train.y, strict=True)]
    second = [(s * (1 - s)).mean(-1) for s in (expit(c.x + GRID[:, None]) for c in clients)]
    slopes = np.stack([slope(client, GRID) for client in clients])
    optimum = minimiser(train.pooled)
    return Constants(
        optimum,
        minimiser(test.pooled),
        float(np.mean(second, 0).max()),
        float(np.max(second)),
        float(np.abs(slopes - slopes.mean(0)).max()),
        abs(start - optimum),
        np.array([minimiser(client) for client in clients]),
        minimiser(Points(train.x[:OUTLIER], train.y[:OUTLIER]).pooled, clients[OUTLIER]),
    )


def shadow_gap(train: Points, server: np.ndarray, start: float, tau: int) -> float:
    """Mean over rounds and local steps 1 .. tau of ``F(shadow) - F*`` for clients that all take
    part: the left side of the report's Equation 1.  ``server`` is b after every round."""
    b = np.repeat(np.concatenate([[start], server[:-1]])[:, None], CLIENTS, axis=1)
    pooled, total = train.pooled, 0.0
    for _ in range(tau):
        b = b - LR * slope(train, b)
        total += loss(pooled, b.mean(1)).mean()
    return float(total / tau - loss(pooled, minimiser(pooled)))


def ends(train: Points, known: Constants) -> tuple[float, float, float]:
    """The train gaps of two clients' rounds for few and for infinitely many local steps, and of all
    clients' for infinitely many."""

    def objective(b: Any) -> Any:
        return loss(train.pooled, b)

    with jax.enable_x64(True):
        optima, optimum = jnp.asarray(known.optima), jnp.asarray(known.optimum)
        drawn = [
            saturated_gap(objective, optima[jnp.array([m, OUTLIER])], optimum)
            for m in range(OUTLIER)
        ]
        pair, full = np.mean(drawn), saturated_gap(objective, optima, optimum)
    few = gap(train.pooled, known.pair_optimum, known.optimum)
    return float(few), float(pair), float(full)


def bound(known: Constants, L: float, tau: int, rounds: int) -> float:
    """The report's Equation 1 without noise."""
    constants = {"sigma": 0.0, "M": CLIENTS, "B": known.B, "zeta": known.zeta}
    return float(convex_bound(lr=LR, L=L, K=tau, R=rounds, **constants))
