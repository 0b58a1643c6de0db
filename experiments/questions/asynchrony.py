r"""The bias of asynchrony: where asynchronous methods settle, and which weights correct it.

    python -m experiments.questions.asynchrony

Quadratic clients with exact gradients, fast and slow: a local step takes a geometric time with the
mean 2 or 16, at most K = 20 steps per visit (the setting of "FAVANO: Federated AVeraging with
Asynchronous Nodes", arXiv 2305.16099, Appendix C.2).  Cohorts, buffers and FedAsync's mix are
proportional to the number M of clients, as s = 20 and Z = 10 are to n = 100 there.  Each run has
two problems side by side, with a shared and with different Hessians: in ``speed`` the minimisers
are 1 for slow and 0 for fast clients, so the limit is the weight that slow clients have in it; in
``scatter`` they are independent of speed, N(0, 1).  A run is linear in the minimisers, so for
minimisers ``h v_i + gap slow_i`` the limit is h times the one plus gap times the other.

Cost, stated before the run: 38 configurations with 3 or 5 seeds, about 2 minutes of CPU; timelines
of up to 10^5 clients, about 2 minutes.  The committed results are of a smaller run (1,000 clients,
timelines of 10,000), whose command the report names.

Expected answers, written before the run.  Numbers are of :mod:`.asynchrony_limits` and
:mod:`.asynchrony_times`, which know speeds and sizes but no run.

1. *The limit follows from rates of contribution.*  Runs agree with the formulas within 2 % of the
   distance from the optimum.  Reason: linear recursions; those of FAVANO and QuAFL are exact, those
   of FedBuff and FedAsync up to the order of the server's rate over the buffer, which is small.
2. *FedBuff and FedAsync lack what slow clients lack in uploads*, with M = 100 and two thirds slow
   0.45 and 0.47 of a total weight of 0.67.  With the ratio r of a slow client's uploads to a fast
   one's the lack is largest at the share of slow clients 1 / (1 + sqrt r), about 0.73, not where
   most clients are slow, and is (1 - sqrt r) / (1 + sqrt r) there.
3. *A weight that decreases with staleness makes it worse*: 0.59 for ``(1 + tau)^(-1/2)``.  Reason:
   slow clients are the stale ones, so they are punished twice.
4. *QuAFL is nearly unbiased by speed*, 0.087 at M = 100 and 0.011 at M = 1,000, against the paper's
   sentence that its updates favour fast clients.  Reason: H = Q / (1 + s Q) does not depend on Q
   once s Q is large.  Its limit is then the mean of the minimisers, which is not the optimum if
   Hessians differ, and no weight changes that.  It takes (n / s) (1 + s Q) / Q contacts, more than
   n, to get there, so larger M than 100 are not run.
5. *FAVANO's alpha over-corrects*: slow clients have 0.042 too much, and without alpha 0.37 too
   little.  Reason: progress saturates in the number of steps, ``1 - (1 - lr a)^E``, so dividing by
   E counts fast clients too low, to the order lr K.
6. *Corrected, the others are unbiased*: the intervals of FedBuff and FedAsync with uploads times
   ``1 / (M pi_i E[s(tau)])`` contain 0, and are inside of 0.02.
7. *With speeds independent of data the bias fades like M^(-1/2)*, the slope of log distance over
   log M from 10^2 to 10^4 is within 0.1 of -1/2; with slow clients that differ it stays.  Reason:
   the difference of two groups' means.
8. *The share of slow clients in FedBuff's uploads is stationary* (within 10 %) after about 1,000
   units of time for a third of slow clients, three visits of a slow client, at every M; the time
   grows with the square of K.  Reason: all begin together, and a visit's relative spread is
   ``sqrt((1 - p) / K)``.  So the paper's "huge amount of server iterations" is 160 updates with a
   buffer of M / 10, and the number grows like M only where each upload is an update.  Contacts
   (FAVANO, QuAFL) are stationary after about 10 contacts, 70 units of time.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro
from jax.tree_util import Partial

import fedjax_sim as fs
from experiments.harness import (
    MACHINE,
    Folders,
    check_choice,
    save_report,
    seed_keys,
    settings,
)
from experiments.questions import asynchrony_limits as limits
from experiments.questions import asynchrony_times as times
from experiments.questions.asynchrony_report import build
from experiments.questions.asynchrony_setting import (
    BUFFERED,
    CONTACTS,
    CURVATURES,
    FAST,
    INTERVAL,
    LR,
    METHODS,
    PARTS,
    POWER,
    SERVER_LR,
    SETTLED,
    SLOW,
    STEPS,
    slow_clients,
    system,
)
from fedjax_sim import timelines, tree
from fedjax_sim.algorithms import staleness
from fedjax_sim.checks import check_at_least
from fedjax_sim.runs import digest, replacing


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    fractions: tuple[float, ...] = (1 / 3, 2 / 3, 0.9)  # of slow clients, with 100 clients
    sizes: tuple[int, ...] = (1000, 10_000)  # further M, with two thirds slow
    seeds: int = 5  # with 100 clients; at most 3 with more
    horizon: float = 40_000.0  # of simulated time for contacts; a quarter of it for arrivals
    clocks: tuple[int, ...] = (100, 1000, 10_000, 100_000)  # M of the timelines without training
    clock_steps: tuple[int, ...] = (5, 10, 40)  # further K, with clock_clients
    clock_clients: int = 10_000  # least number of clients behind a share over time
    part: Literal["all", "limits", "clocks"] = "all"  # one part is only kept, for a later "all"
    work: pathlib.Path = pathlib.Path("results/questions")  # finished parts, to continue from

    def __post_init__(self) -> None:
        check_at_least(2, seeds=self.seeds)
        check_at_least(1000.0, horizon=self.horizon)
        check_choice(part=(self.part, Literal["all", "limits", "clocks"]))
        check_at_least(20, **{f"sizes[{i}]": size for i, size in enumerate(self.sizes)})


def problem(clients: int, slow: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Curvatures and minimisers, ``[M, 4 parts x 4]``, of the problems in ``PARTS``."""
    rng = np.random.default_rng(seed)
    v = rng.standard_normal((clients, len(CURVATURES)))
    other = rng.uniform(CURVATURES[0], CURVATURES[-1], v.shape)
    same = np.broadcast_to(CURVATURES, v.shape)
    is_slow = np.broadcast_to(slow_clients(clients, slow)[:, None], v.shape)
    return (
        np.concatenate([same, same, other, other], axis=1),
        np.concatenate([is_slow, v, is_slow, v], axis=1),
    )


