"""Algorithms that break the contract of their five functions are refused before compilation."""

import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import KEY, NUM_CLIENTS, Counter, execute, no_data

import fedjax_sim as fs
from fedjax_sim.engine import loops

PARAMS = {"w": jnp.zeros(3)}
TIMELINE = fs.timelines.cyclic(2, NUM_CLIENTS, 4, num_steps=2)


class Pair(NamedTuple):
    params: Any
    total: Any


GOOD = fs.FedAlgorithm(
    init=lambda params: Pair(params, jnp.zeros(())),
    local=lambda message, state, oracle, work: (message, state + 1),
    update=lambda state, mean, round: Pair(mean, state.total + 1),
    init_client=lambda params: jnp.zeros(2),
)


def one_number(message, state, oracle, work):
    return message, jnp.zeros(())


def integers(message, state, oracle, work):
    return message, state.astype(jnp.int32)


def no_pair(message, state, oracle, work):
    return message


def three_arguments(message, state, oracle):
    return message, state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"update": lambda state, mean, round: state._replace(params={"w": jnp.zeros(1)})},
            r"algorithm\.update returns a state with \.params\['w'\] float32\[1\]; expected "
            r"float32\[3\], as before",
        ),
        (
            {"update": lambda state, mean, round: state._replace(total=jnp.int32(1))},
            r"\.total int32\[\]; expected float32\[\]",
        ),
        (
            {"update": lambda state, mean, round: state._replace(total=jnp.zeros((), "bfloat16"))},
            r"\.total bfloat16\[\]; expected float32\[\]",
        ),
        (
            {"update": lambda state, mean, round: Counter(state.params)},
            r"algorithm\.update returns the state Counter\(\.params\['w'\] float32\[3\]\); "
            r"expected Pair\(",
        ),
        (
            {"update": lambda state, mean, round: tuple(state)},
            r"the state tuple\(.*\); expected Pair\(",
        ),
        ({"update": lambda state, mean, round: None}, r"the state NoneType\(\); expected Pair"),
        ({"update": lambda state, mean: state}, r"takes \(state, mean\); expected \(state, mean"),
        ({"update": None}, r"algorithm\.update is None; expected a function of \(state, mean"),
        ({"local": one_number}, r"algorithm\.local returns a state with float32\[\]; expected "),
        ({"local": integers}, r"returns a state with int32\[2\]; expected float32\[2\]"),
        ({"local": no_pair}, r"returns dict\(\['w'\] float32\[3\]\); expected a pair \(upload, "),
        (
            {"local": three_arguments},
            r"algorithm\.local takes \(message, state, oracle\); expected",
        ),
        ({"init": lambda params: params}, r"algorithm\.init returns dict.*attribute params is"),
        (
            {"init": lambda params: Pair(params, "a")},
            r"init returns \.total 'a'; expected an array",
        ),
        ({"init_client": lambda params: "a"}, r"init_client returns 'a'; expected an array"),
        (
            {"broadcast": lambda state: state.params},
            r"broadcast takes \(state\); expected \(state,",
        ),
        (
            {"local": lambda message, state, oracle, work: (message["v"], state)},
            r"algorithm\.local fails for \(message, state, oracle, work\) \(KeyError: 'v'\); expec",
        ),
        (
            {"local": lambda message, state, oracle, work: (oracle.gradient(message, 0), state)},
            r"local fails for .* \(AttributeError: 'Oracle' object has no attribute 'gradient'\)",
        ),
        (
            {"local": lambda message, state, oracle, work: (range(work.num_steps), state)},
            r"algorithm\.local fails for .* \(TracerIntegerConversionError: The __index__",
        ),
        (
            {"local": lambda message, state, oracle, work: (abs, state)},
            r"algorithm\.local returns <built-in function abs>; expected an array",
        ),
        (
            {"update": lambda state, mean, round: Pair(mean["v"], state.total)},
            r"algorithm\.update fails for \(state, mean, round\) \(KeyError: 'v'\); expected a fun",
        ),
        (
            {"init": lambda params: Pair(params["v"], 0.0)},
            r"init fails for \(params\) \(KeyError: 'v'",
        ),
        (
            {"init_client": lambda params: params["v"]},
            r"algorithm\.init_client fails for \(params\) \(KeyError: 'v'\)",
        ),
        (
            {"broadcast": lambda state, round: state.model},
            r"algorithm\.broadcast fails for \(state, round\) \(AttributeError: .*'model'\); exp",
        ),
        (
            {"requires": fs.Requires(check=lambda task, timeline: task["clients"])},
            r"requires\.check fails for \(task, timeline\) \(TypeError: ",
        ),
        (
            {"aggregation": "median"},
            "aggregation is 'median'; expected a fedjax_sim.Aggregation, or",
        ),
        ({"selection": "loss"}, "selection is 'loss'; expected a fedjax_sim.Selector, or None"),
    ],
)
def test_broken_contracts_are_refused(change, message):
    setup = fs.Setup(no_data(), TIMELINE, PARAMS)
    for run in (fs.run, fs.simulate, fs.forecast):
        with pytest.raises(ValueError, match=message):
            run(GOOD._replace(**change), setup, KEY)


