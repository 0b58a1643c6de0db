"""Selection inside the round: masks, files, comparisons, sweeps, refusals and counted work."""

import dataclasses
import json

import jax
import numpy as np
import numpy.testing as npt
import pytest
from call_records import records
from small_problems import assert_close, assert_identical

import fedjax_sim as fs
from fedjax_sim import selection
from fedjax_sim.runs.storage.store import RunFolder

CLIENTS, CANDIDATES, SIZE, ROUNDS, STEPS = 7, 5, 2, 6, 3
KEY = jax.random.key(3)


def losses(w, batch, key):
    del key
    return (w - batch["x"]) ** 2 / 2


def task(placement=None, loss=losses) -> fs.Task:
    rng = np.random.default_rng(0)
    x = rng.normal(size=4 * CLIENTS).astype(np.float32) + np.repeat(np.arange(CLIENTS), 4)
    data = fs.FederatedData({"x": x.astype(np.float32)}, np.arange(0, 4 * CLIENTS + 1, 4))
    return fs.empirical_task(loss, data, fs.with_replacement(2, STEPS), placement=placement)


def setup(candidates=CANDIDATES, placement=None, **changes) -> fs.Setup:
    rounds = fs.timelines.uniform(jax.random.key(1), ROUNDS, CLIENTS, candidates, STEPS)
    start = np.float32(0.5)
    whole = fs.Setup(task(placement), rounds, start, lambda w: {"w": w}, eval_every=2)
    return dataclasses.replace(whole, **changes)


SELECTORS = {
    "power_of_choice": lambda size: selection.power_of_choice(size),
    "minibatch": lambda size: selection.power_of_choice(size, "minibatch"),
    "last": lambda size: selection.power_of_choice(size, "last"),
    "norms": lambda size: selection.proportional(size),
    "losses": lambda size: selection.proportional(size, selection.full_loss),
    "oort": lambda size: selection.oort(size, durations=np.arange(1.0, CLIENTS + 1), window=2),
}
each_selector = pytest.mark.parametrize("name", SELECTORS)


def run(algorithm, where, **options):
    return jax.jit(lambda: fs.run(algorithm, where, KEY, **options))()


@each_selector
def test_choosing_all_candidates_is_the_timeline_alone(name):
    where = setup()
    plain, _ = run(fs.fedavg(0.2), where)
    chosen, _ = run(selection.select(fs.fedavg(0.2), SELECTORS[name](CANDIDATES)), where)
    assert_identical(chosen.server, plain.server)
    visits = np.bincount(np.asarray(where.timeline.clients).ravel(), minlength=CLIENTS)
    npt.assert_array_equal(chosen.selection.visits, visits)


@pytest.mark.slow
@each_selector
def test_rounds_are_those_of_the_chosen_clients_alone(name):
    """A run on a timeline that has only the chosen clients has the same models and states."""
    algorithm, where = fs.scaffold(0.1), setup()
    if name in ("norms", "losses"):  # their weights are no timeline's
        pytest.skip("unbiased weights are checked by enumeration")
    probes = fs.Probes(run={"visits": lambda state: state.selection.visits})
    wrapped = selection.select(algorithm, SELECTORS[name](SIZE))
    selected, history = run(wrapped, where, probes=probes)
    until = np.concatenate([np.zeros((1, CLIENTS), int), history.probes["visits"]])
    took_part = np.diff(until, axis=0).astype(bool)
    npt.assert_array_equal(took_part.sum(1), SIZE)
    clients = np.stack([np.flatnonzero(row) for row in took_part]).astype(np.int32)
    alone = fs.timelines.full(ROUNDS, SIZE, STEPS)
    alone = dataclasses.replace(alone, clients=clients, sampling=None)
    expected, _ = run(algorithm, dataclasses.replace(where, timeline=alone))
    # Single precision; the order of the two uploads in their mean may differ.
    assert_close(selected.server, expected.server, rtol=1e-6)
    assert_close(selected.clients, expected.clients, rtol=1e-6)


@pytest.mark.parametrize("size", [None, 2], ids=["any", "size"])
def test_a_selector_may_choose_fewer(size):
    """Client 2 alone, of candidates at 0, 0 and 8: the mean is its upload, half of its steps'."""
    examples = fs.FederatedData({"x": np.array([0.0, 0.0, 8.0], np.float32)}, np.arange(4))
    problem = fs.empirical_task(losses, examples, fs.full_batch(2))
    where = fs.Setup(problem, fs.timelines.full(1, 3, problem.num_steps), np.float32(0))

    def choose(state, candidates, round):
        del round
        few = jax.numpy.full(3, 1)
        return selection.Choice(candidates.clients == 2, num_steps=few), state

    algorithm = selection.select(fs.fedavg(0.5), selection.Selector(choose, size))
    state, _ = run(algorithm, where)
    assert float(state.server.params) == 4
    npt.assert_array_equal(state.selection.visits, [0, 0, 1])
    assert int(state.selection.local_steps) == 1


