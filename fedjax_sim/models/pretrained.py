"""Parameters of a vision transformer from a local file.

Three families of names are supported, each by a table from the layers of this package to the names
in the file.  The layout of a file follows from its format: ``.safetensors`` holds PyTorch's arrays
(kernels ``[outputs, inputs]``, patches channels first), ``.msgpack`` and ``.npz`` hold Flax's
(``[inputs, outputs]``, channels last, attention kernels with an axis of heads).
"""

from __future__ import annotations

import json
import math
import pathlib
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_sim.checks import check_count, import_extra
from fedjax_sim.data import read_npz
from fedjax_sim.types import Params, shown


@shown
class LoadedViT(NamedTuple):
    """Result of :func:`load_vit`."""

    params: Params
    fresh: tuple[str, ...]  # given parameters that were kept: those of the head, or none
    unused: tuple[str, ...]  # tensors of the file that were not used: head and pooler


class _Naming(NamedTuple):
    """Names of one family; # stands for the number of a block."""

    layers: Mapping[str, tuple[str, ...]]  # several sources are concatenated along the outputs
    arrays: Mapping[str, str]
    before_head: str  # layer between class token and head, absent from vit
    separator: str = "."


_LAYERS = (
    "patch", "blocks.#.norm1", "blocks.#.attn.qkv", "blocks.#.attn.proj", "blocks.#.norm2",
    "blocks.#.mlp.fc1", "blocks.#.mlp.fc2", "norm", "head",
)  # fmt: skip
_QKV = ("query", "key", "value")


