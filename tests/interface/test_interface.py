"""Every family of the coming papers fits the five functions and a timeline.

What is tested is the interface, by compact programs of the families (``families.py``,
``async_families.py``) against eager NumPy loops of the papers' pseudo-code.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import async_families as stale
import async_replays
import families as fam
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import replays
import schedules
from problems import assert_close
from problems import compiled as compiled_simply
from schedules import MAX_STEPS, STEPS, M

import fedjax_sim as fs
from fedjax_sim import algorithms, cohort

# Without the fusion emitters these programs compile three times faster.
OPTIONS = compiled_simply.keywords["compiler_options"] | {"xla_cpu_use_fusion_emitters": False}
compiled = functools.partial(jax.jit, compiler_options=OPTIONS)


class Family(NamedTuple):
    make: Callable[..., fs.FedAlgorithm]  # (**values) -> algorithm
    values: dict[str, float]  # none of the special ones (0, 1) at which a term vanishes
    replay: Callable[..., np.ndarray]  # (rounds, **values) -> models [T, d]
    schedule: Callable[[], fs.Timeline] = schedules.synchronous


COMPOSITE = {"lr": 0.06, "server_lr": 0.8, "lam": 0.3}
EXPECTED_STEPS = np.linspace(1.5, 4.0, M)
P_ACTIVE = np.linspace(0.6, 1.0, M)
LATTICE = stale.Lattice(cell=0.01, levels=1024)

favano_schedule = functools.partial(schedules.contacts, receive_new=True)
quafl_schedule = functools.partial(schedules.contacts, receive_new=False)
buffered = functools.partial(schedules.arrivals, 3, 5)
one_by_one = functools.partial(schedules.arrivals, 1, 12)
gradient_by_gradient = functools.partial(schedules.arrivals, 1, 12, one_step=True)


def dithered_fedavg(lr, unit):
    return stale.compressed(algorithms.fedavg(lr), stale.dithered(unit))


def replay_dithered_fedavg(rounds, lr, unit):
    """Replayed with the draws that the clients' probes report; a client's key is the engine's."""
    return replays.dithered_fedavg(rounds, recorded_noise(), lr, unit)


FAMILIES = {
    "fedmid": Family(fam.fedmid, COMPOSITE, replays.fedmid),
    "feddualavg": Family(fam.feddualavg, COMPOSITE, replays.feddualavg),
    "favano_deterministic": Family(
        functools.partial(stale.favano, alpha=stale.deterministic(EXPECTED_STEPS)),
        {"lr": 0.2, "scale": 0.9},
        functools.partial(async_replays.favano, alpha=lambda i, n: EXPECTED_STEPS[i]),
        favano_schedule,
    ),
    "favano_stochastic": Family(
        functools.partial(stale.favano, alpha=stale.stochastic(P_ACTIVE)),
        {"lr": 0.2, "scale": 0.9},
        functools.partial(async_replays.favano, alpha=lambda i, n: P_ACTIVE[i] * n),
        favano_schedule,
    ),
    "quafl": Family(stale.quafl, {"lr": 0.1}, async_replays.quafl, quafl_schedule),
    "quafl_lattice": Family(
        functools.partial(stale.quafl, through=LATTICE.through),
        {"lr": 0.1},
        functools.partial(async_replays.quafl, through=async_replays.nearest_multiple(0.01)),
        quafl_schedule,
    ),
    "fedbuff": Family(
        stale.fedbuff,
        {"lr": 0.1, "server_lr": 0.6, "power": 0.5},
        async_replays.fedbuff,
        buffered,
    ),
    "fedasync": Family(
        stale.fedasync,
        {"lr": 0.1, "mix": 0.6, "power": 0.5, "weight": 0.2},
        async_replays.fedasync,
        one_by_one,
    ),
    "async_sgd": Family(
        stale.async_sgd, {"lr": 0.2, "bound": 0.5}, async_replays.async_sgd, gradient_by_gradient
    ),
    "compressed": Family(dithered_fedavg, {"lr": 0.1, "unit": 0.05}, replay_dithered_fedavg),
}
ROUNDED = [("quafl_lattice", "lr"), ("compressed", "lr")]  # seen through a rounding only
every_family = pytest.mark.parametrize("name", FAMILIES)

