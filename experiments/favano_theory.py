"""FAVANO beside its theory: quadratic clients whose constants are known exactly.

    python -m experiments.favano_theory
    python -m experiments.favano_theory --server-steps 40 --repetitions 4

"FAVANO: Federated AVeraging with Asynchronous Nodes" (arXiv 2305.16099), Section 4 and Appendix B.
Client i has f_i(x) = h_i x' A x / 2 + c_i' x and noise of fixed length; clients come in pairs of
one h and opposite c, so that f = x' A x / 2, and the mean of ||grad f_i||^2 at every x is
B^2 ||grad f||^2 + G^2, with B^2 the mean of h_i^2 and G^2 that of ||c_i||^2.  The steps between two
contacts are drawn anew, as in the theory: geometric, and "slow" clients (1/16) do more of them.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro
from jax.tree_util import Partial
from matplotlib.figure import Figure

import fedjax_sim as fs
from experiments.output import write
from fedjax_sim.algorithms.staleness import expected_steps, realised_steps
from fedjax_sim.analysis.tables import markdown
from fedjax_sim.diagnostics.in_flight import held_models
from fedjax_sim.diagnostics.potential import mean_model, potential
from fedjax_sim.engine import RunState
from fedjax_sim.theory import favano_units as units
from fedjax_sim.theory.constants import Form
from fedjax_sim.theory.favano import largest_lr, mean_gradient_bound
from fedjax_sim.theory.favano_potential import next_potential_bound, potential_bound
from fedjax_sim.theory.favano_progress import Version, progress_constants
from fedjax_sim.theory.favano_step_times import (
    async_sgd_step_time,
    clocked_step_time,
    fedavg_step_time,
)
from fedjax_sim.timelines import (
    allocate_buffers,
    arrivals,
    contacts,
    counts,
    geometric,
    held_versions,
    independent_counts,
    stacked,
)

DIM, NUM_CLIENTS, SIGMA, G = 10, 20, 0.5, 0.5
SPREAD = (0.75, 1.25)  # h_i
FAST, SLOW = 1 / 2, 1 / 16
COHORTS, CAPS = (2, 5, 20), (5, 20)
SLOW_FRACTIONS = (0.0, 0.5, 1.0)
SHARES = (1.0, 0.1)  # of the largest rate of the theorem
VERSIONS: tuple[Version, ...] = ("stochastic", "deterministic")
WORST = 3.0  # standard errors that an average may be above its bound
DRAWN = (5, 0.5, 1.0, "stochastic")  # K, fraction of slow clients, share and alpha of the figure
_OF_RATE = ("L", "B", "b", "n", "s", "K")  # what the largest rate depends on
EPSILONS = (1e-1, 1e-2, 1e-3)


class Curves(NamedTuple):
    """A setting over time: averages and bounds, ``[T]``."""

    gradient: np.ndarray  # over the steps up to each
    theorem: np.ndarray
    potential: np.ndarray
    lemma: np.ndarray  # applied again and again, from 0


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    server_steps: int = 1000
    repetitions: int = 16
    seed: int = 0
    output: pathlib.Path = pathlib.Path("experiments/results/favano_theory")

    def __post_init__(self) -> None:
        for name, least in (("server_steps", 2), ("repetitions", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least {least}")


class Problem(NamedTuple):
    """The clients' quadratics, and where they start."""

    hessian: np.ndarray  # A, [d, d]
    scales: np.ndarray  # h_i, [n]
    linear: np.ndarray  # c_i, [n, d]
    start: np.ndarray  # [d]

    @property
    def constants(self) -> dict[str, Any]:
        """Exact ones of the theorem."""
        largest = float(np.linalg.eigvalsh(self.hessian)[-1])
        return {
            "L": largest * float(self.scales.max()),
            "sigma": SIGMA,
            "G": float(np.mean(np.sum(self.linear**2, axis=1)) ** 0.5),
            "B": float(np.mean(self.scales**2) ** 0.5),
            "F": float(self.start @ self.hessian @ self.start / 2),
        }