@pytest.mark.slow
@each_selector
def test_executions_and_orders_of_slots_agree(name):
    where = setup()
    algorithm = selection.select(fs.fedavg(0.2), SELECTORS[name](SIZE))
    expected, _ = run(algorithm, where, execution=fs.execution.vmapped())
    for execution in (fs.execution.sequential(), fs.execution.chunked(2)):
        state, _ = run(algorithm, where, execution=execution)
        npt.assert_array_equal(state.selection.visits, expected.selection.visits)
        assert_close(state.server, expected.server, rtol=1e-6)  # order of sums
    turned = dataclasses.replace(where.timeline, clients=where.timeline.clients[:, ::-1])
    state, _ = run(algorithm, dataclasses.replace(where, timeline=turned))
    npt.assert_array_equal(state.selection.visits, expected.selection.visits)
    assert_close(state.server, expected.server, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SELECTORS, "adacomm"])
def test_resumed_runs_have_equal_files(name, tmp_path):
    whole = setup()
    selector = SELECTORS[name](SIZE) if name in SELECTORS else selection.adacomm(STEPS, 2)
    algorithm = selection.select(fs.fedavg(0.2), selector)
    for rounds in (2, 4, ROUNDS):
        part = dataclasses.replace(whole, timeline=whole.timeline[:rounds])
        resumed = fs.simulate(algorithm, part, KEY, storage=tmp_path / "parts")
    fs.simulate(algorithm, whole, KEY, storage=tmp_path / "whole")
    files = [(tmp_path / folder / "history.csv").read_bytes() for folder in ("parts", "whole")]
    assert files[0] == files[1]
    state = RunFolder(tmp_path / "whole").models().params
    npt.assert_array_equal(np.asarray(resumed.state.server.params), np.asarray(state).squeeze())


@pytest.mark.slow
def test_compare_and_sweep_have_the_same_numbers():
    whole = setup(params=np.full(2, 0.5, np.float32))
    keys = jax.random.split(KEY, 2)

    def chosen(lr):
        return selection.select(fs.fedavg(lr), selection.power_of_choice(SIZE))

    compared = fs.compare({"uniform": fs.fedavg(0.2), "chosen": chosen(0.2)}, whole, keys)
    swept = fs.sweep(chosen, whole, {"lr": [0.1, 0.2]}, keys)
    frame = compared.to_frame().query("algorithm == 'chosen'").set_index("metric").value
    other = swept.to_frame().query("lr == 0.2").set_index("metric").value
    for metric in ("w", "local_steps"):
        one, two = (np.sort(values[metric].to_numpy()) for values in (frame, other))
        npt.assert_allclose(one, two, rtol=1e-6)  # batched sums
    assert frame["local_steps"].max() == ROUNDS * SIZE * STEPS


def test_changed_selectors_are_another_run(tmp_path):
    where = setup()
    fs.simulate(
        selection.select(fs.fedavg(0.2), selection.power_of_choice(2)), where, KEY, storage=tmp_path
    )
    other = selection.select(fs.fedavg(0.2), selection.power_of_choice(3))
    with pytest.raises(ValueError, match="algorithm"):
        fs.simulate(other, where, KEY, storage=tmp_path)


def test_examples_on_the_host_give_equal_bits():
    algorithm = selection.select(fs.fedavg(0.2), selection.power_of_choice(SIZE, "last"))
    here = fs.simulate(algorithm, setup(), KEY)
    there = fs.simulate(algorithm, setup(placement=fs.execution.on_host(10_000)), KEY)
    assert_identical(here.state.server, there.state.server)


