"""Tables of results: statistics, ties, divergence, rounds to a target, rendering."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedjax_sim.reports import Mean, Target, render, results, results_table

ACCURACY = "test/accuracy"
FINAL = {  # at round 4, by seed; at round 2 a tenth less
    "fedavg": [0.80, 0.82, 0.81, 0.83],
    "scaffold": [0.90, 0.93, 0.91, 0.96],
    "close": [0.89, 0.94, 0.91, 0.95],
    "mine_2": [0.99, 0.99, 0.99, 0.10],  # the last seed diverged
}


def history():
    columns = ["algorithm", "seed", "diverged_at", "round", "metric", "value"]
    rows = [
        (name, s, 3 * (name == "mine_2" and s == 3), r, ACCURACY, v - (0.1 if r == 2 else 0))
        for name, final in FINAL.items()
        for s, v in enumerate(final)
        for r in (2, 4)
    ]
    return pd.DataFrame(rows, columns=columns)


@pytest.fixture(scope="module")
def table():
    return results(history(), ACCURACY, target=Target(ACCURACY, 0.81)).set_index("algorithm")


def test_statistics_are_scipys(table):
    assert table.index.tolist() == list(FINAL)  # in the history's order
    low, high = stats.t.interval(0.95, 3, 0.815, stats.sem(FINAL["fedavg"]))
    row = table.loc["fedavg"]
    np.testing.assert_allclose(row[["mean", "low", "high"]].astype(float), [0.815, low, high])
    assert row["std"] == pytest.approx(np.std(FINAL["fedavg"], ddof=1))


def test_a_diverged_seed_leaves_no_mean_and_cannot_be_best(table):
    row = table.loc["mine_2"]
    assert np.isnan(row["mean"])
    assert (row["diverged"], row["num_failed"]) == ("diverged in round 3 (1 of 4 seeds)", 1)
    assert not row["is_best"]


def test_ties_are_those_of_paired_tests_after_holms_correction(table):
    p = {n: stats.ttest_rel(FINAL[n], FINAL["scaffold"]).pvalue for n in ("fedavg", "close")}
    assert table.loc["close", "p_holm"] == pytest.approx(p["close"])  # the larger: unadjusted
    assert table.loc["fedavg", "p_holm"] == pytest.approx(2 * p["fedavg"])
    assert table["is_best"].tolist() == [False, True, True, False]


def test_rounds_to_a_target_count_the_seeds_that_reach_it(table):
    # FedAvg: seeds 1, 2, 3 in round 4. SCAFFOLD: seeds 1, 2, 3 in round 2, seed 0 in round 4.
    assert table["rounds_to_target"].tolist()[:2] == [4.0, 2.0]
    assert table["reached"].tolist() == [3, 4, 4, 3]


def test_rows_of_near_settings_have_different_names():
    frame = history().assign(lr=0.12345671)
    frame = pd.concat([frame, frame.assign(lr=0.12345672)])
    lines = results_table(results(frame, ACCURACY)).split("\n")
    assert [line.split(" | ")[1] for line in lines[2:4]] == ["0.12345671", "0.12345671"]
    assert sum("0.12345672" in line for line in lines) == len(FINAL)


def test_markdown_latex_and_csv(table):
    frame = table.reset_index()
    lines = results_table(frame, percent=True, target=0.81).split("\n")
    assert lines[0] == "| method | test accuracy, % | rounds to 0.81 |"
    assert lines[2] == "| FedAvg | 81.5 ± 2.1 | 4 (3 of 4 seeds) |"
    assert lines[3] == "| SCAFFOLD | **92.5 ± 4.2** | 2 |"
    assert lines[5] == "| mine_2 | diverged in round 3 (1 of 4 seeds) | 2 (3 of 4 seeds) |"
    assert lines[-1].startswith("Mean over 4 seeds and its 95 % interval")
    latex = results_table(frame, "latex", note="50 % of clients")
    assert latex.startswith("% 50 % of clients Mean over")
    assert r"SCAFFOLD & $\mathbf{0.925 \pm 0.042}$ & 2 \\" in latex
    assert r"mine\_2 & diverged" in latex
    csv = pd.read_csv(pd.io.common.StringIO(results_table(frame, "csv")))
    # Some versions of pandas read a number a unit in the last place beside it.
    np.testing.assert_allclose(csv["mean"], frame["mean"], rtol=3e-16)


@pytest.mark.parametrize(
    ("format", "lines"),
    [
        ("markdown", [r"| a\|b | K = 0.5 |", "|---|---|", "| 1 | **3 ± 1** |", "| x_y |  |"]),
        (
            "latex",
            [r"\begin{tabular}{lc}", r"\toprule", r"a\textbar{}b & K = 0.5 \\", r"\midrule",
             r"1 & $\mathbf{3 \pm 1}$ \\", r"x\_y &  \\", r"\bottomrule", r"\end{tabular}"],
        ),
        (
            "html",
            ["<table>", "<tr><th>a|b</th><th>K = 0.5</th></tr>",
             "<tr><th>1</th><td><b>3 ± 1</b></td></tr>", "<tr><th>x_y</th><td></td></tr>",
             "</table>"],
        ),
    ],
)  # fmt: skip
def test_frames_are_rendered_with_their_index(format, lines):
    """The formats' own rules: Markdown ends a cell with |, LaTeX begins a subscript with _."""
    columns = pd.Index([0.5], name="K")
    frame = pd.DataFrame([[Mean("3 ± 1", bold=True)], [np.nan]], ["1", "x_y"], columns)
    assert render(frame.rename_axis(index="a|b"), format).split("\n") == lines


