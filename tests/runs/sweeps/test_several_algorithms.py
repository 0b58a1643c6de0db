"""One sweep over several algorithms equals their own sweeps."""

import jax
import numpy as np
import pytest
from call_records import sweep_on
from sweep_problems import KEYS, ONE_DEVICE, compilations, quadratic_trial

import fedjax_sim as fs
from fedjax_sim.runs.sweeps.trial import static_names

SETUP = quadratic_trial(num_seeds=2).setup
FACTORIES = {"FedAvg": fs.fedavg, "FedProx": fs.fedprox}
GRIDS = {"FedAvg": {"lr": [0.1, 0.2]}, "FedProx": [{"lr": 0.1, "mu": 0.5}]}


def of(result, name):
    return [run for run in result.runs if run.configuration["algorithm"] == name]


@pytest.mark.slow
def test_several_algorithms_equal_their_own_sweeps(tmp_path):
    together = sweep_on(ONE_DEVICE, FACTORIES, SETUP, GRIDS, KEYS[:2], storage=tmp_path)
    assert [run.configuration for run in together.runs[::2]] == [
        {"algorithm": "FedAvg", "lr": 0.1},
        {"algorithm": "FedAvg", "lr": 0.2},
        {"algorithm": "FedProx", "lr": 0.1, "mu": 0.5},
    ]
    for name, factory in FACTORIES.items():
        alone = sweep_on(ONE_DEVICE, factory, SETUP, GRIDS[name], KEYS[:2])
        histories = [run.history for run in of(together, name)], [r.history for r in alone.runs]
        jax.tree.map(np.testing.assert_array_equal, *histories)
    assert together.to_frame().columns[0] == "algorithm"
    assert set(together.to_frame()["algorithm"]) == set(FACTORIES)
    with compilations() as names:
        again = sweep_on(ONE_DEVICE, FACTORIES, SETUP, GRIDS, KEYS[:2], storage=tmp_path)
    assert again.resumed == 6
    assert not [name for name in names if "alone" in name]


@pytest.mark.slow
def test_one_grid_and_a_setup_of_the_algorithm():
    setups = []

    def make_setup(algorithm):
        setups.append(algorithm)
        rounds = {"FedAvg": 2, "FedProx": 3}[algorithm]
        return fs.Setup(SETUP.task, SETUP.timeline[:rounds], SETUP.params, SETUP.eval_fn)

    factories = {"FedAvg": fs.fedavg, "FedProx": lambda lr: fs.fedprox(lr, mu=0.1)}
    result = sweep_on(ONE_DEVICE, factories, make_setup, {"lr": [0.1, 0.2]}, KEYS[:2])
    assert set(setups) == set(factories)
    last = {run.configuration["algorithm"]: int(run.history.round[-1]) for run in result.runs}
    assert last == {"FedAvg": 2, "FedProx": 3}
    # The functions of one shape and one factory share a program.
    assert result.compilations == 2


@pytest.mark.parametrize(
    ("factories", "grid", "message"),
    [
        ({}, {"lr": [0.1]}, "factories is empty; expected at least one algorithm"),
        (FACTORIES, {"algorithm": ["FedAvg"], "lr": [0.1]}, "grid has 'algorithm' = 'FedAvg'"),
        (FACTORIES, {"FedAvg": {"lr": [0.1]}}, "grid has FedAvg; expected a grid for each of"),
        (FACTORIES | {"x": fs.fedavg(0.1)}, {"lr": [0.1]}, "expected a function of the hyper-par"),
        (FACTORIES, {"lr": [0.1], "mu": [1.0]}, "grid gives lr, mu to fedavg: .*'mu'"),
    ],
)
def test_bad_factories_and_grids(factories, grid, message):
    with pytest.raises(ValueError, match=message):
        fs.sweep(factories, SETUP, grid, KEYS[:2])


def factory(
    free, lr: float, f: int, rule: str, clip: float | str = 1.0, flag: bool = False,
    scale: float | None = None, steps: int | None = None,
):  # fmt: skip
    """Parameters of all kinds."""


@pytest.mark.parametrize(
    ("name", "value", "static"),
    [
        ("free", 1, False), ("free", 0.5, False), ("free", np.float32(2), False),
        ("free", "a", True), ("free", True, True), ("free", None, True), ("free", (1, 2), True),
        ("lr", 1, False), ("lr", 0.1, False),
        ("lr", "a", False), ("lr", True, False), ("lr", None, False),  # refused as no numbers
        ("f", 3, True), ("f", np.int64(3), True), ("f", 3.0, True),
        ("rule", "krum", True), ("flag", True, True),
        ("clip", 0.1, False), ("clip", "adaptive", True),
        ("scale", 0.1, False), ("scale", None, True), ("steps", 5, True), ("steps", None, True),
    ],
)  # fmt: skip
def test_annotations_and_values_decide_what_is_static(name, value, static):
    assert static_names(factory, [{name: value}]) == ({name} if static else set())
    assert static_names(factory, [{name: value}], [name]) == {name}


def test_one_value_without_a_number_makes_all_static():
    assert static_names(factory, [{"clip": 0.1}, {"clip": "adaptive"}]) == {"clip"}
    assert static_names(fs.fedavg, [{"lr": 0.1}]) == set()
