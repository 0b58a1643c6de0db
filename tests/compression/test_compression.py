"""Codecs against NumPy, their bits by hand, and algorithms that send through them."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import (
    KEY,
    assert_close,
    assert_identical,
    compiled,
    execute,
    no_data,
    quadratic_task,
    upload_algorithm,
)

import fedjax_sim as fs
from fedjax_sim import compression
from fedjax_sim.compression import Codec, compressed, identity, lattice, luq_codec, qsgd, uniform
from fedjax_sim.compression.lattice import _decode, _encode

EPS = np.finfo(np.float32).eps
SCALED = {"uniform": uniform(5), "qsgd": qsgd(3), "luq": luq_codec()}
ALL = {
    "identity": identity(),
    "lattice": lattice(6, 0.25),
    "stochastic": lattice(6, 0.25, stochastic=True),
    **SCALED,
}


# Shared programs: LLVM's optimisation takes longer than these small arrays need.
THROUGH = {name: compiled(codec.through) for name, codec in ALL.items()}


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def nearest_meaning(code, near, q, cell):
    """The multiple of the cell nearest to ``near`` among code + q m, by trying all m around."""
    points = cell * (code + q * (np.arange(-3, 4) + np.round(near / (q * cell))))
    return points[np.abs(points - near).argmin()]


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(2, 14), st.floats(1e-4, 3.0))
def test_lattice_is_exact_to_half_a_cell_within_its_radius(seed, bits, cell):
    rng = np.random.default_rng(seed)
    q = 2**bits
    y = (10 * rng.normal(size=40)).astype(np.float32)
    x = (y + rng.uniform(-1, 1, 40) * (q * cell / 2 - cell)).astype(np.float32)
    decoded = lattice(bits, cell).through(KEY, jnp.asarray(x), jnp.asarray(y))
    # Quotient by the cell and product with it: three roundings of numbers of the size of x.
    slack = 3 * EPS * (np.abs(x).max() + cell)
    assert np.abs(np.asarray(decoded, float) - x).max() <= cell / 2 + slack


def test_lattice_wraps_beyond_its_radius():
    bits, cell, rng = 5, 0.125, np.random.default_rng(0)
    span = 2**bits * cell
    y = np.round(8 * rng.normal(size=200)) / 8  # binary fractions: everything below is exact
    far = y + (span / 2 + cell) * np.sign(rng.normal(size=200)) * rng.integers(1, 9, 200)
    decoded = np.asarray(lattice(bits, cell).through(KEY, jnp.asarray(far), jnp.asarray(y)), float)
    assert (np.abs(decoded - y) <= span / 2).all()
    wraps = (decoded - far) / span
    assert (wraps != 0).all()
    np.testing.assert_array_equal(wraps, np.round(wraps))


@pytest.mark.slow
@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(2, 12), st.booleans())
def test_lattice_codes_fit_in_their_bits(seed, bits, stochastic):
    """Also those of large and of negative numbers; decoded by a search over all meanings."""
    cell, q = 0.25, 2**bits
    x, y = 50 * normal(seed, 30), normal(seed + 1, 30)
    key = jax.random.key(seed) if stochastic else None
    code = _encode(jnp.asarray(x), bits, cell, key)
    assert set(np.asarray(code).tolist()) <= set(range(q))
    decoded = _decode(code, jnp.asarray(y), bits, cell)
    meant = [nearest_meaning(c, near, q, cell) for c, near in zip(np.asarray(code), y, strict=True)]
    np.testing.assert_array_equal(decoded, np.asarray(meant, np.float32))  # powers of two: exact
    if not stochastic:
        np.testing.assert_array_equal(code, np.round(x / cell).astype(int) % q)
        through = lattice(bits, cell).through(KEY, jnp.asarray(x), jnp.asarray(y))
        np.testing.assert_array_equal(through, decoded)


@pytest.mark.parametrize("outer", ["compressed", "diana"])
def test_codecs_inside_each_other_draw_independently(outer):
    """With the same uniform numbers the mean of both would be 1.25 times the upload.

    Means of 4,000 draws within five standard errors.
    """
    x = jnp.asarray(normal(0, 50))
    inner = compressed(upload_algorithm(lambda message, work: x), qsgd(3))
    if outer == "diana":
        wrapped = fs.diana(inner, compression.natural(), 0.5)
    else:
        wrapped = compressed(inner, compression.natural())
    zero, one = jnp.array(0), jnp.array(1)

    def sent(key):
        work = fs.Work(zero, zero, one, one, zero, key, max_steps=1)
        return wrapped.local(x, wrapped.init_client(x), None, work)[0]

    draws = np.asarray(jax.jit(jax.vmap(sent))(jax.random.split(KEY, 4000)), float)
    error = draws.std(0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(0) - np.asarray(x)) <= 5 * error + 1e-6).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stochastic", *SCALED])
@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_random_codecs_are_unbiased(name, scale):
    draws, x = 4000, jnp.asarray(scale * normal(3, 30))
    codec = lattice(10, 0.7 * scale, stochastic=True) if name == "stochastic" else ALL[name]
    keys = jax.random.split(jax.random.key(7), draws)
    received = compiled(jax.vmap(lambda key: codec.through(key, x, jnp.zeros_like(x))))(keys)
    sent = np.asarray(received, float)
    error = np.abs(sent.mean(axis=0) - np.asarray(x))
    # Five standard errors of the mean, for 30 entries; entries on the grid do not vary.
    assert (error <= 5 * sent.std(axis=0) / np.sqrt(draws) + 4 * EPS * np.abs(x).max()).all()
    assert sent.std(axis=0).max() > 0


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(2, 40))
def test_uniform_rounds_to_its_levels(seed, levels):
    x = normal(seed, 6, 5)
    decoded = np.asarray(uniform(levels).through(jax.random.key(seed), jnp.asarray(x), x))
    unit = (float(x.max()) - float(x.min())) / (levels - 1)
    steps = (decoded - float(x.min())) / unit
    # A few roundings of numbers of the size of x, counted in units.
    slack = 8 * EPS * np.abs(x).max() / unit
    np.testing.assert_allclose(steps, np.round(steps), rtol=0, atol=slack)
    assert -slack <= steps.min() <= steps.max() <= levels - 1 + slack
    assert np.abs(decoded - x).max() < unit * (1 + slack)
    assert decoded.flat[x.argmin()] == x.min()


def test_qsgd_of_tiny_entries_does_not_underflow():
    x = 1e-25 * jnp.array([3.0, -4.0])
    np.testing.assert_allclose(qsgd(5).through(KEY, x, x), x, rtol=4 * EPS)


SHAPES = {
    "w": jax.ShapeDtypeStruct((30, 4), jnp.float32),
    "b": jax.ShapeDtypeStruct((), jnp.bfloat16),
    "count": jax.ShapeDtypeStruct((2,), jnp.int32),
}


@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        (identity(), 120 * 32 + 16 + 64),
        (lattice(14, 1e-4), 121 * 14 + 64),
        (uniform(2**8), 121 * 8 + 2 * 32 + 2 * 16 + 64),
        (uniform(5), 121 * 3 + 2 * 32 + 2 * 16 + 64),
        (qsgd(1), 121 * 2 + 2 * 32 + 64),  # -1, 0, 1; norms are computed in single precision
        (qsgd(7), 121 * 4 + 2 * 32 + 64),  # 15 values
        (qsgd(8), 121 * 5 + 2 * 32 + 64),  # 17 values
        (luq_codec(6), 121 * 4 + 32 + 16 + 64),
        (luq_codec(7), 121 * 5 + 32 + 16 + 64),
    ],
)
def test_bits(codec, expected):
    bits = codec.bits(SHAPES)
    assert type(bits) is int
    assert bits == expected
    assert codec.bits(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), SHAPES)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_codecs_preserve_zeros_dtypes_and_integers(name):
    through = THROUGH[name]
    x = {
        "half": jnp.full((3,), 0.5, jnp.bfloat16),
        "scalar": jnp.array(0.5),
        "empty": jnp.zeros((0, 2)),
        "count": jnp.arange(3),
    }
    zeros = jax.tree.map(jnp.zeros_like, x)
    decoded = through(KEY, x, zeros)
    chex.assert_trees_all_equal_shapes_and_dtypes(decoded, x)
    np.testing.assert_array_equal(decoded["count"], x["count"])
    assert_identical(through(KEY, zeros, zeros), zeros)


@pytest.mark.parametrize("name", ALL)
def test_codecs_in_double_precision(name, x64):
    x = jnp.asarray(normal(0, 20).astype(np.float64))
    assert jax.eval_shape(ALL[name].through, KEY, x, x).dtype == jnp.float64


@pytest.mark.parametrize("name", ["stochastic", *SCALED])
def test_leaves_have_independent_draws(name):
    x = jnp.asarray(normal(0, 200))
    first, second = THROUGH[name](KEY, [x, x], [x, x])
    assert (np.asarray(first) != np.asarray(second)).mean() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_codecs_compile_and_batch(name):
    """Per-tensor scales are per message, not per batch."""
    x = {"w": jnp.asarray(normal(0, 4, 3, 5) * np.array([1, 2, 4, 8], np.float32)[:, None, None])}
    keys = jax.random.split(KEY, 4)
    batched = compiled(jax.vmap(ALL[name].through))(keys, x, x)
    one_by_one = [THROUGH[name](k, {"w": w}, {"w": w}) for k, w in zip(keys, x["w"], strict=True)]
    expected = jax.tree.map(lambda *leaves: jnp.stack(leaves), *one_by_one)
    assert_close(batched, expected, rtol=4 * EPS)  # XLA may contract products and sums


def test_the_cell_may_be_traced():
    x, y = jnp.asarray(normal(0, 20)), jnp.asarray(normal(1, 20))
    cells = jnp.array([0.25, 0.5])
    batched = jax.vmap(lambda cell: lattice(8, cell).through(KEY, x, y))(cells)
    for row, cell in zip(batched, (0.25, 0.5), strict=True):
        np.testing.assert_array_equal(row, lattice(8, cell).through(KEY, x, y))


def test_divergence_passes_through_the_lattice(allow_nans):
    x = jnp.array([jnp.nan, jnp.inf, 1.0])
    decoded = lattice(8, 0.5).through(KEY, x, jnp.zeros(3))
    assert np.isnan(decoded[:2]).all()
    assert decoded[2] == 1


STEPS = np.array([[3, 0, 2, 1], [1, 2, 0, 3]], np.int32)


def timeline(num_steps=STEPS, clients=((4, 1, 6, 2), (0, 5, 3, 7))):
    return fs.Timeline(
        clients=np.array(clients, np.int32),
        version=np.repeat(np.arange(2, dtype=np.int32)[:, None], 4, 1),
        num_steps=num_steps,
        mask=np.ones((2, 4), bool),
        time=np.arange(2.0),
        max_steps=3,
    )


def test_uploads_of_models_are_decoded_near_the_message():
    """The server's model leaves the radius of the lattice, the uploads stay within it."""

    def model_after(message, work):
        return message + 0.3 * work.client.astype(jnp.float32)

    algorithm = upload_algorithm(model_after)._replace(
        update=lambda state, mean, round: state._replace(params=mean)
    )
    algorithm = algorithm.requiring(uploads_models=True)
    codec = lattice(4, 0.5)  # radius 3.75
    start, schedule = jnp.array(100.25), timeline()
    expected = 100.25
    for clients in schedule.clients:
        uploads = expected + 0.3 * np.asarray(clients, np.float64)
        expected = (0.5 * np.round(uploads / 0.5)).mean()
    state, _ = execute(compressed(algorithm, codec), schedule, start)
    assert_close(state.server.params, np.asarray(expected), rtol=4 * EPS)
    state, _ = execute(compressed(algorithm, codec, near=compression.zeros), schedule, start)
    assert abs(float(state.server.params)) <= 4
    # Around `freeze` it is the message inside, the trained part of the model.
    pair = {"own": start, "frozen": jnp.array(1.0)}
    part = algorithm._replace(
        local=lambda message, own, oracle, work: (
            message | {"own": model_after(message["own"], work)},
            own,
        )
    )
    frozen = fs.freeze(part, lambda path, leaf: path[0] == "frozen")
    state, _ = execute(compressed(frozen, codec), schedule, pair)
    assert_close(state.server.params["own"], np.asarray(expected), rtol=4 * EPS)


