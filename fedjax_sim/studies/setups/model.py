"""Options of the model: its name, the model that runs start from, adapters, loss."""

import functools
import pathlib
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from flax import linen
from jax import Array

from fedjax_sim import models
from fedjax_sim.checks import did_you_mean
from fedjax_sim.data import Objective, read_npz
from fedjax_sim.datasets import DataError, Dataset, layout_hint
from fedjax_sim.models import (
    MODELS,
    Convolution,
    Model,
    Shape,
    ffa_lora_frozen,
    frozen_statistics,
    in_precision,
    lora,
    lora_frozen,
)
from fedjax_sim.models.pretrained import as_parameter
from fedjax_sim.objectives import Metrics, as_float
from fedjax_sim.studies.setups.entries import AlgorithmEntry
from fedjax_sim.studies.setups.fields import Count, group
from fedjax_sim.studies.setups.losses import Losses
from fedjax_sim.studies.setups.own_code import own_code
from fedjax_sim.tree import Where, names
from fedjax_sim.types import FedAlgorithm, Params
from fedjax_sim.wrappers.freeze import freeze
from fedjax_sim.wrappers.running_statistics import running_statistics

# Shape of the examples -> model that "auto" chooses; softmax_regression for all others.
AUTO_MODELS: dict[Shape, str] = {
    (8, 8, 1): "mlp_small",
    (28, 28, 1): "femnist_cnn",
    (32, 32, 3): "lenet5",
    (64, 64, 3): "vit_tiny_64",
}
# The same for examples that are token ids: integers other than uint8, which are pixels.
AUTO_TOKEN_MODELS: dict[Shape, str] = {(80,): "lstm"}
# The same with a label at every position.
AUTO_SEQUENCE_MODELS: dict[Shape, str] = {(80,): "lstm_sequence"}


@group
class NoAdapters:
    """The model itself is trained."""

    kind: Literal["none"] = "none"


@group
class Lora:
    """Adapters of low rank beside the queries and values of the frozen model."""

    rank: Count = 8
    """Rank of the adapters."""
    kind: Literal["lora"] = "lora"


@group
class FfaLora:
    """As lora, with the first factors frozen, too."""

    rank: Count = 8
    """Rank of the adapters."""
    kind: Literal["ffa-lora"] = "ffa-lora"


Adapters = Annotated[NoAdapters | Lora | FfaLora, pydantic.Field(discriminator="kind")]


@group
class ModelOptions:
    """The model and its loss."""

    model: str = "auto"
    """Model (see fedjax-sim list); auto chooses by the shape of the examples."""
    initial_model: pathlib.Path | None = None
    """File (.npz) that fedjax-sim export wrote: the initial model of all seeds; default: random."""
    loss: Literal["cross_entropy", "squared", "huber"] | None = None
    """Loss; default: cross_entropy of classes, squared of numbers."""
    statistics: Literal["averaged", "private", "frozen"] = "averaged"
    """Running statistics of a model with batch normalisation: averaged over clients (fedbn: private
    by definition); private, kept by each client (the server's model then has the initial ones, and
    personal/accuracy/mean is that of the clients' models); or frozen at the initial ones, which
    training uses, too."""


@functools.cache
def adapted(net: Model, adapters: Adapters) -> Model:
    """Returns a model with adapters beside queries and values, one object for equal arguments."""
    if isinstance(adapters, NoAdapters):
        return net
    try:
        return lora(net, adapters.rank)
    except ValueError as error:
        if not str(error).startswith("where"):
            raise
        raise ValueError(
            f"adapters is {adapters.kind!r}; expected a model with kernels of queries and values, "
            "such as transformer or vit_tiny"
        ) from error


def on_adapters(algorithm: FedAlgorithm, adapters: Adapters) -> FedAlgorithm:
    """Returns the algorithm of the adapters alone; without adapters the algorithm itself."""
    if isinstance(adapters, NoAdapters):
        return algorithm
    frozen: Where = lora_frozen if isinstance(adapters, Lora) else ffa_lora_frozen
    return freeze(algorithm, frozen)


def initial_params(
    path: pathlib.Path | None, adapters: Adapters, net: Model, keys: Array
) -> Params:
    """Returns the initial models of all seeds, leaves ``[n, ...]``.

    With ``--initial-model`` all seeds start from the model in a file; adapters are drawn per seed.
    """
    params = jax.jit(jax.vmap(net.init))(keys)
    if path is None:
        return params
    if isinstance(adapters, NoAdapters):
        return _read(path, params)
    return {**params, "base": _read(path, params["base"])}


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
        try:
            value = as_parameter(name, arrays[name], drawn.dtype)
        except ValueError as error:
            raise DataError(f"initial_model is '{path}', in which {error}") from error
        return jnp.broadcast_to(jnp.asarray(value), drawn.shape)

    return jax.tree_util.tree_map_with_path(leaf, params)