@pytest.mark.parametrize(
    ("format", "row"),
    [
        ("markdown", r"| \<b> 5% R&D \&lt; a_b _c_ *d* `e` f\g ~h | 1 |"),
        (
            "latex",
            r"\textless{}b\textgreater{} 5\% R\&D \&lt; a\_b \_c\_ *d* `e` "
            r"f\textbackslash{}g \textasciitilde{}h & 1 \\",
        ),
        (
            "html",
            "<tr><th>&lt;b&gt; 5% R&amp;D &amp;lt; a_b _c_ *d* `e` f\\g ~h</th><td>1</td></tr>",
        ),
        ("csv", "<b> 5% R&D &lt; a_b _c_ *d* `e` f\\g ~h,1"),
    ],
)
def test_names_with_tags_and_signs_keep_them(format, row):
    """Markdown left out what looks like a tag, and LaTeX's default fonts have ¡ in place of <."""
    name = "<b> 5% R&D &lt; a_b _c_ *d* `e` f\\g ~h"
    frame = pd.DataFrame({"n": [1]}, pd.Index([name], name="method"))
    assert row in render(frame, format).split("\n")


def test_a_name_in_brackets_is_no_argument_of_the_row_before():
    frame = pd.DataFrame({"n": [1, 2]}, pd.Index(["[a]", "*"], name="[method]"))
    lines = render(frame, "latex").split("\n")
    assert lines[2:6] == [r"{}[method] & n \\", r"\midrule", r"{}[a] & 1 \\", r"{}* & 2 \\"]


def test_a_name_of_two_lines_is_one_cell():
    frame = pd.DataFrame({"n": [1]}, pd.Index(["a\nb"], name="method"))
    for format in ("markdown", "latex", "text"):
        assert "a b" in render(frame, format)


def test_an_interval_cut_at_one_is_written_with_its_ends():
    frame = history().query("algorithm == 'fedavg'").assign(value=[1.0, 0.9, 1, 1, 1, 1, 1, 1])
    row = results_table(results(frame, ACCURACY)).split("\n")[2]
    assert row == "| FedAvg | 0.975 [0.895, 1.000] |"


