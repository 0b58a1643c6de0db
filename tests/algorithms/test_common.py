"""One battery over every algorithm: what holds for all of them, whatever they compute.

Compiling takes nearly all of the time, so the tests of an algorithm share its programs: the base
run (clients vmapped), two executions over devices (clients in chunks, and one after the other), two
continued rounds, and one gradient of several runs.  All are in double precision, except for one run
without compilation.
"""

import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import (
    ALGORITHMS,
    CONTACTS,
    GOSSIP,
    REPRESENTATIVES,
    STALE,
    STRATEGIES,
    STRUCTURES,
    algorithm,
    current,
    current_timeline,
    declared,
    for_each,
    hyper,
    late_timeline,
    program,
    synchronous_only,
    task,
    timeline_of,
    train,
    trained,
    with_ring,
)
from small_problems import (
    NUM_CLIENTS,
    SIZES,
    assert_close,
    assert_identical,
    compiled,
    logistic_data,
    logistic_losses,
    logistic_params,
    rotated,
)

import fedjax_sim as fs
from fedjax_sim.engine.execution.devices import make_mesh
from fedjax_sim.engine.execution.placement import by_client

# Some hundred operations, each rounding at 1e-16.
TOLERANCE = 1e-12

pytestmark = pytest.mark.usefixtures("x64")
every_algorithm = for_each()
every_algorithm_but_few_quick = for_each(quick=REPRESENTATIVES)
# Of a server's state, clients' states, and old broadcasts, which gradients and replicas go through.
every_algorithm_but_three_quick = for_each(quick={"fedadam", "scaffold_II", "fedasync"})


def test_no_algorithm_is_missing():
    names = {name for name in fs.algorithms.__all__ if returns_algorithm(getattr(fs, name))}
    assert len(names) > 30
    aliases = {"fedmo": "fedmoswa"}  # fedmoswa with two numbers fixed
    missing = [
        name
        for name in names
        if not any(key.startswith(aliases.get(name, name)) for key in ALGORITHMS)
    ]
    assert not missing


def returns_algorithm(function):
    if not inspect.isfunction(function):
        return False
    return inspect.signature(function, eval_str=True).return_annotation is fs.FedAlgorithm


def test_timelines_exercise_what_they_should():
    current, late = current_timeline(), late_timeline()
    for timeline in (current, late):
        mask = np.asarray(timeline.mask)
        assert mask.any(axis=1).all()
        assert not mask[0].all()
        steps = np.asarray(timeline.num_steps)[mask]
        assert len(set(steps.tolist())) > 3
    staleness = (np.arange(4)[:, None] - np.asarray(late.version))[np.asarray(late.mask)]
    assert set(staleness.tolist()) == {0, 1, 2, 3}


# ---- executions


@for_each(quick=REPRESENTATIVES, among=STRUCTURES)
def test_chunks_on_two_devices(name):
    """Slots by device, on each device in chunks: only the order of summation differs.

    Programs of all algorithms are divided in the next test.

    The base program has a ring of old broadcasts if the algorithm may have one, this one only if
    the timeline is stale: a staleness that is declared but unused changes nothing.
    """
    go = program(name, "sharded")
    state = go(hyper(name), task(), timeline_of(name), jax.random.key(2))
    expected = trained(name)
    assert_close(state._replace(past=()), expected._replace(past=()), TOLERANCE)


@every_algorithm_but_few_quick
def test_clients_on_a_mesh_by_client(name):
    """Data and states by client on two devices: the same server, and the same rows of states.

    On each device one client runs after the other.
    """
    where = by_client(NUM_CLIENTS, make_mesh(jax.devices()[:2]), num_strata=4)
    placed = fs.empirical_task(logistic_losses, logistic_data(), rotated(2), placement=where)
    timeline = fs.timelines.arrange_by_stratum(current(name), NUM_CLIENTS, 4)
    state = program(name, "sequential")(hyper(name), placed, timeline, jax.random.key(2))
    expected = trained(name, current(name))
    assert_close(state.server, expected.server, TOLERANCE)
    table = where.strata.row(np.arange(NUM_CLIENTS))
    assert_close(rows_of(state.clients, table), expected.clients, TOLERANCE)


# They have loops, branches or draws of their own.
CONTROL_FLOW = {"fedac", "scaffnew", "ifca", "perfedavg_HF"}