@pytest.mark.parametrize("total", [1.0, 1, np.float32(1), jnp.asarray(1.0)])
def test_numbers_adopt_the_dtype_of_the_state(total):
    update = GOOD._replace(update=lambda state, mean, round: Pair(mean, total))
    state, _ = execute(update, TIMELINE, PARAMS)
    assert state.server.total.dtype == jnp.float32
    assert state.server.total == 1


def test_one_weight_is_for_all_uploads():
    equal, other = (
        execute(GOOD, TIMELINE, PARAMS, weighting=weighting)[0].server
        for weighting in (fs.uniform_weights, lambda works: 3.0)
    )
    np.testing.assert_array_equal(equal.params["w"], other.params["w"])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones((2, 1), np.float32), r"weighting returns float32\[2, 1\]; expected \[4\], one"),
        (None, r"weighting returns NoneType\(\); expected \[4\]"),
        ("equal", r"weighting returns 'equal'; expected \[4\]"),
        (np.full(4, 1j), r"weighting returns complex\d+\[4\]; expected real numbers"),
    ],
)
def test_weights_of_another_shape_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        execute(GOOD, TIMELINE, PARAMS, weighting=lambda works: weights)


@pytest.mark.parametrize(
    ("convert", "message"),
    [
        (list, r"local returns the state list\(\[0\] float32\[\]\); expected tuple\(\[0\]"),
        (lambda state: (list(state[0]),), r"the state PyTreeDef\(\(\[\*\],\)\); expected Py"),
    ],
)
def test_a_list_is_no_tuple(convert, message):
    nested = ((jnp.zeros(()),),) if "PyTreeDef" in message else (jnp.zeros(()),)
    pair = GOOD._replace(
        init_client=lambda params: nested,
        local=lambda message, state, oracle, work: (message, convert(state)),
    )
    with pytest.raises(ValueError, match=message):
        execute(pair, TIMELINE, PARAMS)


def test_functions_with_options_and_other_callables_pass():
    """Only the number of arguments counts, not their names."""

    class Local:
        def __call__(self, *arguments):
            return arguments[0], arguments[1] + 1

    other = GOOD._replace(local=Local(), update=jax.jit(lambda s, m, r, scale=1.0: s))
    state, _ = execute(other, TIMELINE, PARAMS)
    assert int(state.clients.sum()) == 2 * TIMELINE.mask.sum()


BROKEN = GOOD._replace(update=lambda state, mean, round: state._replace(total=jnp.zeros(1)))


def test_a_broken_algorithm_leaves_no_folder(tmp_path):
    setup = fs.Setup(no_data(), TIMELINE, PARAMS)
    with pytest.raises(ValueError, match=r"\.total float32\[1\]; expected"):
        fs.simulate(BROKEN, setup, KEY, storage=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def doubled(algorithm):
    """The algorithm with twice the mean, which another program computes."""

    def update(state, mean, round):
        return algorithm.update(state, jax.tree.map(lambda x: 2 * x, mean), round)

    return algorithm._replace(update=update)


def test_every_algorithm_is_checked_before_the_first_one_runs(tmp_path, monkeypatch):
    """The check before a run and the compilation share one trace."""
    params = jax.tree.map(lambda x: x[None], PARAMS)
    setup, keys = fs.Setup(no_data(), TIMELINE, params), jax.random.split(KEY, 1)
    algorithms = {"one": GOOD, "two": GOOD._replace(broadcast=lambda s, round: s.params)}
    started = []
    with pytest.raises(ValueError, match=r"\.total float32\[1\]; expected"):
        fs.compare(
            algorithms | {"broken": BROKEN},
            setup,
            keys,
            callbacks=[types.SimpleNamespace(progress=lambda *progress: started.append(progress))],
            storage=tmp_path,
        )
    assert not started
    assert not list(tmp_path.iterdir())

    traced, one_round = [], loops.one_round
    monkeypatch.setattr(loops, "one_round", lambda *x: traced.append(x) or one_round(*x))
    fs.compare(algorithms, setup, keys, storage=tmp_path)
    assert not traced
    changed = {name: doubled(algorithm) for name, algorithm in algorithms.items()}
    fs.compare(changed, setup, keys)
    assert len(traced) == 1  # both trace to the same
