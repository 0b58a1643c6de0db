"""Shapley values of games in closed form: axioms, estimates, standard errors, truncation."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim import valuation
from fedjax_sim.runs.storage.files import FolderError
from fedjax_sim.studies.valuation.estimates import marginals
from fedjax_sim.studies.valuation.games import Outcomes
from fedjax_sim.studies.valuation.per_round import guided

CENTRES = np.array([1.0, 2.0, 4.0, 7.0])
COSTS = np.array([1.0, 2.0, 3.0, 6.0])


def mean_estimation(coalitions):
    """Loss (x - 3)^2 / 2 of the mean x of the members' centres, 0 for nobody."""
    x = coalitions @ CENTRES / np.maximum(coalitions.sum(1), 1)
    return (x - 3) ** 2 / 2


GAMES = {
    "additive": (lambda S: S @ COSTS, 4, COSTS),
    "one left glove, two right": (
        lambda S: np.minimum(S[:, 0], S[:, 1:].sum(1)), 3, [2 / 3, 1 / 6, 1 / 6],
    ),
    "two left gloves, three right": (
        lambda S: np.minimum(S[:, :2].sum(1), S[:, 2:].sum(1)), 5,
        [0.65, 0.65, 0.233333, 0.233333, 0.233333],
    ),
    "airport": (
        lambda S: np.max(S * COSTS, axis=1), 4, [0.25, 0.583333, 1.083333, 4.083333],
    ),
    "majority": (lambda S: S @ [3, 2, 1, 1] >= 4, 4, [1 / 2, 1 / 6, 1 / 6, 1 / 6]),
    "mean estimation": (
        lambda S: -mean_estimation(S), 4, [1.709491, 1.996528, 1.681713, -1.012731],
    ),
}  # fmt: skip
games = pytest.mark.parametrize("name", GAMES)


@games
def test_exact_values(name):
    function, count, expected = GAMES[name]
    game = valuation.from_values(function, count)
    result = valuation.exact_shapley(game)
    np.testing.assert_allclose(result.values, expected, atol=5e-7)
    assert result.num_runs == 2**count - 1
    assert result.values.sum() == pytest.approx(game.total(), abs=1e-12)  # efficiency
    orders = np.array(list(itertools.permutations(range(count))))
    np.testing.assert_allclose(marginals(game, orders)[0].mean(0), result.values, atol=1e-12)
    # A pilot as large as every stratum enumerates all of them.
    strata = valuation.stratified_shapley(game, jax.random.key(0), 100, pilot=6)
    np.testing.assert_allclose(strata.values, result.values, atol=1e-12)
    np.testing.assert_array_equal(strata.standard_errors, 0)


