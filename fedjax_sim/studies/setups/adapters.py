"""Adapters of low rank on the command line (``--adapters``), and the model that runs start from."""

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.data import read_npz
from fedjax_sim.datasets import DataError
from fedjax_sim.models import Model, ffa_lora_frozen, lora, lora_frozen
from fedjax_sim.studies.setups.config import RunConfig
from fedjax_sim.tree import Where, names
from fedjax_sim.types import FedAlgorithm, Params
from fedjax_sim.wrappers.freeze import freeze

# Name -> the leaves that are not trained.
KINDS: dict[str, Where] = {"lora": lora_frozen, "ffa-lora": ffa_lora_frozen}


def parse(adapters: str) -> tuple[str, int]:
    """Returns the kind and the rank of ``--adapters``.

    Raises:
        ValueError: a text of another form.

    Example:
        >>> parse("lora:8")
        ('lora', 8)
    """
    kind, _, rank = adapters.partition(":")
    if kind not in KINDS or not rank.isdecimal() or not int(rank):
        raise ValueError(
            f"adapters is {adapters!r}; expected {' or '.join(f'{kind}:RANK' for kind in KINDS)}, "
            "with a rank of at least 1"
        )
    return kind, int(rank)


@functools.cache
def adapted(net: Model, adapters: str) -> Model:
    """Returns a model with adapters beside its queries and values, one object for equal arguments.

    Raises:
        ValueError: a text of another form, or a model without attention.

    Example:
        >>> from fedjax_sim import models
        >>> adapted(models.mlp(3, (4,), 2), "lora:2")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: adapters is 'lora:2'; expected a model with kernels of queries and values, ...
    """
    try:
        return lora(net, parse(adapters)[1])
    except ValueError as error:
        if not str(error).startswith("where"):
            raise
        raise ValueError(
            f"adapters is {adapters!r}; expected a model with kernels of queries and values, such "
            "as transformer or vit_tiny"
        ) from error


def on_adapters(algorithm: FedAlgorithm, adapters: str | None) -> FedAlgorithm:
    """Returns the algorithm of the adapters alone; None: the algorithm itself.

    Example:
        >>> from fedjax_sim.algorithms import fedavg
        >>> algorithm = fedavg(0.1)
        >>> on_adapters(algorithm, None) is algorithm
        True
    """
    return algorithm if adapters is None else freeze(algorithm, KINDS[parse(adapters)[0]])


def initial_params(config: RunConfig, net: Model, keys: Array) -> Params:
    """Returns the initial models of all seeds, leaves ``[n, ...]``.

    With ``--initial-model`` all seeds start from the model in a file; adapters are drawn per seed.

    Args:
        config: the options.
        net: the model, with the adapters of the options.
        keys: one per seed, ``[n]``.

    Raises:
        DataError: a file that cannot be read, or has a model of another form.
    """
    params = jax.jit(jax.vmap(net.init))(keys)
    if config.initial_model is None:
        return params
    if config.adapters is None:
        return _read(config.initial_model, params)
    return {**params, "base": _read(config.initial_model, params["base"])}


def _read(path: pathlib.Path, params: Params) -> Params:
    """Returns the model in a file, repeated for all seeds."""
    try:
        arrays = read_npz(path)
    except (OSError, ValueError) as error:
        raise DataError(
            f"initial_model is '{path}', which cannot be read ({error}); expected a file that "
            "fedjax-sim export wrote"
        ) from error

    def name_of(path_of_leaf: tuple[Any, ...]) -> str:
        return "/".join(names(path_of_leaf)) or "params"

    of_model = {name_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}
    if surplus := sorted(arrays.keys() - of_model):
        raise DataError(
            f"initial_model is '{path}', which has {', '.join(surplus[:3])} besides the arrays of "
            "the model; expected a file of the same model"
        )

    def leaf(path_of_leaf: tuple[Any, ...], drawn: Array) -> Array:
        name, shape = name_of(path_of_leaf), drawn.shape[1:]
        if name not in arrays or arrays[name].shape != shape:
            present = f"of shape {arrays[name].shape}" if name in arrays else "missing"
            raise DataError(
                f"initial_model is '{path}', in which {name} is {present}; expected {shape}, as in "
                "the model"
            )
        if not jnp.issubdtype(arrays[name].dtype, jnp.number):
            raise DataError(
                f"initial_model is '{path}', in which {name} has dtype {arrays[name].dtype}; "
                "expected numbers"
            )
        return jnp.broadcast_to(jnp.asarray(arrays[name], drawn.dtype), drawn.shape)

    return jax.tree_util.tree_map_with_path(leaf, params)
