"""The workloads of the speed benchmark: random data, FedAvg, plain SGD, uniform averaging."""

import math
from typing import NamedTuple

import numpy as np


class Workload(NamedTuple):
    """One round: ``cohort`` of ``clients`` do ``epochs`` passes of ``batch`` over ``examples``."""

    model: str  # softmax, logistic, femnist, lenet, lenet-wide or resnet18
    shape: tuple[int, ...]  # one example
    classes: int  # 1: a binary logit
    clients: int
    cohort: int
    examples: int  # per client
    batch: int
    epochs: int
    parameters: int
    flops: float  # training one example: forward and backward, multiply-add = 2
    lr: float = 0.01

    @property
    def steps(self) -> int:
        return self.epochs * self.examples // self.batch

    @property
    def steps_per_round(self) -> int:
        return self.cohort * self.steps

    @property
    def flops_per_round(self) -> float:
        return self.flops * self.steps_per_round * self.batch

    @property
    def bytes_per_round(self) -> float:
        """Least memory traffic, in 4-byte words.

        Every minibatch is read once, with its labels.  Every client reads the server's model and
        writes its own, which it keeps in cache.
        """
        minibatches = self.steps_per_round * self.batch * (math.prod(self.shape) + 1)
        return 4 * (minibatches + 2 * self.cohort * self.parameters)


def _flops(first: float, *rest: float) -> float:
    """Returns the operations of a gradient; the first layer has no input gradient."""
    return 2 * 2 * first + 3 * 2 * sum(rest)


WORKLOADS = {
    "W1": Workload("softmax", (784,), 10, 1000, 100, 60, 20, 10, 7850, _flops(784 * 10)),
    "W2": Workload(
        "femnist",
        (28, 28, 1),
        62,
        100,
        10,
        100,
        20,
        1,
        320 + 18_496 + 1_179_776 + 7_998,
        _flops(26 * 26 * 32 * 9, 24 * 24 * 64 * 288, 9216 * 128, 128 * 62),
    ),
    "W3": Workload(
        "lenet",
        (32, 32, 3),
        10,
        100,
        10,
        500,
        50,
        5,
        456 + 2_416 + 48_120 + 10_164 + 850,
        _flops(28 * 28 * 6 * 75, 10 * 10 * 16 * 150, 400 * 120, 120 * 84, 84 * 10),
    ),
    "W4": Workload("logistic", (123,), 1, 1000, 1000, 32, 8, 4, 124, _flops(123)),
}

# Of the FedSWA paper's Table 2, on images of CIFAR-100's shape; a stage's first block has stride 2.
_STAGES = ((64, 32 * 32), (128, 16 * 16), (256, 8 * 8), (512, 4 * 4))
_BLOCKS = [
    pixels * 9 * channels * inputs
    for number, (channels, pixels) in enumerate(_STAGES)
    for inputs in (channels if number == 0 else channels // 2, *[channels] * 3)
] + [pixels * channels * channels // 2 for channels, pixels in _STAGES[1:]]
WIDE = (64, 64), (384, 192)  # channels and units of its LeNet-5
LARGE = {
    "LeNet-5": WORKLOADS["W3"]._replace(
        model="lenet-wide",
        classes=100,
        parameters=4_864 + 102_464 + 614_784 + 73_920 + 19_300,
        flops=_flops(28 * 28 * 64 * 75, 10 * 10 * 64 * 1600, 1600 * 384, 384 * 192, 192 * 100),
    ),
    "ResNet-18": WORKLOADS["W3"]._replace(
        model="resnet18",
        classes=100,
        parameters=11_220_132,
        flops=_flops(32 * 32 * 64 * 27, *_BLOCKS, 512 * 100),
    ),
}
GOALS = LARGE | WORKLOADS


def reduced(w: Workload) -> Workload:
    """Returns the workload with two clients that do two steps of four examples."""
    return w._replace(clients=2, cohort=2, examples=8, batch=4, epochs=1)


def make_data(w: Workload) -> tuple[np.ndarray, np.ndarray]:
    """x float32 ``[clients, examples, *shape]``, y int32 ``[clients, examples]``."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((w.clients, w.examples, *w.shape), dtype=np.float32)
    y = rng.integers(0, max(w.classes, 2), (w.clients, w.examples)).astype(np.int32)
    return x, y
