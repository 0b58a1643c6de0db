"""Models as pairs of pure functions, and convolutions that stay fast for batched clients."""

from fedjax_sim.models.base import Model, from_linen, from_nnx
from fedjax_sim.models.cnn import cnn, digits_cnn, femnist_cnn, femnist_cnn_report, lenet5
from fedjax_sim.models.convolution.lowering import auto, blocked, canonical, im2col, lowered
from fedjax_sim.models.convolution.pooling import max_pool
from fedjax_sim.models.dense import logistic_regression, mlp, softmax_regression, torch_uniform
from fedjax_sim.models.lora import (
    ffa_lora_frozen,
    lora,
    lora_frozen,
    merge_lora,
    queries_and_values,
)
from fedjax_sim.models.lstm import lstm
from fedjax_sim.models.precision import in_precision
from fedjax_sim.models.pretrained import LoadedViT, load_vit
from fedjax_sim.models.quantized import Quantizers, low_bit, quantized
from fedjax_sim.models.resnet import resnet, resnet18, resnet20
from fedjax_sim.models.statistics import frozen_statistics
from fedjax_sim.models.transformer import transformer
from fedjax_sim.models.vgg import vgg11
from fedjax_sim.models.vit import vit, vit_base16, vit_tiny

__all__ = [
    "LoadedViT",
    "Model",
    "Quantizers",
    "auto",
    "blocked",
    "canonical",
    "cnn",
    "digits_cnn",
    "femnist_cnn",
    "femnist_cnn_report",
    "ffa_lora_frozen",
    "from_linen",
    "from_nnx",
    "frozen_statistics",
    "im2col",
    "in_precision",
    "lenet5",
    "load_vit",
    "logistic_regression",
    "lora",
    "lora_frozen",
    "low_bit",
    "lowered",
    "lstm",
    "max_pool",
    "merge_lora",
    "mlp",
    "quantized",
    "queries_and_values",
    "resnet",
    "resnet18",
    "resnet20",
    "softmax_regression",
    "torch_uniform",
    "transformer",
    "vgg11",
    "vit",
    "vit_base16",
    "vit_tiny",
]
