"""Evaluators of the algorithm inside of a wrapper."""

from __future__ import annotations

from typing import Any, NamedTuple

from jax.tree_util import Partial

from fedjax_sim.engine.evaluation.context import context_of
from fedjax_sim.engine.evaluation.state import evaluate
from fedjax_sim.types import EvalFn


def inner(eval_fn: EvalFn) -> Partial:
    """Evaluates the model of the algorithm inside of a wrapper, which has a model of its own.

    With :func:`~fedjax_sim.average_rounds` and :func:`~fedjax_sim.ema_rounds` the run's model is a
    mean over rounds, and the inner one that of the clients' next broadcast.  ``inner(inner(...))``
    is the model two wrappers inside.  Evaluators of personal models are refused, since these need
    the inner algorithm's broadcast.

    Args:
        eval_fn: an evaluator.

    Raises:
        ValueError: when it is called, an algorithm whose server's state contains no other state in
            a field ``inner``.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import fedjax_sim as fs
        >>> data = fs.from_clients([{"x": jnp.array([8.0])}])
        >>> task = fs.empirical_task(
        ...     lambda w, batch, key: (w - batch["x"]) ** 2 / 2, data, fs.full_batch(1))
        >>> model = lambda w: {"model": w}
        >>> both = fs.evaluation.merge_evaluators(mean=model, raw=fs.evaluation.inner(model))
        >>> timeline = fs.timelines.full(2, 1, task.num_steps)
        >>> setup = fs.Setup(task, timeline, jnp.array(0.0), eval_fn=both)
        >>> _, history = fs.run(fs.average_rounds(fs.fedavg(0.5)), setup, jax.random.key(0))
        >>> {name: values.tolist() for name, values in history.metrics.items()}
        {'mean/model': [4.0, 5.0], 'raw/model': [4.0, 6.0]}
    """
    return Partial(_Inner(), eval_fn if isinstance(eval_fn, Partial) else Partial(eval_fn))


class _Inner(NamedTuple):
    """Static part of an evaluator of an inner model."""

    takes_state = True

    def __call__(self, eval_fn: Partial, run: Any) -> dict[str, Any]:
        context = context_of(run)
        server = getattr(context.state.server, "inner", None)
        if server is None:
            kind = type(context.state.server).__name__
            raise ValueError(
                f"evaluation.inner receives a server's state of type {kind} without a field "
                "'inner'; expected an algorithm in a wrapper such as fs.average_rounds"
            )
        state = context.state._replace(server=server)
        # The algorithm is the outer one, whose broadcast needs the outer state.
        outer = context if context.outer is None else context.outer
        return evaluate(eval_fn, context._replace(state=state, algorithm=None, outer=outer))