STRATEGIES = {
    "vmapped": cohort.vmapped,
    "chunked": lambda: cohort.chunked(3),  # 4 slots: the last chunk is filled up
    "sequential": cohort.sequential,
    "sharded": lambda: cohort.sharded(jax.make_mesh((4,), ("clients",))),
}


def arrays(values):
    return {key: jnp.asarray(value, jnp.result_type(float)) for key, value in values.items()}


def train(algorithm, task, schedule, **options: Any):
    params, key = schedules.start_params(), jax.random.key(4)
    return fs.run(algorithm, task, schedule, params, key, **{"cohort": cohort.vmapped(), **options})


def models(algorithm, task, schedule, **options):
    """The server's model after each round, [T, d]."""
    record = {"eval_fn": lambda params: {"model": schedules.flat(params)}}
    return train(algorithm, task, schedule, **record, **options)[1].metrics["model"]


@functools.cache
def recorded_noise():
    """[T][client]: the uniform numbers of each visit's key."""
    schedule = schedules.synchronous()
    probes = fs.Probes(client={"noise": lambda v: stale.uniform_noise(v.work.key, 8)})
    _, history = train(algorithms.fedavg(0.1), schedules.task(), schedule, probes=probes)
    # A tree's leaves are in alphabetical order: biases first, which the twin has last.
    noise = np.roll(np.asarray(history.probes["noise"], np.float64), -schedules.OUTPUTS, axis=-1)
    return [
        dict(zip(clients.tolist(), draws, strict=True))
        for clients, draws in zip(schedule.clients, noise, strict=True)
    ]


@every_family
def test_strategies_agree(name):
    """They differ in the order of summation only."""
    family = FAMILIES[name]
    states = {}
    for strategy, make in STRATEGIES.items():

        @compiled
        def final(values, task, schedule, make=make):
            return train(family.make(**values), task, schedule, cohort=make())[0]

        state = final(arrays(family.values), schedules.task(), family.schedule())
        states[strategy] = jax.device_get((state.server, state.clients))
    for state in states.values():
        # A few units in the last place of float32 (6e-8) after some twenty steps.
        assert_close(state, states["vmapped"], 1e-6)


@every_family
def test_sweep_replays_in_numpy(name, x64):
    """Row j of one vmapped run has the j-th hyper-parameter changed: every row must be the eager
    loops' run with those values, so a mix-up of any two, or one unused, is seen.  The gradient of
    a final loss must be the finite difference of the eager loops."""
    family, schedule = FAMILIES[name], FAMILIES[name].schedule()
    rounds = schedules.visits(schedule)
    changed = [dict(family.values)]
    changed += [family.values | {key: 1.2 * family.values[key]} for key in family.values]
    examples = jax.tree.map(jnp.asarray, schedules.data().examples)

    @compiled
    def sweep_and_gradient(batch, values, task, schedule, examples):
        def path(values):
            return models(family.make(**values), task, schedule)

        def final_loss(values):
            state, _ = train(family.make(**values), task, schedule)
            return schedules.losses(state.server.params, examples, None).mean()

        return jax.vmap(path)(batch), jax.grad(final_loss)(values)

    batch = jax.tree.map(lambda *rows: jnp.stack(rows), *map(arrays, changed))
    swept, gradient = sweep_and_gradient(
        batch, arrays(family.values), schedules.task(), schedule, examples
    )
    for row, values in zip(swept, changed, strict=True):
        # Double precision, some twenty steps deep; 1e-16 each, amplified by divisions by rates.
        assert_close(row, family.replay(rounds, **values), 1e-12)

    for key, value in family.values.items():
        # Central differences err by O(step^2) + eps / step: about 1e-10 at this step.
        step = 1e-5 * value
        above, below = (
            schedules.mean_loss(family.replay(rounds, **family.values | {key: v})[-1])
            for v in (value + step, value - step)
        )
        np.testing.assert_allclose(gradient[key], (above - below) / (2 * step), 1e-6, 1e-9)
        # None is without effect, and rounding has no slope.
        assert (abs(gradient[key]) > 1e-6) == ((name, key) not in ROUNDED)


