"""FedAc's experiment: its runs against NumPy, its scores, the comparison with published runs."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from kept_runs import identities

import fedjax_sim as fs
from experiments.fedac import a9a, a9a_report, beyond, cells, numpy_loop, problem, spread
from experiments.fedac.redraw import redraw
from experiments.fedac.settings import SETTINGS, rates

CLIENTS, STEPS, L2, LR = 3, 256, 0.05, 0.2
ROUNDS = problem.NUM_STEPS // STEPS


@functools.cache
def small_data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = (rng.random((40, 6)) < 0.4).astype(np.float32)
    y = (x @ rng.normal(size=6) + rng.normal(size=40) > 0).astype(np.float32)
    return {"x": x, "y": y}


def cell(name: str) -> np.ndarray:
    """The models ``[E, d]`` of one rate of the experiment's cell."""
    factory = functools.partial(problem.make_algorithm, name, L2, local_steps=STEPS)
    setup = problem.make_setup(small_data(), name, CLIENTS, STEPS)
    result = fs.sweep(factory, setup, {"lr": [LR]}, jax.random.split(jax.random.key(1), 1))
    return result.runs[0].history.metrics["model"]


@functools.cache
def drawn() -> np.ndarray:
    """Rows ``[T, M, K]`` that clients draw, by a loss whose gradient spells them out."""
    count = len(small_data()["y"])
    batches = fs.with_replacement(1, STEPS)
    task = fs.shared_task(lambda p, rows, key: p[rows], jnp.arange(count), CLIENTS, batches)
    zeros = jnp.zeros(count)

    def rows(visit):
        gradient = jax.vmap(lambda k: visit.oracle.grad(zeros, k))
        return jnp.argmax(gradient(jnp.arange(STEPS)), axis=-1)

    timeline = fs.timelines.full(ROUNDS, CLIENTS, STEPS)
    key = jax.random.split(jax.random.key(1), 1)[0]
    probes = fs.Probes(client={"rows": rows})
    _, history = fs.run(fs.fedsgd(0.0), fs.Setup(task, timeline, zeros), key, probes=probes)
    return np.asarray(history.probes["rows"])