@pytest.mark.parametrize(
    ("selector", "upload", "message"),
    [
        # One upload of a float, 5 scores of 32 bits for 2 uploads, and 5 messages for 2.
        (lambda: selection.power_of_choice(SIZE), 32 + 80, 80),
        # An upload has the reported loss with it; candidates receive nothing.
        (lambda: selection.power_of_choice(SIZE, "last"), 64, 32),
        (lambda: selection.oort(SIZE), 64, 32),
        (lambda: selection.adacomm(STEPS, 1), 64, 32),
    ],
)
def test_bits_count_candidates_that_are_not_chosen(selector, upload, message, tmp_path):
    algorithm = selection.select(fs.fedavg(0.2), selector())
    fs.simulate(algorithm, setup(), KEY, storage=tmp_path)
    outcome = RunFolder(tmp_path).outcome()
    assert (outcome.upload_bits, outcome.download_bits) == (upload, message)
    uploads = SIZE if algorithm.selection.size else CANDIDATES
    assert outcome.bits("0", [ROUNDS]) == [ROUNDS * uploads * (upload + message)]


@pytest.mark.parametrize(
    ("parts", "upload"),
    [
        # A candidate sends the gradient [3] and the loss, a chosen client the model's 3 numbers;
        # 5 candidates per 2 uploads.
        (
            {"score": lambda w, oracle, work: (oracle.full_grad(w), oracle.full_loss(w))},
            (3 + 4 * CANDIDATES / SIZE) * 32,
        ),
        ({"report": lambda w, oracle, work: oracle.full_grad(w)}, (3 + 3) * 32),
    ],
    ids=["score", "report"],
)
def test_bits_count_all_numbers_of_scores_and_reports(parts, upload, tmp_path):
    """They counted as one number each."""

    def first(state, candidates, round):
        return selection.Choice(jax.numpy.arange(CANDIDATES) < SIZE), state

    def wide(w, batch, key):
        return losses(w, batch, key).sum(-1)

    x = np.zeros((CLIENTS, 3), np.float32)
    data = fs.FederatedData({"x": x}, np.arange(CLIENTS + 1))
    own = fs.empirical_task(wide, data, fs.full_batch(STEPS))
    where = setup(task=own, params=np.zeros(3, np.float32), eval_fn=None)
    algorithm = selection.select(fs.fedavg(0.2), selection.Selector(first, SIZE, **parts))
    fs.simulate(algorithm, where, KEY, storage=tmp_path / "run")
    outcome = json.loads((tmp_path / "run" / "outcome.json").read_text())
    assert outcome["upload_bits"] == upload


def test_local_steps_are_those_done():
    result = fs.simulate(
        selection.select(fs.fedavg(0.2), selection.power_of_choice(SIZE)), setup(), KEY
    )
    assert result.local_steps == ROUNDS * SIZE * STEPS
    assert int(result.state.selection.visits.sum()) == ROUNDS * SIZE


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_a_score_without_a_meaning_makes_the_model_nan(value):
    """Also where the client would not have been chosen."""

    def score(params, oracle, work):
        return jax.numpy.where(work.client == 1, value, 1.0)

    with jax.debug_nans(False):
        algorithm = selection.select(fs.fedavg(0.2), selection.proportional(SIZE, score))
        state, _ = run(algorithm, setup(CLIENTS))
    assert np.isnan(state.server.params)


@pytest.mark.parametrize(
    "order", [(fs.freeze, selection.select), (selection.select, fs.freeze)], ids=["last", "first"]
)
def test_candidates_measure_the_whole_model_with_frozen_leaves(order):
    """The frozen leaf is 1, so the run is the one of the model without it."""

    def loss(params, batch, key):
        return losses(params["w"] * params["frozen"], batch, key)

    options = {
        fs.freeze: lambda path, leaf: path[0] == "frozen",
        selection.select: selection.power_of_choice(SIZE),
    }
    algorithm, where = fs.fedavg(0.2), setup()
    for wrap in order:
        algorithm = wrap(algorithm, options[wrap])
    chosen = selection.select(fs.fedavg(0.2), options[selection.select])
    expected, _ = run(chosen, where)
    both = dataclasses.replace(
        where,
        task=task(loss=loss),
        params={"w": where.params, "frozen": np.float32(1)},
        eval_fn=None,
    )
    state, _ = run(algorithm, both)
    assert_close(state.server.params["w"], expected.server.params, 1e-6)
    assert_identical(state.selection.visits, expected.selection.visits)


def test_a_selector_that_chooses_too_many_makes_the_model_nan():
    def all_of_them(state, candidates, round):
        return selection.Choice(candidates.present), state

    algorithm = selection.select(fs.fedavg(0.2), selection.Selector(all_of_them, size=2))
    with jax.debug_nans(False):
        state, _ = run(algorithm, setup())
    assert np.isnan(state.server.params)
    assert int(state.diverged_at) == 1