@pytest.mark.parametrize("wrap", [lambda a: a, fs.skip_nonfinite], ids=["alone", "checked"])
@pytest.mark.parametrize("output", ["server", "mean"])
def test_models_inside_of_an_upload_are_decoded_near_the_message(output, wrap, allow_nans):
    """Beside its model a client of FAVANO sends its progress, or whether all that is finite."""
    hessians, centres = np.broadcast_to(np.eye(2), (4, 2, 2)), 50 + normal(0, 4, 2)
    task = quadratic_task(hessians, centres, 1)
    setup = fs.Setup(task, fs.timelines.full(3, 4, 1), jnp.full(2, 50.0))
    algorithm = fs.favano(0.1, lambda work: jnp.ones(()), output)
    if wrap is fs.skip_nonfinite:  # what is left out adds nothing
        first = fs.robust.attacks.some_clients([0], 4)
        algorithm = wrap(fs.robust.attacks.infinity(algorithm, first))
    codes = compressed(algorithm, lattice(16, 1e-4))  # radius 3.3
    expected, state = (
        compiled(lambda s, a=a: fs.run(a, s, KEY)[0])(setup) for a in (algorithm, codes)
    )
    np.testing.assert_allclose(state.server.params, expected.server.params, atol=1e-3)


@pytest.mark.parametrize(
    ("algorithm", "codec"),
    [
        (fs.fedavg(0.1), lattice(14, 1e-4)),  # 1 is beyond the radius
        (fs.ifca(0.1), compression.random_k(1)),
    ],
    ids=["lattice", "clusters"],
)
def test_whether_an_upload_is_finite_arrives_unchanged(algorithm, codec, allow_nans):
    """Codecs encode what they encode without the wrapper, and one of four uploads is left out."""
    task = quadratic_task(np.ones((4, 1, 1)), normal(0, 4, 1), 1)
    timeline, start = fs.timelines.full(3, 4, 1), jnp.zeros(1)
    others = fs.timelines.remove_clients(timeline, 0)
    bad = fs.robust.attacks.infinity(algorithm, fs.robust.attacks.some_clients([0], 4))
    expected, _ = execute(compressed(algorithm, codec), others, start, task)
    state, _ = execute(compressed(fs.skip_nonfinite(bad), codec), timeline, start, task)
    chex.assert_trees_all_close(state.server.inner, expected.server, atol=4 * EPS)
    assert_close(state.server.left_out, 0.75, rtol=4 * EPS)


