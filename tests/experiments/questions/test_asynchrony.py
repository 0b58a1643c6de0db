"""The bias of asynchrony: formulas beside loops in NumPy, tables by hand, a short run."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedjax_sim as fs
from experiments.questions import asynchrony, asynchrony_problem, asynchrony_report
from experiments.questions import asynchrony_limits as limits
from experiments.questions import asynchrony_times as times
from experiments.questions.asynchrony_setting import METHODS, PARTS, slow_clients, system
from experiments.questions.asynchrony_tables import combined, slopes, stationary, summary
from experiments.questions.redraw import redraw
from fedjax_sim import timelines
from fedjax_sim.theory import step_counts

SMALL = limits.System(np.array([1 / 16, 1 / 2, 1 / 16, 1 / 2, 1 / 4]), 4, 2, 3, 2)
RATE = 0.3


def small_problem():
    rng = np.random.default_rng(0)
    return rng.uniform(0.5, 1.0, (5, 3)), rng.standard_normal((5, 3))


def contacts_by_loop(method, alpha, a, b, replicas=400, count=4000, burn=500):
    """Means over time of the server's model in independent replicas ``[replicas, d]``."""
    rng = np.random.default_rng(1)
    law, n, s = limits.count_law(SMALL), len(a), SMALL.cohort
    server = np.zeros((replicas, b.shape[1]))
    own = np.zeros((replicas, n, b.shape[1]))  # models that clients start from
    age = np.zeros((replicas, n), int)
    total = np.zeros_like(server)
    at = np.arange(replicas)[:, None]
    for t in range(count):
        chosen = np.argsort(rng.random((replicas, n)), axis=1)[:, :s]
        age += SMALL.interval
        done = np.minimum(rng.binomial(age[at, chosen], SMALL.success[chosen]), SMALL.steps)
        start = own[at, chosen]
        if method == "FAVANO":
            end = b[chosen] + (1 - RATE * a[chosen]) ** done[..., None] * (start - b[chosen])
            sent = start + (end - start) / alpha[chosen][..., None]
        else:
            kept = 1 - RATE * a[chosen] / alpha[chosen][..., None]
            sent = b[chosen] + kept ** done[..., None] * (start - b[chosen])
        before = server
        server = (server + sent.sum(axis=1)) / (s + 1)
        new = server[:, None] if method == "FAVANO" else (before[:, None] + s * sent) / (s + 1)
        own[at, chosen] = new
        age[at, chosen] = 0
        if t >= burn:
            total += server
    assert law.shape == (n, SMALL.steps + 1)
    return total / (count - burn)


@pytest.mark.slow
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("method", ["FAVANO", "QuAFL"])
def test_limits_of_contacts_are_exact(method, corrected):
    """At a large rate and for few clients, within 4.5 standard errors over replicas."""
    a, b = small_problem()
    alpha = limits.expected_steps(SMALL) if corrected else np.ones(5)
    found = contacts_by_loop(method, alpha, a, b)
    weights = limits.influence(method, corrected, SMALL, RATE, a, 0.5)
    error = found.std(axis=0) / np.sqrt(len(found))
    expected = limits.limit(weights, b)
    assert (abs(found.mean(axis=0) - expected) < 4.5 * error).all()
    # The test can tell: FAVANO without the receiver's own upload is further off.
    other = limits.limit(np.ones_like(weights), b)
    assert (abs(found.mean(axis=0) - other) > 4.5 * error).any()


def test_law_of_steps_at_a_contact_is_that_of_the_package():
    law = limits.count_law(SMALL)
    np.testing.assert_allclose(law.sum(axis=1), 1, rtol=1e-12)
    expected = step_counts.renewal(SMALL.success, cap=4, window=3, probability=2 / 5)
    np.testing.assert_allclose(limits.expected_steps(SMALL), expected.mean, rtol=1e-9)
    np.testing.assert_allclose(1 - law[:, 0], expected.p_active, rtol=1e-9)


def test_one_step_has_the_mean_gradient():
    a, _ = small_problem()
    law = np.tile([0.25, 0.75], (5, 1))
    np.testing.assert_allclose(limits.moved(0.1, a, law), 0.075 * a, rtol=1e-12)


def test_rates_of_uploads():
    """The time per update of FedBuff with 34 slow clients of 100 is 6.07 in an independent
    simulation, which has three units of interaction; buffers rarely fill within them."""
    sizes = system("FedBuff", 100, 1 / 3)
    rates = limits.upload_rates(sizes)
    np.testing.assert_allclose(10 / rates.sum(), 6.07, rtol=5e-3)
    np.testing.assert_allclose(rates[0] / rates[-1], 0.133, rtol=1e-2)
    timeline = timelines.arrivals(
        jax.random.key(0), timelines.geometric(sizes.success), horizon=20_000.0, num_clients=100,
        num_steps=20, buffer=10,
    )  # fmt: skip
    share = (np.asarray(timeline.clients) < 34).mean()
    expected = rates[:34].sum() / rates.sum()
    # About 2,000 uploads of slow clients, which are more regular than a Poisson process.
    np.testing.assert_allclose(share, expected, rtol=0.03)