def oracle(a: jax.Array, b: jax.Array, client: jax.Array, key: jax.Array, max_steps: int) -> Any:
    """The exact gradient of one client."""
    del key, max_steps

    def grad(x: jax.Array, step: Any = None) -> jax.Array:
        return a[client] * (x - b[client])

    def loss(x: jax.Array, step: Any = None) -> jax.Array:
        return 0.5 * jnp.sum(a[client] * (x - b[client]) ** 2)

    return fs.Oracle(grad, loss, grad, loss)


@functools.lru_cache(maxsize=2)
def clock(kind: str, clients: int, slow: float, seeds: int, horizon: float) -> list[fs.Timeline]:
    """A timeline per seed, of one shape.  ``kind``: "new", "current", "buffered" or "single"."""
    success = system(METHODS[0], clients, slow).success
    durations = timelines.geometric(success)
    found = []
    for key in seed_keys(seeds, root=1):
        if kind in ("new", "current"):
            timeline = timelines.contacts(
                key, timelines.renewal_counts(durations), horizon=horizon, num_clients=clients,
                cohort_size=clients // 5, max_steps=STEPS, interval=INTERVAL, receives=kind,
            )  # fmt: skip
        else:
            timeline = timelines.arrivals(
                key, durations, horizon=horizon / 4, num_clients=clients, num_steps=STEPS,
                buffer=clients // 10 if kind == "buffered" else 1,
            )  # fmt: skip
        found.append(timeline)
    shortest = min(timeline.num_rounds for timeline in found)
    batch = timelines.stacked([timeline[:shortest] for timeline in found])
    return [
        dataclasses.replace(
            jax.tree.map(lambda x, i=i: x[i], batch), time=np.asarray(batch.time)[i]
        )
        for i in range(seeds)
    ]