@pytest.mark.slow
@each_selector
def test_empty_rounds_change_nothing(name):
    where = setup()
    mask = where.timeline.mask.at[-1].set(False)
    where = dataclasses.replace(where, timeline=dataclasses.replace(where.timeline, mask=mask))
    before = dataclasses.replace(where, timeline=where.timeline[:-1])
    algorithm = selection.select(fs.fedmoswa(0.1), SELECTORS[name](SIZE))
    (state, _), (earlier, _) = run(algorithm, where), run(algorithm, before)
    assert_identical(state._replace(round=earlier.round), earlier)


MEANS = {"ema": lambda a: fs.ema_rounds(a, 0.9), "mean": lambda a: fs.average_rounds(a, 2)}


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("name", ["power_of_choice", "norms", "oort"])
def test_means_over_rounds_change_no_choice(name, mean):
    """Scores and reports are of the algorithm's own model, in both orders of the wrappers."""
    where, wrap, algorithm = setup(), MEANS[mean], fs.fedavg(0.2)
    selector = SELECTORS[name](SIZE)
    expected, _ = run(selection.select(algorithm, selector), where)
    for wrapped in (
        wrap(selection.select(algorithm, selector)),
        selection.select(wrap(algorithm), selector),
    ):
        state, _ = run(wrapped, where)
        assert_identical(state.selection, expected.selection)
        npt.assert_array_equal(state.server.inner.params, expected.server.params)


def even(exact=False, size=None):
    """A selector that does not choose all candidates, whatever it says."""

    def choose(state, candidates, round):
        return selection.Choice(candidates.clients % 2 == 0), state

    return selection.Selector(choose, size, exact=exact)


