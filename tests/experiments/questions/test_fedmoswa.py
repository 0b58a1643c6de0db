"""FedMoSWA's gain and floor: the recursion by enumeration and by runs, planted effects, a page."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import linalg

from experiments.harness import Report
from experiments.harness.controls import CONTROLS, LAST, NONE, OWN, SCAFFOLD, settings_of
from experiments.harness.effects import best_setting, effects, largest
from experiments.questions import fedmoswa, fedmoswa_factorial, fedmoswa_floor_runs
from experiments.questions.fedmoswa_factorial import scored
from experiments.questions.fedmoswa_floor import Sizes, distances, law
from experiments.questions.fedmoswa_floor_runs import CASES, Case, exact, floors
from experiments.questions.fedmoswa_report import STUDY, on_cifar100
from experiments.questions.fedmoswa_tables import exponents, with_law
from experiments.questions.redraw import redraw

METHODS = ("FedAvg", "SCAFFOLD", "FedMo", "FedMoSWA")


def by_enumeration(method, a, b, sizes, rounds):
    """Mean square distances over all cohorts and all signs of the noise, from the definitions."""
    optimum = (a * b).sum() / a.sum()
    steps, total = len(sizes.rates), sizes.rates.sum()
    states = [(0.0, 0.0, np.zeros(len(a)))]
    found = []
    for _ in range(rounds):
        new = []
        for x, m, c in states:
            for cohort in itertools.combinations(range(len(a)), sizes.cohort):
                several = (1, -1) if sizes.noise else (0,)
                for signs in itertools.product(several, repeat=sizes.cohort * steps):
                    noise = sizes.noise * np.reshape(signs, (sizes.cohort, steps))
                    deltas, controls, own = [], [], c.copy()
                    for i, errors in zip(cohort, noise, strict=True):
                        correction = 0.0 if method == "FedAvg" else m - c[i]
                        y = x
                        for rate, error in zip(sizes.rates, errors, strict=True):
                            y = y - rate * (a[i] * (y - b[i]) + error + correction)
                        deltas.append(x - y)
                        own[i] = (x - y) / total - correction
                        controls.append(own[i])
                    moved = x - sizes.server_lr * np.mean(deltas)
                    if method == "FedAvg":
                        new.append((moved, m, c))
                    elif method == "SCAFFOLD":
                        new.append((moved, m + (own - c).sum() / len(a), own))
                    else:
                        new.append((moved, m + sizes.gamma * (np.mean(controls) - m), own))
        states = new
        found.append(np.mean([(x - optimum) ** 2 for x, _, _ in states]))
    return found


@pytest.mark.parametrize("method", METHODS)
def test_recursion_is_the_mean_over_all_cohorts(method):
    """Different curvatures, decaying rates; also where all clients report.

    Tolerance: moments of the order 1 cancel, with rounding errors of 1e-16 each.
    """
    a, b = np.array([0.5, 1.0, 1.5, 0.7]), np.array([1.0, -2.0, 0.5, 3.0])
    for cohort in (1, 2, 4):
        sizes = Sizes(cohort, np.array([0.4, 0.2, 0.1]), 1.5, 0.3)
        expected = by_enumeration(method, a, b, sizes, 3)
        np.testing.assert_allclose(
            distances(method, a, b, sizes, 3), expected, rtol=1e-12, atol=1e-14
        )


@pytest.mark.parametrize("method", METHODS)
def test_recursion_with_noise_is_the_mean_over_all_signs(method):
    a, b = np.array([0.5, 1.5]), np.array([1.0, -2.0])
    for cohort, rates, rounds in ((1, [0.4, 0.2], 3), (2, [0.4], 3)):
        sizes = Sizes(cohort, np.array(rates), 1.5, 0.3, noise=0.7)
        expected = by_enumeration(method, a, b, sizes, rounds)
        np.testing.assert_allclose(
            distances(method, a, b, sizes, rounds), expected, rtol=1e-12, atol=1e-14
        )


@pytest.mark.parametrize(("h", "r", "gamma"), [(0.1, 0.25, 0.2), (0.5, 0.03, 1.0), (0.02, 1, 0.05)])
def test_law_is_the_variance_of_three_equations(h, r, gamma):
    """The stationary variance of model, momentum and mean control solves Lyapunov's equation."""
    drift = np.array([[-h, -h, h], [gamma, -gamma, 0], [r, 0, -r]])
    noise = np.zeros((3, 3))
    noise[1, 1] = gamma**2
    variance = linalg.solve_continuous_lyapunov(drift, -noise)[0, 0]
    assert law(h, r, gamma) == pytest.approx(variance / (h / 2), rel=1e-10)