def problem(seed: int, n: int = NUM_CLIENTS) -> Problem:
    """Eigenvalues from 1/10 to 1; a multiple of 4 clients; pairs (h, c) and (h, -c)."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
    half = rng.normal(size=(n // 2, DIM))
    linear = np.stack([half, -half], axis=1).reshape(n, DIM)
    linear *= G / np.mean(np.sum(linear**2, axis=1)) ** 0.5
    return Problem(
        hessian=basis * np.geomspace(0.1, 1, DIM) @ basis.T,
        scales=np.repeat(np.resize(SPREAD, n // 2), 2),
        linear=linear,
        start=basis @ np.ones(DIM),
    )


def oracle(problem: Problem, client: Any, key: Any, max_steps: int) -> fs.Oracle:
    """Step k has noise of length SIGMA and random sign along coordinate k."""
    del max_steps
    scale, linear = jnp.asarray(problem.scales)[client], jnp.asarray(problem.linear)[client]
    hessian = scale * jnp.asarray(problem.hessian)
    places = jnp.arange(DIM, dtype=jnp.int32)

    def grad(x: Any, k: Any) -> Any:
        sign = jax.random.rademacher(jax.random.fold_in(key, k), (), x.dtype)
        noise = jnp.where(places == jnp.asarray(k, jnp.int32) % DIM, SIGMA * sign, 0.0)
        return hessian @ x + linear + noise

    return fs.Oracle(grad, lambda x, k: x @ hessian @ x / 2 + linear @ x, lambda x: hessian @ x)


class Batch(NamedTuple):
    """Runs side by side, ``[R, ...]``."""

    timeline: fs.Timeline
    held: Any  # [R, T, n] versions after each update
    p_active: Any  # [R, n]
    mean: Any  # [R, n]
    chances: Any  # [R, n, K] of 1 .. K steps
    key: Any  # [R]


def success(fraction: float, n: int = NUM_CLIENTS) -> np.ndarray:
    """Of each client; both of a pair are equally fast."""
    return np.where(np.arange(n) < round(fraction * n / 2) * 2, SLOW, FAST)


def batch(s: int, K: int, options: Options) -> Batch:
    """All repetitions at all fractions of slow clients, in this order."""
    timelines, laws, chances = [], [], []
    keys = jax.random.split(jax.random.key(options.seed), len(SLOW_FRACTIONS) * options.repetitions)
    for i, key in enumerate(keys):
        law = success(SLOW_FRACTIONS[i // options.repetitions])
        timelines.append(
            contacts(
                key, independent_counts(geometric(law)), horizon=float(options.server_steps), interval=1.0,
                num_clients=NUM_CLIENTS, cohort_size=s, max_steps=K,
            )
        )  # fmt: skip
        laws.append(counts.geometric(law, K))
        tail = (1 - law[:, None]) ** np.arange(K + 1)
        tail[:, K] = 0  # the cap
        chances.append(tail[:, :-1] - tail[:, 1:])
    held = np.stack([held_versions(timeline, NUM_CLIENTS) for timeline in timelines])
    return Batch(
        allocate_buffers(stacked(timelines), held),
        held,
        np.stack([law.p_active for law in laws]),
        np.stack([law.mean for law in laws]),
        np.stack(chances),
        jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys),
    )


def trace(problem: Problem, run: Batch, lr: Any, version: Version, K: int) -> Any:
    """``[T, 3]``: ||grad f(mu_t)||^2, Phi_t and all clients' expected progress, t = 0 .. T - 1.

    The progress of step t is the sum over the clients of E||h_i / alpha_i||^2, over the number of
    steps exactly, over the noise one draw.
    """
    ones = np.ones(NUM_CLIENTS, np.int32)
    task = fs.Task(Partial(oracle, problem), ones, K * ones)
    count = jnp.arange(1, K + 1, dtype=float)
    if version == "stochastic":
        alpha, divisors = realised_steps(run.p_active), run.p_active[:, None] * count
    else:
        alpha, divisors = expected_steps(run.mean), run.mean[:, None] * jnp.ones(K)
    weights = run.chances / divisors**2

    def progress(model: Any, client: Any, weights: Any, key: Any) -> Any:
        grad = oracle(problem, client, key, K).grad

        def step(carry: Any, at: Any) -> Any:
            x, total = carry
            k, weight = at
            gradient = grad(x, k)
            total = total + gradient
            return (x - lr * gradient, total), weight * jnp.sum(total**2)

        start = (model, jnp.zeros(DIM))
        return jax.lax.scan(step, start, (jnp.arange(K, dtype=jnp.int32), weights))[1].sum()

    def measured(server: Any, clients: Any, round: Any) -> Any:
        gradient = jnp.asarray(problem.hessian) @ mean_model(server, clients)
        key = jax.random.fold_in(jax.random.fold_in(run.key, 2**31), round)
        keys = jax.random.split(key, NUM_CLIENTS)
        each = jax.vmap(progress)(clients, jnp.arange(NUM_CLIENTS), weights, keys)
        return jnp.stack([jnp.sum(gradient**2), potential(server, clients), each.sum()])

    def probe(state: RunState) -> Any:
        held = jnp.asarray(run.held)[state.round - 1]
        clients = held_models(state, run.timeline, held)
        return measured(state.server.params, clients, state.round)

    start = jnp.asarray(problem.start)
    _, history = fs.run(
        fs.favano(lr, alpha), task, run.timeline, start, run.key,
        probes=fs.Probes(run={"trace": probe}),
    )  # fmt: skip
    first = measured(start, jnp.broadcast_to(start, (NUM_CLIENTS, DIM)), jnp.array(0))
    return jnp.concatenate([first[None], history.probes["trace"]])


def above(values: np.ndarray) -> float:
    """The largest average over repetitions less WORST standard errors, ``[R, ...]``."""
    error = values.std(axis=0, ddof=1) / len(values) ** 0.5
    return float(np.max(values.mean(axis=0) - WORST * error))


def row(
    traces: Any, known: dict[str, Any], version: Version, fraction: float, share: float
) -> dict[str, Any]:
    """One setting's averages and bounds; ``traces`` are ``[R, T + 1, 3]``."""
    lr, T = known["lr"], traces.shape[1] - 1
    sizes = {name: known[name] for name in ("lr", "n", "s")}
    # The theorem is about t < T; the last moment is for the potential.
    gradient = traces[:, :-1, 0].mean(axis=1)
    bound = float(mean_gradient_bound(**known, T=T))
    found = {
        "s": int(known["s"]), "K": int(known["K"]), "slow": fraction, "alpha": version,
        "lr": lr, "of the largest": share, "lr / printed largest": lr / float(printed_lr(known)),
        "a": known["a"], "b": known["b"],
        "mean gradient": gradient.mean(), "bound": bound, "bound / mean": bound / gradient.mean(),
    }  # fmt: skip
    holds = above(gradient - bound) <= 0
    if lr <= printed_lr(known):
        found["printed bound"] = float(mean_gradient_bound(**known, T=T, form="printed"))
        holds &= above(gradient - found["printed bound"]) <= 0
    phi, after, progress = traces[:, :-1, 1], traces[:, 1:, 1], traces[:, :-1, 2]
    found["mean potential"] = after.mean()
    # If everyone is contacted all models agree, up to rounding.
    size = after.mean() if known["s"] < known["n"] else float("nan")
    forms: tuple[tuple[str, Form], ...] = (("kappa", "printed"), ("kappa'", "corrected"))
    for name, form in forms:
        next_phi = np.asarray(potential_bound(phi, progress, **sizes, form=form))
        found[f"{name}: bound / potential"] = next_phi.mean() / size
        holds &= above(after - next_phi) <= 0
    rest = {name: value for name, value in known.items() if name != "F"}
    by_gradient = np.asarray(next_potential_bound(phi, traces[:, :-1, 0], **rest))
    found["Lemma B.4: bound / potential"] = by_gradient.mean() / size
    holds &= above(after - by_gradient) <= 0
    return {**found, "holds": bool(holds)}


