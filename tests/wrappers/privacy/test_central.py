"""``privatize``: what the noise and the clip do to a run, and what is refused before it."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from small_problems import assert_close, compiled

import fedjax_sim as fs
from fedjax_sim.engine.execution import strategies
from fedjax_sim.wrappers.privacy.adaptive import adaptive_clip, upload_noise
from fedjax_sim.wrappers.privacy.clipping import clip_upload, total_clip

NUM_CLIENTS, NUM_ROUNDS = 6, 5
CENTRES = np.arange(NUM_CLIENTS, dtype=np.float32)
PARAMS = {"w": jnp.arange(3.0), "b": jnp.array(0.5)}


def oracle(centres, client, key, max_steps):
    del key, max_steps

    def grad(x, step=0):
        return jax.tree.map(lambda leaf: leaf - centres[client], x)

    return fs.Oracle(grad, lambda x, step: jnp.zeros(()), grad)


def task(centres=CENTRES):
    sizes = np.arange(1, NUM_CLIENTS + 1)
    return fs.Task(Partial(oracle, jnp.asarray(centres)), sizes, np.full(NUM_CLIENTS, 2))


def uniform(size=4, rounds=NUM_ROUNDS):
    return fs.timelines.uniform(jax.random.key(3), rounds, NUM_CLIENTS, size, 2)


def setup(timeline, **kwargs):
    return fs.Setup(task(), timeline, PARAMS, **kwargs)


def private(algorithm=None, clip=1.0, z=1.0, number=4, **kwargs):
    algorithm = algorithm or fs.fedavg(0.1)
    return fs.privacy.privatize(algorithm, clip, z, expected_uploads=number, **kwargs)


def final(algorithm, timeline, execution=None, key=0):
    @compiled
    def go(problem):
        return fs.run(algorithm, problem, jax.random.key(key), execution=execution)[0]

    return go(setup(timeline))


def silent(dim):
    """An algorithm without data: every upload is 0, and the state is the sum of the means."""
    zero = jnp.zeros(dim)
    return fs.FedAlgorithm(
        init=lambda params: fs.RunState(jnp.array(0), params, (), (), ()),
        local=lambda message, state, oracle, work: (zero, state),
        update=lambda state, mean, round: state._replace(server=state.server + mean),
        broadcast=lambda state, round: (),
    )


def noise_of(algorithm, dim, round_key, number=0, uploads=4):
    """The change that one update without uploads makes."""
    state = algorithm.init(jnp.zeros(dim))
    round = fs.Round(jnp.array(number), jnp.array(uploads), NUM_CLIENTS, round_key)
    return np.asarray(algorithm.update(state, jnp.zeros(dim), round).inner.server)


def test_noise_has_the_stated_variance_and_differs_between_rounds_leaves_and_keys():
    dim, z, clip, number = 40_000, 1.5, 0.3, 7
    algorithm = fs.privacy.privatize(silent(dim), clip, z, expected_uploads=number)
    first = noise_of(algorithm, dim, jax.random.key(0))
    second = noise_of(algorithm, dim, jax.random.key(1))
    std = z * clip / number
    # The standard error of a standard deviation is std / sqrt(2 n): 5 of them.
    assert abs(first.std() - std) < 5 * std / np.sqrt(2 * dim)
    assert abs(first.mean()) < 5 * std / np.sqrt(dim)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(dim)


def test_public_count_replaces_the_number_of_uploads():
    """The sum is divided by the public number, whatever arrived; the algorithm sees that one."""
    seen = []
    inner = silent(2)._replace(
        update=lambda state, mean, round: seen.append(round.num_uploads) or mean,
        broadcast=lambda state, round: seen.append(round.num_uploads),
    )
    algorithm = fs.privacy.privatize(inner, 10.0, 0.0, expected_uploads=5.0)
    round = fs.Round(jnp.array(0), jnp.array(3), NUM_CLIENTS, jax.random.key(0))
    state = algorithm.init(jnp.zeros(2))
    result = algorithm.update(state, jnp.array([1.0, 2.0]), round)
    assert_close(result.inner, np.array([3 / 5, 6 / 5]), 1e-6)
    algorithm.broadcast(state, round)
    assert [float(number) for number in seen] == [5.0, 5.0]


@pytest.mark.usefixtures("allow_nans")
def test_sensitivity_by_brute_force_over_neighbouring_client_sets():
    """Sums of clipped uploads of populations that differ in one client, in all three ways."""
    rng = np.random.default_rng(0)
    scale = np.array([0.1, 1.0, 30.0, 1.0, 5.0, 0.5])[:, None]
    uploads = jnp.asarray(rng.normal(size=(2, 6, 4)) * scale, jnp.float32)
    uploads = uploads.at[1, 2].set(-uploads[0, 2])  # the worst replacement
    uploads = uploads.at[0, 5, 0].set(np.nan).at[1, 3].set(np.inf)
    clip, parts = 1.3, {"0": 0.5, "1": 1.2}

    def both(upload):
        return clip_upload(upload, clip), jnp.concatenate(
            clip_upload((upload[:1], upload[1:]), parts)
        )

    joint, by_part = jax.jit(jax.vmap(jax.vmap(both)))(uploads)
    for clipped, bound in ((joint, clip), (by_part, float(total_clip(parts)))):
        clipped = np.asarray(clipped, np.float64)
        assert np.isfinite(clipped).all()
        everyone = clipped[0].sum(0)
        removed = [np.delete(clipped[0], i, axis=0).sum(0) - everyone for i in range(6)]
        replaced = [clipped[1, i] - clipped[0, i] for i in range(6)]
        assert np.isclose(np.linalg.norm(removed, axis=1).max(), bound, rtol=1e-5)
        assert np.linalg.norm(replaced, axis=1).max() <= 2 * bound * (1 + 1e-6)
    # The clip of the joint upload is reached exactly under replacement.
    assert np.isclose(np.linalg.norm(joint[1, 2] - joint[0, 2]), 2 * clip, rtol=1e-5)


@pytest.mark.slow
def test_half_precision_is_rounded_after_the_noise():
    """In bfloat16 an entry 1 / sqrt(10) is 1.0006 times as large, and 257 is 256."""
    clipped = clip_upload(jnp.ones(10, jnp.bfloat16), 1.0)
    assert np.linalg.norm(np.asarray(clipped, np.float64)) <= 1 + 1e-6
    law, params = fs.privacy.tree_aggregation(4, efficient=True), jnp.zeros(64, jnp.bfloat16)
    correlated = fs.privacy.privatize(fs.fedavg(1.0), 1.0, 1.0, expected_uploads=1, noise=law)
    assert correlated.init(params).noise.nodes.dtype == jnp.float32
    algorithm = fs.privacy.privatize(fs.fedavg(1.0), 1.0, 0.01, expected_uploads=1)
    now = fs.Round(jnp.array(0), jnp.array(1), 9, jax.random.key(0))
    model = algorithm.update(algorithm.init(params), jnp.full(64, 257.0), now).params
    # With noise of std 0.01 the sum becomes 256 or 258; without, 257 would always become 256.
    assert model.dtype == jnp.bfloat16
    assert {*np.asarray(model, float)} == {-256.0, -258.0}


def test_weights_by_examples_stay_below_one_and_multiply_after_the_clip():
    inner = silent(2)._replace(
        local=lambda message, state, oracle, work: (jnp.array([3.0, 4.0]), state)
    )
    algorithm = private(inner, clip=0.5, z=0.0, most_examples=4.0)
    zero, key = jnp.array(0, jnp.int32), jax.random.key(0)
    for examples, weight in ((2, 0.5), (9, 1.0)):
        work = fs.Work(zero, zero, zero, zero + examples, zero, key, max_steps=2)
        upload, _ = algorithm.local((), (), None, work)
        assert_close(upload, weight * np.array([0.3, 0.4]), 1e-6)


def test_adaptive_clip_follows_the_quantile_of_the_norms():
    """Norms 1 .. 10: the median lies between 5 and 6."""
    rule = adaptive_clip(0.5, lr=0.5, initial=0.5, count_std=1e-6)
    norms = jnp.arange(1.0, 11.0)
    uploads = jnp.eye(10) * norms[:, None]
    algorithm = fs.privacy.privatize(silent(10), rule, 0.0, expected_uploads=10)
    inner = silent(10)._replace(local=lambda message, state, oracle, work: (oracle, state))
    local = fs.privacy.privatize(inner, rule, 0.0, expected_uploads=10).local

    def round(state, t):
        now = fs.Round(t, jnp.array(10), 10, jax.random.fold_in(jax.random.key(0), t))
        message = algorithm.broadcast(state, now)
        sent = jax.vmap(lambda upload: local(message, (), upload, None)[0])(uploads)
        mean = jax.tree.map(lambda x: x.mean(0), sent)
        return algorithm.update(state, mean, now), (state.clip, fs.tree.norm(sent.upload))

    state, (clips, sizes) = jax.lax.scan(round, algorithm.init(jnp.zeros(10)), jnp.arange(60))
    assert_close(clips[:2], np.array([0.5, 0.5 * np.exp(0.25)]), 1e-6)  # none is below at first
    assert 5 <= float(state.clip) <= 6
    assert_close(sizes[0], 0.5 * np.sqrt(10), 1e-5)


def test_without_noise_the_adaptive_clip_does_not_depend_on_the_key():
    algorithm = fs.privacy.privatize(silent(3), adaptive_clip(0.5), 0.0, expected_uploads=4)
    state = algorithm.init(jnp.zeros(3))
    clips = set()
    for key in jax.random.split(jax.random.key(0), 3):
        now = fs.Round(jnp.array(0), jnp.array(4), 4, key)
        sent, _ = algorithm.local(algorithm.broadcast(state, now), (), None, None)
        clips.add(float(algorithm.update(state, sent, now).clip))
    assert len(clips) == 1


@pytest.mark.parametrize(("uploads", "expected"), [(50, 1.020621), (1000, 1.000050)])
def test_adaptive_clipping_gives_the_uploads_more_noise(uploads, expected):
    assert upload_noise(adaptive_clip(), 1.0, uploads) == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedadam"])
def test_without_noise_and_clip_the_run_is_the_inner_one(name):
    inner = {
        "fedavg": fs.fedavg(0.1),
        "scaffold": fs.scaffold(0.1),
        "fedadam": fs.fedadam(0.1, 0.1),
    }
    plain = final(inner[name], uniform())
    kept = final(private(inner[name], np.inf, 0.0), uniform())
    assert_close(kept.server.inner, plain.server, 2e-6)
    assert_close(kept.clients, plain.clients, 2e-6)


@pytest.mark.slow
def test_execution_strategies_agree():
    """With the same noise: it depends on the key of the round only."""
    timeline = fs.timelines.dropout(jax.random.key(5), uniform(), 0.25)
    algorithm = private(fs.scaffold(0.1), adaptive_clip(initial=0.5, count_std=2.0), 1.0, 3.0)
    base = final(algorithm, timeline, strategies.vmapped())
    mesh = jax.make_mesh((2,), ("clients",), devices=jax.devices()[:2])
    for execution in (
        strategies.sequential(),
        strategies.chunked(3),
        strategies.sharded(mesh, strategies.chunked(2)),
    ):
        assert_close(final(algorithm, timeline, execution), base, 1e-5)
    assert not np.allclose(
        final(algorithm, timeline, key=1).server.params["w"], base.server.params["w"]
    )


@pytest.mark.slow
def test_private_runs_are_vmapped_over_clip_and_noise():
    @compiled
    def model(clip, z, problem):
        return fs.run(private(clip=clip, z=z), problem, jax.random.key(0))[0].server.params["w"]

    clips, noises = jnp.array([0.5, 2.0]), jnp.array([0.0, 1.0])
    both = jax.vmap(model, (0, 0, None))(clips, noises, setup(uniform()))
    for row, (clip, z) in enumerate(((0.5, 0.0), (2.0, 1.0))):
        alone = final(private(clip=clip, z=z), uniform()).server.params["w"]
        assert_close(both[row], alone, 1e-5)


def test_bad_arguments_are_refused_before_anything_runs():
    for arguments, message in [
        ({"clip": 0.0}, "clip is 0.0; expected a positive number"),
        ({"clip": {"w": 1.0, "b": -1.0}}, r"clip\['b'\] is -1.0; expected a positive number"),
        ({"clip": {}}, "clip has no parts"),
        ({"z": -1.0}, "noise_multiplier is -1.0; expected at least 0"),
        ({"number": 0}, "expected_uploads is 0; expected a positive number"),
        ({"clip": adaptive_clip(), "z": 1.0, "number": 4}, "expected less than 2 count_std = 0.4"),
        ({"clip": np.inf}, "clip is inf; expected a finite one"),
        ({"noise": "tree"}, r"noise is 'tree'; expected a privacy\.NoiseLaw"),
        (
            {"clip": adaptive_clip(count_std=9.0), "most_examples": 2},
            "expected none with an adaptive",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            private(**arguments)
    rounds = uniform()
    with pytest.raises(ValueError, match="expected_uploads is 3; expected 4, the expected number"):
        fs.init(private(number=3), setup(rounds))
    with pytest.raises(
        ValueError, match="weighting is weight_by_examples; expected uniform_weights"
    ):
        fs.init(private(), setup(rounds, weighting=fs.weight_by_examples))
    stale = dataclasses.replace(rounds, max_staleness=2)
    with pytest.raises(
        ValueError, match="staleness of up to 2; expected none: the noise of a round"
    ):
        fs.init(private(clip=adaptive_clip(count_std=2.0)), setup(stale))
    median = strategies.gathered(lambda uploads, weights: uploads)
    with pytest.raises(ValueError, match=r"execution is gathered\(...\); expected the mean"):
        fs.run(private(), setup(rounds), jax.random.key(0), execution=median)
    with pytest.raises(
        ValueError, match="clip has the parts delta; expected those of the upload, b, w"
    ):
        clip_upload(PARAMS, {"delta": 1.0})


@pytest.mark.parametrize(
    "upload",
    [
        collections.OrderedDict(w=jnp.array([3.0, 4.0]), b=jnp.array(1.0)),
        {1: jnp.array([3.0, 4.0]), 0: jnp.array(1.0)},
    ],
    ids=["OrderedDict", "integer keys"],
)
def test_clips_by_part_keep_the_structure_of_dictionaries(upload):
    large, small = upload
    clipped = clip_upload(upload, {str(large): 1.0, str(small): 2.0})
    assert jax.tree.structure(clipped) == jax.tree.structure(upload)
    np.testing.assert_allclose(clipped[large], [0.6, 0.8], rtol=1e-6)
    assert float(clipped[small]) == 1.0
