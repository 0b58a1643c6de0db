"""Forks beside uninterrupted runs, beside each other and beside closed forms."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim import Comparison
from fedjax_sim.compression import identity
from fedjax_sim.diagnostics.dynamics import client_dynamics
from fedjax_sim.timelines import delay_clients, lose_uploads_of, remove_clients

ROUNDS, AT, SEEDS = 6, 4, 3
KEYS = jax.random.split(jax.random.key(0), SEEDS)


def oracle(client, key, max_steps):
    """F_i(x) = (x - i)^2 / 2 with noise that is drawn per visit."""
    del max_steps
    noise = jax.random.normal(key, ()) / 10

    def grad(x, step):
        del step
        return x - client.astype(x.dtype) + noise

    return fs.Oracle(grad, lambda x, step: x**2, lambda x: grad(x, 0))


@functools.cache
def setup():
    task = fs.Task(oracle, np.ones(3, np.int32), np.full(3, 2))
    timeline = fs.timelines.full(ROUNDS, 3, 2)
    params = np.zeros(SEEDS, np.float32)
    return fs.Setup(task, timeline, params, lambda x: {"x": x}, eval_every=2)


@functools.cache
def begun(algorithm=None):
    begin = dataclasses.replace(setup(), timeline=setup().timeline[:AT])
    return fs.simulate(algorithm or scaffold(), begin, KEYS)


@functools.cache
def scaffold():
    return fs.scaffold(0.1)


def equal(x, y):
    jax.tree.map(np.testing.assert_array_equal, x, y)


@pytest.mark.slow
def test_same_configuration_equals_the_uninterrupted_run():
    """Bit for bit: client states, server state and metrics; the others see the same noise."""
    whole = fs.simulate(scaffold(), setup(), KEYS)
    result = fs.fork(
        begun(),
        {
            "same": scaffold(),
            "without 2": fs.Alternative(scaffold(), lambda rest: remove_clients(rest, 2)),
            "lost 2": fs.Alternative(scaffold(), lambda rest: lose_uploads_of(rest, 2)),
        },
        setup(),
        KEYS,
    )
    equal(result.states["same"], whole.state)
    history = result.histories["same"]
    assert history.round.tolist() == [[AT, ROUNDS]] * SEEDS
    equal(history.metrics["x"], np.asarray(whole.history.metrics["x"])[:, 1:])
    # A removed client's state stays; one whose upload is lost moves on.
    control = {name: np.asarray(state.clients) for name, state in result.states.items()}
    before = np.asarray(begun().state.clients)
    equal(control["without 2"][:, 2], before[:, 2])
    assert (control["lost 2"][:, 2] != before[:, 2]).all()
    # The same noise: differences vary less than the runs.
    pairs = result.differences("x")
    assert pairs["alternative"].tolist() == ["without 2"] * 2 + ["lost 2"] * 2
    assert pairs["mean"][0] == 0
    assert pairs["mean"][1] == pairs["mean"][3] != 0  # the server sees the same uploads
    assert (pairs["variance_ratio"][[1, 3]] < 0.5).all()
    frame = result.to_frame()
    assert len(frame) == 3 * SEEDS * 2
    figure = result.plot("x")
    assert figure.axes[1].get_ylabel() == "difference to same"
    assert "without 2" in result._repr_html_()


@pytest.mark.slow
def test_delay_restart_and_one_key():
    """A late client starts from the fork's broadcast; FedAdam starts from the model alone."""
    begin = dataclasses.replace(
        setup(), timeline=setup().timeline[:AT], params=np.float32(0), eval_fn=None
    )
    key, whole = KEYS[0], dataclasses.replace(setup(), params=np.float32(0))
    start = fs.simulate(fs.fedavg(0.1), begin, key).state
    result = fs.fork(
        start,
        {
            "same": fs.fedavg(0.1),
            "late": fs.Alternative(fs.fedavg(0.1), lambda rest: delay_clients(rest, [0, 1, 2], 5)),
            "fedadam": fs.Alternative(fs.fedadam(0.1, 0.5), restart=True),
        },
        whole,
        key,
        seeds=["seven"],
    )
    assert result.seeds == ["seven"]
    x = float(start.server.params)
    noise = [_mean_noise(key, t) for t in range(AT, ROUNDS)]
    step = 1 - 0.9**2  # two steps move a model by this share of the way to client 1, the mean
    displacements = [step * (1 - noise[i] - x) for i in range(2)]
    late = float(result.states["late"].server.params)
    np.testing.assert_allclose(late, x + sum(displacements), rtol=1e-5)
    assert float(result.states["same"].server.params) != late
    assert int(result.states["fedadam"].round) == ROUNDS
    assert np.isnan(result.differences("x")["low"]).all()