def test_small_steps_settle_where_fedavg_does_and_large_ones_lower():
    rng = np.random.default_rng(0)
    a, b = np.ones(8), rng.standard_normal(8)
    for step, low, high in ((0.01, 0.95, 1.0), (0.5, 0.2, 0.5)):
        sizes = Sizes(2, np.array([step]), 1.0, 0.1)
        floor = distances("FedMo", a, b, sizes, 3000)[-1]
        reference = step / (2 - step) * (1 / 2 - 1 / 8) * np.var(b, ddof=1)
        # FedAvg's floor with equal curvatures in closed form: an autoregression.
        fedavg = distances("FedAvg", a, b, sizes, 3000)[-1]
        assert fedavg == pytest.approx(reference, rel=1e-9)
        assert low < floor / fedavg < high
        assert floor / fedavg == pytest.approx(law(step, 1 / 4, 0.1), rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "case"),
    [
        ("FedMoSWA", Case(0.2)),
        ("FedMoSWA", Case(0.2, noise=1.0)),
        ("FedMoSWA", Case(0.2, spread=0.5)),
        ("SCAFFOLD", Case(0.2, noise=1.0)),  # without noise it has no floor
    ],
)
def test_runs_settle_where_the_recursion_says(method, case):
    """Within 4.5 standard errors over seeds."""
    found = floors(method, case, 4, (0.2,), 64, 200)[0]
    expected = exact(method, case, 4, 0.2, 200)
    assert abs(found.mean() - expected) < 4.5 * found.std(ddof=1) / 8
    assert found.mean() > 4.5 * found.std(ddof=1) / 8  # the test can tell


def test_methods_have_equal_steps_per_round():
    for method in METHODS:
        alpha = fedmoswa_floor_runs.SCHEDULES[method][1]
        rates = fedmoswa_floor_runs.rates(method, 0.2)
        assert alpha * rates.sum() == pytest.approx(0.2)
    assert rates[-1] / rates[0] == pytest.approx(1 - 0.9 * 7 / 8)  # of FedMoSWA, one before rho


def planted(seeds=4):
    """Own controls add 0.1, gamma 0.05 another 0.04 to them, alpha 1.5 takes 0.02; seeds differ."""
    rows = []
    for controls in CONTROLS:
        levels = settings_of(controls, (0.05, 1.0), (1.0, 1.5), (0.1, 1.0))
        for values, seed, lr in itertools.product(levels, range(seeds), (0.1, 0.2)):
            accuracy = 0.5 + 0.01 * seed + 0.1 * (controls == OWN) + 0.15 * (controls == SCAFFOLD)
            accuracy += 0.04 * (controls == OWN and values["gamma"] == 0.05)
            accuracy -= 0.02 * (values["alpha"] == 1.5) + 0.3 * (lr == 0.2)
            row = {"controls": controls, **values, "lr": lr, "seed": seed}
            row |= {"test accuracy": accuracy, "test loss": 1 - accuracy}
            rows.append(row | {"train loss": 0.5 - 0.6 * accuracy, "gap": 0.5 - 0.4 * accuracy})
    return pd.DataFrame(rows)


