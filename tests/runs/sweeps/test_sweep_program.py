"""Programs of a sweep: shared minibatches, blocks within the budget, nothing compiled twice."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from call_records import sweep_on
from jax.extend import core
from jax.sharding import PartitionSpec
from small_problems import NUM_CLIENTS
from sweep_problems import KEYS, ONE_DEVICE, changed, compilations, quadratic_trial, sweep_of

import fedjax_sim as fs
from fedjax_sim.engine import NO_PROBES
from fedjax_sim.runs import programs
from fedjax_sim.runs.sweeps import blocks
from fedjax_sim.runs.sweeps.grid import cut
from fedjax_sim.runs.sweeps.program import _data_bytes
from fedjax_sim.runs.sweeps.trial import Trial

WIDTH, NUM_ROWS, NUM_FEATURES = 7, 24, 5  # sizes that nothing else here has
STATE_BYTES = 4 * NUM_CLIENTS * 5000


def least_squares(num_rows=NUM_ROWS):
    """Clients of 3 examples each."""
    x = np.random.default_rng(0).normal(size=(num_rows, NUM_FEATURES)).astype(np.float32)
    data = fs.FederatedData({"x": x, "y": x.sum(1)}, np.arange(0, num_rows + 1, 3))

    def losses(w, batch, key):
        del key
        return (batch["x"] @ w - batch["y"]) ** 2

    return fs.empirical_task(losses, data, fs.epochs(1, 2))


def shapes(jaxpr) -> dict[str, set[tuple[int, ...]]]:
    """The shapes that gathers of examples and random primitives give, nested programs included."""
    found: dict[str, set[tuple[int, ...]]] = {}
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        # Under vmap over clients a branch has its operands batched, which adds the last two axes.
        of_examples = name == "gather" and eqn.invars[0].aval.shape[-2:] == (NUM_ROWS, NUM_FEATURES)
        if of_examples or name.startswith("random_") or name == "sort":
            found.setdefault(name, set()).update(v.aval.shape for v in eqn.outvars)
        for value in jax.tree.leaves(eqn.params, is_leaf=lambda x: isinstance(x, core.ClosedJaxpr)):
            inner = getattr(value, "jaxpr", value)
            if isinstance(inner, core.Jaxpr):
                for key, more in shapes(inner).items():
                    found.setdefault(key, set()).update(more)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("num_seeds", [1, 2])
def test_minibatches_are_made_once_for_all_configurations(num_seeds):
    task = least_squares()
    timeline = fs.timelines.uniform(KEYS[0], 2, NUM_CLIENTS, 4, task.num_steps)
    params = jnp.zeros((num_seeds, NUM_FEATURES))
    trial = Trial(fs.fedavg, fs.Setup(task, timeline, params), fs.execution.vmapped(), NO_PROBES)
    begin, segment = blocks.block_functions(trial, cut(WIDTH, num_seeds, 1, WIDTH, num_seeds))
    rates, keys = {"lr": jnp.ones(WIDTH)}, KEYS[:num_seeds]
    timeline = jax.tree.map(jnp.asarray, timeline)
    state = jax.eval_shape(begin, rates, task, timeline, params)
    found = shapes(jax.make_jaxpr(segment)(rates, task, None, timeline, state, keys).jaxpr)
    assert {"gather", "random_bits", "random_fold_in"} <= found.keys()
    assert not [shape for given in found.values() for shape in given if WIDTH in shape]

    # The same search finds the width where every configuration has a key of its own.
    def naive(lr, key):
        return fs.run(
            fs.fedavg(lr),
            fs.Setup(task, timeline, params[0]),
            key,
            execution=fs.execution.vmapped(),
        )[1]

    many = jax.random.split(KEYS[0], WIDTH)
    found = shapes(jax.make_jaxpr(jax.vmap(naive))(rates["lr"], many).jaxpr)
    assert all(any(WIDTH in shape for shape in found[name]) for name in ("gather", "random_bits"))


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 2])
def test_data_are_copied_neither_per_client_nor_per_configuration(num_devices):
    """7 MB of examples, 4 clients, 7 configurations."""
    task = least_squares(300_000)
    timeline = fs.timelines.uniform(KEYS[0], 2, task.num_clients, 4, task.num_steps)
    params = jnp.zeros((num_devices, NUM_FEATURES))  # as many seeds as devices, so one block each
    news = []
    sweep_on(
        jax.devices()[:num_devices],
        fs.fedavg,
        fs.Setup(task, timeline, params),
        {"lr": np.geomspace(0.01, 0.1, WIDTH)},
        KEYS[:num_devices],
        callbacks=[types.SimpleNamespace(progress=news.append)],
        options=fs.Options(execution=fs.execution.vmapped()),
    )
    data = sum(leaf.nbytes for leaf in jax.tree.leaves(task.oracle))
    assert news[0].plan.width == WIDTH
    assert data <= news[0].bytes_per_device < 1.2 * data


def stateful(began):
    """Clients keep 5000 numbers each; ``began`` records every run that begins."""

    def factory(lr):
        def init(x):
            jax.debug.callback(lambda value: began.append(float(value)), lr)
            return fs.fedavg(lr).init(x)

        def local(x, memory, oracle, work):
            return fs.fedavg(lr).local(x, (), oracle, work)[0], memory + lr

        return fs.fedavg(lr)._replace(
            init=init, local=local, init_client=lambda x: jnp.zeros(STATE_BYTES // NUM_CLIENTS // 4)
        )

    return factory


@pytest.mark.slow
def test_blocks_fit_the_budget_and_every_run_begins_once(allow_nans):
    """Client states of 160 kB a run: within 1 MB no program may hold all of 16 of them, not even
    to find that out."""
    began, news = [], []
    lrs = np.linspace(0.01, 0.3, 16).astype(np.float32).tolist()
    trial = quadratic_trial(stateful(began), num_seeds=1, num_rounds=2)
    result = sweep_of(
        trial, {"lr": lrs}, KEYS[:1], devices=ONE_DEVICE, memory=1_000_000, progress=news.append
    )
    first = news[0]
    assert first.bytes_per_device <= first.budget == 1_000_000
    # NaN checks, off here, forbid donation; without it there are three copies of the state.
    states = STATE_BYTES * first.plan.width
    assert states <= first.bytes_per_device < 2.5 * states
    assert 1 < first.plan.width < 16
    jax.effects_barrier()
    assert sorted(set(began)) == lrs
    assert len(began) == first.plan.width * len(first.plan.slices)
    wide = sweep_of(trial, {"lr": lrs}, KEYS[:1], devices=ONE_DEVICE)
    for run, other in zip(result.runs, wide.runs, strict=True):
        # Matrix products of other batch sizes: float32 rounding.
        np.testing.assert_allclose(
            run.history.metrics["x"], other.history.metrics["x"], rtol=1e-5, atol=1e-6
        )


def test_every_slice_uses_the_algorithms_that_were_checked():
    """Two slices, one per seed: each configuration's algorithm is built with its numbers once."""
    rates = []

    def factory(lr):
        if isinstance(lr, float):  # not traced
            rates.append(lr)
        return fs.fedavg(lr)

    result = sweep_of(quadratic_trial(factory), {"lr": [0.1, 0.2]}, KEYS, devices=ONE_DEVICE)
    assert len(result.runs) == 2 * len(KEYS) > 2
    assert rates == [0.1, 0.2]


