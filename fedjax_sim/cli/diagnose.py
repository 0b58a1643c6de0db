"""``fedjax-sim run --diagnose``: a convex comparison against the bounds of theory.

The optimum is found before anything runs.  After the runs, constants are measured at the initial
model, the optimum and the final models; FedAvg is run again with the same keys, now recording what
the bounds are about: the objective at the model and its mean over the shadow iterates.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array
from jax.tree_util import Partial

from fedjax_sim import tree
from fedjax_sim.cli import build, registry
from fedjax_sim.cli.config import RunConfig
from fedjax_sim.cli.diagnosis_report import EVERYWHERE, SUBOPTIMALITY, Diagnosis, write
from fedjax_sim.data.federated import FederatedData
from fedjax_sim.data.task import Objective, empirical_task
from fedjax_sim.datasets import Dataset
from fedjax_sim.diagnostics.constants import Constants, measure
from fedjax_sim.diagnostics.drift import shadow_probes, shadowed
from fedjax_sim.diagnostics.gradient_moments import batch_moments
from fedjax_sim.diagnostics.linear_models import SOFTMAX, linear_model_bounds
from fedjax_sim.diagnostics.optimum import Optimum, mean_loss, optimum
from fedjax_sim.engine import NO_PROBES, History, Probes, run
from fedjax_sim.objectives import cross_entropy, with_l2
from fedjax_sim.theory import fedavg
from fedjax_sim.theory.overlays import FEDAVG, SHADOW, Overlay, overlay
from fedjax_sim.theory.prescribed import optimal_lr
from fedjax_sim.types import FedAlgorithm, Params, Task, Timeline

if TYPE_CHECKING:
    from fedjax_sim.cli.run import Problem

_MODEL = "softmax_regression"


class Plan(NamedTuple):
    """What a diagnosis needs, made before anything runs."""

    objective: Objective  # with weight decay as l2
    l2: float
    loss: Partial  # F, the mean over clients
    found: Optimum
    unmet: tuple[str, ...]  # assumptions of the bounds that the run does not meet


def plan(config: RunConfig, dataset: Dataset, problem: "Problem", hyper: Mapping[str, Any]) -> Plan:
    """The convex objective, its optimum, and which assumptions of the bounds hold.

    Args:
        config: the comparison.
        dataset: its data set.
        problem: as :func:`fedjax_sim.cli.run.prepare` makes it.
        hyper: resolved hyper-parameters of the algorithms.

    Raises:
        ValueError: a model that is not convex, no FedAvg to diagnose or FedAvg without weight
            decay.
        FloatingPointError: as :func:`fedjax_sim.diagnostics.optimum.optimum`.
    """
    name, model = build.model(config, dataset)
    if name != _MODEL:
        raise ValueError(f"model is {name!r}, which is not convex; --diagnose needs {_MODEL}")
    if "fedavg" not in hyper:
        raise ValueError(f"algorithms is {config.algorithms}; --diagnose needs fedavg among them")
    weight = hyper["fedavg"].get("weight_decay", 0.0)
    if not weight > 0:
        raise ValueError(
            f"weight_decay is {weight}; --diagnose needs a positive one, without which separable "
            "examples have no optimum"
        )
    objective = with_l2(cross_entropy(model.apply), weight)
    full = mean_loss(objective, problem.data)
    found = optimum(full, jax.tree.map(lambda x: x[0], problem.params))
    return Plan(objective, weight, full, found, _unmet(config, hyper["fedavg"], problem.data))


def diagnose(
    config: RunConfig, problem: "Problem", hyper: Mapping[str, Any], made: Plan, final: Params
) -> Diagnosis:
    """Measures constants and suboptimalities, and writes ``diagnosis.json``, ``.csv``, ``.png``.

    Args:
        config, problem, hyper: as of :func:`plan`.
        made: its result.
        final: FedAvg's final models, leaves ``[seeds, ...]``.

    Raises:
        FloatingPointError: no seed's model is finite.
    """
    task = empirical_task(made.objective, problem.data, build.batches(config))
    constants = _constants(config, problem, task, made, final)
    lr, M, K = hyper["fedavg"]["lr"], problem.data.num_clients, config.local_steps
    bounds, prescribed = (*FEDAVG, SHADOW), math.nan
    if made.unmet or K is None:
        plain = registry.algorithm("fedavg", hyper["fedavg"])
        history = _runs(config, problem, problem.task, made.loss, plain, lambda loss: NO_PROBES)
        names = ", ".join(bound.name for bound in bounds)
        lines = Overlay([], {names: "; ".join(made.unmet)})
    else:
        history = _runs(config, problem, task, made.loss, shadowed(lr), shadow_probes)
        rounds = np.asarray(history.round[0])
        drift = _so_far(history.probes["drift"], rounds).mean(axis=0)
        lines = overlay(
            History(history.round[0], {}, {}),
            constants,
            lr=lr,
            M=M,
            K=K,
            bounds=bounds,
            drift=drift,
        )
        prescribed = float(optimal_lr(fedavg.convex_lr, constants, M=M, K=K, R=config.rounds))
    measured = _frame(config, history, made.found.value)
    found = Diagnosis(constants, prescribed, lines, measured, made.unmet)
    write(config.output, {"lr": lr, "M": M, "K": K}, made.found, found)
    return found


def _unmet(config: RunConfig, hyper: Mapping[str, Any], data: FederatedData) -> tuple[str, ...]:
    """The assumptions of the theorems on FedAvg that these options violate."""
    reasons = []
    if config.sampling != "full":
        reasons.append(
            f"--sampling is {config.sampling}; the theorems have all clients in every round (full)"
        )
    if config.dropout:
        reasons.append(f"--dropout is {config.dropout}; the theorems have no dropout")
    if config.local_steps is None:
        reasons.append(
            "--local-steps is not given; the theorems have K independent minibatches a round, not "
            "epochs without replacement"
        )
    if config.weighting == "examples" and len(np.unique(np.asarray(data.sizes))) > 1:
        reasons.append("--weighting is examples; the theorems weight all clients alike")
    reasons += [
        f"{name} is {hyper[name]}; the theorems have constant rates and unclipped gradients"
        for name in ("lr_decay", "clip")
        if name in hyper
    ]
    return tuple(reasons)


def _constants(
    config: RunConfig, problem: "Problem", task: Task, made: Plan, final: Params
) -> Constants:
    final = jax.tree.map(np.asarray, final)
    finite = np.asarray(jax.vmap(tree.all_finite)(final))
    if not finite.any():
        raise FloatingPointError("fedavg diverged with every seed; there is nothing to diagnose")
    points = jax.tree.map(
        lambda start, best, last: jnp.concatenate(
            [start[:1], jnp.asarray(best, start.dtype)[None], last[finite]]
        ),
        problem.params,
        made.found.params,
        final,
    )
    data = problem.data
    moments = batch_moments(made.objective, data, points, config.batch_size)
    measured = measure(
        task, points, jax.random.key(0), moments=moments, found=made.found, loss=made.loss
    )
    everywhere = linear_model_bounds(data.examples["x"], data.offsets, SOFTMAX, l2=made.l2)
    return measured._replace(**{name: getattr(everywhere, name) for name in EVERYWHERE})


def _runs(
    config: RunConfig,
    problem: "Problem",
    task: Task,
    loss: Partial,
    algorithm: FedAlgorithm,
    probes: Callable[[Partial], Probes],
) -> History:
    """The comparison's runs of one algorithm, F evaluated; seeds lead all arrays."""

    @jax.jit
    def everything(task, loss, timelines, params, keys) -> History:
        def one(timeline: Timeline, params: Params, key: Array) -> History:
            return run(
                algorithm,
                task,
                timeline,
                params,
                key,
                cohort=build.execution(config),
                weighting=build.weighting(config),
                eval_fn=lambda x: {"loss": loss(x)},
                eval_every=config.eval_every,
                probes=probes(loss),
            )[1]

        return jax.vmap(one)(timelines, params, keys)

    return everything(task, loss, problem.timeline, problem.params, problem.keys)


def _so_far(values: Array, rounds: np.ndarray) -> np.ndarray:
    """Means over the rounds done, ``[n, T] -> [n, E]``."""
    sums = np.cumsum(np.asarray(values, np.float64), axis=1)
    return sums[:, rounds - 1] / rounds


def _frame(config: RunConfig, history: History, best: float) -> pd.DataFrame:
    """Suboptimalities as tidy rows."""
    rounds = np.asarray(history.round[0])
    quantities = {"fedavg: model": np.asarray(history.metrics["loss"], np.float64)}
    if "shadow_loss" in history.probes:
        mean = _so_far(history.probes["shadow_loss"], rounds)
        quantities["fedavg: mean over shadow iterates"] = mean
    rows = [
        (name, config.seed + seed, int(r), SUBOPTIMALITY, float(value - best))
        for name, values in quantities.items()
        for seed, line in enumerate(values)
        for r, value in zip(rounds, line, strict=True)
    ]
    return pd.DataFrame(rows, columns=["quantity", "seed", "round", "metric", "value"])
