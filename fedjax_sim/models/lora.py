r"""LoRA: adapters of low rank beside the frozen kernels of a model.

References:
    Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021.
    Sun et al., "Improving LoRA in Privacy-preserving Federated Learning", 2024 (FFA-LoRA: only B
        is trained).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array
from jax.nn.initializers import Initializer

from fedjax_sim import tree
from fedjax_sim.checks import check_count, check_number
from fedjax_sim.models.axes import as_matrices, from_matrices
from fedjax_sim.models.layers import Adapted, Rows, takes_tokens
from fedjax_sim.models.paths import lookup, nested
from fedjax_sim.models.stateful import Evaluation
from fedjax_sim.objectives.of_model import momentum_of_training
from fedjax_sim.types import Described, Model, Params, PyTree, Scalar, plain_integers

# (path, leaf) -> True for a kernel that gets one adapter, or the blocks of rows that get one each.
WhereRows: TypeAlias = Callable[[tree.leaves.Path, Any], bool | tuple[Rows, ...]]

# Uniform on +-1 / sqrt(inputs): Kaiming's initialisation with slope sqrt(5), as in the authors'
# program.
kaiming_uniform: Initializer = jax.nn.initializers.variance_scaling(
    1 / 3, "fan_in", "uniform", in_axis=-1, out_axis=-2
)


def queries_and_values(path: tree.leaves.Path, leaf: Any) -> bool | tuple[Rows, ...]:
    """Selects the kernels of queries and values of attention layers, for ``lora``.

    These are leaves "kernel" of layers "query" and "value", and of a layer "qkv", whose rows are
    all queries, all keys, all values, the first and the last third of the rows.

    Example:
        >>> queries_and_values(("attn", "query", "kernel"), jnp.ones((4, 4)))
        True
        >>> queries_and_values(("attn", "qkv", "kernel"), jnp.ones((6, 2)))
        ((0, 2), (4, 6))
    """
    if len(path) < 2 or path[-1] != "kernel":
        return False
    if path[-2] == "qkv":
        width = leaf.shape[-2] // 3
        return ((0, width), (2 * width, 3 * width))
    return path[-2] in ("query", "value")


@plain_integers
def lora(
    model: Model,
    rank: int = 8,
    alpha: Scalar = 8.0,
    where: WhereRows | tree.leaves.OfModel = queries_and_values,
    a_init: Initializer = kaiming_uniform,
) -> Model:
    r"""Model with adapters of low rank beside some of its kernels.

    The matrix W ``[outputs, inputs]`` of a layer becomes

    .. math:: W + \frac{\alpha}{r}\, B A, \qquad A \in R^{r \times inputs},\;
        B \in R^{outputs \times r}

    A starts random and B at zero, so the model starts as the base model exactly.

    The matrix follows from the layer's definition (``model.axis_roles``), in whatever order the
    axes of its kernel are stored.  The layers of flax (nnx and linen) have

    =====================================  ============================  ======================
    layer                                  kernel                        outputs x inputs
    =====================================  ============================  ======================
    Linear, Dense                          ``[in, out]``                 out x in
    LinearGeneral, DenseGeneral, Einsum    ``[n, in, ..., out, ...]``    n times all out x all in
    attention: queries, keys, values       ``[in, heads, d]``            heads d x in
    attention: output                      ``[heads, d, out]``           out x heads d
    Embed                                  ``[tokens, features]``        features x tokens
    Conv                                   ``[kh, kw, in, out]``         out x kh kw in
    ConvTranspose                          ``[kh, kw, in, out]``         kh kw out x in
    =====================================  ============================  ======================

    A layer of your own names them by a class attribute, such as ``axis_roles = {"kernel": "io"}``;
    matrices of a model without ``axis_roles`` are ``[outputs, inputs]``.

    Parameters are ``{"base": ..., "adapters": ...}``: those of the base model, and a dict ``{"a",
    "b"}`` at the path of every adapted kernel (``{"0": {"a", "b"}, "1": ...}`` where several blocks
    of rows have adapters).  Stacks of matrices, such as the blocks of
    :func:`~fedjax_sim.models.vit`, have stacks of adapters.  Freeze the base model with
    ``fs.freeze(algorithm, lora_frozen)``: then uploads, client states and optimizer states consist
    of adapters.  For a trained base model replace the initial one: ``{**adapted.init(key), "base":
    trained}``.

    A mean of adapters is not the mean of the clients' models: mean(B) mean(A) differs from
    mean(B A).  They are equal if all clients have the same A; ``fs.freeze(algorithm,
    ffa_lora_frozen)`` freezes A as well (FFA-LoRA).

    The layers of :func:`~fedjax_sim.models.transformer` and :func:`~fedjax_sim.models.vit` add
    ``B (A x)`` to their outputs, so clients share the kernels.  Of other models the sum is formed,
    once per client and step, and with :func:`~fedjax_sim.models.in_precision` it is rounded.
    Beside a base model in half precision, adapters and sums are in float32.

    Args:
        model: any model with matrices.
        rank: r.
        alpha: :math:`\alpha`; may be traced.
        where: ``(path, leaf) -> bool``, True for kernels to adapt, or the blocks of rows ``(first,
            end)`` of the matrix that get an adapter each; or a selection such as
            :data:`~fedjax_sim.tree.leaves.last_layer`, whose matrices are adapted.  ``leaf`` has
            the shape of the matrix ``[outputs, inputs]``, or of the stack of matrices.
        a_init: initializer of A, called with the shape ``(r, inputs)``; for a Gaussian
            ``jax.nn.initializers.normal(deviation)``.

    Raises:
        ValueError: a rank below 1; an alpha that is no number; ``where`` selects nothing, or a leaf
            that is no kernel of a known layer, or rows that the matrix does not have.

    Source: Hu et al., 2021 (https://arxiv.org/abs/2106.09685), section 4.1; FFA-LoRA: Sun et al.,
    2024 (https://arxiv.org/abs/2403.12313).

    Example:
        >>> import fedjax_sim as fs
        >>> adapted = lora(fs.models.transformer(65), rank=4)
        >>> params = jax.eval_shape(adapted.init, jax.random.key(0))
        >>> sum(leaf.size for leaf in jax.tree.leaves(params["adapters"]))  # 2 * 4 blocks * 2 w r
        4096
        >>> algorithm = fs.freeze(fs.fedavg(0.1), lora_frozen)
    """
    check_count(1, rank=rank)
    check_number(alpha=alpha)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    selected = _selected(model, shapes, where)
    merges = not getattr(model.apply, "takes_adapters", False)

    def adapters(key: Array) -> Params:
        created = {}
        for number, (path, (_, leaf, blocks)) in enumerate(selected.items()):
            for index, (first, end) in enumerate(blocks):
                one = jax.random.fold_in(jax.random.fold_in(key, number), index)
                place = path if len(blocks) == 1 else (*path, str(index))
                stack, inputs = leaf.shape[:-2], leaf.shape[-1]
                created[*place, "a"] = _stacked(a_init, one, stack, (rank, inputs), leaf.dtype)
                created[*place, "b"] = jnp.zeros((*stack, end - first, rank), leaf.dtype)
        return nested(created)

    def init(key: Array) -> Params:
        base, drawn = jax.random.split(key)
        return {"adapters": adapters(drawn), "base": model.init(base)}

    def filled(params: Params, merges: bool) -> Params:
        return _filled(params, selected, alpha, merges)

    def adapted(params: Params, x: Any) -> Any:
        return model.apply(filled(params, merges), x)

    apply = takes_tokens(adapted, getattr(model.apply, "vocab_size", None))
    apply = Described.of(apply, computes_in=getattr(model.apply, "computes_in", None))
    if model.train is None:
        return Model(init, apply)
    statistics = model.statistics

    def in_base(path: tree.leaves.Path, leaf: Any) -> bool:
        return path[0] == "base" and statistics is not None and statistics(path[1:], leaf)

    train = _AdaptedTraining(model.train, lambda params: filled(params, True))
    return Model(init, Evaluation(apply), train, statistics and in_base)


@dataclasses.dataclass(frozen=True, eq=False)
class _AdaptedTraining:
    """Function ``train`` of a model with adapters."""

    train: Callable[..., tuple[Any, PyTree]]  # of the base model
    merged: Callable[[Params], Params]  # its parameters, with the adapters added

    def __call__(self, params: Params, x: Any, key: Array, weights: Array) -> tuple[Any, PyTree]:
        outputs, new = self.train(self.merged(params), x, key, weights)
        return outputs, {"adapters": jax.tree.map(lambda _: None, params["adapters"]), "base": new}

    def momentum(self, params: Params, x: Any) -> float | None:
        """Returns the largest momentum of the base model, if it is known."""
        return momentum_of_training(self.train, params["base"], x)


def lora_frozen(path: tree.leaves.Path, leaf: Any) -> bool:
    """Predicate of the base model of :func:`~fedjax_sim.models.lora`, for ``freeze``.

    Example:
        >>> lora_frozen(("base", "head", "kernel"), None), lora_frozen(("adapters", "a"), None)
        (True, False)
    """
    del leaf
    return path[0] == "base"


def ffa_lora_frozen(path: tree.leaves.Path, leaf: Any) -> bool:
    """Predicate of the base model and all A of :func:`~fedjax_sim.models.lora`, for ``freeze``.

    Example:
        >>> ffa_lora_frozen(("adapters", "a"), None), ffa_lora_frozen(("adapters", "b"), None)
        (True, False)
    """
    return lora_frozen(path, leaf) or path[-1] == "a"


def merge_lora(
    model: Model,
    params: Params,
    alpha: Scalar = 8.0,
    where: WhereRows | tree.leaves.OfModel = queries_and_values,
) -> Params:
    """Returns the base model's parameters with the adapters added to its kernels.

    Adapted kernels in half precision become those in float32.

    Args:
        model: the base model.
        params: of a model of :func:`~fedjax_sim.models.lora`.
        alpha: as for :func:`~fedjax_sim.models.lora`.
        where: as for :func:`~fedjax_sim.models.lora`.

    Raises:
        ValueError: as :func:`~fedjax_sim.models.lora`; no model.

    Example:
        >>> model = Model(lambda key: ..., lambda params, x: x @ params["query"]["kernel"].T)
        >>> params = {"base": {"query": {"kernel": jnp.zeros((2, 2))}}, "adapters": {
        ...     "query": {"kernel": {"a": jnp.ones((1, 2)), "b": jnp.ones((2, 1))}}}}
        >>> merge_lora(model, params, alpha=3.0)["query"]["kernel"].tolist()
        [[3.0, 3.0], [3.0, 3.0]]
    """
    if not isinstance(model, Model):
        raise ValueError(f"model is a {type(model).__name__}; expected the base model of lora")
    check_number(alpha=alpha)
    return _filled(params, _selected(model, params["base"], where), alpha, True)


class _Matrix(NamedTuple):
    roles: str  # of the kernel's axes
    leaf: Any  # shape and dtype of the matrix, or of the stack of matrices
    rows: tuple[Rows, ...]  # blocks that get adapters


def _filled(
    params: Params, selected: dict[tree.leaves.Path, _Matrix], alpha: Scalar, merges: bool
) -> Params:
    """Returns the base model with adapted kernels, as arrays if ``merges``."""

    def kernel(path: tuple[Any, ...], leaf: Array) -> Array | Adapted:
        matrix = selected.get(tree.leaves.names(path))
        if matrix is None:
            return leaf
        roles, _, rows = matrix
        here = lookup(params["adapters"], tree.leaves.names(path))
        factors = (here,) if len(rows) == 1 else tuple(here[str(i)] for i in range(len(rows)))
        a = factors[0]["a"]
        scale = jnp.broadcast_to(jnp.asarray(alpha / a.shape[-2]).astype(a.dtype), a.shape[:-2])
        adapted = Adapted(as_matrices(leaf, roles), factors, scale, rows)
        return from_matrices(adapted.merged(), roles, leaf.shape) if merges else adapted

    return jax.tree_util.tree_map_with_path(kernel, params["base"])


def _selected(
    model: Model, params: Params, where: WhereRows | tree.leaves.OfModel
) -> dict[tree.leaves.Path, _Matrix]:
    """Returns the kernels to adapt, by path."""
    tree.leaves.check_selection(where)
    axis_roles = model.axis_roles or _outputs_by_inputs
    of_model = where.find(params) if isinstance(where, tree.leaves.OfModel) else None
    selected = {}
    for keys, kernel in jax.tree_util.tree_leaves_with_path(params):
        path = tree.leaves.names(keys)
        leaf = jax.ShapeDtypeStruct(kernel.shape, kernel.dtype)
        roles = axis_roles(path, leaf)
        if roles is not None:
            leaf = jax.eval_shape(lambda x, roles=roles: as_matrices(tree.wide(x), roles), leaf)
        if of_model is None:
            blocks = where(path, leaf)  # pyright: ignore[reportCallIssue]
        else:
            blocks = of_model(path, kernel) and roles is not None
        if not blocks:
            continue
        if roles is None or not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(
                f"where selects {'/'.join(path)} of shape {kernel.shape} and dtype {kernel.dtype}; "
                "expected a floating kernel of a layer whose matrix is known (model.axis_roles)"
            )
        selected[path] = _Matrix(roles, leaf, _rows(path, leaf, blocks))
    if not selected:
        paths = [
            "/".join(tree.leaves.names(k)) for k, _ in jax.tree_util.tree_leaves_with_path(params)
        ]
        raise ValueError(
            f"where selects none of the leaves; expected kernels among {', '.join(paths)}"
        )
    return selected


def _outputs_by_inputs(path: tree.leaves.Path, leaf: Any) -> str | None:
    del path
    return "oi" if leaf.ndim == 2 else None


def _rows(path: tree.leaves.Path, leaf: Any, blocks: Any) -> tuple[Rows, ...]:
    """Returns the blocks of rows that get adapters; any true value but a sequence is for all."""
    outputs = leaf.shape[-2]
    blocks = tuple(blocks) if isinstance(blocks, (tuple, list)) else ((0, outputs),)
    for block in blocks:
        if len(block) != 2 or not 0 <= block[0] < block[1] <= outputs:
            raise ValueError(
                f"where selects the rows {block} of {'/'.join(path)}; expected (first, end) with "
                f"0 <= first < end <= {outputs}, the kernel's rows"
            )
    return blocks


def _stacked(
    initializer: Initializer, key: Array, stack: tuple[int, ...], shape: tuple[int, int], dtype: Any
) -> Array:
    """Draws an array for every entry of a stack, which may have no axes."""
    if not stack:
        return initializer(key, shape, dtype)
    keys = jax.random.split(key, stack[0])
    return jax.vmap(lambda key: initializer(key, shape, dtype))(keys)