def test_weights_of_staleness_against_a_timeline():
    sizes = system("FedAsync, stale less", 100, 0.5)
    timeline = timelines.arrivals(
        jax.random.key(1), timelines.geometric(sizes.success), horizon=10_000.0, num_clients=100,
        num_steps=20,
    )  # fmt: skip
    age = np.arange(timeline.num_rounds) - np.asarray(timeline.version)[:, 0]
    weight, slow = (1.0 + age) ** -0.5, np.asarray(timeline.clients)[:, 0] < 50
    expected = limits.staleness_weights(sizes, 0.5)
    # The second-order term, an upper bound, is 0.7 % for the fast clients' staleness of about 56.
    np.testing.assert_allclose(weight[slow].mean(), expected[0], rtol=0.01)
    np.testing.assert_allclose(weight[~slow].mean(), expected[-1], rtol=0.01)


@pytest.mark.parametrize("method", ["FedBuff", "FedAsync", "FedAsync, stale less"])
def test_correction_makes_contributions_equal(method):
    sizes = system(method, 100, 2 / 3)
    shares = limits.contributions(method, sizes, 0.5)
    weighted = limits.correction(method, sizes, 0.5) * shares
    np.testing.assert_allclose(weighted, weighted[0], rtol=1e-12)
    np.testing.assert_allclose(weighted.sum(), shares.sum(), rtol=1e-12)


def test_largest_lack_is_at_the_closed_form():
    """1 / (1 + sqrt r), where the lack is (1 - sqrt r) / (1 + sqrt r)."""
    r = 1 / 8
    share = np.linspace(0, 1, 10_001)
    lack = share - share * r / (share * r + 1 - share)
    root = np.sqrt(r)
    assert share[lack.argmax()] == pytest.approx(1 / (1 + root), abs=1e-4)
    assert lack.max() == pytest.approx((1 - root) / (1 + root), abs=1e-7)
    found = [asynchrony_report.expected_lack("FedAsync", 1000, x) for x in (0.6, 0.739, 0.85)]
    assert found[1] == pytest.approx((1 - root) / (1 + root), abs=1e-5)
    assert max(found) == found[1]


def test_renewal_equation():
    """Of visits of one step the uploads are a Bernoulli process; of sure steps, a comb."""
    np.testing.assert_allclose(times.uploads(0.25, 1, 9)[1:], 0.25, rtol=1e-12)
    comb = times.uploads(1.0, 3, 9)
    np.testing.assert_allclose(comb, [0, 0, 0, 1, 0, 0, 1, 0, 0, 1], atol=1e-12)
    late = times.uploads(1 / 2, 20, 2000)[-1]
    assert late == pytest.approx(1 / 40, rel=1e-6)


def test_time_of_a_stationary_share():
    shares = np.array([0.0, 0.3, 0.21, 0.19, 0.23, 0.2, 0.2])
    assert times.stationary_from(shares, 0.2, 40) == 200.0
    assert times.stationary_from(shares[5:], 0.2, 40) == 0.0
    found = times.windowed(np.array([1, 2, 3, 4, 9]), 2)
    assert found.tolist() == [3, 7]


def test_first_harmonic_has_the_order_of_the_renewal_equation():
    share = times.expected_share(1 / 3, 1 / 16, 1 / 2, 20, 4000, 40)
    limit = (1 / 16) / (1 / 16 + 1)
    exact = times.stationary_from(share, limit, 40)
    # The criterion looks at the last peak outside: up to half a period of 320 before the envelope.
    assert 0 <= times.law_of_time(1 / 16, 20, limit) - exact < 160


def test_share_of_steps_at_contacts():
    found = times.contact_shares(1 / 3, 1 / 16, 1 / 2, 20, 0.2, 7, 200)
    sizes = limits.System(np.array([1 / 16] * 5 + [1 / 2] * 10), 20, 3, 7, 1)
    mean = limits.expected_steps(sizes)
    assert found[-1] == pytest.approx(mean[0] / (mean[0] + 2 * mean[-1]), rel=1e-6)
    # The first contact: 7 units of time for all.
    assert found[0] == pytest.approx((7 / 16) / (7 / 16 + 2 * 7 / 2), rel=1e-9)


def rows(**changed):
    """A table of three sizes and two seeds whose distances follow a power law."""
    found = []
    for clients in (100, 1000, 10_000):
        for seed in (0, 1):
            for part in PARTS:
                distance = (2 + seed) * clients**-0.5 if "scatter" in part else 0.3 + 0.1 * seed
                row = {"method": "FedBuff", "corrected": False, "clients": clients, "slow": 2 / 3}
                row |= {"part": part, "seed": seed, "lack": distance, "lack by formula": 0.3}
                row |= {"distance": distance, "distance by formula": 0.3, "error": 0.0}
                found.append(row | {"spread": 0.1} | changed)
    return pd.DataFrame(found)


