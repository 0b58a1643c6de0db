"""Files in every naming, written from known parameters; what they must not contain."""

import functools
import io
import json
import pathlib
import pickle
import tempfile
import zipfile

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_vit
from damage import damaged
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from small_problems import compiled

from fedjax_sim import models

SETTING = {"patch_size": 2, "width": 6, "depth": 2, "heads": 3, "mlp_dim": 10}
SHAPE = (4, 4, 2)
MODEL = models.vit(SHAPE, 3, **SETTING)
load_vit = functools.partial(models.load_vit, heads=SETTING["heads"])


def params_of(model, seed):
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda p: (0.5 * rng.standard_normal(p.shape)).astype(p.dtype), shapes)


KNOWN, GIVEN = params_of(MODEL, 0), params_of(MODEL, 1)
TIMM = reference_vit.timm(KNOWN, 2)


def write(path, tensors):
    """A file in the format of its name."""
    match path.suffix:
        case ".safetensors":
            save_file(
                {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, path
            )
        case ".msgpack":
            path.write_bytes(flax.serialization.msgpack_serialize(tensors))
        case ".npz":
            np.savez(path, **tensors)
    return path


def spelling(name, tensors):
    """The file's name and contents for timm's ``tensors``."""
    match name:
        case "timm":
            return "vit.safetensors", tensors
        case "transformers":
            return "vit.safetensors", reference_vit.transformers(tensors)
        case "transformers, bare":
            return "vit.safetensors", reference_vit.transformers(tensors, prefix="")
        case "flax":
            return "vit.msgpack", reference_vit.flax_tree(tensors)
        case "google":
            return "vit.npz", reference_vit.google(tensors, heads=3)


NAMES = ("timm", "transformers", "transformers, bare", "flax", "google")


def write_as(name, directory, tensors):
    file, contents = spelling(name, tensors)
    return write(directory / file, contents)


def assert_equal(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.mark.parametrize("name", NAMES)
def test_round_trip(name, tmp_path):
    path = write_as(name, tmp_path, TIMM)
    loaded = load_vit(str(path), GIVEN)
    assert loaded.fresh == loaded.unused == ()
    assert_equal(loaded.params, KNOWN)  # only copied
    x = np.random.default_rng(2).standard_normal((3, *SHAPE)).astype(np.float32)
    expected = reference_vit.forward(TIMM, x, heads=3)
    # As in the model's own test.
    np.testing.assert_allclose(compiled(MODEL.apply)(loaded.params, x), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_head_of_other_classes_stays_fresh(name, tmp_path):
    other = params_of(models.vit(SHAPE, 7, **SETTING), 0)
    path = write_as(name, tmp_path, reference_vit.timm(other, 2))
    loaded = load_vit(path, GIVEN)
    assert loaded.fresh == ("head.bias", "head.kernel")
    assert len(loaded.unused) == 2
    assert all("head" in tensor or "classifier" in tensor for tensor in loaded.unused)
    assert_equal(loaded.params, other | {"head": GIVEN["head"]})


@pytest.mark.parametrize("name", NAMES)
def test_file_without_head(name, tmp_path):
    file, contents = spelling(name, TIMM)
    contents = {key: value for key, value in contents.items() if key[:4] not in ("clas", "head")}
    loaded = load_vit(write(tmp_path / file, contents), GIVEN)
    assert loaded.fresh == ("head.bias", "head.kernel")
    assert loaded.unused == ()
    assert_equal(loaded.params, KNOWN | {"head": GIVEN["head"]})


@pytest.mark.parametrize("name", ["transformers", "google"])
def test_layer_before_the_head(name, tmp_path):
    """A pooler belongs to another head: neither is loaded, and both are reported."""
    file, contents = spelling(name, TIMM)
    extra = "pre_logits/kernel" if name == "google" else "vit.pooler.dense.weight"
    contents = contents | {extra: np.zeros((6, 6), np.float32)}
    loaded = load_vit(write(tmp_path / file, contents), GIVEN)
    assert loaded.fresh == ("head.bias", "head.kernel")
    assert extra.removeprefix("vit.") in loaded.unused
    assert len(loaded.unused) == 3
    assert_equal(loaded.params, KNOWN | {"head": GIVEN["head"]})


@pytest.mark.slow
def test_dtypes_are_those_of_the_given_params(tmp_path):
    tensors = {name: tensor.astype(np.float16) for name, tensor in TIMM.items()}
    path = write_as("timm", tmp_path, tensors)
    loaded = load_vit(path, GIVEN)
    assert_equal(
        loaded.params, jax.tree.map(lambda p: p.astype(jnp.float16).astype(p.dtype), KNOWN)
    )
    halves = jax.tree.map(lambda p: p.astype(jnp.bfloat16), GIVEN)
    loaded = load_vit(path, halves).params
    assert {leaf.dtype for leaf in jax.tree.leaves(loaded)} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.slow
def test_bfloat16_file(tmp_path):
    tensors = {name: tensor.astype(jnp.bfloat16) for name, tensor in TIMM.items()}
    loaded = load_vit(write_as("timm", tmp_path, tensors), GIVEN)
    expected = jax.tree.map(lambda p: p.astype(jnp.bfloat16).astype(p.dtype), KNOWN)
    assert_equal(loaded.params, expected)


def cubic(t):
    """Keys' cubic convolution kernel with a = -1/2."""
    t = np.abs(t)
    near, far = 1.5 * t**3 - 2.5 * t**2 + 1, -0.5 * t**3 + 2.5 * t**2 - 4 * t + 2
    return np.where(t < 1, near, np.where(t < 2, far, 0))


def resampling(old, new):
    """The matrix ``[new, old]`` of bicubic interpolation on pixel centres with anti-aliasing."""
    scale = max(old / new, 1)  # where the grid shrinks, the kernel is widened
    centres = (np.arange(new) + 0.5) * old / new - 0.5
    weights = cubic((centres[:, None] - np.arange(old)) / scale)
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize("side", [3, 5, 8])
def test_positions_of_another_image_size(side, tmp_path):
    other = models.vit((2 * side, 2 * side, 2), 3, **SETTING)
    source = params_of(other, 0)
    path = write_as("timm", tmp_path, reference_vit.timm(source, 2))
    loaded = load_vit(path, params_of(models.vit((8, 8, 2), 3, **SETTING), 1))
    assert loaded.fresh == loaded.unused == ()
    positions = np.asarray(source["positions"], np.float64)
    matrix = resampling(side, 4)
    grid = positions[1:].reshape(side, side, 6)
    grid = np.einsum("ik,jl,klc->ijc", matrix, matrix, grid).reshape(16, 6)
    # Sums of up to 64 float32 products of order one.
    np.testing.assert_allclose(loaded.params["positions"], [positions[0], *grid], rtol=0, atol=1e-5)
    assert_equal(loaded.params["blocks"], source["blocks"])


def test_positions_without_a_square_grid(tmp_path):
    path = write_as("timm", tmp_path, TIMM)
    wide = params_of(models.vit((2, 6, 2), 3, **SETTING), 1)
    with pytest.raises(ValueError, match="with 5 position embeddings for 4; expected as many, or"):
        load_vit(path, wide)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks.1.norm2.bias": None}, r"lacks 1 tensors: blocks\.1\.norm2\.bias$"),
        ({"norm.weight": None, "cls_token": None}, "tensors like .*; expected the names of timm"),
        ({"blocks.0.ls1.gamma": (6,)}, r"besides a vit's tensors 1 tensors: blocks\.0\.ls1\.gamma"),
        ({"blocks.2.norm1.bias": (6,)}, r"1 tensors: blocks\.2\.norm1\.bias"),
        (
            {"blocks.0.mlp.fc1.weight": (9, 6)},
            r"has 1 tensors: blocks\.0\.mlp\.fc1\.weight of shape \(9, 6\) for "
            r"blocks\.0\.mlp\.fc1\.kernel \(10, 6\)",
        ),
        ({"patch_embed.proj.weight": (6, 2, 4, 4)}, r"shape \(6, 2, 4, 4\) for patch\.kernel"),
        ({"pos_embed": (1, 5, 4)}, r"pos_embed of shape \(1, 5, 4\) for positions \(5, 6\)"),
        ({"cls_token": (1, 1, 4)}, r"cls_token of shape \(1, 1, 4\) for class_token \(6,\)"),
    ],
)
def test_wrong_tensors(change, message, tmp_path):
    tensors = TIMM | {name: shape and np.zeros(shape, np.float32) for name, shape in change.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    with pytest.raises(ValueError, match=message):
        load_vit(write_as("timm", tmp_path, tensors), GIVEN)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.ones(6, np.int8), r"norm\.bias has dtype int8; expected a floating dtype"),
        (np.full(6, np.nan, np.float32), r"norm\.bias has nan; expected finite numbers"),
        (np.full(6, 1e300), r"norm\.bias has 1e\+300; expected finite numbers of float32"),
    ],
)
def test_numbers_that_no_parameter_has(value, message, tmp_path):
    """Quantised integers were loaded as weights of up to 127, NaN and infinity as they are."""
    path = write_as("timm", tmp_path, TIMM | {"norm.bias": value})
    with pytest.raises(ValueError, match=message) as error:
        load_vit(path, GIVEN)
    assert str(path) in str(error.value)


