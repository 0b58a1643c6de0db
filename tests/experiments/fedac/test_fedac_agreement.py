"""The comparison with published runs: their scores, ours, and ranges of a further seed."""

import numpy as np
import pandas as pd
import pytest

from experiments.fedac import a9a_report, agreement, cells
from experiments.fedac.settings import SETTINGS

SETTING = SETTINGS["a9a-1e-2"]._replace(lrs=(0.1, 0.2, 0.5), optimum=0.3)
SUMMARY = """\
runid,dataset,alg,lambd,eta,M,K,T,local_batch,seed,record_intvl,final_loss,best_loss
a,a9a,1,0.01,0.1,4,8,4096,1,1,512,0.5,0.4
b,a9a,1,0.01,0.2,4,8,4096,1,1,512,nan,nan
c,a9a,1,0.01,0.5,4,8,4096,1,1,512,0.36,0.35
d,a9a,1,0.01,100,4,8,4096,1,1,512,0.3,0.32
e,a9a,-1,0.01,0.1,4,16,4096,1,1,512,inf,inf
f,a9a,0,0.001,0.1,4,8,4096,1,1,512,0.3,0.3
"""


def test_published_scores_are_the_best_of_the_grid(tmp_path):
    (tmp_path / "summary_a9a_1e-02.csv").write_text(SUMMARY)
    result = agreement.published(str(tmp_path), SETTING)
    assert result is not None
    rows = result.set_index("algorithm")
    assert set(rows.index) == {"fedac_i", "vanilla_fedac"}
    assert rows.loc["fedac_i", "lr of authors"] == 0.5  # not 100, outside the grid
    np.testing.assert_allclose(rows.loc["fedac_i", "authors"], 0.05)
    assert np.isinf(rows.loc["vanilla_fedac", "authors"])
    every = agreement.published(str(tmp_path), SETTING, beyond=True)
    assert every is not None
    np.testing.assert_allclose(every.set_index("algorithm").loc["fedac_i", "authors"], 0.02)
    assert agreement.published(None, SETTING) is None
    with pytest.raises(ValueError, match="FEDAC_PUBLISHED is a folder without summary_a9a_1e-03"):
        agreement.published(str(tmp_path), SETTING._replace(l2=1e-3))


def scores(**changes) -> pd.DataFrame:
    """Two rates of FedAvg at K = 1, 2, 4 with 8 clients."""
    rows = [(1, 0.1, 2e-4), (1, 0.2, 1e-4), (2, 0.1, 5e-4), (2, 0.2, np.nan), (4, 0.1, 2e-2)]
    rows += [(4, 0.2, 3e-2)]
    frame = pd.DataFrame(rows, columns=pd.Index(["K", "lr", "score"]))
    return frame.assign(algorithm="fedavg", M=8, **changes)


def bests(table: pd.DataFrame) -> pd.DataFrame:
    return cells.best(table, (0.1, 0.2))


def test_agreement_and_rounds():
    theirs = bests(scores()).rename(columns={"score": "authors", "lr": "lr of authors"})
    theirs["authors"] = [2e-4, 5e-4, 2e-2]  # the first is twice ours
    both = agreement.beside(bests(scores()), theirs.drop(columns="at edge"))
    overall = agreement.agreement(both, None).iloc[-1]
    assert (overall["algorithm"], overall["within 0.15 decades"]) == ("all", "2 of 3")
    np.testing.assert_allclose(overall["least"], -np.log10(2))
    needed = a9a_report.rounds_needed(both).set_index("threshold (ours)")
    assert needed["FedAvg"].tolist() == ["2048", "2048", "4096", "none"]
    assert needed["FedAvg (authors)"].tolist() == ["2048", "2048", "none", "none"]


def test_cells_that_were_not_run_are_not_counted_as_failures():
    """With K = 2 and 4 alone 2,048 rounds are the most; an algorithm without cells has a dash."""
    few = scores().query("K > 1")
    other = scores().query("K == 1").assign(algorithm="mb_sgd", M=1024)
    table = bests(pd.concat([few.assign(M=8192), other]))
    needed = a9a_report.rounds_needed(table).set_index(["threshold (ours)", "M"])
    assert needed.loc[("1e-04", 8192)].to_dict() == {"FedAvg": "> 2048", "MB-SGD": "-"}
    assert needed.loc[("1e-04", 1024)].to_dict() == {"FedAvg": "-", "MB-SGD": "4096"}
    assert needed.loc[("1e-05", 1024)].to_dict() == {"FedAvg": "-", "MB-SGD": "none"}


def test_rows_of_earlier_commands_stay():
    earlier = bests(scores()).assign(authors=1.0)
    new = bests(scores().query("K == 2").assign(score=7.0))
    table = agreement.merged(new, earlier)
    assert table["K"].tolist() == [1, 2, 4]
    assert table["score"].tolist() == [1e-4, 7.0, 2e-2]
    assert "authors" not in table


