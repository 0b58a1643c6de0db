"""Models and tasks whose precision differs from that of the parameters."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, overload

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jax.typing import DTypeLike

from fedjax_sim import tree
from fedjax_sim.checks import floating_dtype
from fedjax_sim.models.stateful import Evaluation
from fedjax_sim.objectives import Objective
from fedjax_sim.objectives.of_model import OfApply, OfModel, momentum_of_training
from fedjax_sim.tree import leaves
from fedjax_sim.types import Model, Params, PyTree, Task


@overload
def in_precision(model: Model, dtype: DTypeLike) -> Model: ...


@overload
def in_precision(model: Task, dtype: DTypeLike) -> Task: ...


def in_precision(model: Model | Task, dtype: DTypeLike) -> Model | Task:
    """Model that computes in another floating dtype; parameters and outputs keep their dtype.

    With bfloat16 the operands of a local step's products, forward and backward, are in half
    precision.  Local iterates, gradients, losses, uploads and the server's state have the dtype of
    the parameters (float32): differences of models over a local step are too small for 8 bits.
    Running statistics are not converted, either.  Outputs are not rounded: the last product's sums,
    and the bias added to them, have the dtype of the parameters.  Other functions of these sums,
    such as a log-softmax, are computed in half precision.

    Args:
        model: any model; or a task whose objective contains one, as a choice for one execution:
            clients' gradients are then computed in the dtype, evaluations of the server are not.
        dtype: floating dtype of the computation, in the place of an earlier one.

    Raises:
        ValueError: a dtype that is not floating, neither a model nor a task, a task whose
            objective is not one of :mod:`fedjax_sim.objectives`, or a model that another function,
            such as :func:`~fedjax_sim.models.lora`, made of one that has a precision.

    Example:
        >>> model = in_precision(Model(lambda key: jnp.ones(2), lambda w, x: x @ w), jnp.bfloat16)
        >>> out = model.apply(jnp.array([1.0, 1 / 512]), jnp.array([[1.0, 1.001]]))
        >>> out.dtype, out.tolist()  # 1.001 is rounded to 1, the sum is not
        (dtype('float32'), [1.001953125])
    """
    name = floating_dtype(dtype).name
    if isinstance(model, Task):
        return _task_in_precision(model, name)
    if not isinstance(model, Model):
        raise ValueError(f"model is {model!r:.60}; expected a fedjax_sim Model or Task")
    if model.train is None:
        return model._replace(apply=_cast(model.apply, name))
    inner = getattr(model.apply, "function", None)  # of an earlier Evaluation
    apply = _cast(inner if isinstance(inner, _Cast) else model.apply, name)
    train = model.train.train if isinstance(model.train, _CastTraining) else model.train
    return model._replace(
        apply=Evaluation(apply), train=_CastTraining(train, name, model.statistics)
    )


def _task_in_precision(task: Task, dtype: str) -> Task:
    """Returns a task whose objective's model computes in another dtype."""
    build = getattr(task.placement, "build", None)  # examples on the host: built per segment
    if build is not None:

        def built(place: Any, data: Any) -> Task:
            return _task_in_precision(build(place, data), dtype)

        return dataclasses.replace(task, placement=dataclasses.replace(task.placement, build=built))
    partial: Any = task.oracle
    oracle: Any = getattr(partial, "func", None)
    if hasattr(oracle, "empirical"):  # of generated examples
        empirical = _with_objective_in(oracle.empirical, dtype)
        oracle = oracle._replace(empirical=empirical)
    else:
        oracle = _with_objective_in(oracle, dtype)
    return dataclasses.replace(task, oracle=jax.tree_util.Partial(oracle, *partial.args))


def _with_objective_in(oracle: Any, dtype: str) -> Any:
    """Returns a task's oracle whose objective's model computes in another dtype."""
    objective = _objective_in(getattr(oracle, "objective", None), dtype)
    return oracle._replace(objective=objective)