def test_differences_of_models_are_decoded_near_zero():
    """FedAvg far from 0: near the message, 100, differences would arrive as others near 100."""
    codec, start, target = lattice(6, 0.125), 100.0, 103.0  # radius 3.94
    task = quadratic_task(np.ones((8, 1, 1)), np.full((8, 1), target), 3)
    state, _ = execute(compressed(fs.fedavg(0.5), codec), timeline(), jnp.array([start]), task)
    x = start
    for steps in STEPS:
        differences = (x - target) * (1 - 0.5 ** np.asarray(steps, np.float64))
        x = x - (0.125 * np.round(differences / 0.125)).mean()
    # Differences of numbers near 100 in single precision, none near a half of a cell.
    assert_close(state.server.params, np.array([x]), rtol=4 * EPS)


@pytest.mark.slow
def test_messages_are_decoded_near_a_client_state_of_their_form():
    """Message 20.3 through a lattice of radius 3.75: near a client's 19 it arrives, near 0 not."""
    codec = lattice(4, 0.5)
    echo = fs.FedAlgorithm(
        init=fs.fedsgd(0.1).init,
        local=lambda message, own, oracle, work: (message, own),
        update=lambda state, mean, round: state._replace(params=mean),
    )
    models = echo._replace(init_client=lambda params: jnp.array(19.0))
    counts = echo._replace(init_client=lambda params: jnp.array(19, jnp.int32))
    one = timeline(STEPS)[:1]
    results = [
        float(execute(compressed(a, identity(), down=codec), one, jnp.array(20.3))[0].server.params)
        for a in (models, counts, echo)
    ]
    assert results == [20.5, -3.5, -3.5]  # 41 cells; 41 mod 16 = 9 = -7 mod 16


