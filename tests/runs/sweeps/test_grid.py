"""Grids, groups and plans: every run exactly once, and nothing that cannot be run."""

import itertools
import math
from collections import Counter
from typing import Any, TypedDict, Unpack

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_sim.engine import Probes
from fedjax_sim.runs.sweeps.grid import Block, cut, expand, groups, widths
from fedjax_sim.runs.sweeps.trial import Trials

COUNTS = st.integers(1, 30)
SEEDS = st.integers(1, 7)
DEVICES = st.integers(1, 9)


def test_a_product_varies_the_last_name_fastest():
    grid = {"lr": np.array([0.1, 0.2]), "mu": (1, 2, 3), "model": ["mlp"]}
    assert expand(grid) == [
        {"lr": lr, "mu": mu, "model": "mlp"} for lr in (0.1, 0.2) for mu in (1, 2, 3)
    ]
    assert expand({}) == [{}]


def test_a_list_is_taken_as_it_is():
    entries = [{"lr": 0.1}, {"mu": 1.0, "lr": 0.1}, {}]
    found = expand(entries)
    assert found == entries
    assert found[0] is not entries[0]  # the caller's may change


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ([], r"grid is \[\]; expected at least one configuration"),
        ({"lr": []}, r"grid has \[\] for 'lr'; expected a list of values"),
        ({"lr": 0.1}, "grid has 0.1 for 'lr'; expected a list of values"),
        ({"lr": np.array(0.1)}, "for 'lr'; expected a list of values"),
        ({"model": "mlp"}, "grid has 'mlp' for 'model'; expected a list of values"),
        ({"lr": [0.1, 0.1]}, r"grid has \{'lr': 0.1\} twice"),
        ([{"lr": 1, "mu": 2}, {"mu": 2.0, "lr": 1.0}], "twice; expected distinct"),
        ({"mu": [np.ones(3), np.ones(3)]}, "twice; expected distinct"),
        ({"mu": [[np.ones(3), 1], [np.ones(3), 1]]}, "twice; expected distinct"),
    ],
)
def test_grids_that_are_none(grid, message):
    with pytest.raises(ValueError, match=message):
        expand(grid)


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray, lambda x: [x, np.ones(2)]])
def test_arrays_are_values(kind):
    """Grids may hold arrays of equal and of other shapes, and beside them what is no array."""
    vectors = [kind(np.float32([1, 2])), kind(np.float32([1, 3])), kind(np.float32([1])), None]
    found = expand({"mu": vectors, "lr": [0.1, 0.2]})
    assert len(found) == 8
    assert [len(group.members) for group in groups(found, {"mu"})] == [2, 2, 2, 2]


def test_numbers_without_axes_are_those_of_numpy():
    (found, other) = expand({"lr": jnp.array([0.5, 0.25]), "rule": [np.array("krum")]})
    assert (repr(found["lr"]), repr(other["lr"])) == ("np.float32(0.5)", "np.float32(0.25)")


def test_a_flag_is_no_number():
    assert expand({"f": [1, True]}) == [{"f": 1}, {"f": True}]


def test_static_values_of_other_kinds_have_programs_of_their_own():
    """1 entry is kept of a tensor, or all of them, or a flag is set."""
    configurations = [{"keep": keep, "lr": 0.1 * i} for i, keep in enumerate((1, 1.0, True))]
    found = groups(configurations, {"keep"})
    assert [repr(g.static["keep"]) for g in found] == ["1", "1.0", "True"]
    same = [{"keep": np.float64(0.5), "lr": 0.1}, {"keep": 0.5, "lr": 0.2}]
    assert len(groups(same, {"keep"})) == 1


def test_groups_share_static_values_and_names():
    configurations = [
        {"lr": 0.1, "batch_size": 5},
        {"lr": 0.2, "batch_size": 9},
        {"batch_size": 5, "lr": 0.3},
        {"lr": 0.4, "mu": 1, "batch_size": 5},
    ]
    found = groups(configurations, {"batch_size", "rounds"})
    assert [g.static for g in found] == [{"batch_size": 5}, {"batch_size": 9}, {"batch_size": 5}]
    assert [g.names for g in found] == [("lr",), ("lr",), ("lr", "mu")]
    assert [g.members for g in found] == [(0, 2), (1,), (3,)]
    assert [{k: v.tolist() for k, v in g.values.items()} for g in found] == [
        {"lr": [0.1, 0.3]},
        {"lr": [0.2]},
        {"lr": [0.4], "mu": [1.0]},
    ]