def first_two_rounds(name):
    """Few local steps deep, so that rounding at 6e-8 does not grow beyond 1e-5."""
    timeline = timeline_of(name)
    steps = 4 if name == "fedac" else 3  # FedAc's constants are those of 4 steps
    later = jnp.arange(timeline.num_rounds)[:, None] >= 2
    return dataclasses.replace(
        timeline,
        num_steps=jnp.minimum(timeline.num_steps, steps),
        mask=timeline.mask & ~later,
    )


def assert_single_is_double(single, double):
    for state, dtype in [(single, np.float32), (double, np.float64)]:
        dtypes = {leaf.dtype for leaf in jax.tree.leaves(state) if leaf.dtype.kind == "f"}
        assert dtypes == {np.dtype(dtype)}
    assert_close((single.server, single.clients), (double.server, double.clients), 1e-5)


@for_each(quick=())
def test_single_precision(name):
    with jax.enable_x64(False):
        single = trained(name, first_two_rounds(name))
    assert_single_is_double(single, trained(name, first_two_rounds(name)))


@for_each(quick={"scaffold_II"}, among=REPRESENTATIVES | CONTROL_FLOW)
def test_without_compilation_in_single_precision(name):
    """Two rounds operation by operation."""
    timeline = first_two_rounds(name)
    steps = int(timeline.num_steps.max())
    with jax.enable_x64(False), jax.disable_jit(), jax.debug_nans(False):
        visits = dataclasses.replace(timeline[:2], max_steps=steps)
        eager = train(name, hyper(name), task(), visits, jax.random.key(2))
    assert_single_is_double(eager, trained(name, timeline))


@every_algorithm
def test_states_have_the_precision_of_the_model(name):
    """Staging is enough to see it, and that no arrays of different numbers of axes meet.

    Hyper-parameters in float32, as in a sweep, adopt the precision of a model in float64.
    """
    values = {key: value.astype(jnp.float32) for key, value in hyper(name).items()}
    with jax.numpy_rank_promotion("raise"):
        go = functools.partial(train, name)
        state = jax.eval_shape(go, values, task(), timeline_of(name), jax.random.key(2))
    leaves = jax.tree.leaves((state.server.params, state.clients))
    dtypes = {leaf.dtype for leaf in leaves if leaf.dtype.kind == "f"}
    assert dtypes == {np.dtype(np.float64)}


# ---- hyper-parameters


@every_algorithm_but_three_quick
def test_vmap_and_gradient(name):
    """One program of vmapped derivatives of a final loss.

    Row i changes one hyper-parameter, the later rows the key: a mix-up of any two is seen.  Every
    row equals its own run, and the derivative with respect to every hyper-parameter the finite
    difference of such runs.  Reverse mode takes three times as long as forward mode, so it
    differentiates one algorithm of every structure; the others have a row per derivative.
    """
    base, reverse = hyper(name), name in STRUCTURES
    rows = [base | {key: 1.1 * value} for key, value in base.items()]
    rows += [base] if reverse else [base] * len(base)
    keys = [2] * len(base) + [7] * (len(rows) - len(base))
    examples = jax.tree.map(jnp.asarray, logistic_data().examples)

    def loss(state):
        value = logistic_losses(state.server.params, examples, None).mean()
        if algorithm(name, base).personal is None:
            return value
        # Some hyper-parameters influence the clients' models only.
        floats = [
            x for x in jax.tree.leaves(state.clients) if jnp.issubdtype(x.dtype, jnp.floating)
        ]
        return value + sum(jnp.square(x).mean() for x in floats)

    def final_loss(values, task, timeline, key):
        state = train(name, values, task, timeline, key)
        return loss(state), state

    def gradient(values, direction, *others):
        del direction
        found, state = jax.grad(final_loss, has_aux=True)(values, *others)
        return state, found

    def slope(values, direction, *others):
        of_values = lambda values: final_loss(values, *others)  # noqa: E731
        _, found, state = jax.jvp(of_values, (values,), (direction,), has_aux=True)
        return state, found

    over = jax.vmap(gradient if reverse else slope, (0, 0, None, None, 0))
    batch = jax.tree.map(lambda *values: jnp.stack(values), *rows)
    directions = {key: jnp.eye(len(rows))[len(base) + i] for i, key in enumerate(base)}
    # The derivative of optax's ``decay**count`` mixes dtypes, which strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        states, found = compiled(over)(
            batch,
            batch if reverse else directions,
            task(),
            declared(name, timeline_of(name)),
            jnp.stack([jax.random.key(key) for key in keys]),
        )
    apart = [trained(name, key=key, **row) for row, key in zip(rows, keys, strict=True)]
    assert_close(states, jax.tree.map(lambda *x: np.stack(x), *apart), TOLERANCE)
    for i, (parameter, value) in enumerate(base.items()):
        # Central differences err by O(step^2) + eps / step: about 1e-10 at this step.
        step = 1e-5 * value
        above, below = (
            loss(trained(name, key=7, **{parameter: v})) for v in (value + step, value - step)
        )
        difference = (above - below) / (2 * step)
        assert abs(difference) > 1e-7, f"{parameter} has no effect, so nothing is tested"
        derivative = found[parameter][-1] if reverse else found[len(base) + i]
        np.testing.assert_allclose(derivative, difference, rtol=1e-6, atol=1e-9)


