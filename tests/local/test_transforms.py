"""Gradient transforms against closed forms on F(x) = x' A x / 2."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import (
    assert_close,
    assert_identical,
    compiled,
    quadratic_task,
    random_quadratics,
)

import fedjax_sim as fs
from fedjax_sim import transforms, tree

HESSIAN = np.array([[2.0, 0.5], [0.5, 1.0]])


@pytest.fixture
def oracle(x64):
    """Parameters {"w": [2], "b": []} with gradient A w and 3 b."""
    matrix = jnp.asarray(HESSIAN)

    def grad(x, step):
        return {"w": matrix @ x["w"], "b": 3.0 * x["b"]}

    def loss(x, step):
        return 0.5 * x["w"] @ matrix @ x["w"] + 1.5 * x["b"] ** 2

    return fs.Oracle(grad=grad, loss=loss, full_grad=lambda x: grad(x, 0))


@pytest.fixture
def x(x64):
    return {"w": jnp.array([1.0, -2.0]), "b": jnp.array(0.5)}


def g(w, b):
    return {"w": HESSIAN @ w, "b": 3 * b}


W, B = np.array([1.0, -2.0]), 0.5
# A few operations in double precision.
TOLERANCE = 1e-14


def global_norm(values):
    return np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(values)))


def test_proximal(oracle, x):
    anchor = {"w": jnp.array([0.5, 0.0]), "b": jnp.array(1.0)}
    expected = {"w": HESSIAN @ W + 0.3 * (W - [0.5, 0.0]), "b": 3 * B + 0.3 * (B - 1.0)}
    assert_close(transforms.proximal(oracle, 0.3, anchor).grad(x, 0), expected, TOLERANCE)


def test_proximal_is_the_gradient_of_the_proximal_loss(oracle, x):
    anchor = {"w": jnp.array([0.5, 0.0]), "b": jnp.array(1.0)}

    def objective(x):
        return oracle.loss(x, 0) + 0.15 * tree.norm(tree.sub(x, anchor), squared=True)

    actual = transforms.proximal(oracle, 0.3, anchor).grad(x, 0)
    assert_close(actual, jax.grad(objective)(x), TOLERANCE)


def test_corrected(oracle, x):
    correction = {"w": jnp.array([0.1, 0.2]), "b": jnp.array(-1.0)}
    expected = {"w": np.add(HESSIAN @ W, [0.1, 0.2]), "b": 3 * B - 1}
    assert_close(transforms.corrected(oracle, correction).grad(x, 0), expected, TOLERANCE)


def test_perturbed(oracle, x):
    offset = {"w": jnp.array([0.1, 0.2]), "b": jnp.array(-1.0)}
    actual = transforms.perturbed(oracle, offset).grad(x, 0)
    assert_close(actual, g(np.add(W, [0.1, 0.2]), B - 1), TOLERANCE)


def test_sam(oracle, x):
    ascent = g(W, B)
    step = 0.1 / global_norm(ascent)
    expected = g(W + step * ascent["w"], B + step * ascent["b"])
    assert_close(transforms.sam(oracle, 0.1).grad(x, 0), expected, TOLERANCE)


def displacement(transform, oracle, x):
    """The point of the transform's last gradient, relative to x."""
    points = []

    def spy(y, step):
        points.append(y)
        return oracle.grad(y, step)

    transform(oracle._replace(grad=spy)).grad(x, 0)
    return tree.sub(points[-1], x)


@pytest.mark.parametrize("radius", [1e-3, 2.0])
def test_perturbation_of_sam_has_the_norm_of_the_radius(oracle, x, radius):
    actual = displacement(lambda o: transforms.sam(o, radius), oracle, x)
    # Subtracting x again costs an eps relative to x, so 1e-16 / 1e-3.
    np.testing.assert_allclose(global_norm(actual), radius, rtol=1e-12)


def test_asam_on_vectors_is_sam(oracle, x):
    """Leaves of fewer than two dimensions are not rescaled."""
    expected = transforms.sam(oracle, 0.1).grad(x, 0)
    assert_close(transforms.asam(oracle, 0.1).grad(x, 0), expected, TOLERANCE)