@pytest.mark.parametrize("codec", [identity(), lattice(24, 2.0**-20)])
def test_an_exact_codec_changes_nothing(codec):
    """Binary fractions of at least a cell, within the radius: the lattice has them all."""

    def model_after(message, work):
        return message + 0.125 * work.num_steps.astype(jnp.float32)

    algorithm = upload_algorithm(model_after)
    plain = execute(algorithm, timeline())
    assert_identical(execute(compressed(algorithm, codec, codec), timeline()), plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_visits_without_steps_send_nothing(name):
    """A difference of models that is zero stays zero."""
    params, task = (
        jnp.asarray(normal(1, 3)),
        quadratic_task(np.ones((8, 1, 1)) * np.eye(3), np.zeros((8, 3)), 3),
    )
    algorithm = compressed(fs.fedavg(0.5), ALL[name], near=compression.zeros)
    still = timeline(np.zeros((2, 4), np.int32))
    state, _ = execute(algorithm, still, params, task)
    assert_identical(state.server.params, params)
    moved, _ = execute(algorithm, timeline(), params, task)
    assert not np.array_equal(moved.server.params, params)


@pytest.mark.slow
def test_draws_do_not_depend_on_the_cohort():
    """Neither on how it is executed, nor on who else is in it, nor on the slot."""

    def constant(message, work):
        return message + 0.3

    codec = lattice(12, 1.0, stochastic=True)
    probes = fs.Probes(client={"upload": lambda visit: visit.upload})
    algorithm = compressed(upload_algorithm(constant), codec, near=compression.zeros)
    start = jnp.full(50, 0.25)

    def uploads(schedule, execution):
        history = execute(algorithm, schedule, start, execution=execution, probes=probes)[1]
        return history.probes["upload"]

    first = uploads(timeline(), fs.execution.vmapped())
    assert_identical(uploads(timeline(), fs.execution.sequential())[0], first[0])
    others = timeline(clients=((2, 3, 4, 0), (1, 5, 6, 7)))
    moved = uploads(others, fs.execution.chunked(2))
    np.testing.assert_array_equal(moved[0, 2], first[0, 0])  # client 4
    np.testing.assert_array_equal(moved[0, 0], first[0, 3])  # client 2
    assert len(np.unique(np.asarray(first[0]), axis=0)) == 4


def test_a_codec_is_any_pair_of_functions():
    codec = Codec(lambda key, x, near: jax.tree.map(jnp.round, x), lambda x: 0)
    algorithm = compressed(upload_algorithm(lambda message, work: jnp.array(1.6)), codec)
    assert float(execute(algorithm, timeline())[0].server.params) == 4


@pytest.mark.parametrize("wrapper", [compressed, fs.ef14])
def test_a_codec_must_keep_the_form(wrapper):
    halves = Codec(
        lambda key, x, near: jax.tree.map(lambda v: v.astype("float16"), x),
        lambda x: 0,
        "contraction",
    )
    algorithm = wrapper(upload_algorithm(lambda message, work: jnp.array(1.6)), halves)
    with pytest.raises(ValueError, match=r"returns float16\[\]; expected float32\[\], the form of"):
        execute(algorithm, timeline())


def eight_bits(x):
    return 8 * sum(leaf.size for leaf in jax.tree.leaves(x))


def kept(x):
    return jax.tree.map(jnp.zeros_like, x)


MEMORY = compression.StatefulCodec(kept, lambda key, x, m: (x, m), eight_bits, "contraction")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"through": lambda key, x, m: (x[:1], m)},
            r"through returns float32\[1\]; expected float32\[2",
        ),
        (
            {"through": lambda key, x, m: (x.sum(), m)},
            r"returns float32\[\]; expected float32\[2\]",
        ),
        (
            {"through": lambda key, x, m: (x.astype("float16"), m)},
            r"through returns float16\[2\]; expected float32\[2\]",
        ),
        (
            {"through": lambda key, x, m: x},
            r"returns float32\[2\]; expected a pair \(decoded x, memo",
        ),
        (
            {"through": lambda key, x, m: (x["w"], m)},
            r"codec\.through fails for \(key, x, memory\)",
        ),
        (
            {"through": lambda key, x: x},
            r"codec\.through takes \(key, x\); expected \(key, x, memory",
        ),
        ({"init": lambda: ()}, r"codec\.init takes \(\); expected \(x\)"),
        ({"bits": 16}, r"codec\.bits is 16; expected a function of \(x\)"),
    ],
)
@pytest.mark.parametrize("wrap", [fs.ef14, fs.ef21, fs.ef21_p])
def test_codecs_with_memory_keep_the_form(wrap, parts, message):
    """A vector of another shape was broadcast, one in half precision was averaged as it was."""
    sent = upload_algorithm(lambda message, work: jnp.ones(2))

    def run():
        execute(wrap(sent, MEMORY._replace(**parts)), timeline(), jnp.zeros(2))

    with pytest.raises(ValueError, match=message):
        run()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"through": lambda key, x: x},
            r"codec\.through takes \(key, x\); expected \(key, x, near\)",
        ),
        ({"through": 3}, r"codec\.through is 3; expected a function of \(key, x, near\)"),
        ({"bits": lambda: 3}, r"codec\.bits takes \(\); expected \(x\)"),
    ],
)
def test_functions_of_codecs_take_their_arguments(parts, message):
    with pytest.raises(ValueError, match=message):
        compressed(fs.fedavg(0.1), identity()._replace(**parts))
    with pytest.raises(ValueError, match=message.replace("codec", "down")):
        compressed(fs.fedavg(0.1), identity(), down=identity()._replace(**parts))