def test_complex_numbers_and_parameters_that_are_not_floating(tmp_path):
    tensors = TIMM | {"norm.bias": TIMM["norm.bias"] + 1j}
    with pytest.raises(ValueError, match=r"encoder_norm/bias has dtype complex64; expected a"):
        load_vit(write_as("google", tmp_path, tensors), GIVEN)
    integers = jax.tree.map(lambda leaf: leaf.astype(np.int32), GIVEN)
    with pytest.raises(ValueError, match="has dtype int32; expected a floating dtype"):
        load_vit(write_as("timm", tmp_path, TIMM), integers)


@pytest.mark.parametrize("name", ["timm", "google"])
def test_patches_with_channels_in_another_place(name, tmp_path):
    """Their number of entries fits, and channels were taken for pixels."""
    four = {**SETTING, "patch_size": 4}
    source, given = (params_of(models.vit((8, 8, 2), 3, **four), seed) for seed in (0, 1))
    file, tensors = spelling(name, reference_vit.timm(source, 4))
    kernel = next(one for one in tensors if one in ("patch_embed.proj.weight", "embedding/kernel"))
    path = write(tmp_path / file, tensors)
    assert_equal(load_vit(path, given).params, source)
    moved = np.moveaxis(tensors[kernel], *((1, -1) if name == "timm" else (2, 0)))
    with pytest.raises(ValueError, match=rf"{kernel} of shape .* for patch\.kernel \(6, 32\)"):
        load_vit(write(tmp_path / file, tensors | {kernel: moved}), given)