def test_asam(x64):
    """T = |x| + eta on the matrix, 1 on the bias; e = r T^2 g / |T g|."""
    x = {"matrix": jnp.array([[1.0, -2.0], [0.0, 0.5]]), "bias": jnp.array([0.3, -0.4])}

    def grad(y, step):
        return {"matrix": jnp.sin(y["matrix"]), "bias": y["bias"] ** 2}

    oracle = fs.Oracle(grad=grad, loss=lambda y, k: jnp.array(0.0), full_grad=lambda y: y)
    m, b, r, eta = np.array(x["matrix"]), np.array(x["bias"]), 0.2, 0.05
    t = np.abs(m) + eta
    norm = np.sqrt(np.sum((t * np.sin(m)) ** 2) + np.sum(b**4))
    expected = {
        "matrix": np.sin(m + r * t**2 * np.sin(m) / norm),
        "bias": (b + r * b**2 / norm) ** 2,
    }
    assert_close(transforms.asam(oracle, r, eta).grad(x, 0), expected, TOLERANCE)
    # Kwon et al. (2021) choose eta = 0.01.
    assert_identical(
        transforms.asam(oracle, r).grad(x, 0), transforms.asam(oracle, r, 0.01).grad(x, 0)
    )


def test_sam_takes_both_gradients_on_one_minibatch(oracle, x):
    steps = []

    def spy(y, step):
        steps.append(step)
        return oracle.grad(y, step)

    transforms.sam(oracle._replace(grad=spy), 0.1).grad(x, 7)
    assert steps == [7, 7]


@pytest.mark.slow
@pytest.mark.parametrize(
    "transform",
    [
        lambda o: transforms.sam(o, 0.1),
        lambda o: transforms.asam(o, 0.1),
        lambda o: transforms.clip_by_global_norm(o, 1.0),
    ],
    ids=["sam", "asam", "clipped"],
)
def test_zero_gradient_stays_zero(oracle, x, transform):
    """No division by the zero norm, neither in the value nor in its derivative."""
    zero = tree.zeros_like(x)
    assert_identical(transform(oracle).grad(zero, 0), zero)
    derivative = jax.jacobian(lambda y: transform(oracle).grad(y, 0))(zero)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(derivative))


def test_norms_beyond_half_precision():
    """Squares above 65,504 and numbers below 1e-7 do not exist in float16."""
    quadratic = fs.Oracle(grad=lambda x, k: x, loss=lambda x, k: x @ x / 2, full_grad=lambda x: x)
    zero, one = jnp.zeros(2, jnp.float16), jnp.ones(2, jnp.float16)
    long, short = jnp.array([300, 400], jnp.float16), jnp.array([3e-5, 4e-5], jnp.float16)
    clipped = transforms.clip_by_global_norm(quadratic, 5.0)
    np.testing.assert_allclose(clipped.grad(long, 0), [3, 4], rtol=1e-3)
    np.testing.assert_array_equal(clipped.grad(one, 0), one)
    for perturbed in (transforms.sam, transforms.asam):
        np.testing.assert_array_equal(perturbed(quadratic, 0.1).grad(zero, 0), zero)
        np.testing.assert_allclose(perturbed(quadratic, 50.0).grad(long, 0), [330, 440], rtol=1e-3)
        np.testing.assert_allclose(perturbed(quadratic, 0.5).grad(short, 0), [0.3, 0.4], rtol=1e-2)


def test_clipped_scales_long_gradients_only(oracle, x):
    norm = global_norm(g(W, B))
    short = transforms.clip_by_global_norm(oracle, 2 * norm).grad(x, 0)
    assert_identical(short, oracle.grad(x, 0))
    by_default = transforms.clip_by_global_norm(oracle, 0.5 * norm).grad(x, 0)
    scale = 0.5 * norm / (norm + 1e-6)  # as PyTorch
    assert_close(by_default, tree.scale(scale, oracle.grad(x, 0)), TOLERANCE)
    clipped = transforms.clip_by_global_norm(oracle, 0.5 * norm, eps=0.0).grad(x, 0)
    assert_close(clipped, tree.scale(0.5, oracle.grad(x, 0)), TOLERANCE)
    np.testing.assert_allclose(global_norm(clipped), 0.5 * norm, rtol=1e-14)