@pytest.mark.parametrize(
    ("bits", "message"),
    [
        (lambda x: 2.5, "is 2.5; expected an integer"),
        (lambda x: -8, "is -8; expected at least 0"),
        (lambda x: "8", "is '8'; expected an integer"),
        (lambda x: None, "is None; expected an integer"),
        (lambda x: x["w"], r"fails for \. float32\[2\] \(TypeError: .*; expected a function"),
    ],
)
def test_bits_are_counts(bits, message, tmp_path):
    """Files had a negative number of bits, a text, or none."""
    setup = fs.Setup(no_data(), timeline(), jnp.zeros(2))
    sent = upload_algorithm(lambda message, work: jnp.ones(2))
    algorithm = compressed(sent, identity()._replace(bits=bits))
    with pytest.raises(ValueError, match=rf"algorithm\.requires\.bits\.upload.* {message}"):
        fs.simulate(algorithm, setup, KEY, storage=tmp_path / "run")


def test_the_vector_near_an_upload_has_its_form():
    """The lattice decoded near a vector of one entry, which was broadcast."""
    sent = upload_algorithm(lambda message, work: jnp.ones(2))
    algorithm = compressed(sent, lattice(6, 0.25), near=lambda message, upload: upload[:1])
    with pytest.raises(ValueError, match=r"near has shape \(1,\); expected \(2,\), as the upload"):
        execute(algorithm, timeline(), jnp.zeros(2))
    unnamed = compressed(sent, lattice(6, 0.25), near=lambda message, upload: message["v"])
    with pytest.raises(ValueError, match=r"^near fails for \(message, upload\) \(TypeError: "):
        execute(unnamed, timeline(), jnp.zeros(2))
    with pytest.raises(ValueError, match=r"near takes \(upload\); expected \(message, upload\)"):
        compressed(sent, lattice(6, 0.25), near=lambda upload: upload)