def pairs():
    rounds = fs.timelines.uniform(jax.random.key(1), ROUNDS // 2, CLIENTS, CANDIDATES, STEPS)
    return setup(timeline=fs.timelines.repeat_rounds(rounds, 2))


def all_clients(**changes):
    return setup(timeline=fs.timelines.full(ROUNDS, CLIENTS, STEPS), **changes)


RING = fs.topologies.ring(CLIENTS)
MISFITS = {
    # Two rounds of one cohort: the selector would choose another one for the steps.
    "fedlin": (fs.fedlin(0.1), lambda: CHOSEN, pairs, "timeline alone must say who works"),
    "mime": (fs.mime(0.1), even, pairs, "timeline alone must say who works"),
    # Numbers of steps that are the algorithm's law.
    "scaffnew": (
        fs.scaffnew(0.1, 0.5),
        lambda: selection.adacomm(2, 1),
        all_clients,
        "timeline alone must say who works and for how long",
    ),
    # All clients must report, and this selector may leave some out.
    "gossip": (
        fs.topologies.dfedavgm(0.1, RING),
        even,
        all_clients,
        r"a selection that may choose a single client: .* 1 of 7 clients.*exact=True",
    ),
    "gossip of a size": (
        fs.topologies.dfedavgm(0.1, RING),
        lambda: even(size=CLIENTS),
        all_clients,
        "may choose a single client",
    ),
    "a robust rule": (
        fs.robust.aggregate(fs.fedavg(0.1), fs.robust.krum(1)),
        lambda: even(size=CANDIDATES),
        setup,
        "may choose a single client: timeline has 1 uploads in round 0",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_algorithms_that_need_other_rounds_than_a_selector_leaves_are_refused(name):
    algorithm, selector, where, message = MISFITS[name]
    with pytest.raises(ValueError, match=message):
        fs.simulate(selection.select(algorithm, selector()), where(), KEY)


@pytest.mark.slow
def test_adaptive_steps_of_all_clients_suit_networks():
    """AdaComm chooses all, so every client mixes."""
    algorithm = selection.select(fs.topologies.dfedavgm(0.1, RING), selection.adacomm(STEPS, 2))
    assert np.isfinite(fs.simulate(algorithm, all_clients(), KEY).state.server.params)


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, CANDIDATES])
def test_an_exact_selector_that_chooses_fewer_makes_the_model_nan(size):
    where = setup()
    for exact in (False, True):
        with jax.debug_nans(False):
            state, _ = run(selection.select(fs.fedavg(0.2), even(exact, size)), where)
        assert np.isnan(state.server.params) == exact


def by_client():
    mesh = jax.make_mesh((1,), ("clients",), devices=jax.devices()[:1])
    return fs.execution.by_client(CLIENTS, mesh)


def private(algorithm):
    return fs.privacy.privatize(algorithm, 1.0, 1.0, expected_uploads=SIZE)


CHOSEN = selection.power_of_choice(SIZE)
UNBIASED = selection.proportional(SIZE)
REFUSED = [
    (lambda: selection.select(fs.fedavg, CHOSEN), setup, "algorithm is"),
    (lambda: selection.select(fs.fedavg(0.1), selection.oort), setup, "selector is"),
    (
        lambda: selection.select(selection.select(fs.fedavg(0.1), CHOSEN), CHOSEN),
        setup,
        "has a selector already",
    ),
    (
        lambda: private(selection.select(fs.fedavg(0.1), CHOSEN)),
        setup,
        r"privatize\(...\) with a selection",
    ),
    (
        lambda: selection.select(fs.fedavg(0.1), CHOSEN),
        lambda: setup(
            timeline=fs.timelines.delay_clients(setup().timeline, [0, 1], 2, slice(2, None))
        ),
        "staleness of up to 2",
    ),
    (
        lambda: selection.select(fs.fedavg(0.1), CHOSEN),
        lambda: setup(
            timeline=fs.timelines.synchronous(
                KEY,
                fs.timelines.deterministic(np.ones(CLIENTS)),
                horizon=30.0,
                num_clients=CLIENTS,
                cohort_size=4,
                num_steps=STEPS,
            )
        ),
        "simulated durations",
    ),
    (
        lambda: selection.select(fs.robust.aggregate(fs.fedavg(0.1), fs.robust.median()), UNBIASED),
        setup,
        "unbiased weights; expected one without",
    ),
    (
        lambda: selection.select(fs.robust.aggregate(fs.fedavg(0.1), fs.robust.krum(1)), CHOSEN),
        setup,
        "timeline has 2 uploads in round 0",
    ),
    (
        lambda: selection.select(fs.private(fs.fedavg(0.1), lambda path, leaf: True, 0.1), CHOSEN),
        setup,
        "running statistics or private leaves",
    ),
    (lambda: selection.power_of_choice(0), setup, "size is 0"),
    (lambda: selection.power_of_choice(2, "best"), setup, "loss is 'best'"),
    (lambda: selection.proportional(2, "norm"), setup, "score is 'norm'"),
    (lambda: selection.oort(2, exploration=1.5), setup, "exploration is 1.5"),
    (lambda: selection.oort(2, durations=np.zeros(3)), setup, "durations"),
    (
        lambda: selection.select(fs.fedavg(0.1), selection.oort(2, durations=np.ones(3))),
        setup,
        "durations has 3 entries",
    ),
    (lambda: selection.adacomm(3, 0), setup, "interval is 0"),
    (lambda: selection.adacomm(3, 1, decay=2.0), setup, "decay is 2.0"),
]


@pytest.mark.parametrize(("make", "where", "message"), REFUSED)
def test_refusals(make, where, message):
    with pytest.raises(ValueError, match=message):
        fs.simulate(make(), where(), KEY)


def test_clients_on_a_mesh_and_client_probes_are_refused():
    algorithm = selection.select(fs.fedavg(0.1), CHOSEN)
    rounds = fs.timelines.stratified(KEY, ROUNDS, CLIENTS, 4, STEPS, num_strata=1)
    with pytest.raises(ValueError, match="placement is by client"):
        fs.simulate(algorithm, setup(placement=by_client(), timeline=rounds), KEY)
    probes = fs.Probes(client={"upload": lambda visit: visit.upload})
    with pytest.raises(ValueError, match=r"probes.client is \['upload'\]"):
        fs.simulate(algorithm, setup(), KEY, **records(probes=probes))


@pytest.mark.parametrize("part", ["score", "local"])
def test_bits_of_functions_that_index_values_of_an_oracle_are_unknown(part, tmp_path):
    """Without data an oracle's means are single numbers, which have no entries."""

    def first(params, oracle):
        return oracle.mean(lambda w, batch, key: batch["x"][:, None], 0)(params)[0]

    algorithm = fs.fedavg(0.1)
    if part == "score":
        score = lambda params, oracle, work: first(params, oracle)  # noqa: E731
        chosen = selection.Choice(np.arange(CANDIDATES) < SIZE)
        selector = selection.Selector(lambda *state: (chosen, state[0]), SIZE, score=score)
        algorithm = selection.select(algorithm, selector)
    else:
        algorithm = algorithm._replace(
            local=lambda message, state, oracle, work: (first(message, oracle).mean(), state)
        )
    fs.simulate(algorithm, setup(), KEY, storage=tmp_path)
    assert RunFolder(tmp_path).outcome().upload_bits is None