@every_algorithm
def test_key_decides_everything_random(name):
    first = trained(name)
    assert_identical(trained(name), first)
    other = trained(name, key=3)
    difference = np.abs(weights(name, other) - weights(name, first)).max()
    if name == "agd":  # full gradients
        assert difference == 0
    else:
        assert difference > 1e-4


def weights(name, state):
    """Weights of the model that is trained: the server's, or all clients' where it has none."""
    return state.clients["w"] if name == "fedproto" else state.server.params["w"]


# ---- personal models


def test_personal_models_have_the_form_of_the_model():
    """A client that never trained gets a model of the server's leaves, shapes and types."""
    zero, names = jnp.array(0, jnp.int32), []
    for name in ALGORITHMS:
        method = algorithm(name, hyper(name))
        if method.personal is None:
            continue

        def model(params, key, method=method):
            round = fs.Round(zero, zero, NUM_CLIENTS, key)
            message = method.broadcast(method.init(params), round)
            work = fs.Work(zero, zero + 1, zero + 4, zero + 9, zero, key, max_steps=4)
            state, oracle = method.init_client(params), task().oracle(zero + 1, key, 4)
            return method.personal(message, state, oracle, work)

        shapes = jax.eval_shape(model, logistic_params(), jax.random.key(0))
        forms = {key: (x.shape, x.dtype) for key, x in shapes.items()}
        assert forms == {key: (x.shape, x.dtype) for key, x in logistic_params().items()}, name
        names.append(name)
    assert {"ditto", "pfedme", "apfl", "perfedavg_FO", "ifca"} <= set(names)


# ---- clients and slots


@for_each(without={*GOSSIP, "hier_fedavg"})
def test_client_numbers_are_only_labels(name):
    """Without random draws, renumbered clients give the same model and renumbered states.

    Where numbers of clients name neighbours or edges, ``tests/topologies`` has the test.

    Every client has copies of one example, so that its minibatches are equal.
    """
    old_of_new = np.array([5, 2, 7, 0, 3, 6, 1, 4])
    new_of_old = np.argsort(old_of_new)
    timeline, data = timeline_of(name), logistic_data()
    clients = [
        jax.tree.map(lambda x: np.repeat(x[:1], len(x), axis=0), data.client(client))
        for client in range(NUM_CLIENTS)
    ]
    states = []
    for order, visitors in [
        (np.arange(NUM_CLIENTS), timeline.clients),
        (old_of_new, jnp.asarray(new_of_old, jnp.int32)[timeline.clients]),
    ]:
        data = fs.from_clients([clients[old] for old in order])
        problem = fs.empirical_task(logistic_losses, data, rotated(2))
        visits = dataclasses.replace(timeline, clients=visitors)
        states.append(trained(name, visits, data=problem))
    expected = states[0].server
    if name == "afl":  # its server has a weight per client; their sum has another order
        weights = expected.inner.weights[old_of_new]
        expected = expected._replace(inner=expected.inner._replace(weights=weights))
        assert_close(states[1].server, expected, TOLERANCE)
        return
    assert_identical(states[1].server, expected)
    assert_identical(states[1].clients, rows_of(states[0].clients, old_of_new))


