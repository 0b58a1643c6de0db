"""Forms for accelerators, run on the CPU against the ordinary ones."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import compiled

from fedjax_sim.models import digits_cnn
from fedjax_sim.models.convolution.geometry import Geometry
from fedjax_sim.models.convolution.patches import conv_gpu, input_grad_gpu, kernel_grad_gpu
from fedjax_sim.models.convolution.tpu import conv_clients, input_grad_clients, kernel_grad_clients
from fedjax_sim.models.convolution.trilinear import convolve


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("num_clients", [1, 3])
@pytest.mark.parametrize(
    ("strides", "padding", "dilation"),
    [
        ((1, 1), ((0, 0), (0, 0)), (1, 1)),
        ((2, 1), ((1, 0), (2, 1)), (1, 2)),
        ((1, 1), ((2, 1), (0, 2)), (1, 1)),  # outputs larger than images
    ],
)
def test_convolutions_of_clients(num_clients, strides, padding, dilation):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_clients, 2, 8, 7, 3))
    w = rng.standard_normal((num_clients, 3, 2, 3, 4))
    g = Geometry((8, 7), (3, 2), strides, padding, dilation, None, lambda setting: "gemm")

    @compiled
    def both(x, w):
        out, transpose = jax.vjp(jax.vmap(lambda x, w: convolve(x, w, g)), x, w)
        z = jnp.cos(out)
        tpu = conv_clients(x, w, g), input_grad_clients(z, w, g), kernel_grad_clients(x, z, g)
        gpu = (
            jax.vmap(lambda a, b, compute=compute: compute(a, b, g))(a, b)
            for compute, a, b in ((conv_gpu, x, w), (input_grad_gpu, z, w), (kernel_grad_gpu, x, z))
        )
        return tpu, tuple(gpu), (out, *transpose(z))

    *forms, expected = both(x, w)
    for form in forms:
        for actual, reference in zip(form, expected, strict=True):
            np.testing.assert_allclose(actual, reference, atol=1e-12)


def test_products_of_parts_do_not_outgrow_patches():
    """Kernel gradients on GPUs are sums over parts of a batch, fewer if kernels are wide."""

    def parts(outputs):
        g = Geometry((4, 4), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), None, lambda setting: "gemm")
        x, z = jnp.ones((8, 4, 4, 2)), jnp.ones((8, 4, 4, outputs))
        text = str(jax.make_jaxpr(lambda x, z: kernel_grad_gpu(x, z, g))(x, z))
        return int(re.search(rf"f32\[(\d+),18,{outputs}\] = dot_general", text)[1])

    # 8 images of 16 pixels: 128 rows.
    assert [parts(outputs) for outputs in (4, 16, 32, 64, 200)] == [8, 8, 4, 2, 1]


def test_models_use_blocks_on_tpus_only():
    model = digits_cnn()
    params = jax.eval_shape(model.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((5, 8, 8, 1), jnp.float32)
    text = {
        platform: jax.jit(model.apply)
        .trace(params, x)
        .lower(lowering_platforms=(platform,))
        .as_text()
        for platform in ("cpu", "cuda", "tpu")
    }
    # Of 3 x 3 pixels, 16 to 32 channels: 2 x 2 blocks, 64 to 128 channels.
    found = {
        platform: bool(re.search(r"stablehlo.convolution.*tensor<2x2x64x128xf32>", text[platform]))
        for platform in text
    }
    assert found == {"cpu": False, "cuda": False, "tpu": True}