def test_seed_spread_is_of_logarithms():
    rows = [("fedavg", 4, 1, seed, 10.0**power) for seed, power in enumerate((-3, -4, -5))]
    table = pd.DataFrame(rows, columns=pd.Index([*cells.CELL, "seed", "score"]))
    spread = agreement.seed_spread(table).iloc[0]
    assert spread["seeds"] == 3
    np.testing.assert_allclose([spread["mean"], spread["std"]], [-4, 1])


@pytest.mark.parametrize(("clients", "name"), [(8, "the cell's own"), (16, "the nearest cell's")])
def test_ranges_have_their_probability(clients, name):
    """1,000 simulated comparisons; the share's standard deviation is 0.7 %.

    The true spread is the same in all cells and known from ten seeds of those with 8 clients.
    """
    rng = np.random.default_rng(0)
    sizes, seeds, std = 1000, 10, 0.2
    steps = np.exp2(np.arange(sizes) / 8)  # a cell per K
    logs = rng.normal(-4, std, (sizes, seeds + 2))
    known = pd.DataFrame(
        {"algorithm": "fedavg", "M": 8, "K": steps, "seeds": seeds}
        | {"mean": logs[:, :seeds].mean(1), "std": logs[:, :seeds].std(1, ddof=1)}
    )
    ours = pd.DataFrame(
        {"algorithm": "fedavg", "M": clients, "K": steps, "score": 10 ** logs[:, -2]}
    )
    table = agreement.ranges(ours, known)
    inside = pd.Series(10 ** logs[:, -1]).between(table["low"], table["high"])
    assert abs(inside.mean() - 0.95) < 4 * 0.007, name


def test_ranges_use_the_nearest_cell_of_the_algorithm():
    spread = pd.DataFrame(
        [("fedavg", 4, 1, 10, -3.0, 0.1), ("fedavg", 256, 64, 10, -4.0, 0.2)],
        columns=pd.Index([*cells.CELL, "seeds", "mean", "std"]),
    )
    rows = [("fedavg", 4, 1, 2e-3), ("fedavg", 128, 32, 1e-4), ("mb_sgd", 4, 1, 1e-3)]
    ours = pd.DataFrame(rows, columns=pd.Index([*cells.CELL, "score"]))
    table = agreement.ranges(ours, spread)
    assert table["algorithm"].tolist() == ["fedavg"] * 2
    assert table["std"].tolist() == [0.1, 0.2]
    centres = np.sqrt(table["low"] * table["high"])
    np.testing.assert_allclose(centres, [1e-3, 1e-4])  # of ten seeds, of the one seed
    halves = np.log10(table["high"] / table["low"]) / 2
    t = 2.2621571  # of 9 degrees of freedom
    np.testing.assert_allclose(halves, [t * 0.1 * 1.1**0.5, t * 0.2 * 2**0.5], rtol=1e-6)


def test_cells_inside_the_range_are_counted():
    spread = pd.DataFrame(
        [("fedavg", 8, 1, 10, -4.0, 0.1)],
        columns=pd.Index([*cells.CELL, "seeds", "mean", "std"]),
    )
    ours = bests(scores())  # 1e-4, 5e-4, 2e-2
    # Factors of 2.1 are within the range around one seed, 10^0.32, as 2.0 is; 3 is not.
    both = ours.assign(authors=[1.6e-4, 5e-4 / 2.0, 6e-2], **{"lr of authors": 0.1})
    overall = agreement.agreement(both, spread).iloc[-1]
    assert overall["inside the range"] == "2 of 3"
    assert overall["within 0.15 decades"] == "0 of 3"


def test_gains_beyond_the_grid():
    table = bests(scores()).assign(authors=[1e-3, 1e-3, 1e-3], **{"at edge": True})
    beyond = table.assign(score=table["score"] / [10, 0.5, 1], authors=[1e-3, 1e-4, 1e-3])
    row = a9a_report.gains(table, beyond.drop(columns="at edge")).iloc[0]
    assert (row["cells"], row["improved"], row["improved (authors)"]) == ("3 of 3", 1, 1)
    np.testing.assert_allclose(row["largest"], 1)
    assert row["median gain, decades"] == 0
    # Cells that were added to the table later have not run beyond the grid.
    assert a9a_report.gains(table, beyond.iloc[1:]).iloc[0]["cells"] == "2 of 3"
    inside = table.assign(**{"at edge": [False, True, True]})
    assert a9a_report.gains(inside, beyond).iloc[0]["cells"] == "2 of 2"


def test_contrast_of_vanilla_and_fedac_i():
    vanilla = bests(scores()).assign(algorithm="vanilla_fedac", M=16)
    table = pd.concat([vanilla, vanilla.assign(algorithm="fedac_i", score=1e-4)])
    assert a9a_report.contrast(vanilla).empty
    quotients = a9a_report.contrast(table)
    np.testing.assert_allclose(quotients["M = 16"], [1, 5, 200])
    assert quotients["K"].tolist() == [1, 2, 4]