@pytest.mark.parametrize("width", [80, 58, 41, 10])
def test_text_leaves_out_columns_and_cuts_no_value(width):
    """Columns of 8, 15, 15 and 15 characters with gaps of 2 have 59 in all; one is always shown."""
    frame = results(history(), ACCURACY).query("algorithm != 'mine_2'")
    several = pd.concat([frame.assign(metric=f"{ACCURACY}/{i}") for i in range(3)])
    lines = results_table(several, "text", width=width).split("\n")
    shown = {80: 3, 58: 2, 41: 1, 10: 1}[width]
    values = ["0.815 ± 0.021", "0.925 ± 0.042 *", "0.923 ± 0.044 *"]
    for line, value in zip(lines[1:4], values, strict=True):
        assert line.split("  ", 1)[1].split() == shown * value.split()
    if width >= 41:
        assert max(map(len, lines)) <= width
    hidden = [f"test accuracy {i}" for i in range(shown, 3)]
    assert (f"Without room: {', '.join(hidden)}." in " ".join(lines)) == bool(hidden)


def test_only_methods_of_one_setting_are_compared():
    """A higher accuracy on easier data (alpha 10) is no better method: each alpha has its best."""
    frame = history().query("algorithm != 'mine_2'").assign(alpha=0.1)
    easier = frame.assign(alpha=10.0, value=frame["value"] + 0.03)
    both = pd.concat([frame, easier], ignore_index=True)
    table = results(both, ACCURACY, among=["alpha"])
    best = table.loc[table["is_best"], ["algorithm", "alpha"]].to_numpy().tolist()
    assert best == [[name, alpha] for alpha in (0.1, 10.0) for name in ("scaffold", "close")]
    named = both.assign(algorithm=both["algorithm"] + both["alpha"].astype(str))
    settings = {name: name[-3:] for name in named["algorithm"]}
    by_name = results(named.drop(columns="alpha"), ACCURACY, among=settings)
    assert by_name["is_best"].tolist() == table["is_best"].tolist()
    np.testing.assert_array_equal(by_name["p_holm"], table["p_holm"])
    assert results(both, ACCURACY)["is_best"].sum() == 2


def test_two_seeds_have_no_interval():
    """Student's quantile for two values is 12.7: 0.81 +- 0.127 says nothing."""
    frame = history().query("seed < 2 and algorithm != 'mine_2'")
    lines = results_table(results(frame, ACCURACY)).split("\n")
    assert lines[2] == "| FedAvg | **0.810** |"
    assert lines[-1].startswith("Mean over 2 seeds, without an interval, which needs 3.")


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda f: results(f, []), "metrics is empty"),
        (lambda f: results(f, "nope"), "metric is 'nope'; expected one of"),
        (lambda f: results_table(results(f, ACCURACY), "pdf"), "format is 'pdf'; expected"),
        (lambda f: results_table(results(f, ACCURACY), digits=0), "digits is 0; expected"),
    ],
)
def test_bad_arguments_are_named(call, match):
    with pytest.raises(ValueError, match=match):
        call(history())


def test_the_note_states_the_levels():
    wide = results(history(), ACCURACY, level=0.99, alpha=0.01)
    assert "its 99 % interval" in results_table(wide)
    assert "(p of at least 0.01 after Holm's correction)" in results_table(wide)
    assert "(p of at least 0.05 after" in results_table(results(history(), ACCURACY))
    with pytest.raises(ValueError, match="alpha is 5; expected a number between 0 and 1"):
        results(history(), ACCURACY, alpha=5)
    assert "its 95 % interval" in results_table(results(history(), ACCURACY))
    with pytest.raises(ValueError, match="level is 95; expected a number between 0 and 1"):
        results(history(), ACCURACY, level=95)