@pytest.fixture(scope="module")
def paths():
    """Runs an algorithm in double precision, compiled, on the synchronous schedule by default."""

    def path(algorithm, schedule=None):
        with jax.enable_x64(True):
            schedule = schedule or schedules.synchronous()
            run = compiled(lambda task, schedule: models(algorithm, task, schedule))
            return np.asarray(run(schedules.task(), schedule))

    return path


@pytest.mark.parametrize("general", [fam.fedmid, fam.feddualavg])
def test_without_regulariser_composite_methods_are_fedavg(general, paths):
    # Round-off of double precision; the two forms order their operations differently.
    special = algorithms.fedavg(0.1)
    assert_close(paths(general(0.1, server_lr=1.0, lam=0.0)), paths(special), 1e-13)


def test_favano_of_equally_fast_clients_is_fedavg_with_a_server_rate(paths):
    """All clients contacted, K steps each, alpha = K: rate M / ((M + 1) K)."""
    everyone = np.broadcast_to(np.arange(M), (3, M))
    now = np.arange(3)[:, None].repeat(M, axis=1)
    steps = np.full((3, M), MAX_STEPS)
    schedule = schedules.timeline(everyone, now, steps, np.ones((3, M), bool), now[:, 0])
    everyone_k = stale.deterministic(np.full(M, float(MAX_STEPS)))
    averaged = stale.fedbuff(0.1, server_lr=M / ((M + 1) * MAX_STEPS), power=0.0)
    assert_close(
        paths(stale.favano(0.1, 1.0, everyone_k), schedule), paths(averaged, schedule), 1e-13
    )


def test_fine_lattice_is_no_quantizer(paths):
    schedule, cell = quafl_schedule(), 1e-10
    fine = stale.Lattice(cell, levels=2**40)
    quantised = paths(stale.quafl(0.1, fine.through), schedule)
    exact = paths(stale.quafl(0.1), schedule)
    # Each of 6 rounds moves every entry by at most half a cell; the entries are of order 1.
    assert_close(quantised, exact, 10 * cell)


def test_sharded_run_vmaps_and_differentiates(x64):
    """The hyper-parameters that the shards close over are swept and differentiated like others."""
    values: dict[str, Any] = {"lr": 0.1, "rho": 0.3, "alpha": 1.3, "gamma": 0.4}
    schedule = schedules.synchronous()
    rows = jax.tree.map(lambda v: jnp.stack([v, 1.2 * v]), arrays(values))

    def sweep(strategy):
        def final(values, task, schedule):
            state, _ = train(
                algorithms.fedmoswa(**values), task, schedule, cohort=STRATEGIES[strategy]()
            )
            return jnp.sum(schedules.flat(state.server.params) ** 2)

        return compiled(jax.vmap(jax.value_and_grad(final), (0, None, None)))

    expected = sweep("vmapped")(rows, schedules.task(), schedule)
    assert_close(sweep("sharded")(rows, schedules.task(), schedule), expected, 1e-12)


def test_lattice_decodes_to_the_nearest_multiple():
    """Within half a cell of x wherever x and the receiver's vector are less than half the range
    apart, and wrong, silently, beyond."""
    x = jnp.linspace(-30.0, 30.0, 101)
    lattice = stale.Lattice(cell=0.5, levels=16)
    near, far = x + 3.0, x + 6.0  # the range is 8: |x - y| < 4 - 0.5
    assert np.abs(lattice.through(x, near) - x).max() <= 0.25
    assert np.abs(lattice.through(x, far) - x).min() > 4


def test_timelines_exercise_what_they_should():
    """Otherwise the replays above would pass without having tested it."""
    synchronous = schedules.visits(schedules.synchronous())
    assert [] in synchronous
    assert len({i for visits in synchronous for i, _, _ in visits}) < sum(map(len, synchronous))
    assert len(set(STEPS.tolist())) > 3
    for schedule in (favano_schedule(), buffered(), one_by_one(), gradient_by_gradient()):
        assert schedule.max_staleness > 1
    for schedule in (favano_schedule(), quafl_schedule()):
        contacted = schedules.visits(schedule)
        assert {0, MAX_STEPS} < {n for visits in contacted for _, _, n in visits}
        assert len({i for visits in contacted for i, _, _ in visits}) < sum(map(len, contacted))