def test_axioms():
    """Client 4 changes nothing; clients 0 and 1 are exchangeable; two metrics of one game."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(2, 3, 8))

    def values(which):
        def function(coalitions):
            others = coalitions[:, 2:5] @ [1, 2, 4]
            return table[which, coalitions[:, :2].sum(1), others]

        return function

    def with_null(which):
        return lambda S: values(which)(np.insert(S[:, :4], 4, False, axis=1))

    first, second = (valuation.from_values(with_null(i), 5) for i in range(2))
    both = valuation.from_values(lambda S: 2 * with_null(0)(S) - 3 * with_null(1)(S), 5)
    shapley = [valuation.exact_shapley(game).values for game in (first, second, both)]
    np.testing.assert_allclose(shapley[2], 2 * shapley[0] - 3 * shapley[1], atol=1e-12)
    for value, game in zip(shapley, (first, second, both), strict=True):
        assert value[0] == pytest.approx(value[1], abs=1e-12)
        assert value[4] == pytest.approx(0, abs=1e-12)
        assert value.sum() == pytest.approx(game.total(), abs=1e-12)


def test_leave_one_out():
    game = valuation.from_values(mean_estimation, 4, mode="min")
    assert game.total() == pytest.approx(4.375)
    result = valuation.leave_one_out(game)
    np.testing.assert_allclose(result.values, [0.763889, 0.375, -0.069444, 0.097222], atol=5e-7)
    mean, away = CENTRES.mean() - 3, CENTRES - CENTRES.mean()
    np.testing.assert_allclose(result.values, -mean * away / 3 + away**2 / 18, atol=1e-12)
    assert result.num_runs == 5


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mean estimation", [2.047300, 2.122829, 1.881457, 1.733892]),
        ("one left glove, two right", [0.471405, 0.372678, 0.372678]),
    ],
)
def test_standard_errors_of_permutations(name, expected):
    function, count, value = GAMES[name]
    game = valuation.from_values(function, count)
    orders = np.array(list(itertools.permutations(range(count))))
    np.testing.assert_allclose(marginals(game, orders)[0].std(axis=0), expected, atol=5e-7)
    many = valuation.permutation_shapley(game, jax.random.key(0), 4000, antithetic=False, batch=500)
    assert many.standard_errors is not None
    np.testing.assert_allclose(many.standard_errors * np.sqrt(4000), expected, rtol=0.05)
    assert (np.abs(many.values - value) < 4 * many.standard_errors).all()
    assert many.num_runs == 2**count - 1
    paired = valuation.permutation_shapley(game, jax.random.key(0), 4000, batch=500)
    assert paired.standard_errors is not None
    assert (np.abs(paired.values - value) < 4 * paired.standard_errors).all()
    assert paired.values.sum() == pytest.approx(game.total(), abs=1e-10)


def test_antithetic_pairs_are_exact_if_marginals_are_linear_in_the_position():
    """In v = |S|^2 a permutation and its reverse give every client the same sum."""
    game = valuation.from_values(lambda S: S.sum(1) ** 2.0, 6)
    result = valuation.permutation_shapley(game, jax.random.key(1), 8)
    np.testing.assert_allclose(result.values, 6, atol=1e-12)
    np.testing.assert_allclose(result.standard_errors, 0, atol=1e-12)


def test_truncation_sets_the_rest_of_a_permutation_to_zero():
    game = valuation.from_values(lambda S: S @ [8.0, 4.0, 2.0, 1.0], 4)
    orders = np.array([[0, 1, 2, 3], [3, 2, 1, 0]])
    values, known = marginals(game, orders, tolerance=3.5)
    np.testing.assert_array_equal(values, [[8, 4, 0, 0], [8, 4, 2, 1]])
    np.testing.assert_array_equal(known, [[True, True, False, False], [True] * 4])
    assert game.num_runs == 6  # all, two prefixes of one order, three of the other
    result = valuation.permutation_shapley(game, jax.random.key(0), 40, tolerance=3.5)
    assert 0 < result.facts["truncated"] < 1
    assert result.values.sum() < 15
    exact = valuation.permutation_shapley(game, jax.random.key(0), 40)
    assert exact.facts["truncated"] == 0


def test_sampling_stops_at_the_target_error():
    game = valuation.from_values(GAMES["mean estimation"][0], 4)
    result = valuation.permutation_shapley(
        game, jax.random.key(0), 100_000, target_error=0.1, antithetic=False, batch=50
    )
    assert result.standard_errors is not None
    assert result.standard_errors.max() <= 0.1
    assert 200 < result.facts["permutations"] < 1000  # (2.12 / 0.1)^2 = 450


def test_neyman_allocation_spends_the_budget_where_marginals_vary():
    """Client 0 changes something only in pairs: the stratum of one other member varies."""
    bonus = np.array([0.0, 1.0, 1.0, 2.0, 5.0, 9.0, 14.0, 20.0])

    def function(coalitions):
        pair = coalitions[:, 0] & (coalitions.sum(1) == 2)
        return np.where(pair, coalitions @ bonus, 0.0)

    game = valuation.from_values(function, 8)
    result = valuation.stratified_shapley(game, jax.random.key(0), 400, pilot=4)
    assert result.standard_errors is not None
    exact = bonus[1:].mean() / 8
    assert abs(result.values[0] - exact) < 4 * result.standard_errors[0]
    # All 400 but 2 enumerated marginals and the pilots of the five other strata, 4 each.
    expected = bonus[1:].std() / np.sqrt(378) / 8
    assert result.standard_errors[0] == pytest.approx(expected, rel=0.1)


def test_standard_errors_of_strata_cover():
    """Estimates over 40 seeds deviate as much as their standard errors say."""
    game = valuation.from_values(lambda S: np.sqrt(S @ np.arange(1.0, 8.0)), 7)
    exact = valuation.exact_shapley(game).values
    scores = []
    for seed in range(40):
        result = valuation.stratified_shapley(game, jax.random.key(seed), 60)
        assert result.standard_errors is not None
        scores.append((result.values - exact) / result.standard_errors)
    assert np.abs(np.mean(scores)) < 0.2
    assert 0.8 < np.sqrt(np.mean(np.square(scores))) < 1.3


def test_guided_permutations():
    rng = np.random.default_rng(0)
    rules = {"between": 0.01, "within": 0.001, "most_sweeps": 200}
    game = valuation.from_values(GAMES["mean estimation"][0], 4)
    result = guided(game, rng, **rules)
    assert result.facts["permutations"] % 4 == 0
    assert result.facts["permutations"] > 30
    np.testing.assert_allclose(result.values, GAMES["mean estimation"][2], atol=0.3)
    assert result.values.sum() == pytest.approx(4.375)
    # One permutation per client begins with it: with an additive game 32 of them are exact.
    additive = guided(valuation.from_values(lambda S: S @ COSTS, 4), rng, **rules)
    assert additive.facts["permutations"] == 32
    # Between-round truncation: everybody gets 0.
    small = guided(valuation.from_values(lambda S: 5e-4 * (S @ COSTS), 4), rng, **rules)
    np.testing.assert_array_equal(small.values, 0)
    assert small.num_runs == 1
    # Within-round truncation: the rest of v(N) = 12 is below `within`.
    rules["within"] = 1.5
    cut = guided(valuation.from_values(lambda S: S @ COSTS, 4), rng, **rules)
    assert cut.values[0] < 1


def test_metrics_of_one_game_share_runs():
    asked = []

    def evaluate(coalitions):
        asked.append(len(coalitions))
        return {"loss": 1 - coalitions.mean(1), "accuracy": coalitions.mean(1)}

    runs = Outcomes(evaluate, 3, chunk=lambda count: 4)
    loss = valuation.Game(runs, "loss")
    first = valuation.exact_shapley(loss)
    assert asked == [4, 4]
    second = valuation.leave_one_out(loss.with_metric("accuracy"))
    assert asked == [4, 4]
    np.testing.assert_allclose(first.values, second.values)
    assert (first.num_runs, second.num_runs) == (7, 4)
    with pytest.raises(ValueError, match="metric is 'los'; expected one of accuracy, loss"):
        loss.with_metric("los", "min").total()


def test_an_interrupted_valuation_loses_nothing(tmp_path):
    """Two processes with one folder: the second one continues, and the first one's file grows."""
    asked = []

    def outcomes(calls, num_clients=3):
        def evaluate(coalitions):
            if len(asked) >= calls:
                raise KeyboardInterrupt
            asked.append(coalitions)
            return {"loss": coalitions @ [1.0, 2.0, 4.0], "accuracy": coalitions.mean(1)}

        return Outcomes(evaluate, num_clients, chunk=lambda count: 3, directory=tmp_path)

    first = valuation.Game(outcomes(2), "loss", "max")
    other = valuation.Game(outcomes(4), "loss", "max")  # has read an empty folder
    with pytest.raises(KeyboardInterrupt):
        valuation.exact_shapley(first)
    assert sum(map(len, asked)) == 6
    second = valuation.Game(outcomes(9), "loss", "max")
    np.testing.assert_allclose(valuation.exact_shapley(second).values, [1, 2, 4])
    assert sum(map(len, asked)) == 8
    with pytest.raises(KeyboardInterrupt):
        valuation.leave_one_out(other)
    third = valuation.Game(outcomes(0), "accuracy")  # all eight, also after the other's chunk
    np.testing.assert_allclose(valuation.exact_shapley(third).values, 1 / 3)
    with pytest.raises(FolderError, match="has other clients; expected 9"):
        outcomes(0, num_clients=9)