def test_misshapen_and_many_missing_tensors(tmp_path):
    name = "vit.encoder.layer.0.attention.attention.key.weight"
    tensors = reference_vit.transformers(TIMM) | {name: np.zeros((6, 5), np.float32)}
    with pytest.raises(ValueError, match=r"attention\.key\.weight of shape \(6, 5\)"):
        load_vit(write(tmp_path / "vit.safetensors", tensors), GIVEN)
    tensors = {name: tensor for name, tensor in TIMM.items() if not name.startswith("blocks.1")}
    with pytest.raises(ValueError, match=r"lacks 12 tensors: blocks\.1\.attn.*, \.\.\.$"):
        load_vit(write_as("timm", tmp_path, tensors), GIVEN)


def archive(**members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return stream.getvalue()


def petabytes():
    """A header of 128 bytes that announces 8 petabytes, and 8 bytes."""
    header, form = io.BytesIO(), {"descr": "<f8", "fortran_order": False, "shape": (2**50,)}
    np.lib.format.write_array_header_1_0(header, form)
    return header.getvalue() + bytes(8)


def pickled():
    stream = io.BytesIO()
    np.save(stream, np.array([{}], object))
    return stream.getvalue()


ODD_TREES = [
    [1, 2], {"cls": "text"}, {1: np.ones(2)}, {"a": np.ones((0, 3))}, {"a": {"b": None}}
]  # fmt: skip


@pytest.mark.parametrize(
    ("suffix", "content", "message"),
    [
        *((suffix, pickle.dumps([1]), r"expected \.safetensors, \.msgpack or \.npz: .*any code")
          for suffix in (".bin", ".pt", ".pth", ".pkl", ".h5")),
        (".npz", archive(cls=pickled()), r"path is .*\(ValueError: cls.npy has .* dtype object\)"),
        (".npz", archive(cls=petabytes()), r"has 136 bytes for shape \(1125899906842624,\)"),
        *((".msgpack", flax.serialization.msgpack_serialize(tree), r"^path is .*vit\.msgpack")
          for tree in ODD_TREES),
        (".safetensors", b"no tensors", "path is .*, which cannot be read"),
        *((suffix, None, "path is .*, which cannot be read")
          for suffix in (".safetensors", ".msgpack", ".npz")),
    ],
)  # fmt: skip
def test_other_files_are_refused(suffix, content, message, tmp_path):
    path = tmp_path / f"vit{suffix}"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        load_vit(path, GIVEN)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", ["timm", "flax", "google"])
def test_folders_are_refused(name, tmp_path):
    (tmp_path / spelling(name, TIMM)[0]).mkdir()
    with pytest.raises(ValueError, match="which cannot be read"):
        load_vit(tmp_path / spelling(name, TIMM)[0], GIVEN)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm", "flax", "google"])
@given(st.data())
def test_damage_is_refused_or_harmless(name, data):
    """Whatever a file's bytes are, it is loaded or refused by a ValueError with its name."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_as(name, pathlib.Path(folder), TIMM)
        path.write_bytes(data.draw(damaged(path.read_bytes())))
        try:
            load_vit(path, GIVEN)
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017


NESTED = "expected nested dicts of arrays, as of"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"dense1": {"kernel": jnp.ones((2, 2))}},
            r"params has dense1\.kernel; expected the parame",
        ),
        (None, f"params is a NoneType; {NESTED}"),
        (MODEL, rf"params\.init is a function; {NESTED}"),
        ({"positions": [1.0]}, rf"params\['positions'\]\[0\] is a float; {NESTED}"),
        ({0: jnp.ones(2)}, rf"params\[0\] is a \w+; {NESTED}"),
    ],
)
def test_params_of_another_model(given, message, tmp_path):
    path = write_as("timm", tmp_path, TIMM)
    with pytest.raises(ValueError, match=message):
        load_vit(path, given)
    with pytest.raises(ValueError, match="path is None; expected the name of a file"):
        load_vit(None, given)


@pytest.mark.parametrize(
    ("name", "heads", "message"),
    [
        (
            "google",
            2,
            r"heads is 2; expected 3, the heads of Transformer/encoderblock_0/Mul.*query",
        ),
        ("timm", 4, r"heads is 4; expected a divisor of the width 6 of .*vit\.safetensors"),
        ("timm", 0, "heads is 0; expected at least 1"),
        ("timm", 3.0, "heads is 3.0; expected an integer"),
    ],
)
def test_other_heads_than_those_of_the_file_are_refused(name, heads, message, tmp_path):
    """Every layer would fit, and the model would compute something else."""
    path = write_as(name, tmp_path, TIMM)
    with pytest.raises(ValueError, match=message):
        models.load_vit(path, GIVEN, heads=heads)


def test_heads_are_required(tmp_path):
    path = write_as("timm", tmp_path, TIMM)
    with pytest.raises(TypeError, match="heads"):
        models.load_vit(path, GIVEN)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_attention_heads": 2}, r"heads is 3; expected 2, num_attention_heads of .*config"),
        (
            {"num_attention_heads": 3, "hidden_act": "gelu_new"},
            "hidden_act 'gelu_new'; expected 'ge",
        ),
        ([3], r"config\.json is \[3\]; expected an object"),
        (None, r"config\.json is no JSON"),
        ({"num_attention_heads": 3, "hidden_act": "gelu"}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("name", ["transformers", "flax"])
def test_the_configuration_beside_a_file_counts(name, config, message, tmp_path):
    path = write_as(name, tmp_path, TIMM)
    text = "{" if config is None else json.dumps(config)
    (tmp_path / "config.json").write_text(text)
    if message is None:
        assert_equal(load_vit(path, GIVEN).params, KNOWN)
        return
    with pytest.raises(ValueError, match=message):
        load_vit(path, GIVEN)


def test_other_heads_compute_something_else():
    """So a number that fits no check must come from the user."""
    other = models.vit(SHAPE, 3, **SETTING | {"heads": 2})
    x = np.random.default_rng(2).normal(size=(4, *SHAPE)).astype(np.float32)
    logits, others = (compiled(model.apply)(KNOWN, x) for model in (MODEL, other))
    assert np.abs(logits - others).max() > 0.01  # rounding is below 1e-5
