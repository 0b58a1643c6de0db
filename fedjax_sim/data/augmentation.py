"""Augmentation of image batches on the device, and normalisation.

A transform is ``(images [B, H, W, C], key) -> images [B, H, W, C]``.  The usual order in
training loops on CIFAR is: crop and flip raw pixels, scale to [0, 1], normalise.  Raw zeros are
black, so the border of a crop is black.  These functions keep that order:

* :func:`transformed` applies random transforms to the raw images before an objective,
* :func:`fedjax_sim.objectives.as_float` in the objective scales uint8 pixels to [0, 1],
* :func:`normalized` adds the normalisation to the model, for training and evaluation.

Test images are only normalised: metrics take no key.

**Draws.**  Example b of a batch has its own words in the key's stream of random bits.  Its draw
depends on the key and on b, not on the size of the batch, on the other examples or on the
execution strategy.  The task draws one key per step of a visit and uses it in all calls at that
step: a second gradient at the same step (SAM) sees the same images.  A full local gradient
transforms every example once, with keys that depend on the task's ``full_grad_batch``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from fedjax_sim.checks import check_count, floating_dtype
from fedjax_sim.data.batches import scaled_words
from fedjax_sim.data.task import Objective
from fedjax_sim.objectives import batch_losses, check_labels, momentum_of, statistics_of
from fedjax_sim.objectives.of_model import momentum_of_training
from fedjax_sim.tree import Where
from fedjax_sim.types import Described, Model, Params, PyTree

Transform = Callable[[Array, Array], Array]  # (images, key) -> images

# Statistics of the CIFAR-10 train pixels / 255, by channel.  The deviations are the usual ones: the
# mean over images of each image's deviation, below that of all pixels together (0.247, ...).
CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2023, 0.1994, 0.2010)


def random_crop(images: Array, key: Array, padding: int = 4) -> Array:
    """Shifts every image by up to ``padding`` pixels in each direction and fills with 0.

    The image with a border of ``padding`` zeros on each side is cut back to its size: with
    ``(i, j)`` uniform on ``{0, ..., 2 padding}^2``, independent between examples,

    ``out[b, r, c] = padded[b, i_b + r, j_b + c]``.

    Args:
        images: ``[B, H, W, C]``, uint8 or floating and finite.  Crop raw pixels: after
            normalisation 0 would be the mean colour.
        key: decides the draws.
        padding: pixels, >= 0.

    Returns:
        ``[B, H, W, C]`` of the images' dtype.

    Raises:
        ValueError: images of another shape or dtype, a negative padding.

    References:
        He et al., "Deep residual learning for image recognition", 2016, section 4.2.

    Example:
        >>> images = jnp.full((2, 3, 3, 1), 9, jnp.uint8)
        >>> out = random_crop(images, jax.random.key(0), padding=1)
        >>> out.shape, out.dtype, sorted(set(out.ravel().tolist()))
        ((2, 3, 3, 1), dtype('uint8'), [0, 9])
    """
    _check_images(images)
    check_count(padding=padding)
    return _selected(images, _shifts(images, key, padding))


def random_flip(images: Array, key: Array) -> Array:
    """Mirrors each image left to right with probability 1/2, independently.

    Args:
        images: ``[B, H, W, C]``, uint8 or floating.
        key: decides the draws.

    Returns:
        ``[B, H, W, C]`` of the images' dtype.

    Raises:
        ValueError: images of another shape or dtype.

    Example:
        >>> images = jnp.broadcast_to(jnp.arange(3.0)[:, None], (20, 1, 3, 1))
        >>> rows = random_flip(images, jax.random.key(0))[:, 0, :, 0].tolist()
        >>> sorted(set(map(tuple, rows)))
        [(0.0, 1.0, 2.0), (2.0, 1.0, 0.0)]
    """
    _check_images(images)
    return jnp.where(_flips(images, key)[:, None, None, None], images[:, :, ::-1], images)


def crop_and_flip(images: Array, key: Array, padding: int = 4) -> Array:
    """:func:`random_crop`, then :func:`random_flip`: the usual augmentation of CIFAR.

    Args:
        images: ``[B, H, W, C]``, as for :func:`random_crop`.
        key: for both.
        padding: pixels by which :func:`random_crop` pads each side.

    Raises:
        ValueError: as :func:`random_crop`.

    Example:
        >>> images = jnp.ones((5, 32, 32, 3), jnp.uint8)
        >>> crop_and_flip(images, jax.random.key(0)).shape
        (5, 32, 32, 3)
    """
    _check_images(images)
    check_count(padding=padding)
    crop_key, flip_key = jax.random.split(key)
    return _selected(images, _shifts(images, crop_key, padding), _flips(images, flip_key))


def normalize(
    images: Array,
    mean: Sequence[float] | float,
    std: Sequence[float] | float,
    dtype: DTypeLike | None = None,
) -> Array:
    """``(images - mean) / std`` by channel; uint8 pixels are divided by 255 first.

    Args:
        images: ``[..., C]``, uint8 or floating.  Floating images are not scaled.
        mean: one number per channel, or one for all.
        std: one positive number per channel, or one for all.
        dtype: floating dtype of the result; default: that of floating images, otherwise
            ``jnp.result_type(float)``.

    Raises:
        ValueError: integers other than uint8, a mean or deviation that is not one number per
            channel, deviations that are not positive, a dtype that is not floating.

    Example:
        >>> images = jnp.array([[0], [255]], jnp.uint8)
        >>> normalize(images, mean=0.5, std=0.25).tolist()
        [[-2.0], [2.0]]
    """
    means, deviations = _statistics(mean, std)
    _check_dtype(images)
    for name, values in (("mean", means), ("std", deviations)):
        if values.shape not in ((), images.shape[-1:]):
            raise ValueError(
                f"{name} has {values.size} numbers; expected one, or {images.shape[-1]}, one for "
                "each channel"
            )
    raw = images.dtype == jnp.uint8
    if dtype is None:
        dtype = jnp.result_type(float) if raw else images.dtype
    dtype = floating_dtype(dtype)
    white = 255 if raw else 1
    centred = images.astype(dtype) - jnp.asarray(white * means, dtype)
    return centred / jnp.asarray(white * deviations, dtype)


def normalized(
    model: Callable[[Params, Array], PyTree] | Model,
    mean: Sequence[float] | float,
    std: Sequence[float] | float,
) -> Any:
    """Model on normalised inputs ``(x - mean) / std``, in training and in evaluation.

    Objectives and metrics of the returned model use the same normalisation (example in
    :func:`transformed`).

    Args:
        model: a :class:`~fedjax_sim.models.Model`, or its function ``apply``.
        mean: as in :func:`normalize`.
        std: as in :func:`normalize`.

    Returns:
        A model, or a function ``apply``.

    Raises:
        ValueError: as :func:`normalize`.

    Example:
        >>> apply = normalized(lambda params, x: params * x, mean=[0.5], std=[0.25])
        >>> apply(jnp.array(2.0), jnp.array([[1.0]])).tolist()
        [[4.0]]
    """
    _statistics(mean, std)
    if isinstance(model, Model):
        train = model.train
        return model._replace(
            apply=normalized(model.apply, mean, std),
            train=None if train is None else _NormalizedTraining(train, mean, std),
        )
    apply = model

    def apply_normalized(params: Params, x: Array) -> PyTree:
        return apply(params, normalize(x, mean, std))

    facts = {name: getattr(apply, name, False) for name in ("trains_otherwise", "takes_adapters")}
    computes_in = getattr(apply, "computes_in", None)
    return Described.of(apply_normalized, **facts, computes_in=computes_in)


@dataclasses.dataclass(frozen=True, eq=False)
class _NormalizedTraining:
    """Function ``train`` of a model on normalised inputs."""

    train: Callable[..., tuple[Any, PyTree]]
    mean: Sequence[float] | float
    std: Sequence[float] | float

    def __call__(self, params: Params, x: Array, key: Array, weights: Array) -> tuple[Any, PyTree]:
        return self.train(params, normalize(x, self.mean, self.std), key, weights)

    def momentum(self, params: Params, x: Any) -> float | None:
        """Returns the largest momentum of the model, if it is known."""
        return momentum_of_training(self.train, params, x)


def transformed(objective: Objective, transform: Transform) -> Objective:
    """Objective on transformed inputs: ``objective(params, {..., "x": transform(x, key)})``.

    The transform and the objective get independent keys.

    Args:
        objective: ``(params, examples, key) -> losses [B]``; examples are a dict with images
            ``"x"``.
        transform: ``(images [B, ...], key) -> images [B, ...]``, such as :func:`crop_and_flip`.

    Returns:
        An objective for :func:`~fedjax_sim.data.task.empirical_task`.

    Raises:
        ValueError: when the objective is called, examples without ``"x"``; before a run, labels
            that the model has no output for.

    Example:
        One round of training with augmentation; evaluation without:

        >>> import fedjax_sim as fs
        >>> from fedjax_sim import evaluation, models, objectives
        >>> examples = {"x": np.zeros((6, 8, 8, 3), np.uint8), "y": np.array([0, 1, 1, 0, 1, 1])}
        >>> data = fs.FederatedData(examples, np.array([0, 3, 6]))
        >>> model = models.softmax_regression((8, 8, 3), num_classes=2)
        >>> apply = normalized(model.apply, CIFAR_MEAN, CIFAR_STD)
        >>> objective = transformed(objectives.cross_entropy(apply), crop_and_flip)
        >>> task = fs.empirical_task(objective, data, fs.epochs(1, batch_size=3))
        >>> timeline = fs.timelines.full(1, 2, task.num_steps)
        >>> params = model.init(jax.random.key(0))
        >>> state, _ = fs.run(fs.fedavg(0.001), fs.Setup(task, timeline, params), jax.random.key(1))
        >>> test = evaluation.evaluator(objectives.classification_metrics(apply), examples)
        >>> bool(test(state.server.params)["loss"] < test(params)["loss"])
        True
    """

    return _Transformed(objective, transform)


@dataclasses.dataclass(frozen=True)
class _Transformed:
    """Objective on transformed inputs."""

    objective: Objective
    transform: Transform

    @property
    def statistics(self) -> Where | None:
        """Predicate of the running statistics."""
        return statistics_of(self.objective)

    def __call__(self, params: Params, examples: PyTree, key: Array) -> Array:
        return self.objective(params, *_transform(self.transform, examples, key))

    def weighted(self, params: Params, examples: PyTree, key: Array, weights: Array) -> Array:
        """Losses of a batch of which examples of weight 0 are no part."""
        examples, key = _transform(self.transform, examples, key)
        return batch_losses(self.objective, params, examples, key, weights)

    def check(self, params: Params, examples: PyTree) -> None:
        """Raises ValueError as the objective without the transform."""
        check_labels(self.objective, params, self._transformed_shapes(examples))

    def momentum(self, params: Params, examples: PyTree) -> float | None:
        """Returns that of the objective without the transform, see ``objectives.momentum_of``."""
        return momentum_of(self.objective, params, self._transformed_shapes(examples))

    def _transformed_shapes(self, examples: PyTree) -> PyTree:
        """Returns the examples with the shape of one transformed input; nothing is computed."""
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), examples)
        key = jax.random.key(0)
        shapes, _ = jax.eval_shape(lambda e, key: _transform(self.transform, e, key), one, key)
        return {**examples, "x": shapes["x"]}


def _transform(transform: Transform, examples: PyTree, key: Array) -> tuple[PyTree, Array]:
    """Returns the transformed examples, and the key of the objective."""
    if not isinstance(examples, dict) or "x" not in examples:
        given = sorted(examples) if isinstance(examples, dict) else type(examples).__name__
        raise ValueError(f"examples is {given}; expected a dict with images under 'x'")
    transform_key, objective_key = jax.random.split(key)
    return {**examples, "x": transform(examples["x"], transform_key)}, objective_key


def _shifts(images: Array, key: Array, padding: int) -> Array:
    """Rows and columns ``[B, 2]`` by which crops are shifted."""
    bits = jax.random.bits(key, (images.shape[0], 2), jnp.uint32)
    return scaled_words(bits, jnp.array(2 * padding + 1)) - padding


def _flips(images: Array, key: Array) -> Array:
    """True for the images that are mirrored, ``[B]``."""
    bits = jax.random.bits(key, (images.shape[0], 1, 1, 1), jnp.uint32)
    return bits[:, 0, 0, 0] >> 31 == 1


def _selected(images: Array, shifts: Array, flips: Array | None = None) -> Array:
    """Images shifted by ``[B, 2]`` pixels, then mirrored where ``flips`` is True."""
    # Products with 0/1 matrices: on a CPU 1.7 times as fast as gathers of pixels and 3 times as
    # fast as batched slices.  Every sum has at most one term, so the products are exact.
    dtype = jnp.float32 if images.dtype == jnp.uint8 else images.dtype
    select = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    rows, columns = (_selectors(shifts[:, axis], images.shape[1 + axis]) for axis in (0, 1))
    if flips is not None:
        columns = jnp.where(flips[:, None, None], columns[:, ::-1], columns)
    cropped = select("bri,bijc->brjc", rows.astype(dtype), images.astype(dtype))
    cropped = select("bsj,brjc->brsc", columns.astype(dtype), cropped)
    return cropped.astype(images.dtype)


def _selectors(shifts: Array, size: int) -> Array:
    """Matrices ``[B, size, size]`` bool that select pixel ``r + shift`` for pixel r, or none."""
    pixels = jnp.arange(size, dtype=jnp.int32)
    return (shifts[:, None] + pixels)[:, :, None] == pixels


def _check_images(images: Array) -> None:
    if images.ndim != 4:
        raise ValueError(f"images has shape {images.shape}; expected [B, H, W, C]")
    _check_dtype(images)


def _check_dtype(images: Array) -> None:
    if images.dtype != jnp.uint8 and not jnp.issubdtype(images.dtype, jnp.floating):
        raise ValueError(f"images has dtype {images.dtype}; expected uint8 or a floating dtype")


def _statistics(
    mean: Sequence[float] | float, std: Sequence[float] | float
) -> tuple[np.ndarray, np.ndarray]:
    means, deviations = np.asarray(mean, np.float64), np.asarray(std, np.float64)
    if not (deviations > 0).all():
        raise ValueError(f"std is {std}; expected positive numbers")
    return means, deviations