def test_results_as_table_and_figure():
    result = valuation.Valuation("strata", np.array([0.1, 0.5, -0.2]), np.full(3, 0.1), 9)
    frame = result.to_frame()
    assert frame["rank"].tolist() == [2, 1, 3]
    assert frame.columns.tolist() == ["method", "client", "value", "standard_error", "rank"]
    axes = result.plot(label="loss").axes[0]
    assert [bar.get_height() for bar in axes.patches] == [0.1, 0.5, -0.2]
    assert len(axes.containers) == 2  # bars and errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g, k: valuation.permutation_shapley(g, k, 3), "num_permutations is 3"),
        (lambda g, k: valuation.permutation_shapley(g, k, 0), "num_permutations is 0"),
        (lambda g, k: valuation.permutation_shapley(g, k, 4, tolerance=-1.0), "tolerance is -1.0"),
        (lambda g, k: valuation.permutation_shapley(g, 0, 4), "key is 0"),
        (lambda g, k: valuation.stratified_shapley(g, k, 4), "num_marginals is 4; expected at"),
        (lambda g, k: valuation.stratified_shapley(g, k, 90, pilot=1), "pilot is 1"),
        (lambda g, k: g.values(np.ones((2, 3), bool)), r"shape \(2, 3\); expected \[K, 15\]"),
        (lambda g, k: g.values(np.ones((2, 15))), "dtype float64; expected booleans"),
        (lambda g, k: valuation.exact_shapley(g), "game has 15 clients, so 32767 coalitions"),
    ],
)
def test_bad_arguments(call, message):
    game = valuation.from_values(lambda S: S.sum(1), 15)
    with pytest.raises(ValueError, match=message):
        call(game, jax.random.key(0))