def trained_model(net: Model, statistics: str) -> Model:
    """Returns the model as the clients train it."""
    if net.statistics is None and statistics != "averaged":
        raise ValueError(
            f"statistics is {statistics!r}; expected 'averaged', the default, since the model has "
            "no running statistics"
        )
    return frozen_statistics(net) if statistics == "frozen" else net


def statistics_of(option: str, entries: Iterable[AlgorithmEntry]) -> str:
    """Returns "private" for algorithms whose clients keep running statistics by definition."""
    keeps = any(entry.private_statistics for entry in entries)
    return "private" if keeps and option == "averaged" else option


def for_model(algorithm: FedAlgorithm, where: Where | None, statistics: str) -> FedAlgorithm:
    """Returns the algorithm for a model with these running statistics (None: without)."""
    if where is None:
        return algorithm
    if statistics == "frozen":
        return freeze(algorithm, where)
    combine = "private" if statistics == "private" else "averaged"
    return running_statistics(algorithm, where, combine)


def model_of(
    options: ModelOptions,
    adapters: Adapters,
    own: Model | linen.Module | None,
    dataset: Dataset,
    conv: Convolution = models.auto,
) -> tuple[str, Model]:
    """Returns the model's name and the model, a study's own one or one by name."""
    x = dataset.train["x"]
    if own is not None:
        with own_code("model of the study"):
            return "of the study", adapted(_own_model(own, x), adapters)
    name = options.model
    if name == "auto":
        tokens = np.issubdtype(x.dtype, np.integer) and x.dtype != np.uint8
        sequences = dataset.train["y"].ndim == 2
        token_models = AUTO_SEQUENCE_MODELS if sequences else AUTO_TOKEN_MODELS
        known = token_models if tokens else AUTO_MODELS
        name = known.get(x.shape[1:], "softmax_regression")
    net = named_model(name, x.shape[1:], dataset.num_classes, conv)
    return name, adapted(net, adapters)


def named_model(
    name: str, shape: tuple[int, ...], num_classes: int, conv: Convolution = models.auto
) -> Model:
    """Returns a model by name, for examples of a shape."""
    if name not in MODELS:
        raise ValueError(
            f"model is {name!r}; expected auto or one of {', '.join(MODELS)}"
            f"{did_you_mean(name, MODELS)}"
        )
    taken, build = MODELS[name]
    if taken not in (None, shape):
        raise ValueError(
            f"model is {name!r}, which takes examples of shape {list(taken)}; expected one for "
            f"{list(shape)}, the shape of the examples{layout_hint(shape, taken)}"
        )
    return _built(build, shape, num_classes, conv)


@functools.cache
def _built(build: Any, shape: tuple[int, ...], classes: int, conv: Convolution) -> Model:
    """One object for equal arguments, so that rebuilding a problem does not recompile."""
    return build(shape, classes, conv)


def _own_model(net: Model | linen.Module, x: np.ndarray) -> Model:
    if isinstance(net, linen.Module):
        dtype = jax.dtypes.canonicalize_dtype(x.dtype)
        inputs = jax.eval_shape(as_float, jax.ShapeDtypeStruct((1, *x.shape[1:]), dtype))
        return _from_linen(net, inputs.shape, inputs.dtype.name)
    return net


def check_outputs(net: Model, dataset: Dataset) -> None:
    """Refuses a model whose outputs do not suit the labels; compiles nothing."""
    x, y = (np.asarray(dataset.train[key][:3]) for key in ("x", "y"))
    outputs = jax.eval_shape(lambda: net.apply(net.init(jax.random.key(0)), as_float(x)))
    shape, expected = getattr(outputs, "shape", None), (*y.shape, dataset.num_classes)
    if shape != expected and not (dataset.target == "numbers" and shape == y.shape):
        raise ValueError(
            f"model of the study returned outputs of shape {shape} for {len(y)} examples; expected "
            f"{expected}"
        )


@functools.cache
def _from_linen(net: linen.Module, shape: tuple[int, ...], dtype: str) -> Model:
    return models.from_linen(net, jax.ShapeDtypeStruct(shape, dtype))


@functools.cache
def functions_of(
    net: Model, half: bool, statistics: str, losses: Losses, ignore: int | None
) -> tuple[Objective, Metrics]:
    """Loss and metrics, one object each per model, so that rebuilding a problem does not recompile.

    In half precision only the clients' models are half; the server's are evaluated as they are.
    """
    trained = trained_model(net, statistics)
    trained = in_precision(trained, jnp.bfloat16) if half else trained
    return losses.objective(trained, ignore), losses.evaluated(net, ignore)
