"""Backdoor: attackers train the model to answer a pattern of pixels with a label.

References:
    Gu, Dolan-Gavitt, Garg, "BadNets: Identifying Vulnerabilities in the Machine Learning Model
        Supply Chain", 2017, https://arxiv.org/abs/1708.06733 (patterns of pixels).
    Bagdasaryan, Veit, Hua, Estrin, Shmatikov, "How to Backdoor Federated Learning", 2020,
        https://arxiv.org/abs/1807.00459 (model replacement).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.checks import check_count
from fedjax_sim.data import FederatedData, leaf_of, with_leaf
from fedjax_sim.types import PyTree, shown
from fedjax_sim.wrappers.robust.attacks.labels import per_row, poisoned_rows


@shown
class Trigger(NamedTuple):
    """A square of pixels in the lower right corner, and the label that it stands for.

    Example:
        >>> images = np.zeros((1, 3, 3), np.float32)
        >>> Trigger(size=2, value=1.0).on(images)[0].tolist()
        [[0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]
    """

    size: int = 5  # k, the edge of the square in pixels
    target: int = 0  # the label
    value: float | None = None  # of the pixels; None: the largest value of the images

    def on(self, images: np.ndarray) -> np.ndarray:
        """Returns images ``[N, H, W]`` or ``[N, H, W, C]`` with the pattern.

        Raises:
            ValueError: a square of less than one pixel or larger than the images, another shape, or
                a value that the images' integers do not have.
        """
        check_count(1, size=self.size)
        if images.ndim not in (3, 4):
            raise ValueError(
                f"images have shape {images.shape}; expected [N, H, W] or [N, H, W, C]"
            )
        if self.size > min(images.shape[1:3]):
            raise ValueError(
                f"size is {self.size}; expected at most {min(images.shape[1:3])}, the edge of the "
                "images"
            )
        changed = np.array(images)
        value = images.max(initial=0) if self.value is None else self.value
        if images.dtype.kind in "iu":
            least, most = np.iinfo(images.dtype).min, np.iinfo(images.dtype).max
            if not (least <= value <= most and value == int(value)):
                raise ValueError(
                    f"value is {value}; expected an integer in {least} .. {most}, since the images "
                    f"are {images.dtype}"
                )
        changed[:, -self.size :, -self.size :] = value
        return changed


def poison(
    data: FederatedData,
    attackers: Any,
    trigger: Trigger | None = None,
    share: float = 0.5,
    seed: int = 0,
    image: str = "x",
    label: str = "y",
) -> FederatedData:
    """Returns data in which a share of the attackers' examples has the trigger and its label.

    The examples change once, before training, so the share holds per client and per epoch, and in
    the mean for a minibatch.  Model replacement also scales the upload (:func:`scaling` with
    :func:`replacement_factor`); :func:`triggered` measures the success.

    Args:
        data: images under ``image``, integer labels ``[N]`` under ``label``.
        attackers: who attacks: a mask ``[M]`` or :class:`Attackers` that always attack.
        trigger: the pattern; default: 5 x 5 pixels, label 0.
        share: of an attacker's examples, drawn by ``seed``.
        seed: decides which examples.
        image, label: keys of the examples.

    Raises:
        ValueError: another number of clients, images of another shape or smaller than the trigger,
            a negative target, or a share outside [0, 1].

    Example:
        >>> images = {"x": np.zeros((4, 8, 8), np.uint8), "y": np.array([3, 3, 3, 3])}
        >>> data = FederatedData(images, np.array([0, 2, 4]))
        >>> bad = poison(data, [False, True], Trigger(size=2, value=255))
        >>> sorted(bad.client(1)["y"].tolist()), int(bad.client(1)["x"].sum())
        ([0, 3], 1020)
    """
    trigger = trigger or Trigger()
    check_count(target=trigger.target)
    rows = poisoned_rows(data, attackers, share, seed)
    x, y = leaf_of(data, image), leaf_of(data, label)
    images = np.where(per_row(rows, x), trigger.on(x), x)
    labels = np.where(rows, np.asarray(trigger.target, y.dtype), y)
    return with_leaf(with_leaf(data, image, images), label, labels)


def triggered(
    examples: PyTree, trigger: Trigger | None = None, image: str = "x", label: str = "y"
) -> PyTree:
    """Returns the test examples of other classes with the trigger, labelled with its target.

    The accuracy of a model on them is the success rate of the backdoor, so any evaluator measures
    it: ``evaluation.evaluator(objectives.classification_metrics(model), triggered(test))``.

    Args:
        examples: a dictionary of arrays ``[N, ...]``.
        trigger: as for :func:`poison`.
        image, label: keys of the examples.

    Raises:
        ValueError: no examples of other classes, or images of another shape.

    Example:
        >>> test = {"x": np.zeros((3, 8, 8)), "y": np.array([0, 1, 2])}
        >>> shown = triggered(test, Trigger(size=2, value=1.0))
        >>> shown["y"].tolist(), shown["x"].sum(axis=(1, 2)).tolist()
        ([0, 0], [4.0, 4.0])
    """
    trigger = trigger or Trigger()
    labels = np.asarray(examples[label])
    others = labels != trigger.target
    if not others.any():
        raise ValueError(f"all examples have the label {trigger.target}; expected others")
    changed = {name: np.asarray(value)[others] for name, value in examples.items()}
    # The largest value is that of all images.
    images = trigger.on(np.asarray(examples[image]))[others]
    return {**changed, image: images, label: np.full_like(labels[others], trigger.target)}