def admitted(problem: Problem, s: int, K: int, fraction: float, version: Version) -> dict[str, Any]:
    """The theorem's constants with the largest rate that it admits."""
    found = progress_constants(counts.geometric(success(fraction), K), K, version)
    sizes = {"n": NUM_CLIENTS, "s": s, "K": K, "a": found.a, "b": found.b}
    known: dict[str, Any] = problem.constants | sizes
    return known | {"lr": float(largest_lr(**{name: known[name] for name in _OF_RATE}))}


def printed_lr(known: dict[str, Any]) -> Any:
    """The theorem's rate as printed."""
    return largest_lr(**{name: known[name] for name in _OF_RATE}, form="printed")


def grid(options: Options) -> tuple[pd.DataFrame, dict[str, Curves]]:
    """A row per setting; and average potentials with their bounds, of some."""
    instance = problem(options.seed)
    rows, curves = [], {}
    for s in COHORTS:
        for K in CAPS:
            runs = batch(s, K, options)
            for version in VERSIONS:
                known = [admitted(instance, s, K, p, version) for p in SLOW_FRACTIONS]
                largest = [each["lr"] for each in known]
                lrs = np.repeat(np.outer(SHARES, largest), options.repetitions, axis=1)
                traces = over_all(instance, runs, lrs, version, K)
                for i, fraction in enumerate(SLOW_FRACTIONS):
                    at = slice(i * options.repetitions, (i + 1) * options.repetitions)
                    for j, share in enumerate(SHARES):
                        these = known[i] | {"lr": share * largest[i]}
                        rows.append(row(traces[j, at], these, version, fraction, share))
                        if s < NUM_CLIENTS and (K, fraction, share, version) == DRAWN:
                            curves[f"s = {s}"] = over_time(traces[j, at].mean(axis=0), these)
                print(pd.DataFrame(rows[-1:]).to_string(index=False, header=False), flush=True)
    return pd.DataFrame(rows), curves