@pytest.mark.slow
def test_fork_between_evaluations_with_late_clients():
    """Rounds of evaluation are the run's; a restart keeps what late clients had downloaded."""
    timeline = delay_clients(setup().timeline, [0], 1)
    whole = dataclasses.replace(setup(), timeline=timeline)
    start = fs.simulate(fs.fedavg(0.1), dataclasses.replace(whole, timeline=timeline[:3]), KEYS)
    same = fs.Alternative(fs.fedavg(0.1))
    alternatives = {"same": same, "restart": same._replace(restart=True)}
    result = fs.fork(start, alternatives, whole, KEYS)
    history, restarted = result.histories["same"], result.histories["restart"]
    assert history.round.tolist() == [[3, 4, 6]] * SEEDS
    np.testing.assert_allclose(restarted.metrics["x"], history.metrics["x"], rtol=1e-6)
    other = {"scaffold": fs.Alternative(scaffold(), restart=True)}
    with pytest.raises(ValueError, match="start from broadcast 2; expected 3 or later"):
        fs.fork(start, other, whole, KEYS)


def _mean_noise(key, number):
    """Mean of the clients' noise in a round, by the engine's rule for keys."""
    of_round = jax.random.fold_in(key, number)
    visits = [jax.random.fold_in(of_round, client) for client in range(3)]
    return float(np.mean([jax.random.normal(jax.random.fold_in(v, 0), ()) / 10 for v in visits]))


@pytest.mark.slow
def test_variance_of_a_paired_difference():
    """x <- x - eta (x + xi), 100 rounds: variance under common numbers over independent ones."""

    def noisy(client, key, max_steps):
        del client, max_steps
        noise = jax.random.normal(key, ())
        return fs.Oracle(lambda x, step: x + noise, lambda x, step: x**2, lambda x: x)

    seeds = 4000
    task = fs.Task(noisy, np.ones(1, np.int32), np.ones(1, np.int32))
    timeline = fs.timelines.full(100, 1, 1)
    params = jnp.zeros(seeds)
    run = fs.Setup(task, timeline, params, lambda x: {"x": x}, eval_every=100)
    keys = jax.random.split(jax.random.key(3), seeds)
    algorithms = {str(lr): fs.fedavg(lr) for lr in (0.1, 0.12, 0.2)}
    start = jax.vmap(lambda x: fs.init(algorithms["0.1"], dataclasses.replace(run, params=x)))(
        params
    )
    pairs = fs.fork(start, algorithms, run, keys).differences("x")
    ratio = pairs.set_index(["alternative", "round"])["variance_ratio"]
    # The relative standard error of a sample variance is sqrt(2 / seeds).
    error = 4 * np.sqrt(2 * 2 / seeds)
    assert abs(ratio["0.12", 100] / 0.009246 - 1) < error
    assert abs(ratio["0.2", 100] / 0.127551 - 1) < error


@pytest.mark.slow
def test_first_cohorts_are_those_of_the_run():
    """An evaluation of the last round's clients, with another timeline per seed."""
    cohorts = [fs.timelines.uniform(key, ROUNDS, 3, 1, 2) for key in KEYS]
    timeline = fs.timelines.stacked(cohorts)
    drift = client_dynamics(("drift",), clients="cohort", per_client=False)
    whole = dataclasses.replace(setup(), timeline=timeline, eval_fn=drift)
    algorithm = fs.fedavg(0.1)
    values = fs.simulate(
        algorithm, whole, KEYS, options=fs.Options(eval_initial=True)
    ).history.metrics["drift/mean"]
    # Before the first round: two steps from 0 towards the first clients, but for the noise.
    first = np.abs(values[:, 0]) / (1 - 0.9**2)
    np.testing.assert_array_equal(np.round(first), timeline.clients[:, 0, 0])
    start = fs.simulate(algorithm, dataclasses.replace(whole, timeline=timeline[:AT]), KEYS)
    alternatives = {"same": algorithm, "one for all": fs.Alternative(algorithm, _of_seed_0)}
    result = fs.fork(start, alternatives, whole, KEYS)
    for history in result.histories.values():
        np.testing.assert_allclose(history.metrics["drift/mean"][:, 0], values[:, 2], rtol=1e-5)
    same, other = (result.histories[name].metrics["drift/mean"][:, 1] for name in alternatives)
    np.testing.assert_allclose(same, values[:, 3], rtol=1e-5)
    np.testing.assert_allclose(other[0], same[0], rtol=1e-5)
    assert (other[1:] != same[1:]).any()


def _of_seed_0(rest):
    return jax.tree.map(lambda x: x[0], rest)