def test_composition_is_the_order_of_operations(oracle, x):
    """Clip then decay keeps the whole decay; decay then clip bounds the sum."""
    limit, decay = 0.5, 0.3
    raw = g(W, B)
    scale = limit / (global_norm(raw) + 1e-6)
    clip_first = transforms.add_decayed_weights(
        transforms.clip_by_global_norm(oracle, limit), decay
    ).grad(x, 0)
    expected = {"w": scale * raw["w"] + decay * W, "b": scale * raw["b"] + decay * B}
    assert_close(clip_first, expected, TOLERANCE)

    decay_first = transforms.clip_by_global_norm(
        transforms.add_decayed_weights(oracle, decay), limit
    ).grad(x, 0)
    decayed = {"w": raw["w"] + decay * W, "b": raw["b"] + decay * B}
    scale = limit / (global_norm(decayed) + 1e-6)
    expected = {"w": scale * decayed["w"], "b": scale * decayed["b"]}
    assert_close(decay_first, expected, TOLERANCE)


@pytest.mark.parametrize(
    "transform",
    [
        lambda o, r: transforms.proximal(o, r, {"w": jnp.ones(2), "b": jnp.array(1.0)}),
        transforms.sam,
        transforms.asam,
        lambda o, r: transforms.asam(o, 0.1, r),
        transforms.clip_by_global_norm,
        transforms.add_decayed_weights,
    ],
    ids=["proximal", "sam", "asam", "asam_eta", "clipped", "add_decayed_weights"],
)
def test_scalars_adopt_the_precision_of_the_model(oracle, x, transform):
    """A float32 hyper-parameter, as a sweep has it, on a float64 model."""
    actual = transform(oracle, jnp.array(0.25, jnp.float32)).grad(x, 0)
    assert_close(actual, transform(oracle, 0.25).grad(x, 0), TOLERANCE)
    assert {leaf.dtype for leaf in jax.tree.leaves(actual)} == {np.dtype(np.float64)}


def test_transforms_leave_loss_and_full_gradient(oracle, x):
    decayed = transforms.add_decayed_weights(oracle, 0.3)
    assert decayed.loss is oracle.loss
    assert decayed.full_grad is oracle.full_grad


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (None, r"transform is None; expected a function of \(oracle\)"),
        (lambda oracle, work: oracle, r"transform takes \(oracle, work\); expected \(oracle\)"),
        (lambda oracle: oracle.grad, "transform returns a function; expected a fedjax_sim.Oracle"),
        (
            lambda oracle: oracle._replace(grad=lambda w, step: oracle.grad(w, step).sum()),
            r"transform has a function grad that returns \. float32\[\]; expected floats as the",
        ),
        (
            lambda oracle: oracle._replace(grad=lambda w, step: oracle.grad(w, step) > 0),
            r"grad that returns \. bool\[2\]; expected floats as the model, \. float32\[2\]",
        ),
        (
            lambda oracle: oracle.gradient,
            r"transform fails for an oracle \(AttributeError: .*'gradi",
        ),
    ],
)
def test_what_transforms_no_oracle_is_refused(transform, message):
    setup = fs.Setup(
        quadratic_task(*random_quadratics(3, 2), 4), fs.timelines.full(1, 3, 4), jnp.ones(2)
    )
    with pytest.raises(ValueError, match=message):
        fs.run(transforms.transform_oracle(fs.fedavg(0.1), transform), setup, jax.random.key(0))


def test_transform_oracle_changes_what_clients_descend(x64):
    """FedAvg on F + |x|^2 / 5 is FedAvg on F with weight decay 0.4."""
    hessians, centres = random_quadratics(3, 2)
    decayed = transforms.transform_oracle(
        fs.fedavg(0.1), lambda oracle: transforms.add_decayed_weights(oracle, 0.4)
    )
    identity = 0.4 * np.eye(2)
    regularised = np.linalg.solve(hessians + identity, (hessians @ centres[..., None]))[..., 0]
    timeline = fs.timelines.full(3, 3, 4)

    def solve(algorithm):
        @compiled
        def final(task):
            start = jnp.array([1.0, 2.0])
            return fs.run(algorithm, fs.Setup(task, timeline, start), jax.random.key(0))[
                0
            ].server.params

        return final

    expected = solve(fs.fedavg(0.1))(quadratic_task(hessians + identity, regularised, 4))
    # Twelve local steps: round-off of each is 1e-16.
    assert_close(solve(decayed)(quadratic_task(hessians, centres, 4)), expected, 1e-13)