LEVELS = {"gammas": (0.05, 1.0), "alphas": (1.0, 1.5), "rhos": (0.1, 1.0)}


def test_planted_effects_are_found():
    chosen = scored(planted())
    assert set(chosen["lr"]) == {0.1}
    table = effects(chosen, "test accuracy", LEVELS).set_index("effect")
    means = table["mean"]
    assert means["controls: own - none"] == pytest.approx(0.12)
    assert means["controls: own - last on worker"] == pytest.approx(0.12)
    assert means["controls: last on worker - none"] == pytest.approx(0, abs=1e-12)
    assert means["gamma: 0.05 - 1"] == pytest.approx(0.02)  # of own and of the worker's controls
    assert means["alpha: 1.5 - 1"] == pytest.approx(-0.02)
    assert means["rho: 0.1 - 1"] == pytest.approx(0, abs=1e-12)
    assert (table["high"] - table["low"]).max() < 1e-9  # seeds are paired
    first = largest(table.reset_index()).iloc[0]
    assert first["effect"] == "(controls: own - none) x (gamma: 0.05 - 1)"
    assert first["mean"] == pytest.approx(0.04)


def test_interactions_of_two_levels():
    table = planted()
    table.loc[(table["alpha"] == 1.5) & (table["rho"] == 0.1), "test accuracy"] += 0.03
    found = effects(scored(table), "test accuracy", LEVELS).set_index("effect")["mean"]
    assert found["(alpha: 1.5 - 1) x (rho: 0.1 - 1)"] == pytest.approx(0.03)
    assert found["alpha: 1.5 - 1"] == pytest.approx(-0.02 + 0.015)


def test_no_seed_chooses_its_own_rate_or_setting():
    table = planted()
    lucky = (table["controls"] == OWN) & (table["seed"] == 0)
    table.loc[lucky & (table["lr"] == 0.2) & (table["gamma"] == 1.0), "test accuracy"] = 0.99
    chosen = scored(table)
    assert set(select_seed(chosen, 0)["lr"]) == {0.1}
    assert best_setting(chosen, OWN) == pytest.approx(0.64 + 0.01 * np.arange(4))
    assert best_setting(chosen, SCAFFOLD) == pytest.approx(0.65 + 0.01 * np.arange(4))


def select_seed(table, seed):
    return table.loc[table["seed"] == seed, :]


@pytest.fixture
def results():
    """Planted accuracies, and floors whose groups are the exact ones times known factors."""
    rows = []
    for case in CASES:
        for method, cohort in itertools.product(METHODS, (1, 4, 16, 32)):
            if method == "FedMoSWA" and case != CASES[0]:
                continue
            gammas = (0.05, 0.2, 0.4, 1.0) if method.startswith("FedMo") else (np.nan,)
            for gamma in gammas:
                value = exact(method, case, cohort, gamma, 60)
                factors = 1 + 0.01 * np.resize([1, -1], 16)
                groups = {f"group {i}": value * factor for i, factor in enumerate(factors)}
                row = case._asdict() | {"method": method, "cohort": cohort, "gamma": gamma}
                rows.append(row | {"exact": value} | groups)
    options = {"seeds": 4, "rounds": 400, "floor_seeds": 64}
    options |= {name: list(values) for name, values in LEVELS.items()} | {"floor_rounds": 60}
    return {"": scored(planted()), "floor": pd.DataFrame(rows)}, {"options": options}


def test_tables_of_floors(results):
    table = with_law(results[0]["floor"])
    assert table["floor"].to_numpy() == pytest.approx(table["exact"].to_numpy(), rel=1e-9)
    assert table.loc[table["method"] == "FedAvg", "ratio"].to_numpy() == pytest.approx(1)
    one = exponents(results[0]["floor"])
    assert one["exponent"].to_numpy() == pytest.approx(one["exact"].to_numpy(), abs=0.01)
    assert set(one["of"]) == {"gamma", "1/s - 1/M", "step"}