def double() -> dict[str, np.ndarray]:
    return {name: value.astype(np.float64) for name, value in small_data().items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedac_i"])
def test_local_methods_are_those_of_the_numpy_loop(name):
    """4,096 contracting steps in single precision."""
    rows = drawn()
    expected = numpy_loop.numpy_run(
        double(), name, L2, LR, problem.initial(6), STEPS,
        lambda step: rows[step // STEPS, :, step % STEPS], problem.NUM_STEPS,
    )  # fmt: skip
    np.testing.assert_allclose(cell(name)[-1], expected, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mb_sgd", "mb_ac_sgd"])
def test_minibatch_methods_take_one_step_on_the_rows_of_all_local_steps(name):
    x, y = double()["x"], double()["y"]
    main = aggregate = problem.initial(6)
    gamma = (LR / L2) ** 0.5
    alpha = 1 / (gamma * L2)
    for rows in drawn().reshape(ROUNDS, -1):
        middle = main if name == "mb_sgd" else (main + alpha * aggregate) / (alpha + 1)
        residual = 1 / (1 + np.exp(-x[rows] @ middle)) - y[rows]
        g = residual @ x[rows] / len(rows) + L2 * middle
        if name == "mb_sgd":
            main = aggregate = main - LR * g
        else:
            aggregate = middle - LR * g
            main = (1 - 1 / alpha) * main + middle / alpha - gamma * g
    np.testing.assert_allclose(cell(name)[-1], aggregate, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_run_is_evaluated_every_512_steps_and_at_its_end():
    assert cell("fedavg").shape == (8, 6)


def test_objective_is_the_regularised_logistic_loss():
    data, w = double(), np.linspace(-1, 1, 6)
    signs = 2 * data["y"] - 1
    expected = np.mean(np.log1p(np.exp(-signs * (data["x"] @ w)))) + L2 / 2 * w @ w
    models = np.stack([w, np.full(6, np.inf), np.full(6, 1e200), np.full(6, np.nan)])
    found = problem.objective(small_data(), L2)(models[None])
    np.testing.assert_allclose(found[0, 0], expected, rtol=1e-14)
    assert np.isinf(found[0, 1:]).all()


def test_minimum_is_below_nearby_values():
    value = problem.objective(small_data(), L2)
    least = problem.minimum(small_data(), L2)
    rng = np.random.default_rng(0)
    assert (value(rng.normal(size=(100, 6))) > least).all()
    # Strong convexity: descending from it by gradient steps gains nothing beyond rounding.
    w, data = np.zeros(6), double()
    for _ in range(3000):
        residual = 1 / (1 + np.exp(-data["x"] @ w)) - data["y"]
        w = w - 0.5 * (data["x"].T @ residual / len(residual) + L2 * w)
    np.testing.assert_allclose(value(w), least, rtol=0, atol=1e-14)


def test_further_clients_run_with_few_rounds_only():
    options = a9a.Options(clients=(16, 4), local_steps=(1, 32, 64), few_rounds=(8,))
    assert options.cells == {4: (1, 32, 64), 8: (32, 64), 16: (1, 32, 64)}
    assert list(options.cells) == [4, 8, 16]
    assert a9a.Options(clients=(4,), local_steps=(1,), few_rounds=(8,)).cells == {4: (1,)}


def test_many_clients_start_from_the_best_rates_of_fewer(monkeypatch):
    """The best rate is 0.2 up to 8 clients and 2 beyond; an earlier command ran 4 clients."""
    asked = {}

    def run(study, algorithm, rates, work, num_seeds=1):
        asked.setdefault(algorithm, []).append(dict(rates))
        rows = [
            (algorithm, m, k, lr, 0, abs(np.log10(lr / (0.2 if m <= 8 else 2))) + 1e-3)
            for (m, k), lrs in rates.items()
            for lr in lrs
        ]
        return pd.DataFrame(rows, columns=pd.Index([*cells.CELL, "lr", "seed", "score"]))

    monkeypatch.setattr(cells, "run", run)
    grid = SETTINGS["a9a-1e-3"].lrs
    study = cells.Study("a9a-1e-3", SETTINGS["a9a-1e-3"], {}, 0.0)
    columns = pd.Index([*cells.CELL, "score", "lr", "at edge"])
    known = pd.DataFrame([("fedavg", 4, 2, 1.0, 0.5, False)], columns=columns)
    options = a9a.Options(
        clients=(8, 16), local_steps=(2,), methods=("fedavg", "mb_sgd"), every_rate_up_to=4
    )
    table = a9a.measure(options, study, known).set_index(["algorithm", "M"])
    assert table["lr"].tolist() == [0.2, 0.2, 2.0, 2.0]
    around, beyond = (0.1, 0.2, 0.5, 1.0, 2.0), (0.05, 0.1, 0.2, 0.5, 1.0)
    assert asked["fedavg"] == [
        {(8, 2): around},  # of the known best, 0.5
        {(16, 2): beyond},
        {(16, 2): [2.0, 5.0]},  # since 1 was the best
    ]
    assert asked["mb_sgd"][0] == {(8, 2): grid}  # no cell with fewer clients


def test_claims_count_cells_and_missing_methods_are_named():
    """FedAc-I is the best of the four in two cells of ours and in one of the authors'."""
    rows = [
        (name, m, 64, ours, theirs)
        for m, scores in ((4, (1, 2, 3, 4)), (8, (1, 2, 3, 4)))
        for name, ours, theirs in zip(
            ("fedac_i", "fedavg", "mb_ac_sgd", "mb_sgd"), scores, (m, 5, 6, 7), strict=True
        )
    ]
    table = pd.DataFrame(rows, columns=pd.Index([*cells.CELL, "score", "authors"]))
    (claim,) = a9a_report.claims("a9a-1e-3", table)
    assert (claim.found, claim.holds) == ("ours: 2 of 2 cells; authors': 1 of 2 cells", True)
    assert not a9a_report.claims("a9a-1e-3", table[table["algorithm"] != "mb_sgd"])
    assert not a9a_report.claims("a9a-1e-2", table)  # K of at least 128
    assert a9a_report.incomplete(table) == ""
    few = a9a_report.incomplete(table.drop(index=[4, 6]))
    assert few == "Cells of fewer methods: M = 8: FedAvg, MB-SGD alone."


def test_rates_are_the_papers():
    assert rates(1e-3, 13) == (
        0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10,
    )  # fmt: skip
    assert rates(5e-3, 13)[-1] == 50


SUMMARY = """\
runid,dataset,alg,lambd,eta,M,K,T,local_batch,seed,record_intvl,final_loss,best_loss
a,a9a,0,0.01,0.1,2,512,4096,1,1,512,0.6,0.5
"""

# Pinned from the first version of the experiment: by algorithm and K.
IDENTITIES = {
    ("fedavg", 256): "5bc7234364adae6d",
    ("fedavg", 512): "04226c00cb5bcf9b",
    ("mb_sgd", 256): "7a4247581fe0b3ca",
    ("mb_sgd", 512): "3ace1156424ee2f4",
}


@pytest.mark.slow
def test_main_writes_and_resumes(tmp_path, monkeypatch):
    data = small_data()
    for name in ("a9a.40rows", "a9a.t.40rows"):
        lines = [
            " ".join([f"{2 * int(label) - 1:+d}", *(f"{j + 1}:1" for j in np.flatnonzero(row))])
            for row, label in zip(data["x"], data["y"], strict=True)
        ]
        folder = tmp_path / "data" / "a9a"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(lines) + "\n")
    (tmp_path / "summary_a9a_1e-02.csv").write_text(SUMMARY)
    monkeypatch.setenv("FEDAC_PUBLISHED", str(tmp_path))
    monkeypatch.setitem(SETTINGS, "a9a-1e-2", SETTINGS["a9a-1e-2"]._replace(lrs=(0.1, 0.5)))
    options = a9a.Options(
        setting="a9a-1e-2", clients=(2,), local_steps=(256, 512), methods=("fedavg", "mb_sgd"),
        data_dir=tmp_path / "data", work=tmp_path / "runs", output=tmp_path / "out", timing=True,
    )  # fmt: skip
    a9a.main(options)
    kept = identities(tmp_path / "runs")
    assert kept == {
        f'a9a-1e-2/{name} {{"clients": 2, "local_steps": {K}, "lr": {lr}}} 0': data
        for (name, K), data in IDENTITIES.items()
        for lr in (0.1, 0.5)
    }
    slices = sorted((tmp_path / "runs").rglob("*.npz"))
    stamps = [path.stat().st_mtime_ns for path in slices]
    folder = tmp_path / "out" / "a9a"
    first = (folder / "a9a-1e-2.csv").read_text()
    a9a.main(dataclasses.replace(options, local_steps=(512,), timing=False))
    assert [
        path.stat().st_mtime_ns for path in sorted((tmp_path / "runs").rglob("*.npz"))
    ] == stamps
    assert (folder / "a9a-1e-2.csv").read_text() == first  # K = 256 of the first command stays
    assert "earlier" in json.loads((folder / "a9a-1e-2.json").read_text())
    cells = pd.read_csv(folder / "a9a-1e-2.csv")
    assert len(cells) == 4
    assert (cells["score"] > 0).all()
    assert cells["authors"].notna().tolist() == [False, True, False, False]
    facts = (folder / "a9a-1e-2.json").read_text()
    assert json.loads(facts)["rows"] == 40
    assert str(tmp_path) not in facts.replace(json.loads(facts)["command"], "")
    figure, text = folder / "a9a-1e-2.png", folder / "a9a-1e-2.md"
    before = text.read_text()
    assert "## Best rates at the grid's edge" in before
    assert "within 0.15 decades" in before
    figure.unlink()
    redraw(tmp_path / "out")
    assert text.read_text() == before
    assert figure.exists()

    common = {name: getattr(options, name) for name in ("setting", "data_dir", "work", "output")}
    spread.main(spread.Options(clients=(2,), local_steps=(512,), seeds=2, **common))
    beyond.main(beyond.Options(**common))
    seeds = pd.read_csv(folder / "a9a-1e-2-spread.csv")
    assert seeds[["M", "K", "seeds"]].to_numpy().tolist() == [[2, 512, 2]] * 2
    assert (seeds["std"] > 0).all()
    # Every best rate of a grid of two is at an edge.
    assert len(pd.read_csv(folder / "a9a-1e-2-beyond.csv")) == 4
    after = text.read_text()
    for part in ("inside the range", "## Spread of one seed", "## Beyond the grid", "## Time"):
        assert part in after


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"setting": "mnist"}, "setting is 'mnist'; expected one of a9a-1e-2"),
        ({"local_steps": (1, 3)}, "local_steps has 3; expected divisors of 512"),
        ({"clients": (0,)}, r"clients is \(0,\); expected positive numbers"),
        ({"clients": ()}, r"clients is \(\); expected positive numbers"),
        ({"methods": ("sgd",)}, r"methods is \('sgd',\); expected some of fedavg"),
    ],
)
def test_bad_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        a9a.Options(**given)