def test_rounds_to_a_target_without_columns_of_a_configuration():
    """The rows of all metrics have the rounds, as with such columns."""
    rows = [(s, r, m, 1 / r) for s in (0, 1) for r in (1, 2, 4) for m in ("loss", "norm")]
    history = pd.DataFrame(rows, columns=["seed", "round", "metric", "value"])
    table = results(history, ["loss", "norm"], target=Target("loss", 0.5))
    assert table[["rounds_to_target", "reached"]].values.tolist() == [[2, 2], [2, 2]]


@pytest.mark.parametrize("seeds", [1, 2])
def test_equal_means_are_all_best_without_a_test(seeds):
    """One common seed has no test, whether the methods have others or not."""
    columns = ["algorithm", "seed", "round", "metric", "value"]
    rows = [
        (name, i * (seed > 0) + seed, 1, "loss", value)
        for i, (name, value) in enumerate((("a", 0.5), ("b", 0.25), ("c", 0.25)))
        for seed in range(seeds)
    ]
    frame = results(pd.DataFrame(rows, columns=columns), "loss")
    assert frame["is_best"].tolist() == [False, True, True]


def test_a_metric_that_a_method_lacks_leaves_its_cell_empty():
    """The values of the metrics after it stay in their columns."""
    rows = [
        (name, seed, 1, metric, value + seed / 100)
        for name, metrics in {"fedavg": (0.8, 0.5), "scaffold": (0.9, 0.4)}.items()
        for metric, value in zip((ACCURACY, "test/loss"), metrics, strict=True)
        for seed in range(3)
    ]
    frame = pd.DataFrame(rows, columns=["algorithm", "seed", "round", "metric", "value"])
    table = results(frame, (ACCURACY, "test/loss"), target=Target(ACCURACY, 0.7))
    lacks = (table["algorithm"] == "fedavg") & (table["metric"] == ACCURACY)
    lines = results_table(table.loc[~lacks]).splitlines()
    assert lines[0] == "| method | test accuracy | test loss | rounds to target |"
    assert "| FedAvg |  | 0.510 ± 0.025 | 1 |" in lines


def test_modes_and_columns_of_the_setting_that_do_not_exist_are_refused():
    """Without an effect, a misspelt metric would have the other direction of better."""
    rows = [(name, seed, 1, "score", seed + x) for x, name in enumerate("ab") for seed in range(3)]
    frame = pd.DataFrame(rows, columns=["algorithm", "seed", "round", "metric", "value"])
    assert results(frame, "score", modes={"score": "max"})["is_best"].tolist() == [False, True]
    with pytest.raises(ValueError, match=r"modes has \['scor'\]; expected some of \['score'\]"):
        results(frame, "score", modes={"scor": "max"})
    with pytest.raises(ValueError, match=r"history lacks the columns \['alpa'\]"):
        results(frame, "score", among=["alpa"])
    with pytest.raises(ValueError, match=r"history lacks the columns \['algorithm'\]"):
        results(frame.drop(columns="algorithm").head(3), "score", among={"a": "data"})


def test_rounds_to_a_target_are_whole():
    rows = [("a", seed, 1234567 + seed, "score", 1.0) for seed in range(2)]
    frame = pd.DataFrame(rows, columns=["algorithm", "seed", "round", "metric", "value"])
    for seeds, expected in ((1, "1234567"), (2, "1234567.5")):
        table = results(frame.loc[frame["seed"] < seeds], "score", target=Target("score", 2.0))
        assert results_table(table).splitlines()[2].endswith(f"| {expected} |")


@pytest.mark.parametrize("digits", [1.5, True])
def test_decimals_are_an_integer(digits):
    rows = [("a", 0, 1, "score", 1.0)]
    frame = pd.DataFrame(rows, columns=["algorithm", "seed", "round", "metric", "value"])
    with pytest.raises(ValueError, match=f"digits is {digits}; expected an integer"):
        results_table(results(frame, "score"), digits=digits)
    with pytest.raises(ValueError, match=f"last is {digits}; expected an integer"):
        results(frame, "score", last=digits)