@every_algorithm
def test_empty_slot_is_nobody(name):
    """The entries of a masked slot have no effect, and its client keeps its state bit for bit."""
    timeline = timeline_of(name)
    mask = np.asarray(timeline.mask)
    clients, steps = np.array(timeline.clients), np.array(timeline.num_steps)
    for t, s in zip(*np.nonzero(~mask), strict=True):
        clients[t, s] = (clients[t, s] + 3) % NUM_CLIENTS  # may even be another slot's client
        steps[t, s] = 0
    other = dataclasses.replace(
        timeline, clients=jnp.asarray(clients), num_steps=jnp.asarray(steps)
    )
    assert_identical(trained(name, other), trained(name))

    later = jnp.arange(timeline.num_rounds)[:, None] > 0
    only_first = dataclasses.replace(timeline, mask=timeline.mask & ~later)
    absent = np.setdiff1d(np.arange(NUM_CLIENTS), timeline.clients[0][timeline.mask[0]])
    state, start = trained(name, only_first), begun(name, timeline)
    assert_identical(rows_of(state.clients, absent), rows_of(start.clients, absent))


def rows_of(clients, rows):
    return jax.tree.map(lambda x: x[rows], clients)


# ---- rounds


def begun(name, timeline):
    return fs.init(algorithm(name, hyper(name)), fs.Setup(task(), timeline, logistic_params()))


@functools.cache
def advancing(name):
    """Two more rounds, with everything that clients send and keep."""
    probes = fs.Probes(client={"visit": lambda visit: (visit.upload, visit.state, visit.new_state)})

    def go(values, task, timeline, state, key):
        setup = fs.Setup(task, timeline, None, eval_every=timeline.num_rounds)
        execution = STRATEGIES["vmapped"]()
        return fs.advance(
            algorithm(name, values), setup, state, key, execution=execution, probes=probes
        )

    return compiled(go)


def with_buffers(name):
    """The stale timeline with allocated buffers if the algorithm may have one."""
    if synchronous_only(name):
        return current(name)
    return fs.timelines.allocate_buffers(late_timeline())


@every_algorithm
def test_continued_run_in_buffers_equals_uninterrupted_in_a_ring(name):
    """In two parts, and with old broadcasts in as few places as possible."""
    timeline = with_buffers(name)
    state = begun(name, timeline)
    for part in (timeline[:2], timeline[2:]):
        state, _ = advancing(name)(hyper(name), task(), part, state, jax.random.key(2))
    expected = trained(name, current(name) if synchronous_only(name) else late_timeline())
    assert_identical(state._replace(past=()), expected._replace(past=()))
    if name not in STALE and not synchronous_only(name):
        fresh = trained(name, current(name))
        assert np.abs(weights(name, fresh) - weights(name, state)).max() > 1e-5


@every_algorithm
def test_rounds_without_reports_change_nothing(name):
    timeline = with_buffers(name)
    before = begun(name, timeline)
    nobody = dataclasses.replace(timeline[:2], mask=jnp.zeros_like(timeline.mask[:2]))
    after, _ = advancing(name)(hyper(name), task(), nobody, before, jax.random.key(2))
    assert int(after.round) == int(before.round) + 2
    # The server broadcasts nonetheless.
    assert_identical(after._replace(round=before.round, past=before.past), before)


@every_algorithm
def test_visit_of_no_steps_leaves_no_trace(name):
    """Its upload is zero and the client's state stays, wherever server and client are."""
    timeline, key = with_buffers(name), jax.random.key(2)
    state, _ = advancing(name)(hyper(name), task(), timeline[:2], begun(name, timeline), key)
    idle = dataclasses.replace(timeline[2:], num_steps=jnp.zeros_like(timeline.num_steps[2:]))
    after, history = advancing(name)(hyper(name), task(), idle, state, key)
    if name in CONTACTS:  # the model that the client keeps is averaged, with or without steps
        return
    upload, old, new = history.probes["visit"]
    assert_identical(upload, jax.tree.map(np.zeros_like, upload))
    assert_identical(new, old)
    assert_identical(after.clients, state.clients)


@every_algorithm
def test_staleness_is_refused_where_it_cannot_be(name):
    refused = synchronous_only(name)
    assert refused == (algorithm(name, hyper(name)).requires.synchronous is not None)
    for timeline in (with_ring(current(name)), late_timeline()):
        if refused:
            with pytest.raises(ValueError, match="staleness of up to 3; expected none: "):
                begun(name, timeline)
        else:
            begun(name, timeline)


def test_sizes_are_ragged():
    """Otherwise short batches would not be exercised."""
    assert {1, 2, 3} < set(SIZES.tolist())