def over_time(means: np.ndarray, known: dict[str, Any]) -> Curves:
    """The curves of average traces ``[T + 1, 3]``."""
    sizes = {name: known[name] for name in ("lr", "n", "s")}
    steps = np.arange(1, len(means))
    bounds = [0.0]
    for progress in means[:-1, 2]:
        bounds.append(float(potential_bound(bounds[-1], progress, **sizes)))
    theorem = np.asarray(mean_gradient_bound(**known, T=jnp.asarray(steps)))
    return Curves(means[:-1, 0].cumsum() / steps, theorem, means[1:, 1], np.array(bounds[1:]))


def over_all(problem: Problem, runs: Batch, lrs: np.ndarray, version: Version, K: int) -> Any:
    """The traces of all runs ``[R]`` at their rates ``[shares, R]``."""

    @jax.jit
    def program(problem: Problem, runs: Batch, lrs: Any) -> Any:
        def one(run: Batch, lr: Any) -> Any:
            return trace(problem, run, lr, version, K)

        return jax.vmap(jax.vmap(one), (None, 0))(runs, lrs)

    return np.asarray(program(problem, runs, jnp.asarray(lrs)))


def unit_table(seed: int, n: int = 100, s: int = 20, K: int = 20, Z: int = 10) -> pd.DataFrame:
    """Table 1 with these quadratics' constants and the paper's clocks, constants taken as 1."""
    constants = problem(seed, n).constants
    without_b: dict[str, Any] = {name: value for name, value in constants.items() if name != "B"}
    rows = []
    for name, fraction in (("1/3", 1 / 3), ("8/9", 8 / 9)):
        speed = np.where(np.arange(n) < np.ceil(fraction * n), SLOW, FAST)
        law = counts.renewal(speed, K, int(clocked_step_time()), s / n)
        known: dict[str, Any] = constants | {"n": n, "s": s, "K": K}
        progress = progress_constants(law, K)
        buffered, single = clocks(seed, speed, K, Z)
        delays = np.arange(single.num_rounds)[:, None] - np.asarray(single.version)
        wait = float(buffered.time[-1]) / buffered.num_rounds
        methods: dict[str, tuple[float, Callable[[float], Any]]] = {
            "FedAvg": (
                fedavg_step_time(speed, s=s, K=K),
                lambda eps, known=known: units.fedavg_units(eps, **known),
            ),
            "FedBuff": (
                wait,
                lambda eps, tau=buffered.max_staleness: units.fedbuff_units(
                    eps, **without_b, n=n, s=Z, tau_max=tau
                ),
            ),
            "AsyncSGD": (
                async_sgd_step_time(1 / speed),
                lambda eps, d=delays: units.async_sgd_units(
                    eps, **without_b, s=n, tau_avg=float(d.mean()), tau_max=int(d.max())
                ),
            ),
            "QuAFL": (
                clocked_step_time(),
                lambda eps, known=known, law=law: units.quafl_units(
                    eps, **known, mean_steps=float(law.mean.mean())
                ),
            ),
            "FAVANO": (
                clocked_step_time(),
                lambda eps, known=known, progress=progress: units.favano_units(
                    eps, **known, a=progress.a, b=progress.b
                ),
            ),
        }
        for method, (wait, steps) in methods.items():
            values = {f"eps = {eps:g}": float(steps(eps)) * wait for eps in EPSILONS}
            rows.append({"slow": name, "method": method, "time per step": wait, **values})
    return pd.DataFrame(rows)