def _in_order(*sources: str | tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    """Returns the names of all layers; a text is one of them."""
    several = [(one,) if isinstance(one, str) else one for one in sources]
    return dict(zip(_LAYERS, several, strict=True))


_TIMM = _Naming(
    _in_order("patch_embed.proj", *_LAYERS[1:]),
    {"class_token": "cls_token", "positions": "pos_embed"},
    before_head="pre_logits.",
)
_LAYER = "encoder.layer.#."
_TRANSFORMERS = _Naming(
    _in_order(
        "embeddings.patch_embeddings.projection", _LAYER + "layernorm_before",
        tuple(_LAYER + "attention.attention." + part for part in _QKV),
        _LAYER + "attention.output.dense", _LAYER + "layernorm_after",
        _LAYER + "intermediate.dense", _LAYER + "output.dense", "layernorm", "classifier",
    ),
    {"class_token": "embeddings.cls_token", "positions": "embeddings.position_embeddings"},
    before_head="pooler.",
)  # fmt: skip
_BLOCK = "Transformer/encoderblock_#/"
_ATTENTION = _BLOCK + "MultiHeadDotProductAttention_1/"
_GOOGLE = _Naming(
    _in_order(
        "embedding", _BLOCK + "LayerNorm_0", tuple(_ATTENTION + part for part in _QKV),
        _ATTENTION + "out", _BLOCK + "LayerNorm_2", _BLOCK + "MlpBlock_3/Dense_0",
        _BLOCK + "MlpBlock_3/Dense_1", "Transformer/encoder_norm", "head",
    ),
    {"class_token": "cls", "positions": "Transformer/posembed_input/pos_embedding"},
    before_head="pre_logits/", separator="/",
)  # fmt: skip


def load_vit(path: str | pathlib.Path, params: Params, *, heads: int) -> LoadedViT:
    """Loads parameters of a :func:`~fedjax_sim.models.vit` from a local file.

    Nothing is downloaded and nothing is unpickled.  Supported formats:

    * ``.safetensors`` with timm's names (``blocks.0.attn.qkv.weight``) or those of Hugging Face
      transformers (``vit.encoder.layer.0.attention.attention.query.weight``, with or without
      ``vit.``); it needs the package ``safetensors`` (the extra ``pretrained``);
    * ``.msgpack``, the parameters of transformers' ``FlaxViT`` models;
    * ``.npz``, Google's checkpoints (``Transformer/encoderblock_0/...``).

    The file must contain every parameter except the head's with its shape, and no others.  The head
    is loaded if its shape fits and no other layer (``pooler``, ``pre_logits``) lies between the
    class token and the head; otherwise the given head is kept.  Position embeddings for another
    number of patches are interpolated from the file's square grid to the model's (bicubic with
    anti-aliasing, as in timm); that of the class token is kept.  Values are cast to the dtypes of
    the given parameters, both floating.

    The number of heads stands in no parameter, and with another one every layer fits and the model
    computes something else.  So it is an argument, and is compared with what the file says: the
    axis of heads in Google's checkpoints, and ``config.json`` in the folder of a transformers
    model, of which the activation is compared, too.  Files with timm's names do not say it; the
    published ViT-Ti, S, B, L and H have 3, 6, 12, 16 and 16 heads.

    Args:
        path: file to read.
        params: parameters of the model, as its ``init`` returns them.
        heads: attention heads of the model, as given to :func:`~fedjax_sim.models.vit`; those of
            ``vit_base16`` are 12, of ``vit_tiny`` 3.

    Raises:
        ValueError: a number of heads that does not divide the width, or is not that of the file;
            another activation than GELU; another format, among them PyTorch's pickles, whose
            loading can run any code; a file that is missing or damaged, or whose arrays are not
            finite floating numbers, also in the dtype of the parameter, such as the integers of a
            quantised model; unknown names; tensors that are missing, surplus or of another shape
            (they are named); position embeddings to interpolate that are not those of a square
            grid; ``params`` of another model.
        ImportError: a ``.safetensors`` file without the package ``safetensors``.

    Example:
        >>> from fedjax_sim.models import vit_base16
        >>> params = vit_base16().init(jax.random.key(0))  # doctest: +SKIP
        >>> file = "vit_base_patch16_224.safetensors"
        >>> loaded = load_vit(file, params, heads=12)  # doctest: +SKIP
        >>> loaded.fresh  # doctest: +SKIP
        ('head.bias', 'head.kernel')
        >>> load_vit("pytorch_model.bin", {}, heads=12)
        Traceback (most recent call last):
        ...
        ValueError: path is pytorch_model.bin; expected .safetensors, .msgpack or .npz: loading \
a pickle can run any code, and most models also come as .safetensors
    """
    if not isinstance(path, (str, pathlib.Path)):
        raise ValueError(f"path is {path!r:.60}; expected the name of a file")
    check_count(1, heads=heads)
    path = pathlib.Path(path)
    tensors, torch = _read(path)
    naming = _naming(path, tensors)
    given = _by_name(params)
    targets = {one: shape for name in given for one, shape in _unstacked(name, given[name]).items()}
    sources = {name: _sources(name, naming, torch) for name in targets}
    head = [name for name in targets if name.startswith("head.")]
    of_head = {source for name in head for source in sources[name]}
    required = {source for name in targets for source in sources[name]} - of_head
    before_head = {name for name in tensors if name.startswith(naming.before_head)}
    _refuse(path, "lacks", required - tensors.keys())
    _refuse(path, "has besides a vit's tensors", tensors.keys() - required - of_head - before_head)

    parts = {
        name: [_converted(tensors[source], name, torch) for source in sources[name]]
        for name in targets
        if tensors.keys() >= set(sources[name])
    }
    count = targets["positions"].shape[0]
    parts["positions"] = [_resized(path, part, count) for part in parts["positions"]]
    misfits = {
        name: f"{source} of shape {tensors[source].shape} for {name} {targets[name].shape}"
        for name in parts
        for source, part in zip(sources[name], parts[name], strict=True)
        if len(parts[name]) * part.shape[0] != targets[name].shape[0]
        or part.shape[1:] != targets[name].shape[1:]
        or not _square(tensors[source], torch)
    }
    _refuse(path, "has", [text for name, text in misfits.items() if name not in head])
    _check_heads(path, tensors, naming, heads)
    keep_head = before_head or any(name in misfits or name not in parts for name in head)
    fresh = tuple(sorted(head)) if keep_head else ()
    filled = dict(given)
    for name, target in given.items():
        if name not in fresh:
            arrays = [np.concatenate(parts[one]) for one in _unstacked(name, target)]
            try:
                value = as_parameter(name, np.reshape(arrays, target.shape), target.dtype)
            except ValueError as error:
                raise ValueError(f"path is {path}: {error}") from error
            filled[name] = jnp.asarray(value)
    used = {source for name in targets if name not in fresh for source in sources[name]}
    unused = tuple(sorted(tensors.keys() - used))
    return LoadedViT(unflatten_dict(filled, sep="."), fresh, unused)


def as_parameter(name: str, array: np.ndarray, dtype: Any) -> np.ndarray:
    """Returns an array of a file as a parameter of a dtype; refuses what the cast would change.

    Integers are codes of a quantised model, whose scales are elsewhere; of complex numbers the
    imaginary part would be lost; a number too large for the dtype would be infinite.
    """
    for value in (array.dtype, dtype):
        if not jnp.issubdtype(value, jnp.floating):
            raise ValueError(f"{name} has dtype {jnp.dtype(value)}; expected a floating dtype")
    with np.errstate(over="ignore"):  # refused below
        cast = array.astype(dtype)
    finite = np.isfinite(cast.astype(np.float64))
    if not finite.all():
        value = array[np.unravel_index(np.argmin(finite), finite.shape)]
        raise ValueError(f"{name} has {value}; expected finite numbers of {jnp.dtype(dtype)}")
    return cast


def _by_name(params: Params) -> dict[str, Any]:
    """Returns parameters by their names, which are texts in nested dicts."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    for path, leaf in leaves or [((), params)]:
        named = path and all(isinstance(getattr(part, "key", None), str) for part in path)
        if not named or not hasattr(leaf, "dtype"):
            found = f"{jax.tree_util.keystr(path)} is a {type(leaf).__name__}"
            raise ValueError(f"params{found}; expected nested dicts of arrays, as of vit(...).init")
    return {".".join(part.key for part in path): leaf for path, leaf in leaves}


def _read(path: pathlib.Path) -> tuple[dict[str, np.ndarray], bool]:
    """Returns the tensors by name, and True if their layout is that of PyTorch."""
    readers = {
        ".safetensors": _read_safetensors, ".msgpack": _read_msgpack, ".npz": read_npz
    }  # fmt: skip
    if path.suffix not in readers:
        raise ValueError(
            f"path is {path}; expected .safetensors, .msgpack or .npz: loading a pickle can "
            "run any code, and most models also come as .safetensors"
        )
    try:
        tensors = {
            str(name).removeprefix("vit."): np.atleast_1d(tensor)
            for name, tensor in readers[path.suffix](path).items()
        }
        for name, tensor in tensors.items():
            if not tensor.size:
                raise ValueError(f"{name} has shape {tensor.shape}")
            as_parameter(name, tensor, tensor.dtype)
    except ImportError:
        raise
    except Exception as error:  # a damaged file can make its reader raise almost anything
        raise ValueError(
            f"path is {path}, which cannot be read ({type(error).__name__}: {error}); expected a "
            f"complete {path.suffix} file of floating arrays"
        ) from error
    return tensors, path.suffix == ".safetensors"


def _read_safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    return import_extra("safetensors.numpy", "pretrained").load_file(path)


def _read_msgpack(path: pathlib.Path) -> dict[str, Any]:
    tree = flax.serialization.msgpack_restore(path.read_bytes())
    return dict(flatten_dict(tree, sep="."))


def _naming(path: pathlib.Path, tensors: Collection[str]) -> _Naming:
    for naming in (_TIMM, _TRANSFORMERS, _GOOGLE):
        if naming.arrays["class_token"] in tensors:
            return naming
    raise ValueError(
        f"path is {path} with tensors like {sorted(tensors)[:3]}; expected the names of timm, of "
        "transformers or of Google's vision transformers"
    )


def _check_heads(
    path: pathlib.Path, tensors: Mapping[str, np.ndarray], naming: _Naming, heads: int
) -> None:
    """Refuses a number of heads, or an activation, that is not that of the model in the file."""
    width = tensors[naming.arrays["class_token"]].shape[-1]
    if width % heads:
        raise ValueError(f"heads is {heads}; expected a divisor of the width {width} of {path}")
    for name, tensor in tensors.items():
        # Queries are [width, heads, width / heads] in Google's checkpoints only.
        if name.endswith("query/kernel") and tensor.ndim == 3 and tensor.shape[1] != heads:
            raise ValueError(
                f"heads is {heads}; expected {tensor.shape[1]}, the heads of {name} in {path}"
            )
    file = path.parent / "config.json"
    if naming is not _TRANSFORMERS or not file.is_file():
        return
    try:
        config = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"path is {path}, whose {file} is no JSON ({error})") from error
    if not isinstance(config, dict):
        raise ValueError(f"path is {path}, whose {file} is {config!r:.60}; expected an object")
    found = config.get("num_attention_heads", heads)
    if found != heads:
        raise ValueError(f"heads is {heads}; expected {found}, num_attention_heads of {file}")
    activation = config.get("hidden_act", "gelu")
    if activation != "gelu":
        raise ValueError(
            f"path is {path}, whose {file} has hidden_act {activation!r}; expected 'gelu', the "
            "activation of a vit"
        )


def _unstacked(name: str, value: jax.Array) -> dict[str, jax.ShapeDtypeStruct]:
    """Names and shapes of a parameter in each block; one entry for parameters outside blocks."""
    if not name.startswith("blocks."):
        return {name: jax.ShapeDtypeStruct(value.shape, value.dtype)}
    one = jax.ShapeDtypeStruct(value.shape[1:], value.dtype)
    return {name.replace("blocks", f"blocks.{i}", 1): one for i in range(len(value))}


def _sources(name: str, naming: _Naming, torch: bool) -> tuple[str, ...]:
    """Names of the tensors in the file that form one parameter."""
    if name in naming.arrays:
        return (naming.arrays[name],)
    layer, _, leaf = name.rpartition(".")
    number = re.sub(r"blocks\.(\d+)\..*", r"\1", layer)
    pattern = re.sub(r"blocks\.\d+\.", "blocks.#.", layer)
    if pattern not in naming.layers:
        raise ValueError(f"params has {name}; expected the parameters of a vit")
    leaf = "weight" if torch and leaf in ("kernel", "scale") else leaf
    return tuple(
        source.replace("#", number) + naming.separator + leaf for source in naming.layers[pattern]
    )


def _converted(tensor: np.ndarray, name: str, torch: bool) -> np.ndarray:
    """Converts a tensor of the file to the layout of this model: kernels ``[outputs, inputs]``."""
    if name == "positions":
        return tensor.reshape(-1, *tensor.shape[-1:])
    if not name.endswith(".kernel"):
        return tensor.reshape(-1)
    if torch:
        return tensor if tensor.ndim != 4 else tensor.transpose(0, 2, 3, 1).reshape(len(tensor), -1)
    # Head axes belong to the outputs for queries, keys and values, otherwise to the inputs.
    inputs = 1 if name.endswith("qkv.kernel") else tensor.ndim - 1
    return tensor.reshape(math.prod(tensor.shape[:inputs]), -1).T


def _square(tensor: np.ndarray, torch: bool) -> bool:
    """Returns whether the kernel of patches has two equal axes of pixels; True of other tensors."""
    # Channels in another place would be mixed with pixels, and the sizes alone would fit.
    pixels = tensor.shape[2:] if torch else tensor.shape[:2]
    return tensor.ndim != 4 or pixels[0] == pixels[1]


def _resized(path: pathlib.Path, positions: np.ndarray, count: int) -> np.ndarray:
    """Positions of ``count`` tokens, ``[1 + old * old, width] -> [1 + new * new, width]``."""
    if len(positions) == count:
        return positions
    old, new = math.isqrt(len(positions) - 1), math.isqrt(count - 1)
    if (1 + old**2, 1 + new**2) != (len(positions), count):
        raise ValueError(
            f"path is {path} with {len(positions)} position embeddings for {count}; expected as "
            "many, or one more than a square number of both"
        )
    grid = positions[1:].astype(np.float32).reshape(old, old, -1)
    grid = jax.image.resize(grid, (new, new, grid.shape[2]), "bicubic")
    return np.concatenate([positions[:1].astype(np.float32), np.reshape(grid, (new * new, -1))])


def _refuse(path: pathlib.Path, what: str, names: Collection[str]) -> None:
    if names:
        shown = ", ".join(sorted(names)[:8]) + (", ..." if len(names) > 8 else "")
        raise ValueError(f"path is {path}, which {what} {len(names)} tensors: {shown}")