def setup_maker(seeds: int, horizon: float) -> Any:
    """A function of method, clients, slow and seed that returns the setup of one seed."""

    def make_setup(method: str, clients: int, slow: float, seed: int) -> fs.Setup:
        kinds = {"FAVANO": "new", "QuAFL": "current", "FedBuff": "buffered"}
        timeline = clock(kinds.get(method, "single"), clients, slow, seeds, horizon)[seed]
        a, b = (jnp.asarray(part, jnp.float32) for part in problem(clients, slow, seed))
        task = fs.Task(Partial(oracle, a, b), np.ones(clients, int), np.full(clients, STEPS, int))
        every = max(1, timeline.num_rounds // 300)
        start = jnp.zeros(a.shape[1], jnp.float32)
        return fs.Setup(task, timeline, start, Partial(lambda x: {"model": x}), every)

    return make_setup


def factory(method: str, corrected: float, clients: int, slow: float) -> fs.FedAlgorithm:
    """One of the methods; ``corrected`` is 1 with weights against the bias of speeds, else 0."""
    sizes = system(method, clients, slow)
    if method in CONTACTS:
        alpha = 1 + corrected * jnp.asarray(limits.expected_steps(sizes) - 1)
        if method == "FAVANO":
            return fs.favano(LR, staleness.expected_steps(alpha))
        return _scaled_steps(fs.quafl(LR), 1 / alpha)
    weights = 1 + corrected * jnp.asarray(limits.correction(method, sizes, POWER) - 1)
    if method == "FedBuff":
        return _scaled_uploads(fs.fedbuff(LR, SERVER_LR), weights)
    mix, weight = SERVER_LR / (clients / 10), None
    if method != "FedAsync":
        # Uploads have shares that sum to 1, so this is the mean weight of an upload.
        mix = mix / limits.contributions(method, sizes, POWER).sum()
        weight = staleness.polynomial(POWER)
    return _scaled_uploads(fs.fedasync(LR, mix, weight), weights)


def _scaled_uploads(algorithm: fs.FedAlgorithm, weights: jax.Array) -> fs.FedAlgorithm:
    """The algorithm whose clients' uploads count with a weight per client."""

    def local(message: Any, state: Any, oracle: Any, work: Any) -> tuple[Any, Any]:
        upload, state = algorithm.local(message, state, oracle, work)
        return tree.scale(weights[work.client], upload), state

    return algorithm._replace(local=local)


def _scaled_steps(algorithm: fs.FedAlgorithm, rates: jax.Array) -> fs.FedAlgorithm:
    """The algorithm whose clients' gradients are scaled by a number per client."""

    def local(message: Any, state: Any, oracle: Any, work: Any) -> tuple[Any, Any]:
        def grad(x: Any, step: Any) -> Any:
            return tree.scale(rates[work.client], oracle.grad(x, step))

        return algorithm.local(message, state, oracle._replace(grad=grad), work)

    return algorithm._replace(local=local)


def measured(run: Any) -> pd.DataFrame:
    """A row per part of a run: distances from the optimum, measured and by the formula."""
    method, corrected, clients, slow = (
        run.configuration[name] for name in ("method", "corrected", "clients", "slow")
    )
    corrected = bool(corrected)
    a, b = problem(clients, slow, int(run.seed))
    sizes = system(method, clients, slow)
    expected = limits.limit(limits.influence(method, corrected, sizes, LR, a, POWER), b)
    optimum = limits.limit(a, b)
    time = np.asarray(run.history.metrics["time"])
    late = time > SETTLED * time[-1]
    models = np.asarray(run.history.metrics["model"], np.float64)[late]
    found = models.mean(axis=0)
    rows = []
    for part, *vectors in zip(
        PARTS, *(x.reshape(len(PARTS), -1) for x in (found, expected, optimum, models.std(axis=0))),
        strict=True,
    ):  # fmt: skip
        limit, formula, best, spread = vectors
        row = {"method": method, "corrected": corrected, "clients": clients, "slow": slow}
        row |= {"part": part, "seed": int(run.seed)}
        row |= {"lack": np.mean(best - limit), "lack by formula": np.mean(best - formula)}
        row |= {"distance": _rms(limit - best), "distance by formula": _rms(formula - best)}
        rows.append(row | {"error": _rms(limit - formula), "spread": _rms(spread)})
    return pd.DataFrame(rows)


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x**2)))


