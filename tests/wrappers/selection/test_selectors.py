"""Selectors against derivations in NumPy, enumerations of their laws, and claims of the papers."""

import dataclasses
import importlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpy.testing as npt
import pytest

import fedjax_sim as fs
from fedjax_sim import selection
from fedjax_sim.types import Candidates, Oracle, Round, Work
from fedjax_sim.wrappers.selection.oort import OortState
from fedjax_sim.wrappers.selection.proportional import systematic_at

pytestmark = pytest.mark.usefixtures("x64")
KEY = jax.random.key(0)


def candidates(scores=(), weights=None, present=None, clients=None) -> Candidates:
    size = len(np.asarray(scores if weights is None else weights))
    clients = np.arange(size, dtype=np.int32) if clients is None else clients
    present = np.ones(size, bool) if present is None else present
    weights = np.ones(size) if weights is None else weights
    steps = np.full(size, 9)
    scores = jnp.asarray(scores, float) if np.size(scores) else ()
    return Candidates(*map(jnp.asarray, (clients, present, steps, steps, weights)), scores)


def round_of(number=0, key=KEY) -> Round:
    zero = jnp.array(number)
    return Round(zero, zero, 9, key)


# Power-of-Choice.


@pytest.mark.slow
def test_power_of_choice_follows_a_derivation():
    """FedAvg in NumPy with the candidates of largest loss; float64, so rounding is about 1e-15."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 3)) * np.arange(1, 7)[:, None]
    data = fs.FederatedData({"x": x.ravel()}, np.arange(0, 19, 3))
    task = fs.empirical_task(
        lambda w, batch, key: (w - batch["x"]) ** 2 / 2, data, fs.full_batch(2)
    )
    rounds = fs.timelines.uniform(KEY, 8, 6, 4, task.num_steps)
    setup = fs.Setup(task, rounds, jnp.array(5.0))
    chosen = selection.select(fs.fedavg(0.3), selection.power_of_choice(2))
    state, _ = jax.jit(lambda: fs.run(chosen, setup, KEY))()
    w, visits = 5.0, np.zeros(6, int)
    for clients in np.asarray(rounds.clients):
        losses = ((w - x[clients]) ** 2 / 2).mean(1)
        best = clients[np.argsort(-losses)[:2]]
        visits[best] += 1
        models = []
        for client in best:
            y = w
            for _ in range(2):
                y = y - 0.3 * (y - x[client]).mean()
            models.append(y)
        w = np.mean(models)
    npt.assert_allclose(state.server.params, w, rtol=1e-12)
    npt.assert_array_equal(state.selection.visits, visits)


@pytest.mark.slow
def test_power_of_choice_is_faster_and_biased():
    """Cho et al., Section 1: a larger skew converges faster, to a point that is not the optimum.

    Four clients with F_k(w) = (w - c_k)^2 / 2, c = 0, 0, 0, 1: the optimum is 1/4.  From -8 the
    client with the largest loss is always c = 1, so one step of rate 0.1 per round moves by
    0.1 (1 - w), all clients together by 0.1 (1/4 - w).  The largest losses balance at 1/2.
    """
    data = fs.FederatedData({"x": np.array([0.0, 0.0, 0.0, 1.0])}, np.arange(5))
    task = fs.empirical_task(
        lambda w, batch, key: (w - batch["x"]) ** 2 / 2, data, fs.full_batch(1)
    )

    def distance(algorithm, rounds):
        setup = fs.Setup(task, fs.timelines.full(rounds, 4, 1), jnp.array(-8.0))
        state, _ = jax.jit(lambda: fs.run(algorithm, setup, KEY))()
        return abs(float(state.server.params) - 0.25)

    chosen = selection.select(fs.fedavg(0.1), selection.power_of_choice(1))
    assert distance(chosen, 10) < distance(fs.fedavg(0.1), 10) - 0.1
    assert distance(fs.fedavg(0.1), 200) < 1e-6
    # One step of length at most 0.1 * 0.55 around 1/2.
    npt.assert_allclose(distance(chosen, 200), 0.25, atol=0.06)


def test_power_of_choice_last_tries_all_clients_first():
    selector = selection.power_of_choice(2, "last")
    state = selector.init(4)
    seen = []
    for _ in range(2):
        choice, state = jax.jit(selector.choose)(state, candidates(weights=np.ones(4)), round_of())
        clients = jnp.flatnonzero(choice.chosen)
        seen += clients.tolist()
        state = selector.learn(state, clients, jnp.array([3.0, 1.0]), jnp.array([True, True]))
    assert sorted(seen) == [0, 1, 2, 3]
    choice, _ = jax.jit(selector.choose)(state, candidates(weights=np.ones(4)), round_of())
    assert jnp.flatnonzero(choice.chosen).tolist() == [0, 2]  # the reported losses of 3
    lost = selector.learn(state, jnp.array([0]), jnp.array([0.0]), jnp.array([False]))
    npt.assert_array_equal(lost, state)


@pytest.mark.parametrize(
    "make", [lambda: selection.power_of_choice(4, "last"), lambda: selection.oort(4)]
)
def test_empty_slots_with_the_numbers_of_other_clients_change_nothing(make):
    """A cohort that is filled up with client 0 learns what one without the empty slots does."""
    task = fs.empirical_task(
        lambda w, batch, key: (w - batch["x"]) ** 2 / 2,
        fs.FederatedData({"x": np.arange(1.0, 5.0)}, np.arange(5)),
        fs.full_batch(1),
    )
    full = fs.timelines.full(3, 4, 1)
    clients = np.tile(np.array([0, 2, 0, 2], np.int32), (3, 1))
    filled = dataclasses.replace(
        full, clients=clients, mask=np.tile([True, True, False, False], (3, 1))
    )
    alone = dataclasses.replace(
        filled,
        **{
            name: getattr(filled, name)[:, :2]
            for name in ("clients", "version", "num_steps", "mask")
        },
    )
    states = [
        fs.run(selection.select(fs.fedavg(0.1), make()), fs.Setup(task, x, jnp.array(0.0)), KEY)[0]
        for x in (filled, alone)
    ]
    jax.tree.map(npt.assert_array_equal, *(state.selection for state in states))
    assert states[0].selection.visits.tolist() == [3, 0, 3, 0]


# Sampling in proportion to scores.


def probabilities(scores, size):
    """Water-filling: clients above 1 are set to 1 one after the other."""
    p, free = np.ones(len(scores)), list(range(len(scores)))
    while size < len(scores):
        left = size - (len(scores) - len(free))
        shares = left * scores[free] / scores[free].sum()
        if shares.max() <= 1:
            p[free] = shares
            break
        del free[int(np.argmax(shares))]
    return p


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6])
def test_inclusion_probabilities_follow_a_derivation(size):
    rng = np.random.default_rng(size)
    for _ in range(20):
        scores = rng.exponential(size=6) ** 3
        p = selection.inclusion_probabilities(jnp.asarray(scores), jnp.ones(6, bool), size)
        npt.assert_allclose(p, probabilities(scores, size), rtol=1e-12)
        npt.assert_allclose(p.sum(), size, rtol=1e-12)


@pytest.mark.parametrize(
    ("scores", "present", "expected"),
    [
        # Two positive ones of three: the two zeros share the third place.
        ([4.0, 0.0, 1.0, 0.0], [1, 1, 1, 1], [1, 0.5, 1, 0.5]),
        ([0.0, 0.0, 0.0, 0.0], [1, 1, 1, 1], [0.75] * 4),
        ([4.0, 9.0, 1.0, 0.0], [1, 0, 1, 1], [1, 0, 1, 1]),
        ([4.0, 9.0, 1.0, 0.0], [0, 0, 0, 0], [0, 0, 0, 0]),
    ],
)
def test_inclusion_probabilities_of_zeros_and_empty_slots(scores, present, expected):
    p = selection.inclusion_probabilities(jnp.array(scores), jnp.array(present, bool), 3)
    npt.assert_allclose(p, expected)


def law(p):
    """Every sample of systematic sampling with its probability, over all orders and starts."""
    samples: dict[tuple, float] = {}
    drawn = jax.jit(jax.vmap(systematic_at, (None, 0, None)))
    orders = list(itertools.permutations(range(len(p))))
    for order in orders:
        edges = np.unique(np.concatenate([[0, 1], np.cumsum(p[list(order)]) % 1]))
        edges = edges[np.concatenate([[True], np.diff(edges) > 1e-9])]
        lengths, middles = np.diff(edges), (edges[1:] + edges[:-1]) / 2
        taken = drawn(jnp.array(order), jnp.asarray(middles), jnp.asarray(p))
        for sample, length in zip(np.asarray(taken), lengths, strict=True):
            key = tuple(sample.tolist())
            samples[key] = samples.get(key, 0) + length / len(orders)
    return samples


UPDATES = np.array([1.0, -3.0, 4.0, 10.0])
WEIGHTS = np.array([1.0, 2.0, 2.0, 5.0])


def moments(p):
    """Mean and variance of sum_i w_i x_i / p_i over the sample, by enumeration."""
    values = {s: (np.array(s) * WEIGHTS * UPDATES / p).sum() for s in law(p)}
    mean = sum(length * values[s] for s, length in law(p).items())
    return mean, sum(length * (values[s] - mean) ** 2 for s, length in law(p).items())


@pytest.mark.slow
def test_weighted_sums_are_unbiased_and_norms_have_less_variance_than_uniform():
    """By exact enumeration of all samples; the sample has two clients in all of them."""
    norms = probabilities(WEIGHTS * np.abs(UPDATES), 2)
    uniform = np.full(4, 0.5)
    assert {sum(sample) for p in (norms, uniform) for sample in law(p)} == {2}
    for p in (norms, uniform):
        inclusion = sum(length * np.array(sample) for sample, length in law(p).items())
        npt.assert_allclose(inclusion, p, atol=1e-9)
    (mean, variance), (other_mean, other) = moments(norms), moments(uniform)
    npt.assert_allclose([mean, other_mean], (WEIGHTS * UPDATES).sum(), atol=1e-7)
    assert variance < 0.5 * other


def test_equal_scores_are_uniform_in_law():
    """All six pairs of four clients have the same probability."""
    samples = law(np.full(4, 0.5))
    npt.assert_allclose(list(samples.values()), 1 / 6, atol=1e-12)
    assert len(samples) == 6


def test_factors_are_inverse_probabilities():
    scores = np.array([1.0, 1.0, 2.0, 9.0])
    selector = selection.proportional(2)
    choice, _ = jax.jit(selector.choose)((), candidates(scores), round_of())
    npt.assert_allclose(choice.factors, 1 / probabilities(scores, 2))
    assert int(choice.chosen.sum()) == 2
    assert bool(choice.chosen[3])


@pytest.mark.slow
def test_the_servers_mean_is_the_unbiased_sum():
    """One round in which the chosen clients and their weights are known."""
    data = fs.FederatedData({"x": np.array([1.0, 2.0, 2.0, 9.0, 9.0, 9.0])}, np.array([0, 1, 3, 6]))
    task = fs.empirical_task(
        lambda w, batch, key: (w - batch["x"]) ** 2 / 2, data, fs.full_batch(1)
    )
    setup = fs.Setup(
        task, fs.timelines.full(1, 3, 1), jnp.array(0.0), weighting=fs.weight_by_examples
    )
    chosen = selection.select(fs.fedavg(1.0), selection.proportional(2))
    state, _ = jax.jit(lambda: fs.run(chosen, setup, KEY))()
    # The norms are |x|, the weights 1, 2, 3.
    p = probabilities(np.array([1.0, 4.0, 27.0]), 2)
    took_part = np.asarray(state.selection.visits)
    expected = (took_part * [1.0, 4.0, 27.0] / p).sum() / 6
    npt.assert_allclose(state.server.params, expected, rtol=1e-12)


def test_draws_with_replacement_are_scheme_1(monkeypatch):
    """All pairs of draws on a grid that the shares divide, so the sums are exact."""
    module = importlib.import_module("fedjax_sim.wrappers.selection.multinomial")
    grid = (np.arange(10) + 0.5) / 10
    pairs = np.array(list(itertools.product(grid, grid)))
    shares = WEIGHTS / WEIGHTS.sum()  # 0.1, 0.2, 0.2, 0.5

    def parts(pair):
        monkeypatch.setattr(module, "uniforms", lambda *_: pair)
        choice, _ = selection.multinomial(2).choose((), candidates(weights=WEIGHTS), round_of())
        return jnp.where(choice.chosen, choice.factors, 0) * shares

    found = jax.jit(jax.vmap(parts))(jnp.asarray(pairs))
    places = np.searchsorted(np.cumsum(shares), pairs)
    counts = np.stack([np.bincount(row, minlength=4) for row in places])
    npt.assert_allclose(found, counts / 2, atol=1e-12)  # c_i / K
    npt.assert_allclose(found.mean(0), shares, atol=1e-12)


# Oort.


def oort_state(utility, last, **changes) -> OortState:
    size = len(utility)
    values = OortState(
        jnp.array(utility, float), jnp.array(last, jnp.int32), jnp.zeros(size, jnp.int32),
        jnp.zeros(4), jnp.array(10.0), jnp.array(3, jnp.int32),
    )  # fmt: skip
    return values._replace(**changes)


def test_oort_exploits_the_largest_utilities():
    """Without exploration and with the cutoff 1 nothing is left to chance."""
    durations = np.array([5.0, 40.0, 5.0, 20.0, 5.0])
    utility, last = np.array([3.0, 9.0, 2.9, 5.0, 0.1]), np.array([3, 3, 1, 2, 3])
    selector = selection.oort(
        2, durations=durations, exploration=0, least_exploration=0, cutoff=1, clip=0.8, window=2
    )
    choice, state = jax.jit(selector.choose)(
        oort_state(utility, last), candidates(weights=np.ones(5)), round_of()
    )
    cut = np.minimum(utility, np.sort(utility)[3])  # the fourth of five: the quantile 0.8
    total = cut + np.sqrt(0.1 * np.log(4) / last)
    total = total * np.where(durations > 10, (10 / durations) ** 2.0, 1)
    assert set(jnp.flatnonzero(choice.chosen).tolist()) == set(np.argsort(-total)[:2])
    assert int(state.round) == 4


def test_oort_exploits_by_a_derivation():
    """Algorithm 1 in NumPy for 60 random states; the cutoff 1 leaves nothing to chance."""
    rng = np.random.default_rng(0)
    count, size, clip, penalty, number = 9, 4, 0.7, 1.5, 12
    durations = 10 * rng.lognormal(0, 0.7, count)  # T = 10
    utility = rng.lognormal(0, 1, (60, count))
    last = rng.permuted(np.tile(np.arange(count), (60, 1)), axis=1)  # one never took part
    selector = selection.oort(
        size, durations=durations, penalty=penalty, exploration=0, least_exploration=0, cutoff=1,
        clip=clip, window=20,
    )  # fmt: skip
    zero = oort_state(np.ones(count), np.ones(count, int), round=jnp.array(number - 1, jnp.int32))
    zero = zero._replace(recent=jnp.zeros(40))

    @jax.jit
    @jax.vmap
    def chosen(utility, last):
        state = zero._replace(utility=utility, last=last)
        return selector.choose(state, candidates(weights=np.ones(count)), round_of())[0].chosen

    found = np.asarray(chosen(utility, last.astype(np.int32)))
    expected = np.zeros_like(found)
    slowed = 0
    for row, (u, at) in enumerate(zip(utility, last, strict=True)):
        known = np.flatnonzero(at > 0)
        limit = np.sort(u[known])[int(np.ceil(clip * len(known))) - 1]
        total = np.minimum(u[known], limit) + np.sqrt(0.1 * np.log(number) / at[known])
        slow = durations[known] > 10
        before = set(known[np.argsort(-total)[:size]])
        total[slow] *= (10 / durations[known][slow]) ** penalty
        best = known[np.argsort(-total)[:size]]
        slowed += set(best) != before
        expected[row, best] = True
    assert slowed > 20  # speed decides in many states
    npt.assert_array_equal(found, expected)


def law_of(selector, state, draws=4000):
    """Frequencies of the sets that a selector chooses over many keys."""
    size = len(state.utility)
    keys = jax.random.split(KEY, draws)

    def chosen(key):
        given = candidates(weights=np.ones(size))
        return selector.choose(state, given, round_of(0, key))[0].chosen

    rows = np.asarray(jax.jit(jax.vmap(chosen))(keys))
    sets, counts = np.unique(rows, axis=0, return_counts=True)
    names = [tuple(np.flatnonzero(row).tolist()) for row in sets]
    return dict(zip(names, counts / draws, strict=True))


# Frequencies of 4,000 draws: four standard deviations of at most 0.008.
LAW = 0.032


def one_after_the_other(weights, count):
    """Probabilities of sets of draws without replacement, in proportion to weights."""
    law = {}
    for order in itertools.permutations(range(len(weights)), count):
        p, rest = 1.0, float(np.sum(weights))
        for i in order:
            p, rest = p * weights[i] / rest, rest - weights[i]
        law[tuple(sorted(order))] = law.get(tuple(sorted(order)), 0) + p
    return law


def test_oort_draws_the_admitted_in_proportion_to_their_utilities():
    """The second largest utility is 6, so the cutoff 1/2 admits 8, 6 and 4, and never 2.9."""
    settings = {"exploration": 0, "least_exploration": 0, "cutoff": 0.5, "clip": 1, "window": 2}
    utility = np.array([6.0, 2.9, 8.0, 4.0])
    state = oort_state(utility, np.ones(4, int), round=jnp.array(0, jnp.int32))  # log 1 = 0
    found = law_of(selection.oort(2, **settings), state)
    law = one_after_the_other(utility[[0, 2, 3]], 2)
    expected = {tuple(np.array([0, 2, 3])[list(k)].tolist()): p for k, p in law.items()}
    assert found.keys() == expected.keys()
    assert max(abs(found[k] - p) for k, p in expected.items()) < LAW


def test_oort_explores_in_proportion_to_speed():
    durations = np.array([1.0, 2.0, 4.0])
    state = oort_state(np.zeros(3), np.zeros(3, int))
    found = law_of(selection.oort(2, durations=durations, window=2), state)
    expected = one_after_the_other(1 / durations, 2)
    assert found.keys() == expected.keys()
    assert max(abs(found[k] - p) for k, p in expected.items()) < LAW


def test_oort_explores_a_falling_share():
    """epsilon = 0.5 of 4 clients: two that never took part, and two that did."""
    selector = selection.oort(4, exploration=0.5, decay=0.1, least_exploration=0.25, window=2)
    last = np.array([0, 0, 0, 1, 1, 1, 1, 1])
    for rounds, fresh in ((0, 2), (5, 1)):
        state = oort_state(np.ones(8), last, round=jnp.array(rounds, jnp.int32))
        choice, _ = jax.jit(selector.choose)(state, candidates(weights=np.ones(8)), round_of())
        assert int(choice.chosen[:3].sum()) == fresh
        assert int(choice.chosen.sum()) == 4


@pytest.mark.parametrize(("last", "count"), [([0] * 5, 3), ([1] * 5, 3), ([1, 0, 0, 0, 0], 3)])
def test_oort_fills_its_cohort_from_whoever_is_there(last, count):
    state = oort_state(np.ones(5), np.array(last))
    choice, _ = jax.jit(selection.oort(3, window=2).choose)(
        state, candidates(weights=np.ones(5)), round_of()
    )
    assert int(choice.chosen.sum()) == count


@pytest.mark.parametrize(
    ("recent", "rounds", "preferred"),
    [([5, 5, 4, 4], 4, 15.0), ([4, 4, 5, 5], 4, 10.0), ([5, 5, 4, 4], 3, 10.0)],
)
def test_oort_paces(recent, rounds, preferred):
    """Less utility than in the window before means that slower clients are admitted."""
    state = oort_state(
        np.ones(3),
        np.ones(3, int),
        recent=jnp.array(recent, float),
        round=jnp.array(rounds, jnp.int32),
    )
    selector = selection.oort(1, window=2, pacer_step=5.0)
    _, new = jax.jit(selector.choose)(state, candidates(weights=np.ones(3)), round_of())
    assert float(new.preferred) == preferred


def test_oort_learns_from_uploads_that_arrive():
    selector = selection.oort(2, window=2)
    clients, arrived = jnp.array([1, 2]), jnp.array([True, False])
    state = selector.learn(
        oort_state(np.ones(4), np.ones(4, int)), clients, jnp.array([7.0, 8.0]), arrived
    )
    npt.assert_array_equal(state.utility, [1, 7, 1, 1])
    npt.assert_array_equal(state.last, [1, 3, 1, 1])
    npt.assert_array_equal(state.chosen, [0, 1, 0, 0])
    npt.assert_array_equal(state.recent, [0, 0, 0, 7])


def test_oort_passes_over_clients_with_enough_visits():
    selector = selection.oort(2, most_visits=1, window=2, exploration=0, least_exploration=0)
    chosen = jnp.array([1, 1, 0, 0], jnp.int32)
    state = oort_state([9.0, 9.0, 1.0, 1.0], np.ones(4, int), chosen=chosen)
    choice, _ = jax.jit(selector.choose)(state, candidates(weights=np.ones(4)), round_of())
    npt.assert_array_equal(choice.chosen, [False, False, True, True])


def test_oort_reports_the_statistical_utility():
    """|B| sqrt(mean of loss^2) of minibatches of one example: losses 3 and 4 of two steps."""
    oracle = Oracle(lambda w, k: w, lambda w, k: w + k.astype(float), lambda w: w)
    zero = jnp.array(0)
    work = Work(zero, zero, jnp.array(2), jnp.array(10), zero, KEY, max_steps=3)
    report = selection.oort(1).report
    assert report is not None
    npt.assert_allclose(report(jnp.array(3.0), oracle, work), 10 * np.sqrt((9 + 16) / 2))


# AdaComm.


def test_adacomm_follows_a_derivation():
    # In round 6 the rule proposes the present number again, which is not less.
    losses = [8.0, 7.0, 6.0, 6.0, 5.0, 5.9, 5.0, 9.0, 9.0, 9.0, 0.01, 0.01]
    tau0, interval = 10, 2
    selector, steps = selection.adacomm(tau0, interval), []
    state = selector.init(3)
    choose = jax.jit(selector.choose)
    for t, loss in enumerate(losses):
        # Weighted: (1 * 0 + 3 * 4/3 loss) / 4 = loss.
        given = candidates([0.0, 4 / 3 * loss], np.array([1.0, 3.0]))
        choice, state = choose(state, given, round_of(t))
        steps.append(int(choice.num_steps[0]))
        assert bool(choice.chosen.all())
    expected, tau = [], tau0
    for t, loss in enumerate(losses):
        if t and t % interval == 0:
            proposed = int(np.ceil(np.sqrt(loss / losses[0]) * tau0))
            tau = proposed if proposed < tau else int(np.ceil(tau / 2))
        expected.append(tau)
    assert steps == expected
    assert expected == [10, 10, 9, 9, 8, 8, 4, 4, 2, 2, 1, 1]


@pytest.mark.parametrize(("steps", "model", "done"), [(5, 0.75, 4), (1, 0.5, 2)])
def test_adacomm_does_at_most_the_timelines_steps(steps, model, done):
    """Two clients of 2 steps each, which halve the distance to 1."""
    data = fs.FederatedData({"x": np.ones(4)}, np.arange(3) * 2)
    task = fs.empirical_task(
        lambda w, batch, key: (w - batch["x"]) ** 2 / 2, data, fs.full_batch(2)
    )
    setup = fs.Setup(task, fs.timelines.full(1, 2, task.num_steps), jnp.array(0.0))
    chosen = selection.select(fs.fedavg(0.5), selection.adacomm(steps, 1))
    state, _ = fs.run(chosen, setup, KEY)
    assert float(state.server.params) == model
    assert int(state.selection.local_steps) == done