def test_tables():
    table = rows()
    found = summary(table)
    speed = found.loc[(found["part"] == "speed") & (found["clients"] == 100), :].iloc[0]
    assert speed["lack"] == pytest.approx(0.35)
    # Student's quantile of one degree of freedom times 0.1 / sqrt(2) / sqrt(2).
    assert speed["lack high"] - speed["lack"] == pytest.approx(12.7062 * 0.05, rel=1e-4)
    np.testing.assert_allclose(slopes(table, "scatter")["slope"], -0.5, rtol=1e-9)
    both = combined(table, h=2.0, gap=10.0)
    first = both.loc[(both["clients"] == 100) & (both["seed"] == 0), "distance"].item()
    assert first == pytest.approx(np.hypot(2 * 0.2, 10 * 0.3))
    cases = asynchrony_report.agreement(table)
    np.testing.assert_allclose(cases["off"], 0.35 / 0.3 - 1, rtol=1e-9)


def test_times_of_groups():
    part = {"clients": 100, "steps": 20, "limit": 0.2, "updates per time": 0.5}
    clocks = pd.concat(
        pd.DataFrame(
            part
            | {"group": group, "time": [40, 80, 120], "share": share, "expected": [0, 0.0, 0.1]}
        )
        for group, share in ((0, [0.1, 0.2, 0.2]), (1, [0.1, 0.1, 0.2]))
    )
    found = stationary(clocks, {"fast": 1 / 2, "slow": 1 / 16}).iloc[0]
    assert (found["time"], found["FedBuff's updates"]) == (60.0, 30.0)
    assert found["renewal equation"] == 120.0


def test_problems():
    a, b = asynchrony_problem.problem(10, 0.25, seed=3)
    assert slow_clients(10, 0.25).sum() == 3
    assert a.shape == b.shape == (10, 16)
    assert b[:, 0].tolist() == [1] * 3 + [0] * 7
    np.testing.assert_array_equal(b[:, 4:8], b[:, 12:])
    np.testing.assert_array_equal(a[:, :4], np.broadcast_to(a[0, :4], (10, 4)))
    np.testing.assert_array_equal(a[:, 8:12], a[:, 12:])
    assert (a[0, 8:12] != a[1, 8:12]).all()


def test_uploads_count_with_their_weights():
    """One round of two clients from 0: FedBuff's step is the mean of weighted differences."""
    setup = fs.Setup(
        fs.Task(
            jax.tree_util.Partial(
                asynchrony_problem.oracle, jnp.ones((2, 1)), jnp.array([[1.0], [4.0]])
            ),
            np.ones(2, int), np.ones(2, int),
        ),
        timelines.full(1, 2, 1), np.zeros(1, np.float32),
    )  # fmt: skip
    weighted = asynchrony_problem._scaled_uploads(fs.fedbuff(0.5, 1.0), jnp.array([2.0, 1.0]))
    state, _ = fs.run(weighted, setup, jax.random.key(0))
    np.testing.assert_allclose(state.server.params, (2 * 0.5 + 2.0) / 2, rtol=1e-6)
    stepped = asynchrony_problem._scaled_steps(fs.fedavg(0.5), jnp.array([2.0, 1.0]))
    state, _ = fs.run(stepped, setup, jax.random.key(0))
    np.testing.assert_allclose(state.server.params, (1.0 + 2.0) / 2, rtol=1e-6)


@pytest.mark.slow
def test_a_short_run_is_kept_and_redrawn(tmp_path):
    options = asynchrony.Options(
        fractions=(2 / 3,), sizes=(200,), seeds=2, horizon=2000.0, clocks=(100,), clock_steps=(5,),
        clock_clients=100, output=tmp_path,
    )  # fmt: skip
    asynchrony.main(options)
    folder = tmp_path / "questions" / "asynchrony"
    table = pd.read_csv(folder / "asynchrony.csv")
    methods = len(METHODS) + 2  # with more clients only FAVANO and FedBuff
    assert len(table) == 2 * 2 * len(PARTS) * methods
    assert np.isfinite(table["lack"]).all()
    text = (folder / "asynchrony.md").read_text()
    assert (folder / "asynchrony.png").exists()
    (folder / "asynchrony.md").unlink()
    redraw(tmp_path / "questions")
    assert (folder / "asynchrony.md").read_text() == text


def test_options_are_checked():
    with pytest.raises(ValueError, match="seeds is 1; expected at least 2"):
        asynchrony.Options(seeds=1)
    with pytest.raises(ValueError, match=r"sizes\[0\] is 5; expected at least 20"):
        asynchrony.Options(sizes=(5,))
