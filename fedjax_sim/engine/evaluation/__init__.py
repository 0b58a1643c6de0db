"""Evaluation over whole data sets, in batches, so that only one batch's activations are stored.

An evaluator is a ``jax.tree_util.Partial`` that carries its data: ``evaluator(params)`` is a dict
of scalars.  It works under ``jit``, ``vmap`` over parameters and ``grad`` (which recomputes the
activations of each batch).  Pass an evaluator to a jitted function as an argument; in a closure its
data would become constants of the program.
"""

from fedjax_sim.engine.evaluation import scores
from fedjax_sim.engine.evaluation.clients import client_evaluator, client_statistics
from fedjax_sim.engine.evaluation.context import RunContext
from fedjax_sim.engine.evaluation.inside import inner
from fedjax_sim.engine.evaluation.means import evaluator, merge_evaluators
from fedjax_sim.engine.evaluation.personal import personal_evaluator
from fedjax_sim.engine.evaluation.pooled import pooled_evaluator, scored
from fedjax_sim.engine.evaluation.state import at_rounds, evaluate, takes_state
from fedjax_sim.engine.evaluation.streaming import subsample

__all__ = [
    "RunContext",
    "at_rounds",
    "client_evaluator",
    "client_statistics",
    "evaluate",
    "evaluator",
    "inner",
    "merge_evaluators",
    "personal_evaluator",
    "pooled_evaluator",
    "scored",
    "scores",
    "subsample",
    "takes_state",
]