def _objective_in(objective: Any, dtype: str) -> Objective:
    """Returns an objective whose model computes in another dtype."""
    match objective:
        case OfModel(model):
            return dataclasses.replace(objective, model=in_precision(model, dtype))
        case OfApply(apply):
            return dataclasses.replace(objective, apply=_cast(apply, dtype))
    if getattr(objective, "objective", None) is None:  # of a regularised or augmented one
        raise ValueError(
            f"task has the objective {objective!r:.60}; expected one of fedjax_sim.objectives; a "
            "function of yours can call a model of models.in_precision"
        )
    return dataclasses.replace(objective, objective=_objective_in(objective.objective, dtype))


@dataclasses.dataclass(frozen=True)
class _CastTraining:
    """Function ``train`` of a model; hashable by value as :class:`_Cast`."""

    train: Callable
    dtype: str
    statistics: leaves.Where | None

    def __call__(self, params: Params, x: PyTree, key: Array, weights: Array) -> tuple:
        kept, rest = leaves.split(params, self.statistics or (lambda path, leaf: False))

        def train(rest: Params, x: PyTree) -> tuple[PyTree, PyTree]:
            return self.train(leaves.join(kept, rest), x, key, weights)

        return _computed(train, self.dtype, rest, x)

    def momentum(self, params: Params, x: Any) -> float | None:
        """Returns the largest momentum of the model that is cast, if it is known."""
        return momentum_of_training(self.train, params, x)


@dataclasses.dataclass(frozen=True)
class _Cast:
    """Apply function that is hashable by value: rebuilding a model does not recompile."""

    apply: Callable
    dtype: str

    @property
    def takes_adapters(self) -> bool:
        """True if kernels may have adapters beside them, which are cast as well."""
        return getattr(self.apply, "takes_adapters", False)

    @property
    def computes_in(self) -> str:
        """Name of the floating dtype in which the model computes."""
        return self.dtype

    @property
    def vocab_size(self) -> int | None:
        """Number of tokens if the inputs are token ids, which are not cast."""
        return getattr(self.apply, "vocab_size", None)

    def __call__(self, params: Params, x: PyTree) -> PyTree:
        return _computed(lambda w, x: (self.apply(w, x), None), self.dtype, params, x)[0]


def _cast(apply: Callable, dtype: str) -> _Cast:
    """Returns a function that computes in a dtype, which replaces that of an earlier cast."""
    inside = getattr(apply, "computes_in", None)
    if not isinstance(apply, _Cast) and inside is not None:
        raise ValueError(
            f"dtype is {dtype} for a model that computes in {inside} inside of another function, "
            "such as lora or normalized; expected in_precision once, as the last of them"
        )
    return _Cast(apply.apply if isinstance(apply, _Cast) else apply, dtype)


