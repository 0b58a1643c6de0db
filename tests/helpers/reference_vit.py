"""A vision transformer in NumPy, on PyTorch's arrays with timm's names, and other spellings.

Written from the paper, example by example and head by head, in float64.
"""

import numpy as np
from scipy.special import erf


def forward(tensors, x, heads):
    """Logits ``[B, classes]`` of images ``[B, H, W, C]``."""
    t = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
    kernel = t["patch_embed.proj.weight"]  # [width, C, p, p]
    p = kernel.shape[2]
    depth = sum(name.endswith("norm1.bias") for name in t)

    def linear(z, name):
        return z @ t[f"{name}.weight"].T + t[f"{name}.bias"]

    def norm(z, name):
        scaled = (z - z.mean(-1, keepdims=True)) / np.sqrt(z.var(-1, keepdims=True) + 1e-6)
        return scaled * t[f"{name}.weight"] + t[f"{name}.bias"]

    def logits(image):
        cut = [
            np.einsum("hwc,ochw->o", image[i : i + p, j : j + p], kernel)
            for i in range(0, image.shape[0], p)
            for j in range(0, image.shape[1], p)
        ]
        z = np.stack([t["cls_token"][0, 0], *(patch + t["patch_embed.proj.bias"] for patch in cut)])
        z = z + t["pos_embed"][0]
        for i in range(depth):
            queries, keys, values = np.split(
                linear(norm(z, f"blocks.{i}.norm1"), f"blocks.{i}.attn.qkv"), 3, 1
            )
            size = z.shape[1] // heads
            attended = []
            for head in range(heads):
                own = slice(head * size, (head + 1) * size)
                weights = np.exp(queries[:, own] @ keys[:, own].T / np.sqrt(size))
                attended.append(weights / weights.sum(1, keepdims=True) @ values[:, own])
            z = z + linear(np.concatenate(attended, 1), f"blocks.{i}.attn.proj")
            hidden = linear(norm(z, f"blocks.{i}.norm2"), f"blocks.{i}.mlp.fc1")
            hidden = hidden * (1 + erf(hidden / np.sqrt(2))) / 2
            z = z + linear(hidden, f"blocks.{i}.mlp.fc2")
        return linear(norm(z, "norm")[0], "head")

    return np.stack([logits(np.asarray(image, np.float64)) for image in x])


def timm(params, patch_size):
    """The parameters of a model of this package as timm's tensors."""
    tensors = {
        "cls_token": params["class_token"][None, None],
        "pos_embed": params["positions"][None],
    }
    layers = {name: params[name] for name in ("norm", "head")} | {
        "patch_embed.proj": params["patch"]
    }
    blocks = params["blocks"]
    for i in range(len(blocks["norm1"]["bias"])):
        for name in ("norm1", "norm2", "attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"):
            outer, _, inner = name.partition(".")
            layer = blocks[outer][inner] if inner else blocks[outer]
            layers[f"blocks.{i}.{name}"] = {leaf: array[i] for leaf, array in layer.items()}
    for name, layer in layers.items():
        tensors[f"{name}.weight"] = layer["kernel" if "kernel" in layer else "scale"]
        tensors[f"{name}.bias"] = layer["bias"]
    tensors = {name: np.asarray(tensor) for name, tensor in tensors.items()}
    kernel = tensors["patch_embed.proj.weight"]  # pixels by row, column, channel
    kernel = kernel.reshape(len(kernel), patch_size, patch_size, -1).transpose(0, 3, 1, 2)
    return tensors | {"patch_embed.proj.weight": np.ascontiguousarray(kernel)}


_TRANSFORMERS = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "attn.proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
    "norm": "layernorm",
}


def transformers(tensors, prefix="vit."):
    """timm's tensors as Hugging Face transformers'; ``prefix`` of all but the classifier."""
    renamed = {}
    for name, tensor in tensors.items():
        layer, _, leaf = name.rpartition(".")
        where = prefix
        if layer.startswith("blocks."):
            _, number, layer = layer.split(".", 2)
            where = f"{prefix}encoder.layer.{number}."
        if layer == "attn.qkv":
            for part, value in zip(("query", "key", "value"), np.split(tensor, 3), strict=True):
                renamed[f"{where}attention.attention.{part}.{leaf}"] = value
        elif layer == "head":
            renamed[f"classifier.{leaf}"] = tensor
        elif name in _TRANSFORMERS:
            renamed[where + _TRANSFORMERS[name]] = tensor
        else:
            renamed[f"{where}{_TRANSFORMERS[layer]}.{leaf}"] = tensor
    return renamed


def flax_tree(tensors):
    """Layout of transformers' Flax models: nested, kernels ``[inputs, outputs]``."""
    tree = {}
    for name, tensor in transformers(tensors).items():
        *path, leaf = name.split(".")
        if leaf == "weight":
            leaf = "scale" if tensor.ndim == 1 else "kernel"
            tensor = tensor.transpose((2, 3, 1, 0) if tensor.ndim == 4 else None)
        node = tree
        for key in path:
            node = node.setdefault(key, {})
        node[leaf] = np.ascontiguousarray(tensor)
    return tree


def google(tensors, heads):
    """Layout of Google's checkpoints."""
    tree = flax_tree(tensors)
    body = tree["vit"]
    layers = {
        "embedding": body["embeddings"]["patch_embeddings"]["projection"],
        "Transformer/encoder_norm": body["layernorm"],
        "head": tree["classifier"],
    }
    for i, block in body["encoder"]["layer"].items():
        where = f"Transformer/encoderblock_{i}/"
        layers[where + "LayerNorm_0"] = block["layernorm_before"]
        layers[where + "LayerNorm_2"] = block["layernorm_after"]
        layers[where + "MlpBlock_3/Dense_0"] = block["intermediate"]["dense"]
        layers[where + "MlpBlock_3/Dense_1"] = block["output"]["dense"]
        for part, layer in block["attention"]["attention"].items():
            layers[f"{where}MultiHeadDotProductAttention_1/{part}"] = {
                "kernel": layer["kernel"].reshape(len(layer["kernel"]), heads, -1),
                "bias": layer["bias"].reshape(heads, -1),
            }
        out = block["attention"]["output"]["dense"]
        kernel = out["kernel"].reshape(heads, -1, out["kernel"].shape[1])
        layers[where + "MultiHeadDotProductAttention_1/out"] = out | {"kernel": kernel}
    arrays = {f"{name}/{leaf}": a for name, layer in layers.items() for leaf, a in layer.items()}
    return arrays | {
        "cls": body["embeddings"]["cls_token"],
        "Transformer/posembed_input/pos_embedding": body["embeddings"]["position_embeddings"],
    }
