"""Averages of FAVANO's runs on quadratics beside Theorem 1, Equation 6 and the lemmas."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.favano import printed
from experiments.favano.lemmas import mean_steps, potential
from experiments.favano.quadratics import NUM_CLIENTS, Problem, success
from fedjax_sim.theory import Version

WORST = 3.0  # standard errors that an average may be above its bound


def above(values: np.ndarray) -> float:
    """The largest average over repetitions less WORST standard errors, ``[R, ...]``."""
    error = values.std(axis=0, ddof=1) / len(values) ** 0.5
    return float(np.max(values.mean(axis=0) - WORST * error))


def row(
    traces: Any, known: dict[str, Any], version: Version, fraction: float, share: float
) -> dict[str, Any]:
    """Averages and bounds of one setting; ``traces`` are ``[R, T + 1, 4]``."""
    lr, T = known["lr"], traces.shape[1] - 1
    sizes = {name: known[name] for name in ("lr", "clients", "cohort_size")}
    printed_lr = printed.largest_lr(**{name: known[name] for name in known if name != "lr"})
    # The theorem is about t < T; the last moment is for the potential.
    gradient = traces[:, :-1, 0].mean(axis=1)
    bound = float(fs.theory.favano.rates.mean_gradient_bound(**known, rounds=T))
    columns = {
        "s": known["cohort_size"], "K": known["local_steps"], "slow": fraction, "alpha": version,
        "lr": lr, "of the largest": share, "lr / printed largest": lr / printed_lr,
        "a": known["progress"].a, "b": known["progress"].b,
        "mean gradient": gradient.mean(), "bound": bound, "bound / mean": bound / gradient.mean(),
    }  # fmt: skip
    holds = above(gradient - bound) <= 0
    if lr <= printed_lr:
        columns["printed bound"] = printed.mean_gradient_bound(**known, rounds=T)
        holds &= above(gradient - columns["printed bound"]) <= 0
    phi, after, progress = traces[:, :-1, 1], traces[:, 1:, 1], traces[:, :-1, 2]
    columns["mean potential"] = after.mean()
    # If everyone is contacted all models agree, up to rounding.
    size = after.mean() if known["cohort_size"] < known["clients"] else float("nan")
    step = {"potential": phi, "squared_progress": progress, **sizes}
    forms = {
        "kappa": printed.potential_bound(**step),
        "kappa'": potential.potential_bound(**step),
    }
    for name, value in forms.items():
        next_phi = np.asarray(value)
        columns[f"{name}: bound / potential"] = next_phi.mean() / size
        holds &= above(after - next_phi) <= 0
    by_gradient = np.asarray(
        potential.next_potential_bound(**known, potential=phi, squared_gradient=traces[:, :-1, 0])
    )
    columns["Lemma B.4: bound / potential"] = by_gradient.mean() / size
    holds &= above(after - by_gradient) <= 0
    squares, total = traces[:, :-1, 0], traces[:, :, 1].sum(axis=1)
    bound = np.asarray(
        potential.cumulative_potential_bound(
            **known, rounds=T, squared_gradients=squares.sum(axis=1)
        )
    )
    columns["sum of potentials: bound / sum"] = bound.mean() / (total.mean() + 0 * size)
    holds &= above(total - bound) <= 0
    moved, at = traces[:, :-1, 3], {"potential": phi, "squared_gradient": squares}
    for name, value in {
        "mean model's step: bound / step": mean_steps.mean_step_bound(
            squared_progress=progress, **sizes
        ),
        "by the gradient: bound / step": mean_steps.mean_step_bound_at_mean(**known, **at),
    }.items():
        columns[name] = np.asarray(value).mean() / moved.mean()
        holds &= above((moved - np.asarray(value)).mean(axis=1)) <= 0
    return {**columns, "holds": bool(holds)}


def admitted(problem: Problem, s: int, K: int, fraction: float, version: Version) -> dict[str, Any]:
    """The theorem's constants with the largest rate that it admits."""
    law = fs.theory.step_counts.geometric(success(fraction), K)
    known: dict[str, Any] = {
        "constants": problem.constants,
        "progress": fs.theory.favano.progress.progress_constants(
            law, local_steps=K, version=version
        ),
        "local_steps": K,
        "clients": NUM_CLIENTS,
        "cohort_size": s,
    }
    return known | {"lr": float(fs.theory.favano.rates.largest_lr(**known))}


def over_time(means: np.ndarray, known: dict[str, Any], num_steps: int = 60) -> pd.DataFrame:
    """Averages and bounds at some of T server steps, of average traces ``[T + 1, 4]``.

    ``gradient`` is the average over the steps so far, ``lemma`` Equation 6 applied again and again.
    """
    sizes = {name: known[name] for name in ("lr", "clients", "cohort_size")}
    steps = np.arange(1, len(means))
    bounds = [0.0]
    for progress in means[:-1, 2]:
        step = potential.potential_bound(potential=bounds[-1], squared_progress=progress, **sizes)
        bounds.append(float(step))
    theorem = np.asarray(
        fs.theory.favano.rates.mean_gradient_bound(**known, rounds=jnp.asarray(steps))
    )
    curves = {
        "s": known["cohort_size"], "server steps": steps,
        "gradient": means[:-1, 0].cumsum() / steps, "theorem": theorem, "potential": means[1:, 1],
        "lemma": bounds[1:],
    }  # fmt: skip
    chosen = np.unique(np.geomspace(1, len(steps), num_steps).round().astype(int)) - 1
    return pd.DataFrame(curves).iloc[chosen]
