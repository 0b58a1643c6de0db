"""Checks of setups, algorithms and keys that run before compilation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import get_opaque_trace_state
from jax.tree_util import Partial

from fedjax_sim.checks.calls import check_takes
from fedjax_sim.checks.numbers import check_count, is_traced
from fedjax_sim.checks.timelines import check_timeline
from fedjax_sim.types import FedAlgorithm, LastWrapper, Params, Setup, Task, Timeline

_NO_TRACE = get_opaque_trace_state()  # while modules are imported nothing is traced


def check_setup(setup: Setup, *, continued: bool = False) -> None:
    """Refuses an invalid setup of one run or of a batch of runs."""
    check_is_setup(setup)
    for name, kind in (("task", Task), ("timeline", Timeline)):
        value = getattr(setup, name)
        if not isinstance(value, kind):
            raise ValueError(
                f"setup.{name} is a {type(value).__name__}; expected a fedjax_sim.{kind.__name__}"
            )
    check_count(1, eval_every=setup.eval_every)
    _check_task(setup.task)
    if not jax.tree.leaves(setup.params):
        raise ValueError("params has no leaves; expected a pytree of arrays")
    for path, leaf in jax.tree_util.tree_leaves_with_path(setup.params):
        numbers = isinstance(leaf, (int, float, np.ndarray, np.generic, Array))
        if not numbers or isinstance(leaf, np.ma.MaskedArray):
            raise ValueError(
                f"params{jax.tree_util.keystr(path)} is {leaf!r:.60}; expected an array of numbers"
            )
        if isinstance(leaf, (np.ndarray, np.generic)):
            dtype = leaf.dtype
            if not dtype.isnative or dtype.itemsize > (16 if dtype.kind == "c" else 8):
                raise ValueError(
                    f"params{jax.tree_util.keystr(path)} has dtype {dtype.str}; expected the byte "
                    "order of this machine and at most double precision, as of "
                    "np.asarray(x, np.float32)"
                )
        # JAX's gradient with respect to complex numbers is the conjugate of the ascent direction.
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(
                f"params{jax.tree_util.keystr(path)} has dtype {jnp.result_type(leaf)}; expected a "
                "floating dtype, which has gradients"
            )
    if not (setup.eval_fn is None or callable(setup.eval_fn)):
        raise ValueError(
            f"eval_fn is {setup.eval_fn!r:.60}; expected a function of the model that returns a "
            "dict of metrics"
        )
    if not callable(setup.weighting):
        raise ValueError(
            f"weighting is {setup.weighting!r:.60}; expected a function, such as "
            "fs.weight_by_examples"
        )
    if setup.eval_fn is not None:
        check_takes("eval_fn", setup.eval_fn, ("model",))
    check_takes("weighting", setup.weighting, ("work",))
    if not is_traced(setup.timeline):
        check_timeline(setup.timeline, setup.task.num_clients, continued=continued)
        if setup.task.placement is not None:
            setup.task.placement.check(setup.timeline)


def _check_task(task: Task) -> None:
    """Refuses an oracle of other arguments, and sizes that are not one number per client."""
    arguments = ("client", "key", "max_steps", *(("first_step",) if task.resumable else ()))
    check_takes("task.oracle", task.oracle, arguments, " -> fs.Oracle")
    # Sizes may be effective ones, which are only weights.
    for name, kinds in (("num_examples", ("integer", "floating")), ("num_steps", ("integer",))):
        sizes = getattr(task, name)
        shape, dtype = (getattr(sizes, part, None) for part in ("shape", "dtype"))
        of_kind = dtype is not None and any(
            jnp.issubdtype(dtype, getattr(jnp, kind)) for kind in kinds
        )
        if shape != (task.num_clients,) or not of_kind:
            found = type(sizes).__name__ if dtype is None else dtype
            raise ValueError(
                f"task.{name} has shape {shape} and dtype {found}; expected [{task.num_clients}] "
                f"numbers of a dtype that is {' or '.join(kinds)}, one per client"
            )
        if _known(sizes):
            values = np.asarray(sizes)
            valid = np.isfinite(values) & (values >= 0)
            if not valid.all():
                client = int(np.argmin(valid))
                raise ValueError(
                    f"task.{name} has {values[client]} for client {client}; expected finite "
                    "numbers of at least 0"
                )


def check_is_setup(value: object) -> None:
    """Refuses values that are no setups, such as an algorithm in its place."""
    if not isinstance(value, Setup):
        raise ValueError(f"setup is a {type(value).__name__}; expected a fedjax_sim.Setup")


def check_is_algorithm(value: object, name: str = "algorithm") -> None:
    """Refuses values that are no algorithms, such as a factory that was not called."""
    if not isinstance(value, FedAlgorithm):
        factory = getattr(value, "__name__", "the factory")
        hint = f"call {factory}(...)" if callable(value) else "for example fs.fedavg(0.1)"
        raise ValueError(f"{name} is {value!r:.60}; expected a FedAlgorithm: {hint}")


def check_keys(keys: object) -> None:
    """Refuses keys that are not those of JAX, and equal keys of several seeds.

    Seeds with one key have the same random numbers, so an interval over them says nothing.
    """
    if not (isinstance(keys, Array) and jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)):
        raise ValueError(
            f"keys is {keys!r:.60}; expected jax.random.key(0), or n keys [n] as of "
            "jax.random.split"
        )
    if keys.ndim > 1 or not keys.size:
        raise ValueError(f"keys has shape {keys.shape}; expected () or [n], one per seed")
    check_generator("keys", keys)
    if keys.ndim and _known(keys):
        with jax.ensure_compile_time_eval():  # numbers, also where the caller is being traced
            words = np.asarray(jax.random.key_data(keys))
        _, first, number = np.unique(words, axis=0, return_index=True, return_inverse=True)
        earlier = first[number.ravel()]
        if len(first) < len(words):
            later = int(np.argmax(earlier != np.arange(len(words))))
            raise ValueError(
                f"keys[{earlier[later]}] and keys[{later}] are equal; expected another key for "
                "every seed, such as jax.random.split(key, n) (jax.random.key takes its seed "
                "modulo 2^32)"
            )


def check_split_keys(keys: Any) -> None:
    """Refuses values that are not an array of keys, such as a single key."""
    check_keys(keys)
    if not keys.ndim:
        raise ValueError(
            "keys has shape (); expected [n], one per seed, such as jax.random.split(key, 3)"
        )


def check_key(key: object, name: str = "key") -> None:
    """Refuses a value that is not one key of JAX."""
    if not (isinstance(key, Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise ValueError(f"{name} is {key!r:.60}; expected jax.random.key(0)")
    if key.ndim:
        raise ValueError(
            f"{name} has shape {key.shape}; expected one key, such as jax.random.key(0)"
        )
    check_generator(name, key)


def check_generator(name: str, key: Array) -> None:
    """Refuses keys of generators whose draws for many clients together differ from single ones.

    Under ``jax.vmap`` the generators rbg and unsafe_rbg draw from the first key of a batch, so the
    results of a run would depend on how many clients run together.
    """
    default = jax.config.jax_default_prng_impl  # pyright: ignore[reportAttributeAccessIssue]
    for owner, generator in ((name, str(jax.random.key_impl(key))), ("JAX's default", default)):
        if generator in ("rbg", "unsafe_rbg"):
            raise ValueError(
                f"{owner} is of the generator {generator}, whose draws under jax.vmap differ from "
                "single draws; expected threefry2x32, as jax.random.key(0, impl='threefry2x32') "
                "with jax_default_prng_impl='threefry2x32', JAX's default"
            )


def check_batch(setup: Setup, count: int | None) -> None:
    """Refuses models or timelines whose number differs from that of the keys."""
    clients = setup.timeline.clients
    if count is None and clients.ndim != 2:
        raise ValueError(f"timeline.clients has shape {clients.shape}; expected [T, S] for one key")
    if count is not None and clients.ndim == 3 and clients.shape[0] != count:
        raise ValueError(f"timeline has {clients.shape[0]} replicas; expected {count}, one per key")
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(setup.params)]
    if count is not None and any(shape[:1] != (count,) for shape in shapes):
        raise ValueError(
            f"params has leaves of shapes {shapes[:3]}...; expected a leading axis of {count}, one "
            f"model per key, such as jax.vmap(model.init)(jax.random.split(key, {count}))"
        )


def being_traced() -> bool:
    """Returns True inside jitted and otherwise transformed functions."""
    return get_opaque_trace_state() != _NO_TRACE


def check_compiles() -> None:
    """Refuses ``jax.disable_jit`` and calls inside jitted and otherwise transformed functions."""
    if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError(
            "jax_disable_jit is True; expected False, since the rounds are compiled: fs.run also "
            "runs without compilation"
        )
    if being_traced():
        raise ValueError(
            "setup is used inside jax.jit, vmap or grad; expected a call outside, since the rounds "
            "are compiled and recorded on the host: fs.run can be transformed"
        )


def check_objective(setup: Setup, *, batched: bool) -> None:
    """Refuses an objective, labels or token ids that do not fit the model, if there is a check.

    Tasks and evaluators have checks.  The model is not compiled; only its shapes are computed.
    Traced values pass.  ``batched``: one model per key.
    """
    if _known(setup.params):
        check_finite_params(setup.params)
    params = shapes_of_one(setup.params, batched=batched)
    oracle = setup.task.oracle
    check = getattr(getattr(oracle, "func", None), "check", None)
    arguments = getattr(oracle, "args", ())
    if check is not None and _known((arguments, setup.params)):
        check(*arguments, params)
    if _known((setup.eval_fn, setup.params)):
        _check_evaluated(setup.eval_fn, params)


def check_finite_params(params: Params) -> None:
    """Refuses initial models with NaN or infinity; shapes pass."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            continue
        values = np.asarray(leaf)
        kept = jax.dtypes.canonicalize_dtype(values.dtype)
        with np.errstate(over="ignore"):  # refused below
            finite = np.isfinite(values.astype(kept))
        if not finite.all():
            value = values[np.unravel_index(np.argmin(finite), finite.shape)]
            of = f" of {kept}" if np.isfinite(value) else ""
            raise ValueError(
                f"params{jax.tree_util.keystr(path)} has {value}; expected finite numbers{of}"
            )


