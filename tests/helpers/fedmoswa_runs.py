"""FedMoSWA on quadratics in NumPy, many runs at once, with what its lemmas are about recorded.

Every client makes the visit of every round; the cohort decides which visits count.  Rates are
constant within a visit unless given.
"""

from typing import NamedTuple

import numpy as np


class Problem(NamedTuple):
    """``F_i(x) = (x - b_i)' A_i (x - b_i) / 2`` with noise of variance ``sigma^2``."""

    hessians: np.ndarray  # [m, d, d]
    centres: np.ndarray  # [m, d]
    sigma: float

    @property
    def beta(self):
        return np.abs(np.linalg.eigvalsh(self.hessians)).max()

    @property
    def optimum(self):
        pull = np.einsum("mij,mj->i", self.hessians, self.centres)
        return np.linalg.solve(self.hessians.sum(0), pull)

    def gradients(self, x):
        """[..., m, d] of models [..., m, d], one per client."""
        return np.einsum("mij,...mj->...mi", self.hessians, x - self.centres)

    def gradient(self, x):
        return self.gradients(x[..., None, :]).mean(axis=-2)

    def gap(self, x):
        offset = x - self.optimum
        return np.einsum("...i,ij,...j->...", offset, self.hessians.mean(0), offset) / 2


class Start(NamedTuple):
    params: np.ndarray  # [d]
    controls: np.ndarray  # [m, d]
    momentum: np.ndarray  # [d]


class Rounds(NamedTuple):
    """Values of every round and run; "before" and "after" the round, leaves [T, R, ...]."""

    before: "State"
    after: "State"
    drift: np.ndarray  # [T, R, K + 1] mean over clients of ||theta_ik - theta||^2
    descent: np.ndarray  # [T, R, d] the cohort's mean gradient
    move: np.ndarray  # [T, R] ||theta_t - theta_{t-1}||^2


class State(NamedTuple):
    params: np.ndarray  # [R, d]
    controls: np.ndarray  # [R, m, d]
    momentum: np.ndarray  # [R, d]


def random_problem(rng, num_clients=6, dim=3, sigma=0.0, convex=True, smallest=0.05):
    """Hessians with eigenvalues from [smallest, 1], or [-1, 1] if not convex."""
    low = smallest if convex else -1.0
    bases = np.linalg.qr(rng.normal(size=(num_clients, dim, dim)))[0]
    values = rng.uniform(low, 1.0, size=(num_clients, dim))
    hessians = np.einsum("mij,mj,mkj->mik", bases, values, bases)
    return Problem(hessians, rng.normal(size=(num_clients, dim)), sigma)


def run(problem, start, rng, *, rates, rounds, cohort_size, alpha=1.5, gamma=0.2, runs=1):
    """``runs`` independent runs of FedMoSWA, option II, from one start."""
    num_clients, dim = problem.centres.shape
    rates = np.asarray(rates)
    params = np.broadcast_to(start.params, (runs, dim))
    controls = np.broadcast_to(start.controls, (runs, num_clients, dim))
    momentum = np.broadcast_to(start.momentum, (runs, dim))
    records = []
    for _ in range(rounds):
        before = State(params, controls, momentum)
        x = np.repeat(params[:, None], num_clients, axis=1)
        descent, drift = np.zeros_like(x), [np.zeros(runs)]
        for rate in rates:
            noise = rng.normal(size=x.shape) * problem.sigma / np.sqrt(dim)
            gradient = problem.gradients(x) + noise
            descent += rate / rates.sum() * gradient
            x = x - rate * (gradient - controls + momentum[:, None])
            drift.append(squares(x - params[:, None]).mean(axis=1))
        chosen = rng.random((runs, num_clients)).argsort(axis=1) < cohort_size
        weights = chosen[..., None] / cohort_size
        controls = np.where(chosen[..., None], descent, controls)
        mean_descent = (weights * descent).sum(axis=1)
        momentum = momentum + gamma * (mean_descent - momentum)
        params = params + alpha * (weights * (x - params[:, None])).sum(axis=1)
        after = State(params, controls, momentum)
        records.append(
            Rounds(
                before, after, np.stack(drift, -1), mean_descent, squares(params - before.params)
            )
        )
    return Rounds(
        State(*(np.stack(parts) for parts in zip(*(r.before for r in records), strict=True))),
        State(*(np.stack(parts) for parts in zip(*(r.after for r in records), strict=True))),
        *(np.stack([getattr(r, name) for r in records]) for name in Rounds._fields[2:]),
    )


def squares(x):
    return (x**2).sum(axis=-1)


def check_below(function, constants, arguments, values, names, target, tightness):
    """Checks that ``values[target]`` is below a bound in every round, and not far below in one.

    ``names`` are the bound's arguments that change with the round, with their keys in ``values``,
    whose leaves are [T, R]; a mean over runs may exceed the bound by 4 standard errors.
    """
    shares = []
    for t in range(len(values[target])):
        means = {argument: values[name][t].mean() for argument, name in names.items()}
        bound = float(function(constants, **means, **arguments))
        sample = values[target][t]
        assert sample.mean() <= bound * (1 + 1e-12) + 4 * sample.std() / np.sqrt(len(sample))
        shares.append(sample.mean() / bound)
    assert max(shares) > tightness