def test_page_of_planted_results(results):
    page = STUDY.page(*results)
    assert "Own controls add 12.0 [12.0, 12.0] points" in page.found
    answers = {answer.expected.split(":")[0]: answer for answer in page.answers}
    assert answers["The recursion of second moments is exact"].right
    assert answers["Controls are the largest effect"].right
    assert answers["alpha and rho change the accuracy by less than a point each"].right is False
    assert "60 %" in answers["The gain is one of optimisation"].found
    assert answers["SCAFFOLD is at least as good as the best setting of FedMoSWA"].right
    report, figures = STUDY.build(*results)
    assert list(figures) == ["fedmoswa"]
    assert "Effects on test accuracy" in report.text


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"floor_seeds": 20}, "floor_seeds is 20; expected a positive multiple of 16"),
        ({"cohorts": (1, 33)}, "cohorts has 33; expected numbers from 1 to 32"),
        ({"seeds": 1}, "seeds is 1"),
        ({"gammas": ()}, "gammas is"),
    ],
)
def test_options_are_checked(changed, message):
    with pytest.raises(ValueError, match=message):
        fedmoswa.Options(**changed)


SMALL = {
    "cohorts": (1, 16), "floor_gammas": (0.2, 0.4), "floor_seeds": 16, "floor_rounds": 8,
    "gammas": (0.2, 1.0), "seeds": 2, "rounds": 4, "lrs": (0.1,),
}  # fmt: skip


@pytest.mark.slow
def test_small_run_continues_and_is_redrawn(tmp_path, monkeypatch):
    monkeypatch.setattr(fedmoswa_floor_runs, "CASES", CASES[:3])
    options = fedmoswa.Options(**SMALL, work=tmp_path / "work", output=tmp_path / "results")
    fedmoswa.main(options)
    folder = tmp_path / "results" / "questions"
    runs = pd.read_csv(folder / "fedmoswa" / "fedmoswa.csv")
    assert runs["controls"].value_counts().to_dict() == {OWN: 16, LAST: 16, NONE: 8, SCAFFOLD: 4}
    own = runs.loc[runs["controls"] == OWN, "train loss"].to_numpy()
    # From equal models on equal minibatches; in the first round all controls are zero.
    assert not np.allclose(own, runs.loc[runs["controls"] == LAST, "train loss"])
    kept = {path: path.read_bytes() for path in folder.rglob("*.*") if path.suffix != ".png"}

    def never(*args, **kwargs):
        raise AssertionError("a finished program ran again")

    monkeypatch.setattr(fedmoswa_floor_runs, "floors", never)
    monkeypatch.setattr(fedmoswa_factorial, "reduced", never)
    fedmoswa.main(options)
    redraw(folder)
    for path, text in kept.items():
        assert path.read_bytes() == text, path


def test_page_has_the_effects_on_cifar100(tmp_path):
    """With the levels that ran; a factor that was run at one level has no effect to state."""
    assert "has not run" in on_cifar100(tmp_path)
    table = planted().query(f"lr == 0.1 and (rho == 0.1 or controls == {SCAFFOLD!r})")
    facts = {"options": LEVELS | {"rhos": (0.1,), "seeds": 4}}
    Report("Factorial").save(tmp_path, "factorial", table, **facts)
    text = on_cifar100(tmp_path)
    assert "at one rate, gamma 0.05 or 1, alpha 1 or 1.5, rho 0.1, 4 seeds" in text
    assert "controls own for none: 12.0 [12.0, 12.0]" in text
    assert "alpha 1.5 for 1: -2.0 [-2.0, -2.0]" in text
    assert "(controls own for none) x (gamma 0.05 for 1): 4.0 [4.0, 4.0]" in text
    assert "SCAFFOLD for own controls 1.0 [1.0, 1.0]" in text
    assert "rho 0.1 for" not in text