@pytest.mark.parametrize("values", [lambda S: 1.0, lambda S: np.ones(1), lambda S: S.astype(float)])
def test_values_are_one_number_per_coalition(values):
    game = valuation.from_values(values, 3)
    with pytest.raises(ValueError, match="one number per coalition"):
        valuation.exact_shapley(game)


def test_a_coalition_that_diverges_is_named():
    """Its value would make those of all clients NaN."""
    game = valuation.from_values(lambda S: np.where(S[:, 1] & ~S[:, 0], np.inf, 1.0), 3, mode="min")
    assert game.total() == 0
    with pytest.raises(FloatingPointError, match=r"value is inf .* clients \[1\] \(2 of 9 coal"):
        valuation.exact_shapley(game)


def test_refusals_of_numbers_and_keys_of_estimates():
    game, key = valuation.from_values(lambda S: S.sum(1), 8), jax.random.key(0)
    with pytest.raises(ValueError, match=r"pilot is 2\.5; expected an integer"):
        valuation.stratified_shapley(game, key, 100, pilot=2.5)
    with pytest.raises(ValueError, match=r"num_marginals is 100\.5; expected an integer"):
        valuation.stratified_shapley(game, key, 100.5)
    for estimate in (valuation.stratified_shapley, valuation.permutation_shapley):
        with pytest.raises(ValueError, match=r"key has shape \(3,\); expected one key"):
            estimate(game, jax.random.split(key, 3), 100)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "values is None; expected a function of"),
        (lambda: 1, "values takes .*; expected "),
        (lambda S: S @ np.ones(4), "values fails for .* coalitions of 3 clients .*one number per"),
        (lambda S: ["a"] * len(S), "values returns <U1 for .*; expected a function that returns o"),
        (lambda S: S.sum(1) * 1j, "values returns complex128 for .*; expected a function that ret"),
    ],
)
def test_functions_that_give_no_values_are_named(values, message):
    """Imaginary values were dropped, and other mistakes ended in NumPy."""
    with pytest.raises(ValueError, match=f"^{message}"):
        valuation.exact_shapley(valuation.from_values(values, 3))


@pytest.mark.parametrize(
    "call",
    [
        valuation.leave_one_out,
        valuation.exact_shapley,
        lambda game: valuation.permutation_shapley(game, jax.random.key(0), 16),
        lambda game: valuation.stratified_shapley(game, jax.random.key(0), 64),
    ],
)
def test_a_function_is_no_game(call):
    with pytest.raises(ValueError, match=r"^game is a function; expected a game, as from"):
        call(lambda S: S.sum(1))


def test_values_may_have_half_precision():
    game = valuation.from_values(lambda S: jnp.asarray(S.sum(1), jnp.bfloat16), 2)
    assert game.total() == 2.0


def test_folders_that_are_none_are_refused(tmp_path):
    runs = functools.partial(Outcomes, lambda S: {"loss": S.mean(1)}, 2)
    with pytest.raises(ValueError, match="directory is 3; expected the path of a folder"):
        runs(directory=3)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"directory is .*, which is a file; expected"):
        runs(directory=tmp_path / "file")
