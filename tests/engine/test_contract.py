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
from fedjax_sim.types import Aggregation, Choice, Selector

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
        (
            {"local": lambda message, state, oracle, work: (jnp.full(3, 1j), state)},
            r"algorithm\.local returns an upload with complex\d+\[3\]; expected real floating",
        ),
        (
            {"update": lambda state, mean, round: Pair(fs.tree.sub(state.params, 0.0), 0.0)},
            r"algorithm\.update fails for \(state, mean, round\) \(ValueError: .*; expected a fun",
        ),
    ],
)
def test_broken_contracts_are_refused(change, message):
    setup = fs.Setup(no_data(), TIMELINE, PARAMS)
    for run in (fs.run, fs.simulate, fs.forecast):
        with pytest.raises(ValueError, match=message):
            run(GOOD._replace(**change), setup, KEY)


def first_two(state, candidates, round):
    return Choice(candidates.clients < 2), state


def chosen(**values):
    """A selector that returns other values in its choice."""

    def choose(state, candidates, round):
        two = candidates.clients < 2
        return Choice(**{"chosen": two} | {k: f(candidates) for k, f in values.items()}), state

    return {"choose": choose}


def of_choice(make, state=()):
    """A selector that returns something else than its choice, or another state."""
    return {
        "choose": lambda s, candidates, round: make(candidates.clients < 2, s),
        "init": lambda num_clients: state,
    }


CHOICES = [
    (
        chosen(chosen=lambda c: jnp.argsort(-c.clients)),  # an order is no mask
        r"choose returns chosen int32\[4\]; expected \[4\] booleans",
    ),
    (chosen(chosen=lambda c: jnp.arange(2)), r"returns chosen int32\[2\]; expected \[4\] bool"),
    (chosen(chosen=lambda c: c.clients / 9), r"returns chosen float32\[4\]; expected \[4\] bool"),
    (chosen(chosen=lambda c: jnp.bool_(True)), r"returns chosen bool\[\]; expected \[4\] bool"),
    (chosen(num_steps=lambda c: c.clients / 2), r"num_steps float32\[4\]; expected \[4\] integers"),
    (chosen(num_steps=lambda c: 1), r"returns num_steps int32\[\]; expected \[4\] integers"),
    (
        chosen(factors=lambda c: jnp.ones(4)),
        r"choose returns factors with unbiased=False; expected factors with unbiased=True",
    ),
    (
        chosen() | {"unbiased": True},
        r"choose returns no factors with unbiased=True; expected factors with",
    ),
    (
        chosen(factors=lambda c: jnp.ones(1)) | {"unbiased": True},
        r"returns factors float32\[1\]; expected \[4\] floating numbers",
    ),
    (
        of_choice(lambda two, s: (two, s)),
        r"choose returns tuple\(\[0\] bool\[4\]\); expected a pair",
    ),
    (of_choice(lambda two, s: Choice(two)), r"returns Choice\(\.chosen bool\[4\]\); expected a pa"),
    (
        of_choice(lambda two, s: (Choice(two), jnp.float32(s)), 0),
        r"state with float32\[\]; expected int32",
    ),
    (
        of_choice(lambda two, s: (Choice(two), s.mean()), jnp.zeros(3)),
        r"choose returns a state with float32\[\]; expected float32\[3\], as before",
    ),
    (of_choice(lambda two, s: (Choice(two["a"]), s)), r"choose fails for \(state, candidates, rou"),
    ({"choose": lambda state, candidates: ()}, r"choose takes \(state, candidates\); expected"),
    ({"learn": lambda state: state}, r"selection\.learn takes \(state\); expected \(state, clien"),
    (
        {"init": jnp.zeros, "learn": lambda state, clients, reports, arrived: state.mean()},
        r"selection\.learn returns a state with float32\[\]; expected float32\[8\], as before",
    ),
    ({"init": lambda num_clients: "none"}, r"selection\.init returns 'none'; expected an array"),
    ({"score": lambda *x: "high"}, r"selection\.score returns 'high'; expected an array"),
    ({"score": lambda params: 0.0}, r"selection\.score takes \(params\); expected \(params, oracl"),
    ({"score": lambda *x: x[0]["v"]}, r"selection\.score fails for .* \(KeyError: 'v'\)"),
    ({"report": lambda *x: "high"}, r"selection\.report returns 'high'; expected an array"),
    ({"size": 0}, r"algorithm\.selection\.size is 0; expected at least 1"),
    ({"size": 2.5}, r"algorithm\.selection\.size is 2\.5; expected an integer"),
]


@pytest.mark.parametrize(("parts", "message"), CHOICES)
def test_broken_selectors_are_refused(parts, message):
    algorithm = GOOD._replace(selection=Selector(**{"choose": first_two} | parts))
    with pytest.raises(ValueError, match=message):
        execute(algorithm, TIMELINE, PARAMS)


