"""Models as pairs of pure functions, and convolutions that stay fast when clients are batched."""

from fedjax_sim.models.base import Model, from_linen, from_nnx
from fedjax_sim.models.cnn import cnn, digits_cnn, femnist_cnn, femnist_cnn_report, lenet5
from fedjax_sim.models.dense import logistic_regression, mlp, softmax_regression
from fedjax_sim.models.lowering import auto, blocked, canonical, im2col, lowered
from fedjax_sim.models.pooling import max_pool

__all__ = [
    "Model",
    "auto",
    "blocked",
    "canonical",
    "cnn",
    "digits_cnn",
    "femnist_cnn",
    "femnist_cnn_report",
    "from_linen",
    "from_nnx",
    "im2col",
    "lenet5",
    "logistic_regression",
    "lowered",
    "max_pool",
    "mlp",
    "softmax_regression",
]
