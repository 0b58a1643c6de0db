"""Models as pairs of pure functions, and convolutions that stay fast for batched clients."""

from collections.abc import Callable

from fedjax_sim.models.base import Model, from_linen, from_nnx
from fedjax_sim.models.cnn import cnn, digits_cnn, femnist_cnn, lenet5
from fedjax_sim.models.convolution.lowering import (
    Convolution,
    auto,
    blocked,
    canonical,
    im2col,
    lowered,
    winograd,
)
from fedjax_sim.models.convolution.pooling import max_pool
from fedjax_sim.models.dense import (
    Linear,
    Product,
    dense_product,
    logistic_regression,
    mlp,
    softmax_regression,
)
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
from fedjax_sim.models.quantized import Build, Quantizers, low_bit, quantized
from fedjax_sim.models.resnet import resnet, resnet18, resnet20
from fedjax_sim.models.stateful import frozen_statistics
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
    "transformer",
    "vgg11",
    "vit",
    "vit_base16",
    "vit_tiny",
    "winograd",
]

Shape = tuple[int, ...]
BuildModel = Callable[[Shape, int, Convolution], Model]

# Models by name, for --model: shape of the examples it takes (None: any) and its builder from
# (shape, classes, conv).
MODELS: dict[str, tuple[Shape | None, BuildModel]] = {
    "digits_cnn": ((8, 8, 1), lambda _, classes, conv: digits_cnn(classes, conv)),
    "femnist_cnn": ((28, 28, 1), lambda _, classes, conv: femnist_cnn(classes, conv)),
    "lenet5": ((32, 32, 3), lambda _, classes, conv: lenet5(classes, conv=conv)),
    "lstm": ((80,), lambda _, classes, __: lstm(classes, every_position=False)),
    "lstm_sequence": ((80,), lambda _, classes, __: lstm(classes)),
    "mlp": (None, lambda shape, classes, _: mlp(shape, (200, 200), classes)),
    "mlp_small": (None, lambda shape, classes, _: mlp(shape, (64,), classes)),
    "resnet18": ((32, 32, 3), lambda _, classes, conv: resnet18(classes, conv=conv)),
    "resnet20": ((32, 32, 3), lambda _, classes, conv: resnet20(classes, conv=conv)),
    "softmax_regression": (None, lambda shape, classes, _: softmax_regression(shape, classes)),
    "transformer": ((80,), lambda _, classes, __: transformer(classes)),
    "vgg11": ((32, 32, 3), lambda _, classes, conv: vgg11(classes, conv=conv)),
    "vit_tiny": ((32, 32, 3), lambda _, classes, __: vit_tiny((32, 32, 3), classes)),
    "vit_tiny_64": (
        (64, 64, 3),
        lambda _, classes, __: vit_tiny((64, 64, 3), classes, patch_size=8),
    ),
}