def clocks(seed: int, speed: np.ndarray, K: int, Z: int) -> tuple[fs.Timeline, fs.Timeline]:
    """Long schedules of FedBuff and asynchronous SGD."""
    key, n = jax.random.key(seed), len(speed)
    buffered = arrivals(
        key, geometric(speed), horizon=10_000.0, num_clients=n, num_steps=K, buffer=Z,
        interaction=3.0,
    )  # fmt: skip
    single = arrivals(key, geometric(speed), horizon=500.0, num_clients=n, num_steps=1)
    return buffered, single


def figure(curves: dict[str, Curves], times: pd.DataFrame) -> Figure:
    """Gradients and bounds, potentials and their bounds, times."""
    drawn = Figure(figsize=(14, 4), layout="constrained")
    left, middle, right = drawn.subplots(1, 3)
    for i, (name, curve) in enumerate(curves.items()):
        steps = np.arange(1, len(curve.lemma) + 1)
        left.loglog(steps, curve.gradient, f"C{i}", label=name)
        left.loglog(steps, curve.theorem, f"C{i}--")
        middle.semilogy(steps, curve.potential, f"C{i}", label=name)
        middle.semilogy(steps, curve.lemma, f"C{i}--")
    setting = f"half slow, K = {DRAWN[0]}, {DRAWN[-1]} alpha"
    left.set(xlabel="server steps", ylabel="mean ||grad f(mu)||^2; dashed: bound", title=setting)
    middle.set(xlabel="server steps", ylabel="E Phi_t; dashed: lemma iterated", title=setting)
    for i, method in enumerate(dict.fromkeys(times["method"])):
        part = times[(times["slow"] == "1/3") & (times["method"] == method)]
        values = [part[f"eps = {eps:g}"].item() for eps in EPSILONS]
        right.loglog(EPSILONS, values, f"C{i}o-", label=method)
    right.set(xlabel="epsilon", ylabel="units of time (orders)", title="1/3 slow")
    for axes in (left, middle, right):
        axes.legend(frameon=False)
    return drawn


def main(options: Options) -> None:
    """Runs, compares, writes and draws."""
    with jax.enable_x64(True):
        table, curves = grid(options)
        times = unit_table(options.seed)
        constants = problem(options.seed).constants
    loose = table["bound / mean"]
    lemma = table["kappa': bound / potential"]
    text = "\n\n".join(
        [
            "# FAVANO beside its theory",
            f"Quadratics: d = {DIM}, n = {NUM_CLIENTS}, "
            + ", ".join(f"{name} = {value:.4g}" for name, value in constants.items())
            + f"; {options.server_steps} server steps, {options.repetitions} repetitions; steps "
            f"geometric on 1, 2, ..., {FAST:g} for fast and {SLOW:g} for slow clients, at most K. "
            f"A bound holds where the average is at most {WORST:g} standard errors above it, for "
            "the potential after every single server step.",
            markdown(table),
            f"All bounds hold in {np.count_nonzero(table['holds'])} of {len(table)} settings. "
            f"Theorem 1 is {loose.min():.3g} to {loose.max():.3g} times the average, the potential "
            f"lemma with kappa' {lemma.min():.3g} to {lemma.max():.3g} times.",
        ]
    )
    orders = "\n\n".join(
        [
            "# Units of time to a mean squared gradient of epsilon (Table 1 of FAVANO)",
            "Orders, constants taken as 1, times the length of a server step: how they change "
            "matters, not their values. The quadratics of `favano_theory`; n = 100, s = 20, "
            "K = 20, buffer 10; delays and FedBuff's step from long schedules.",
            markdown(times),
        ]
    )
    print(text, orders, sep="\n\n", flush=True)
    write(options.output, "favano_theory", table, text, options=dataclasses.asdict(options))
    write(options.output, "units", times, orders, options=dataclasses.asdict(options))
    figure(curves, times).savefig(options.output / "favano_theory.png", dpi=90)


if __name__ == "__main__":
    main(tyro.cli(Options))
