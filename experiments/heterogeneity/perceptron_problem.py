"""The perceptron of the report: clients of which one differs, and the paths of FedAvg.

20 clients separate Gaussian points around (0, 0) from points around (1, 1), the last client from
points around (4, 4).  Logits are ``w'x + b`` and only b is trained, so a client sees ``w'x`` only;
losses, slopes and suprema are functions of one number.

Section 3.1 of the report.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import fedjax_sim as fs
from experiments.heterogeneity.variants import exact_fedprox
from fedjax_sim.data import iid

CLIENTS, LR = 20, 0.2
OUTLIER = CLIENTS - 1
TRAIN, TEST = 50, 10  # points of each class and client
TOLERANCE = 1e-10  # norm of the gradient at an exact solution
LEFT = 0.1  # share of the way to its late mean that a settled model has not gone; not the report's

Participation = Literal["pair", "full"]


class Perceptron(NamedTuple):
    """The frozen slope and the initial b."""

    slope: tuple[float, float]
    start: float


MODELS = {"text": Perceptron((1.0, 1.0), 1.0), "code": Perceptron((2.700213, 0.7134238), 2.0)}


class Case(NamedTuple):
    """One line of a figure."""

    tau: int  # local steps
    rounds: int = 50
    mu: float = 0.0  # of FedProx; 0: FedAvg
    iid: bool = False  # the same points, distributed at random
    exact: bool = False  # visits solve the local problem, whatever tau is

    @property
    def name(self) -> str:
        """For tables and legends."""
        method = f"FedProx {self.mu:g}" if self.mu else "FedAvg"
        solver = "exact" if self.exact else f"tau {self.tau}"
        return f"{method}, {solver}{', iid' if self.iid else ''}"


class Points(NamedTuple):
    """All clients' points, or after :func:`projected` their ``w'x``."""

    x: np.ndarray  # [M, n, 2], projected [M, n]
    y: np.ndarray  # [M, n]

    @property
    def pooled(self) -> "Points":
        """The points of all clients together: ``[M n]``."""
        return Points(self.x.reshape(-1, *self.x.shape[2:]), self.y.reshape(-1))


class Cases(NamedTuple):
    """The lines of all figures."""

    local_steps: tuple[Case, ...]
    iid: Case
    proximal: tuple[Case, ...]

    @property
    def all(self) -> tuple[Case, ...]:
        """All cases."""
        return (*self.local_steps, self.iid, *self.proximal)


class Published(NamedTuple):
    """Results on the authors' data with two random clients per round."""

    official: float  # final b, from the authors' notebooks
    final: float  # final b, and the following: of exact full batches
    gap: float = np.nan  # of the test loss
    heterogeneity: float = np.nan
    late: float = np.nan  # gap of Figure 5


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
    """The authors' train/train.json and test/test.json: LEAF's format, users "0" to "19"."""
    parts = []
    for name in ("train", "test"):
        users = json.loads((folder / name / f"{name}.json").read_text())["user_data"]
        clients = [users[str(client)] for client in range(CLIENTS)]
        parts.append(Points(*(np.array([c[key] for c in clients], float) for key in ("x", "y"))))
    return parts[0], parts[1]


def dealt(points: Points, seed: int) -> Points:
    """The points, distributed at random over the clients in equal numbers."""
    pooled = points.pooled
    rows = np.stack(iid(len(pooled.y), CLIENTS, seed))
    return Points(pooled.x[rows], pooled.y[rows])


def projected(points: Points, model: Perceptron) -> Points:
    """The products ``w'x``, on which alone a model with a frozen w depends."""
    return Points(points.x @ np.asarray(model.slope), points.y)


def cohorts(participation: Participation, rounds: int, seed: int) -> np.ndarray:
    """The clients of every round, client 19 last: ``[rounds, 2]`` or ``[rounds, 20]``."""
    if participation not in get_args(Participation):
        raise ValueError(f"participation is {participation!r}; expected 'pair' or 'full'")
    if participation == "full":
        return np.tile(np.arange(CLIENTS), (rounds, 1))
    normal = np.random.default_rng([seed, 1]).integers(0, OUTLIER, rounds)
    return np.stack([normal, np.full(rounds, OUTLIER)], axis=1)


_LOSS = fs.objectives.binary_cross_entropy(lambda b, x: x + b)
_PROBES = fs.Probes(
    client={"local": lambda visit: visit.message - visit.upload},
    server={"server": lambda update: update.new_state.params},
)


@partial(jax.jit, static_argnames="exact")
def _paths(
    points: Points, clients: Array, timeline: fs.Timeline, start: Array, mu: Array, exact: bool
) -> tuple[Array, Array]:
    sizes = np.full(CLIENTS, points.y.shape[2])

    def one(points: Points, clients: Array) -> tuple[Array, Array]:
        examples = {"x": points.x.reshape(-1), "y": points.y.reshape(-1)}
        data = fs.FederatedData(examples, np.concatenate([[0], np.cumsum(sizes)]))
        task = fs.empirical_task(_LOSS, data, fs.full_batch(timeline.max_steps))
        schedule = dataclasses.replace(timeline, clients=clients)
        # One client after the other: steps beyond tau are then skipped, not masked.
        options: dict[str, Any] = {"execution": fs.execution.sequential(), "probes": _PROBES}
        algorithm = exact_fedprox(mu, TOLERANCE) if exact else fs.fedprox(LR, mu)
        setup = fs.Setup(task, schedule, start)
        _, history = fs.run(algorithm, setup, jax.random.key(0), **options)
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
    """
    if max_steps < case.tau:
        raise ValueError(f"max_steps is {max_steps}; expected at least the case's {case.tau}")
    with jax.enable_x64(True):
        timeline = fs.timelines.full(case.rounds, clients.shape[2], case.tau)
        timeline = dataclasses.replace(timeline, max_steps=max_steps)
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *points)
        cohorts = jnp.asarray(clients, jnp.int32)
        numbers = (jnp.asarray(start), jnp.asarray(case.mu))
        server, local = _paths(stacked, cohorts, timeline, *numbers, exact=case.exact)
        return np.asarray(server), np.asarray(local)


def rounds_to_settle(b: Sequence[float], start: float, late: int) -> float:
    """Rounds until the server's model has gone all but ``LEFT`` of the way to its late mean.

    The model moves on a line between rounds, so that two runs which settle within the same round
    differ.

    Args:
        b: after every round.
        late: number of last rounds whose mean is the end of the way.
    """
    path = np.asarray([start, *b])
    left = path - path[-late:].mean()
    if not left[0]:
        return 0.0
    left = left / left[0]
    after = int(np.flatnonzero(left <= LEFT)[0])
    return float(after - (LEFT - left[after]) / (left[after - 1] - left[after]))