def _floating(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def _computed(
    function: Callable[[Params, PyTree], tuple[PyTree, PyTree]],
    dtype: str,
    params: Params,
    x: PyTree,
) -> tuple[PyTree, PyTree]:
    """Returns outputs, in the dtype of the parameters, and statistics, whose dtype stays."""

    def cast(tree: PyTree, dtype: DTypeLike) -> PyTree:
        return jax.tree.map(lambda leaf: leaf.astype(dtype) if _floating(leaf) else leaf, tree)

    dtypes = [leaf.dtype for leaf in jax.tree.leaves(params) if _floating(leaf)]
    with jax.numpy_dtype_promotion("standard"):  # frozen leaves may be in half precision
        param_dtype = jnp.result_type(*dtypes)
    outputs, statistics = _not_rounded(function, cast(params, dtype), cast(x, dtype))
    return cast(outputs, param_dtype), statistics


_PRODUCTS = frozenset({"conv_general_dilated", "dot_general"})
# Linear operations between the last product and the outputs, such as the sum with a bias.  Not a
# difference: that of a sum and its log-sum-exp would have the whole error of rounding, and a
# logarithm of a probability could be positive.
_AFTER = frozenset(
    {"add", "broadcast_in_dim", "concatenate", "div", "mul", "neg", "reshape", "slice", "squeeze",
     "transpose"}
)  # fmt: skip


def _not_rounded(function: Callable, *arguments: PyTree) -> PyTree:
    """Returns the results of a function with the sums of its last product in at least float32."""
    program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    last = _last_operations(program.jaxpr)
    while any(operation.primitive.name == "jit" for operation in last):
        program = jax.make_jaxpr(functools.partial(_inlined, program))(*jax.tree.leaves(arguments))
        last = _last_operations(program.jaxpr)
    outputs = program.jaxpr.outvars
    made = {v for operation in last for v in operation.outvars}
    used = [v for operation in last for v in operation.invars] + list(outputs)
    inputs = list(dict.fromkeys(v for v in used if not isinstance(v, Literal) and v not in made))

    def results(wide: bool, *values: Array) -> list[Array]:
        known = dict(zip(inputs, values, strict=True))

        def read(v: Any) -> Array:
            if not isinstance(v, Literal):
                return known[v]
            shape: Any = v.aval
            return jnp.asarray(v.val, shape.dtype)

        for operation in last:
            variables: list[Any] = operation.invars
            operands, options = [read(v) for v in variables], operation.params
            is_product = operation.primitive.name in _PRODUCTS
            if is_product:  # of halves, also of the sums of another product
                operands = [
                    x.astype(v.aval.dtype) for x, v in zip(operands, variables, strict=True)
                ]
            if wide:
                # Not products of halves with a float32 result, which XLA:CPU does not always have;
                # the products of such operands are exact in TF32 and in a TPU's passes.
                operands = tree.wide(operands)
                if is_product:
                    options = options | {"preferred_element_type": operands[0].dtype}
            known[operation.outvars[0]] = operation.primitive.bind(*operands, **options)
        return [read(v) for v in outputs]

    exact = jax.custom_jvp(functools.partial(results, True))

    @exact.defjvp
    def derivative(values: tuple, tangents: tuple) -> tuple:
        # Products of the gradient have operands in half precision, too.
        primals = exact(*values)
        _, changes = jax.jvp(functools.partial(results, False), values, tangents)
        return primals, [
            t.astype(x.dtype) if _floating(x) else t for t, x in zip(changes, primals, strict=True)
        ]

    before = program.jaxpr.replace(outvars=inputs)
    values = eval_jaxpr(before, program.consts, *jax.tree.leaves(arguments))
    return jax.tree.unflatten(jax.tree.structure(shapes), exact(*values))


def _inlined(program: ClosedJaxpr, *arguments: Array) -> list[Array]:
    """Returns the results of a program with its jitted functions as parts of it, not as calls."""
    known: dict[Any, Any] = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
    known |= zip(program.jaxpr.invars, arguments, strict=True)

    def read(v: Any) -> Any:
        return v.val if isinstance(v, Literal) else known[v]

    for operation in program.jaxpr.eqns:
        operands, options = [read(v) for v in operation.invars], operation.params
        if operation.primitive.name == "jit":
            inner = options["jaxpr"]
            results = eval_jaxpr(inner.jaxpr, inner.consts, *operands)
        else:
            options = operation.primitive.get_bind_params(options)
            results = operation.primitive.bind(*operands, **options)
            results = results if operation.primitive.multiple_results else [results]
        known |= zip(operation.outvars, results, strict=True)
    return [read(v) for v in program.jaxpr.outvars]


def _last_operations(program: Jaxpr) -> list[JaxprEqn]:
    """Returns the last products whose sums reach an output, and the operations behind them.

    Calls of jitted functions among them are as they stand in the program.
    """
    variables: list[Any] = program.outvars
    wanted = {v for v in variables if _floating(v.aval)}
    found = []
    for operation in reversed(program.eqns):
        name = operation.primitive.name
        if wanted.isdisjoint(operation.outvars) or name not in {"jit", *_PRODUCTS, *_AFTER}:
            continue
        found.append(operation)
        if name in _AFTER:
            wanted |= {v for v in operation.invars if not isinstance(v, Literal)}
    return found[::-1]