@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("other", [np.inf, np.nan, -1.0, 1.0])
def test_factors_of_clients_that_are_not_chosen_do_not_count(size, other):
    """As 1 / 0, for clients that are never chosen."""
    factors = chosen(factors=lambda c: jnp.where(c.clients < 2, 2.0, other))
    algorithm = GOOD._replace(selection=Selector(**factors, unbiased=True, size=size))
    state, _ = execute(algorithm, TIMELINE, {"w": jnp.ones(3)})
    # In the first round factors of 2 for a half of the clients; nobody is chosen in the second.
    assert state.server.params["w"].tolist() == [1.0] * 3


@pytest.mark.parametrize("size", [2, np.int64(2), jnp.int32(2)])
def test_sizes_of_selections_are_integers_of_any_kind(size):
    algorithm = GOOD._replace(selection=Selector(first_two, size=size))
    state, _ = execute(algorithm, TIMELINE, PARAMS)
    assert state.selection.visits.sum() == 2


@pytest.mark.parametrize(
    "parts",
    [
        chosen(factors=lambda c: jnp.array([3.0, -1.0, 1.0, 1.0])) | {"unbiased": True},
        chosen(num_steps=lambda c: jnp.array([1, -1, 1, 1])),
    ],
    ids=["factor", "steps"],
)
def test_negative_factors_and_steps_of_a_selector_make_the_model_nan(parts):
    """As negative weights do."""
    algorithm = GOOD._replace(selection=Selector(**parts))
    with jax.debug_nans(False):
        state, _ = execute(algorithm, TIMELINE, PARAMS)
    assert np.isnan(state.server.params["w"]).all()
    assert int(state.diverged_at) == 1


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"each": lambda upload: upload}, r"aggregation\.each takes \(upload\); expected \(state,"),
        ({"each": lambda state, upload: "a"}, r"aggregation\.each returns 'a'; expected an array"),
        (
            {"each": lambda state, upload: {"w": upload["w"] > 0}},
            r"aggregation\.each returns an upload with \['w'\] bool\[3\]; expected real floating",
        ),
        ({"each": lambda state, upload: upload["v"]}, r"aggregation\.each fails for \(state, uplo"),
        ({"check": lambda: None}, r"aggregation\.check takes \(\); expected \(timeline\)"),
        (
            {"check": lambda timeline: {}["a"]},
            r"aggregation\.check fails for \(timeline\) \(KeyErr",
        ),
        ({"check": lambda timeline: check_three(timeline)}, "^timeline has 4 slots; expected 3"),
        ({"num_bytes": 0}, r"aggregation\.num_bytes is 0; expected a function of \(upload, num_"),
    ],
)
def test_broken_aggregations_are_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        execute(GOOD._replace(aggregation=Aggregation(**parts)), TIMELINE, PARAMS)


def check_three(timeline):
    if timeline.cohort_size != 3:
        raise ValueError(f"timeline has {timeline.cohort_size} slots; expected 3")


@pytest.mark.parametrize("stacked", [False, True])
def test_uploads_that_an_aggregation_receives_may_be_codes(stacked):
    """Means are taken after it, or not at all: one bit per entry is an upload, too."""

    def decode(state, upload):
        return jax.tree.map(lambda bit: 2.0 * bit.astype(float) - 1, upload["bits"])

    def update(state, mean, round):
        if stacked:
            mean = jax.tree.map(
                lambda bits: jnp.mean(2.0 * bits.astype(float) - 1, 0), mean.uploads["bits"]
            )
        return Pair(mean, state.total + 1)

    def local(message, state, oracle, work):
        return {"bits": {"w": jnp.broadcast_to(work.client % 4 == 0, (3,))}}, state

    codes = GOOD._replace(
        local=local,
        update=update,
        aggregation=Aggregation(None if stacked else decode),
    )
    state, _ = execute(codes, TIMELINE, {"w": jnp.zeros(3)})
    # Signs 1, -1, -1 and -1 in both rounds.
    assert state.server.params["w"].tolist() == [-0.5] * 3


@pytest.mark.parametrize("num_bytes", ["many", -1, 2.5])
def test_bytes_of_uploads_are_counts(num_bytes):
    setup = fs.Setup(no_data(), TIMELINE, PARAMS)
    counted = Aggregation(lambda state, upload: upload, num_bytes=lambda *x: num_bytes)
    with pytest.raises(ValueError, match=r"algorithm\.aggregation\.num_bytes is .*; expected a"):
        fs.forecast(GOOD._replace(aggregation=counted), setup, KEY, measure=False)


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
        (
            np.ones((2, 1), np.float32),
            r"weighting returns float32\[2, 1\] for 4 visits; expected \[4\], one",
        ),
        (None, r"weighting returns NoneType\(\) for 4 visits; expected \[4\]"),
        ("equal", r"weighting returns 'equal' for 4 visits; expected \[4\]"),
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
