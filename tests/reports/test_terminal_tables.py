"""Tables of the commands at the width of a terminal."""

import pandas as pd
import pytest
from rich.console import Console

from fedjax_sim.cli.tables import best_table, summary_table

ROW = {
    "personal_mean": 0.91, "personal_low": 0.9, "personal_high": 0.92,
    "accuracy_mean": 0.865, "accuracy_low": 0.723, "accuracy_high": 1.0,
    "rounds_to_target": 10.0, "reached": 1, "seeds": 3, "divergence": "", "rounds": 10,
    "finished": True, "run_seconds": 1.2, "compile_seconds": 9.8, "local_steps_per_second": 12318.0,
}  # fmt: skip
CELLS = ["fedavg", "0.910 ± 0.010", "0.865 [0.723, 1.000]", "10 (1 of 3 seeds)", "1.2", "9.8",
         "12,318"]  # fmt: skip


def printed(table, width):
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


@pytest.mark.parametrize(("width", "shown"), [(120, 7), (100, 6), (80, 4), (60, 3), (20, 1)])
def test_columns_go_and_values_do_not(width, shown):
    """The cells and their borders take 13, 29, 52, 72, 82, 92 and 102 columns from the left."""
    text = printed(summary_table(pd.DataFrame([ROW], index=["fedavg"]), 0.8), width)
    assert max(map(len, text.split("\n"))) <= width
    (line,) = [line for line in text.split("\n") if "fedavg" in line]
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells == CELLS[: len(cells)]
    assert len(cells) == shown
    assert ("Without room:" in " ".join(text.split())) == (shown < 7)
    assert "…" not in text


@pytest.mark.parametrize(("num_seeds", "cell"), [(3, "0.9000 ± 0.1000"), (2, "0.9000")])
def test_the_best_of_a_sweep_has_the_interval_of_all_tables(num_seeds, cell):
    low, high = (0.8, 1.0) if num_seeds > 2 else (float("nan"),) * 2
    row = {"algorithm": "fedavg", "lr": 0.1, "mean": 0.9, "low": low, "high": high,
           "num_seeds": num_seeds, "num_failed": 0}  # fmt: skip
    table = best_table(pd.DataFrame([row]), "test/accuracy")
    assert [next(iter(column.cells)) for column in table.columns][2:] == [cell, str(num_seeds)]
    note = "and its 95 % interval" if num_seeds > 2 else "without an interval, which needs 3."
    assert f"Mean over {num_seeds} seeds" in str(table.caption)
    assert note in str(table.caption)