@pytest.mark.parametrize(
    "value", ["0.1", None, True, np.True_, math.nan, -math.inf, 10**400, 1j, (0.1,), {}]
)
def test_what_varies_inside_a_program_is_a_finite_number(value):
    with pytest.raises(ValueError, match="for 'lr'; expected a finite number"):
        groups([{"lr": 0.1}, {"lr": value}], set())
    assert groups([{"lr": value}], {"lr"})[0].static["lr"] is value  # anything can be static


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, unique=True))
def test_groups_are_a_partition(entries):
    configurations = [dict(zip("abc", entry, strict=True)) for entry in entries]
    found = groups(configurations, {"a", "b"})
    members = list(itertools.chain.from_iterable(group.members for group in found))
    assert sorted(members) == list(range(len(entries)))
    assert len(found) == len({entry[:2] for entry in entries})
    for group in found:
        assert list(group.members) == sorted(group.members)
        for row, member in enumerate(group.members):
            entry = {**group.static, "c": group.values["c"][row]}
            assert entry == configurations[member]


@given(COUNTS, SEEDS, DEVICES, st.data())
def test_a_plan_runs_everything_once_but_for_the_filling(count, num_seeds, num_devices, data):
    width = data.draw(st.integers(1, count))
    seeds = data.draw(st.integers(1, num_seeds))
    plan = cut(count, num_seeds, num_devices, width, seeds)
    assert {len(blocks) for blocks in plan.slices} == {num_devices}
    blocks = list(itertools.chain.from_iterable(plan.slices))
    distinct = list(dict.fromkeys(blocks))
    # Only the last block is repeated, and only to fill the last slice.
    assert blocks == distinct + [distinct[-1]] * (len(blocks) - len(distinct))
    assert len(blocks) - len(distinct) < num_devices
    runs = Counter()
    for block in distinct:
        rows = plan.configurations(block, count)
        places = plan.seed_numbers(block, num_seeds)
        assert (len(rows), len(places)) == (width, seeds)
        runs.update(itertools.product(set(rows), set(places)))
    assert set(runs) == set(itertools.product(range(count), range(num_seeds)))
    assert set(runs.values()) == {1}


@given(COUNTS, SEEDS, DEVICES)
def test_widths_are_all_of_them_from_the_cheapest_on(count, num_blocks_of_seeds, num_devices):
    found = list(widths(count, num_blocks_of_seeds, num_devices))
    assert found == sorted(found, reverse=True)
    assert found[-1] == 1

    def cost(width):  # slices of blocks that cost their width and four more
        blocks = math.ceil(count / width) * num_blocks_of_seeds
        return math.ceil(blocks / num_devices) * (width + 4)

    assert cost(found[0]) == min(map(cost, range(1, count + 1)))
    for width, narrower in itertools.pairwise(found):
        assert cost(narrower) == min(map(cost, range(1, width)))


def test_the_last_blocks_repeat_their_last_run():
    plan = cut(5, 3, num_devices=4, width=2, seeds=2)
    assert plan.slices[-1] == (Block(4, 0), Block(4, 2), Block(4, 2), Block(4, 2))
    assert plan.configurations(Block(4, 2), 5) == [4, 4]
    assert plan.seed_numbers(Block(4, 2), 3) == [2, 2]


def test_names_of_keywords_are_those_of_their_typed_dict():
    """Typed dicts (PEP 692) give names that no parameter can have, and the setup static ones."""
    Settings = TypedDict("Settings", {"law.sigma": float})
    Hyper = TypedDict("Hyper", {"rule.f": int, "rule.tau": float})

    def setup(**settings: Unpack[Settings]) -> Any:
        return settings

    def factory(lr: float, **hyper: Unpack[Hyper]) -> Any:
        return lr, hyper

    entry = {"law.sigma": 0.5, "lr": 0.1, "rule.f": 2, "rule.tau": 1.5}
    (group,) = Trials(factory, setup, None, Probes()).groups([entry])
    assert group.static == {"law.sigma": 0.5, "rule.f": 2}
    assert group.names == ("lr", "rule.tau")