def shapes_of_one(params: Params, *, batched: bool) -> Params:
    """Returns the shapes and dtypes of one model."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(jnp.shape(x)[batched:], jnp.result_type(x)), params
    )


def _check_evaluated(eval_fn: Any, params: Params) -> None:
    """Refuses evaluators with labels or token ids that the model does not have.

    Those of this package are checked, and every ``Partial`` whose function has a method
    ``check(*args, params)``.
    """
    if isinstance(eval_fn, tuple):
        for part in eval_fn:
            _check_evaluated(part, params)
    if not isinstance(eval_fn, Partial):
        return
    check = getattr(eval_fn.func, "check", None)
    if check is None:
        return _check_evaluated(eval_fn.args, params)
    try:
        check(*eval_fn.args, params)
    except ValueError as error:
        raise ValueError(f"eval_fn: {error}") from error


def _known(values: Any) -> bool:
    """Returns whether this process has the numbers of all arrays, which are not traced."""
    leaves = [leaf for leaf in jax.tree.leaves(values) if not callable(leaf)]
    return not is_traced(leaves) and all(
        getattr(leaf, "is_fully_addressable", True) for leaf in leaves
    )


def last_wrapper(algorithm: FedAlgorithm) -> LastWrapper | None:
    """Returns the wrapper that must be applied last, and is; None: the algorithm has none."""
    last = algorithm.requires.last
    if last is None:
        return None
    if algorithm.local is not last.local or algorithm.update is not last.update:
        raise ValueError(
            f"algorithm wraps {last.name}(...); expected {last.name} as the last wrapper: "
            f"{last.reason}"
        )
    if algorithm.aggregation is not None and last.mechanism is not None:
        raise ValueError(
            f"algorithm is {last.name}(...) with another aggregation than the mean; expected "
            "the mean, since the influence of one client on another rule has no known bound"
        )
    return last


def check_messages_encode(algorithm: FedAlgorithm) -> None:
    """Refuses to encode messages of an algorithm that requires exact ones."""
    if (reason := algorithm.requires.exact_messages) is not None:
        raise ValueError(
            f"algorithm needs exact messages: {reason}; expected one whose messages may be encoded"
        )


def check_statistics_last(
    wrapper: str, algorithm: FedAlgorithm, *, only_uploaded: bool = False
) -> None:
    """Refuses an algorithm that updates running statistics, which a wrapper would change.

    The gradient of a statistic is its value minus its next value, so a wrapper outside of
    :func:`~fedjax_sim.wrappers.running_statistics.running_statistics` would train, decay or clip
    statistics as if they were weights.  ``only_uploaded`` accepts clients that keep theirs.
    """
    statistics = algorithm.requires.statistics
    if statistics is not None and (statistics.uploaded or not only_uploaded):
        raise ValueError(
            f"algorithm updates running statistics; expected running_statistics({wrapper}(...)): "
            "apply running_statistics last"
        )