@pytest.mark.slow
def test_refusals():
    state = begun().state
    same = {"same": scaffold()}
    for arguments, message in [
        ((state, {}, setup(), KEYS), r"alternatives is empty"),
        ((state, [scaffold()], setup(), KEYS), r"alternatives is a list; expected a dict"),
        ((state, {"x": fs.fedavg}, setup(), KEYS), r"alternatives\['x'\] is <function fedavg at"),
        ((Comparison({}, False), same, setup(), KEYS), r"start is a Comparison; expected a sim"),
        ((state, same, setup(), KEYS[:2]), r"expected|params has leaves"),
        ((state, {"avg": fs.fedavg(0.1)}, setup(), KEYS), r"alternatives\['avg'\] has a state \(s"),
        ((state, same, begun_setup(), KEYS), r"start is the state after 4 to 4 rounds; expected"),
        (
            (state, {"x": fs.Alternative(scaffold(), lambda rest: rest[1:])}, setup(), KEYS),
            r"alternatives\['x'\] changes the timeline to Timeline of 1 rounds",
        ),
        (
            (state, {"x": fs.Alternative(fs.fedavg(0.1), _from_0, True)}, setup(), KEYS),
            r"alternatives\['x'\] has clients that start from broadcast 0; expected 4 or later",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            fs.fork(*arguments)
    with pytest.raises(ValueError, match=r"start has states of shape \(3,\); expected \(\)"):
        fs.fork(state, same, dataclasses.replace(setup(), params=np.float32(0)), KEYS[0])


def test_a_selection_does_not_restart():
    """It has counted the visits of the run; without a restart it goes on counting them."""
    chosen = fs.selection.select(fs.fedavg(0.1), fs.selection.power_of_choice(1, "last"))
    state = begun(chosen).state
    restarted = fs.Alternative(chosen, restart=True)
    with pytest.raises(
        ValueError, match=r"alternatives\['x'\] restarts with a selection; expected restart=False"
    ):
        fs.fork(state, {"x": restarted}, setup(), KEYS)
    with pytest.raises(ValueError, match=r"alternatives\['x'\] restarts with a selection"):
        fs.fork(begun().state, {"x": restarted}, setup(), KEYS)  # of a run without


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": np.array([[0, 1, 3]] * 2)}, r"timeline.clients has clients 0 \.\. 3"),
        ({"clients": np.array([[0, 1, 1]] * 2)}, "a client twice in one round"),
        ({"num_steps": np.full((2, 3), 3)}, r"timeline.num_steps is in 3 \.\. 3; expected 0 .. 2"),
        ({"version": np.full((2, 3), 5)}, r"timeline.version has staleness -1 \.\. 0"),
    ],
    ids=["client", "twice", "steps", "version"],
)
def test_changed_timelines_are_checked(change, message):
    other = fs.Alternative(scaffold(), lambda rest: dataclasses.replace(rest, **change))
    with pytest.raises(ValueError, match=rf"alternatives\['x'\] changes the timeline: .*{message}"):
        fs.fork(begun().state, {"x": other}, setup(), KEYS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (3, "change is 3; expected a function of "),
        (lambda: 3, r"change takes \(\); expected "),
        (
            lambda rest: rest.cohorts,
            r"change fails for .* \(AttributeError: .*\); expected a funct",
        ),
    ],
)
def test_mistakes_in_changes_have_their_names(change, message):
    with pytest.raises(ValueError, match=rf"alternatives\['x'\]\.{message}"):
        fs.fork(begun().state, {"x": fs.Alternative(scaffold(), change)}, setup(), KEYS)


@pytest.mark.slow
def test_buffers_hold_the_broadcasts_that_clients_read():
    """Both assignments have two buffers; the run's has no broadcast 1 after round 1."""

    def visits(last, **fields):
        return fs.Timeline(
            clients=[[0], [0], [0], [1]],
            version=[[0], [1], [2], [last]],
            num_steps=[[1]] * 4,
            mask=[[True]] * 4,
            time=[1.0, 2.0, 3.0, 4.0],
            max_steps=1,
            max_staleness=3,
            **fields,
        )

    task = fs.Task(oracle, np.ones(2, np.int32), np.ones(2, np.int32))
    algorithm, key = fs.fedavg(0.5), KEYS[0]

    def final(run, other):
        whole = fs.Setup(task, run, np.float32(4))
        start = fs.simulate(algorithm, dataclasses.replace(whole, timeline=run[:2]), key)
        changed = fs.Alternative(algorithm, lambda rest: other[2:])
        return fs.fork(start, {"other": changed}, whole, key).states["other"].server.params

    ring = final(visits(0), visits(1))
    setup = fs.Setup(task, visits(1), np.float32(4))
    np.testing.assert_array_equal(ring, fs.run(algorithm, setup, key)[0].server.params)
    run, other = (fs.timelines.allocate_buffers(visits(last)) for last in (0, 1))
    assert run.num_buffers == other.num_buffers == 2
    np.testing.assert_array_equal(run.write_buffer, [0, 1, 1, 2])
    np.testing.assert_array_equal(other.read_buffer[3], [0])
    with pytest.raises(ValueError, match="start from broadcast 1 in round 3 and read a buffer"):
        final(run, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "mask", "at"),
    [
        (fs.mime(0.1), [[1, 1, 0], [1, 1, 0], [0, 1, 1], [0, 1, 1]], 1),
        (fs.pp_marina(fs.fedsgd(0.1), identity()), [[1, 1, 1], [1, 0, 1], [0, 1, 1], [1, 1, 1]], 2),
    ],
    ids=["second round of a pair", "no round of all clients"],
)
def test_checks_see_the_whole_run(algorithm, mask, at):
    """The rounds from the fork on do not begin as these algorithms require of a run."""
    timeline = dataclasses.replace(fs.timelines.full(4, 3, 2), mask=np.array(mask, bool))
    whole = dataclasses.replace(setup(), timeline=timeline, params=np.float32(0))
    start = fs.simulate(algorithm, dataclasses.replace(whole, timeline=timeline[:at]), KEYS[0])
    result = fs.fork(start, {"same": algorithm}, whole, KEYS[0])
    equal(result.states["same"], fs.simulate(algorithm, whole, KEYS[0]).state)
    wider = fs.Alternative(algorithm, _with_empty_slot)
    states = fs.fork(start, {"wider": wider}, whole, KEYS[0]).states
    np.testing.assert_allclose(
        states["wider"].server.params, result.states["same"].server.params, rtol=1e-6
    )


