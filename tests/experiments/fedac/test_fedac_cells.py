"""Cells of FedAc's experiment: their best rates, and the search for them."""

import numpy as np
import pandas as pd
import pytest

from experiments.fedac import beyond, cells, spread

GRID = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def scores(best_rates):
    """A function of rates: scores that grow with the distance from the best rate, by K and seed."""
    asked = []

    def score(rates):
        asked.append({cell: tuple(lrs) for cell, lrs in rates.items()})
        rows = [
            ("fedavg", m, k, lr, seed, abs(np.log(lr / best)))
            for (m, k), lrs in rates.items()
            for seed, best in enumerate(best_rates[k])
            for lr in lrs
        ]
        return pd.DataFrame(rows, columns=pd.Index([*cells.CELL, "lr", "seed", "score"]))

    return score, asked


def test_search_widens_the_windows_that_have_their_best_at_an_end():
    score, asked = scores({1: [0.1], 2: [1.0], 4: [0.01]})
    window = (0.05, 0.1, 0.2)
    table = cells.search(score, dict.fromkeys([(8, 1), (8, 2), (8, 4)], window), GRID)
    assert asked == [
        dict.fromkeys([(8, 1), (8, 2), (8, 4)], window),
        {(8, 2): (0.5, 1.0), (8, 4): (0.01, 0.02)},
    ]
    best = cells.best(table, GRID)
    assert best["lr"].tolist() == [0.1, 1.0, 0.01]
    assert best["at edge"].tolist() == [False, True, True]


def test_search_serves_every_seed():
    """One seed's best is the window's first rate, another's its last."""
    score, asked = scores({1: [0.05, 0.2]})
    cells.search(score, {(8, 1): (0.05, 0.1, 0.2)}, GRID)
    assert asked[1:] == [{(8, 1): (0.01, 0.02, 0.5, 1.0)}]


def test_a_cell_of_diverged_runs_has_an_infinite_score():
    score, _ = scores({1: [0.1]})
    table = score({(8, 1): GRID}).assign(score=np.nan)
    assert np.isinf(cells.best(table, GRID)["score"]).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: spread.Options(setting="mnist"), "setting is 'mnist'; expected one of a9a-1e-2"),
        (lambda: spread.Options(seeds=1), "seeds is 1; expected at least 2"),
        (lambda: spread.Options(clients=()), r"clients is \(\); expected positive numbers"),
        (lambda: beyond.Options(setting="mnist"), "setting is 'mnist'; expected one of a9a-1e-2"),
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("script", [spread, beyond])
def test_scripts_need_the_cells_of_a9a(script, tmp_path):
    with pytest.raises(ValueError, match="output has no"):
        script.main(script.Options(output=tmp_path))