@pytest.mark.slow
@pytest.mark.parametrize("memory", [100, STATE_BYTES])  # less than the data, than one run
def test_a_budget_that_one_run_exceeds_is_refused(memory):
    began = []
    trial = quadratic_trial(stateful(began), num_seeds=1)
    with pytest.raises(ValueError, match=rf"memory is {memory} bytes .* one run needs about \d+"):
        sweep_of(trial, {"lr": [0.1, 0.2, 0.3]}, KEYS[:1], memory=memory, devices=ONE_DEVICE)
    assert not began


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize("per_seed", [False, True])
def test_nothing_is_compiled_after_the_first_segment(num_devices, per_seed):
    """Not for later segments, slices, or a group of the same shapes with other numbers."""
    base = quadratic_trial(num_rounds=9, eval_every=3)
    timeline = base.setup.timeline
    if per_seed:
        timeline = jax.vmap(
            lambda key: fs.timelines.uniform(key, 9, NUM_CLIENTS, 3, base.setup.task.num_steps)
        )(KEYS)
    setups = {
        shift: changed(base, params=base.setup.params + shift, timeline=timeline).setup
        for shift in (0.0, 1.0)
    }
    seen = []
    with compilations() as names:
        result = sweep_on(
            jax.devices()[:num_devices],
            fs.fedavg,
            lambda shift: setups[shift],
            {"shift": [0.0, 1.0], "lr": [0.1, 0.2, 0.3, 0.4]},
            KEYS,
            callbacks=[
                types.SimpleNamespace(progress=lambda news: seen.append((news, len(names))))
            ],
        )
    assert result.compilations == 1
    assert seen[0][0].plan.slices[1:]  # more than one slice, or nothing is tested
    moments = {(news.static["shift"], news.slices_done, news.round): n for news, n in seen}
    assert moments[0.0, 0, 0] > 0
    assert names[moments[0.0, 0, 3] :] == []
    assert moments[0.0, 0, 9] == moments[1.0, 1, 9] == len(names)


@pytest.mark.slow
def test_simulate_compiles_once_for_all_segments():
    """Also for the last one, which is shorter, and for lengths that the time decides."""
    setup = quadratic_trial(num_seeds=1, num_rounds=11).setup
    programs._functions.clear()  # other tests run the same program
    seen = []
    with compilations() as names:
        fs.simulate(
            fs.fedavg(0.1),
            fs.Setup(setup.task, setup.timeline, setup.params[0], eval_fn=setup.eval_fn),
            KEYS[0],
            callbacks=[
                types.SimpleNamespace(
                    progress=lambda progress: seen.append((progress.round, len(names)))
                )
            ],
            options=fs.Options(segment_seconds=0.001),
        )
    assert len({number for _, number in seen}) == 1
    assert sum("segment" in name for name in names) == 1


def test_numbers_among_the_data_count_as_arrays():
    mesh = jax.make_mesh((1,), ("configurations",))
    assert _data_bytes((2.5, np.ones(3, np.float32)), PartitionSpec(), mesh) == 16


@pytest.mark.parametrize(("shape", "inside"), [((3,), True), ((1, 3), True), ((3, 2), False)])
def test_runs_of_vectors_are_inside_of_clients(shape, inside, monkeypatch):
    """On a CPU, also with one output; models with matrices gain nothing from that order."""
    seen = []
    monkeypatch.setattr(blocks, "clients_outside", lambda one: seen.append(one) or one)
    loss = lambda x, batch, key: jnp.sum((batch["b"][:, None] - x.reshape(1, -1)) ** 2, 1)  # noqa: E731
    data = fs.FederatedData({"b": np.ones(4, np.float32)}, np.arange(5))
    task = fs.empirical_task(loss, data, fs.full_batch(2))
    setup = fs.Setup(task, fs.timelines.full(2, 4, task.num_steps), jnp.zeros((1, *shape)))
    sweep_on(ONE_DEVICE, fs.fedavg, setup, {"lr": [0.1, 0.2]}, KEYS[:1])
    assert bool(seen) is inside