def _with_empty_slot(rest):
    def wider(x):
        return np.pad(np.asarray(x), [(0, 0), (0, 1)])

    slots = ("clients", "version", "num_steps", "mask")
    return dataclasses.replace(rest, **{name: wider(getattr(rest, name)) for name in slots})


def _from_0(rest):
    version = np.zeros_like(np.asarray(rest.version))
    return dataclasses.replace(rest, version=version, max_staleness=ROUNDS)


def begun_setup():
    return dataclasses.replace(setup(), timeline=setup().timeline[:AT])


@pytest.mark.slow
def test_frames_have_measured_values_only():
    """Rounds that skip a metric have no rows; arrays are columns as in frames of simulations."""
    slow = fs.evaluation.at_rounds(lambda x: {"x": x}, AT + 1)
    evaluator = fs.evaluation.merge_evaluators(lambda x: {"pair": jnp.stack([x, 2 * x])}, slow=slow)
    part = dataclasses.replace(setup(), eval_fn=evaluator, eval_every=1)
    result = fs.fork(begun(), {"same": scaffold(), "other": fs.scaffold(0.2)}, part, KEYS)
    frame = result.to_frame()
    assert set(frame["metric"]) == {"pair/0", "pair/1", "slow/x"}
    assert set(frame.loc[frame["metric"] == "slow/x", "round"]) == {AT + 1}
    assert result.differences("slow/x")["round"].tolist() == [AT + 1]
    assert result.differences("pair/1")["round"].tolist() == [AT, AT + 1, AT + 2]
    assert len(result.plot("slow/x").axes) >= 1


def test_differences_leave_out_seeds_that_diverged(allow_nans):
    """A metric of a model of NaN may be finite, and is no result."""
    small = dataclasses.replace(setup(), eval_fn=lambda x: {"small": (abs(x) < 1).astype(float)})
    state, infinite = begun().state, np.array([False, True, False])
    server = state.server._replace(params=np.where(infinite, np.inf, state.server.params))
    others = {"same": scaffold(), "other": fs.scaffold(0.2)}
    result = fs.fork(state._replace(server=server), others, small, KEYS)
    assert np.asarray(result.states["same"].diverged_at).tolist() == [0, AT + 1, 0]
    differences = result.differences("small").set_index("round")
    assert differences["num_seeds"].tolist() == [SEEDS, SEEDS - 1]
    assert np.isfinite(differences["mean"]).all()


def test_the_ratio_of_variances_is_that_of_the_seeds_that_count(allow_nans):
    """Seed 1 diverges after the fork: the other two give the ratio, as they give the mean."""
    first = dataclasses.replace(setup(), eval_fn=lambda x: {"first": x.ravel()[0]})
    state, infinite = begun().state, np.array([False, True, False])
    server = state.server._replace(params=np.where(infinite, np.inf, state.server.params))
    others = {"same": scaffold(), "other": fs.scaffold(0.2)}
    result = fs.fork(state._replace(server=server), others, first, KEYS)
    last = result.differences("first").set_index("round").loc[ROUNDS]
    x, y = (np.asarray(result.histories[name].metrics["first"])[[0, 2], -1] for name in others)
    expected = np.var(y - x, ddof=1) / (np.var(x, ddof=1) + np.var(y, ddof=1))
    assert last["num_seeds"] == SEEDS - 1
    assert last["variance_ratio"] == pytest.approx(expected)