def trained(options: Options) -> pd.DataFrame:
    """The limits of all methods: over shares of slow clients, then over numbers of clients."""
    rows = []
    grids: list[tuple[tuple[str, ...], int, float, int, float]] = [
        (METHODS, 100, slow, options.seeds, options.horizon) for slow in options.fractions
    ]
    few = min(3, options.seeds)
    large = ("FAVANO", *BUFFERED)
    grids += [(large, size, 2 / 3, few, 0.4 * options.horizon) for size in options.sizes]
    for methods, size, slow, seeds, horizon in grids:
        grid = {"method": methods, "corrected": [0.0, 1.0], "clients": [size], "slow": [slow]}
        result = fs.sweep(factory, setup_maker(seeds, horizon), grid, fs.presets.keys(seeds))
        took = f"compiling {result.compile_seconds:.0f} s, running {result.run_seconds:.0f} s"
        print(f"M = {size}, {slow:.2g} slow: {len(result.runs)} runs, {took}", flush=True)
        rows += [measured(run) for run in result.runs]
    return pd.concat(rows, ignore_index=True)


def shares(clients: int, steps: int, replicas: int, root: int, slow: float = 1 / 3) -> pd.DataFrame:
    """Slow clients' share in FedBuff's uploads over time: a row per window, all replicas pooled."""
    is_slow = slow_clients(clients, slow)
    durations = timelines.geometric(np.where(is_slow, SLOW, FAST))
    window = int(steps / FAST)
    horizon = 1.6 * times.law_of_time(SLOW, steps, 0.06)
    counts = np.zeros((2, int(horizon // window)))
    for key in jax.random.split(jax.random.key(root), replicas):
        timeline = timelines.arrivals(
            key, durations, horizon=horizon, num_clients=clients, num_steps=steps,
            buffer=max(clients // 10, 1),
        )  # fmt: skip
        at = np.minimum(np.asarray(timeline.time) // window, counts.shape[1] - 1).astype(int)
        of_slow = is_slow[np.asarray(timeline.clients)].sum(axis=1)
        np.add.at(counts[0], at, of_slow)
        np.add.at(counts[1], at, timeline.cohort_size)
    fast = np.where(is_slow, SLOW, FAST)
    rates = limits.upload_rates(limits.System(fast, steps, 1, INTERVAL, max(clients // 10, 1)))
    limit = rates[is_slow].sum() / rates.sum()
    share = counts[0] / np.maximum(counts[1], 1)
    expected = times.expected_share(slow, SLOW, FAST, steps, int(horizon) + 1, window)
    rows = {"time": window * (np.arange(len(share)) + 1), "share": share, "limit": limit}
    rows |= {"expected": expected[: len(share)], "updates per time": rates.sum() / (clients // 10)}
    ids = {"clients": clients, "steps": steps, "group": root}
    return pd.DataFrame(ids | rows)


def clocked(options: Options) -> pd.DataFrame:
    """Shares over time for all sizes, and for other numbers of steps; three groups of replicas."""
    cases = [(clients, STEPS) for clients in options.clocks]
    cases += [(options.clock_clients, steps) for steps in options.clock_steps]
    found = []
    for clients, steps in cases:
        replicas = max(1, options.clock_clients // clients)
        found += [shares(clients, steps, replicas, root) for root in range(3)]
        print(f"shares of {clients} clients, K = {steps}", flush=True)
    return pd.concat(found, ignore_index=True)


def kept(options: Options, name: str, compute: Callable[[Options], pd.DataFrame]) -> pd.DataFrame:
    """The table in the folder of finished parts; computes and writes it if there is none."""
    identity = settings(options, without=(*MACHINE, "part"))
    path = options.work / f"asynchrony-{digest(identity)}-{name}.csv"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        table = compute(options)
        with replacing(path) as partial:
            table.to_csv(partial, index=False)
    return pd.read_csv(path)


def main(options: Options) -> None:
    """Runs both parts, writes tables, report and figure; or keeps one part."""
    parts = {"clocks": clocked, "limits": trained}
    if options.part != "all":
        kept(options, options.part, parts[options.part])
        return
    tables = {"clocks": kept(options, "clocks", clocked), "": kept(options, "limits", trained)}
    constants = {"fast": FAST, "slow": SLOW, "steps": STEPS, "interval": INTERVAL, "lr": LR}
    constants |= {"server_lr": SERVER_LR, "settled": SETTLED, "power": POWER}
    save_report(
        options.output / "questions" / "asynchrony", "asynchrony", tables, build,
        options=settings(options, without=(*MACHINE, "part")), constants=constants,
    )  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
