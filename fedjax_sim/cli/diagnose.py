"""``fedjax-sim run --diagnose``: a convex comparison against the bounds of theory.

The optimum is computed before anything runs.  After the runs, constants are measured at the initial
model, the optimum and the final models.  FedAvg is run again with the same keys, and records the
quantities that the bounds limit: the objective at the model and its mean over the shadow iterates.
"""

import math
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array
from jax.tree_util import Partial

from fedjax_sim import tree
from fedjax_sim.cli import report
from fedjax_sim.data import Objective, empirical_task, has_classes
from fedjax_sim.diagnostics import (
    FEDAVG,
    SHADOW,
    SOFTMAX,
    Optimum,
    Overlay,
    batch_moments,
    linear_model_bounds,
    mean_loss,
    measure,
    overlay,
    shadow_probes,
    shadowed,
)
from fedjax_sim.diagnostics.optimum import optimum
from fedjax_sim.engine import NO_PROBES, History, Probes, run
from fedjax_sim.objectives import cross_entropy, with_l2
from fedjax_sim.reports.figures import bound_curves
from fedjax_sim.studies.setups import Losses, Parts, Problem, ResolvedRun, Rounds
from fedjax_sim.theory import ProblemConstants, fedavg
from fedjax_sim.types import FedAlgorithm, Params, Setup, Task, Timeline

SUBOPTIMALITY = "training suboptimality"
# Constants of softmax regression that hold at every model, rather than at visited ones only.
EVERYWHERE = ("L", "mu", "Q")
MODEL = "softmax_regression"


class Plan(NamedTuple):
    """The preparation of a diagnosis, before anything runs."""

    objective: Objective  # with weight decay as l2
    l2: float
    loss: Partial  # F, the mean over clients
    optimum: Optimum
    unmet: tuple[str, ...]  # assumptions of the bounds that the run does not meet


class Diagnosis(NamedTuple):
    """Measured constants and the bounds that apply, as in ``diagnosis.json`` and ``.csv``."""

    constants: ProblemConstants
    prescribed_lr: float  # theory.fedavg.prescribed_lr
    overlay: Overlay
    measured: pd.DataFrame  # columns quantity, seed, round, metric, value
    unmet: tuple[str, ...]


def plan(comparison: ResolvedRun) -> Plan:
    """Returns the convex objective, its optimum, and the assumptions that do not hold."""
    hyper, problem, strata = comparison.hyper, comparison.problem, comparison.computed.num_strata
    parts, settings = problem.parts, comparison.record.settings
    if strata is not None:
        raise ValueError(f"num_strata is {strata}; expected none with --diagnose")
    if not isinstance(comparison.time, Rounds):
        raise ValueError("time is 'clock'; expected rounds with --diagnose")
    if parts is None:  # the settings have no options of clients
        raise ValueError("setup is a study module's; --diagnose needs data and a model by options")
    if settings["partition_per_seed"]:
        raise ValueError("partition_per_seed is True; expected one partition with --diagnose")
    name = problem.description["model"]["name"]
    if name != MODEL:
        raise ValueError(f"model is {name!r}, which is not convex; --diagnose needs {MODEL}")
    if not is_softmax_regression(problem):
        loss = settings.get("loss") or "another one"
        raise ValueError(f"loss is {loss}; --diagnose needs the cross-entropy of classes")
    if "fedavg" not in hyper or comparison.entries["fedavg"].is_own:
        raise ValueError(f"algorithms is {tuple(hyper)}; --diagnose needs the package's fedavg")
    weight = hyper["fedavg"].get("weight_decay", 0.0)
    if not weight > 0:
        raise ValueError(
            f"weight_decay is {weight}; --diagnose needs a positive one, without which separable "
            "examples have no optimum"
        )
    objective = with_l2(cross_entropy(parts.model.apply), weight)
    full = mean_loss(objective, parts.data)
    best = optimum(full, jax.tree.map(lambda x: x[0], problem.setup.params))
    own, sizes = comparison.record.own, parts.data.sizes
    return Plan(objective, weight, full, best, unmet(settings, hyper["fedavg"], sizes, own))


def is_softmax_regression(problem: Problem) -> bool:
    """Returns True for the model and the loss whose constants are known."""
    if problem.parts is None or problem.description["model"]["name"] != MODEL:
        return False
    return problem.parts.losses == Losses() and has_classes(problem.parts.data)


def diagnose(comparison: ResolvedRun, plan: Plan, final: Params) -> Diagnosis:
    """Measures constants and suboptimalities; writes ``diagnosis.json``, ``.csv`` and ``.png``."""
    settings, parts = comparison.record.settings, _parts(comparison)
    lr, M = comparison.hyper["fedavg"]["lr"], parts.data.num_clients
    setup = comparison.problem.setup
    K, rounds = settings["local_steps"], setup.timeline.num_rounds
    constants = _constants(comparison, plan, final)
    bounds, prescribed = (*FEDAVG, SHADOW), math.nan
    if plan.unmet or K is None:
        plain = comparison.algorithm("fedavg")
        history = _runs(comparison, setup.task, plan.loss, plain, lambda loss: NO_PROBES)
        names = ", ".join(bound.name for bound in bounds)
        lines = Overlay([], {names: "; ".join(plan.unmet)})
    else:
        task = empirical_task(plan.objective, parts.data, parts.batches)
        history = _runs(comparison, task, plan.loss, shadowed(lr), shadow_probes)
        at = np.asarray(history.round[0])
        drift = _running_mean(history.probes["drift"], at).mean(axis=0)
        lines = overlay(
            History(history.round[0], {}, {}),
            constants,
            lr=lr,
            clients=M,
            local_steps=K,
            bounds=bounds,
            drift=drift,
        )
        prescribed = float(
            fedavg.prescribed_lr(constants, "convex", local_steps=K, rounds=rounds, clients=M)
        )
    measured = _frame(settings["seed"], history, plan.optimum.value)
    diagnosis = Diagnosis(constants, prescribed, lines, measured, plan.unmet)
    _write(comparison.output, {"lr": lr, "M": M, "K": K}, plan.optimum, diagnosis)
    return diagnosis


def kind_of(constant: str) -> str:
    """Returns a description of how a constant was obtained."""
    if constant in EVERYWHERE:
        return "bound that holds at every model"
    if constant in ("B", "Delta", "zeta_star"):
        return "value at the initial model or the optimum"
    return "largest value at visited models: a lower estimate"


def _parts(comparison: ResolvedRun) -> Parts:
    parts = comparison.problem.parts
    assert parts is not None  # plan() has refused others
    return parts


def unmet(
    settings: Mapping[str, Any],
    hyper: Mapping[str, Any],
    sizes: Any,
    own: Collection[str] = (),
) -> tuple[str, ...]:
    """Returns the assumptions of the theorems on FedAvg that these options violate."""
    reasons = []
    if "timeline" in own:
        reasons.append("timeline is a study module's; the theorems have all clients in every round")
    elif settings["sampling"] != "full":
        reasons.append(
            f"sampling is {settings['sampling']}; the theorems have all clients in every round "
            "(full)"
        )
    if settings["dropout"]:
        reasons.append(f"--dropout is {settings['dropout']}; the theorems have no dropout")
    failures = {"--lost": settings["lost"], "--late": settings["late"]}
    failures["attack"] = "" if settings["attack"] == "none" else settings["attack"]
    reasons += [
        f"{name} is {value}; the theorems have neither failures nor attacks"
        for name, value in failures.items()
        if value
    ]
    if settings["local_steps"] is None:
        reasons.append(
            "--local-steps is not given; the theorems have K independent minibatches per round, "
            "not epochs without replacement"
        )
    if settings["weighting"] == "examples" and len(np.unique(np.asarray(sizes))) > 1:
        reasons.append("--weighting is examples; the theorems weight all clients equally")
    changed = {name: hyper[name] for name in ("lr_decay", "clip") if name in hyper}
    codecs = {name: settings[name] for name in ("compress", "compress_down")}
    changed |= {name: value for name, value in codecs.items() if value != "none"}
    reasons += [
        f"{name} is {value}; the theorems have constant rates, unclipped gradients and "
        "uncompressed uploads and messages"
        for name, value in changed.items()
    ]
    reasons += [
        f"{name} is {settings[name]}; the theorems have the mean of all clients' uploads"
        for name in ("robust", "selection", "privacy")
        if settings[name] != "none"
    ]
    if settings["precision"] == "bfloat16":
        reasons.append("--precision is bfloat16; the theorems have exact gradients")
    return tuple(reasons)


def _constants(comparison: ResolvedRun, plan: Plan, final: Params) -> ProblemConstants:
    problem, parts = comparison.problem, _parts(comparison)
    batch_size = comparison.batch_size
    final = jax.tree.map(np.asarray, final)
    finite = np.asarray(jax.vmap(tree.all_finite)(final))
    if not finite.any():
        raise FloatingPointError("fedavg diverged with every seed; there is nothing to diagnose")
    points = jax.tree.map(
        lambda start, best, last: jnp.concatenate(
            [start[:1], jnp.asarray(best, start.dtype)[None], last[finite]]
        ),
        problem.setup.params,
        plan.optimum.params,
        final,
    )
    data = parts.data
    measured = measure(
        empirical_task(plan.objective, data, parts.batches),
        points,
        jax.random.key(0),
        moments=batch_moments(plan.objective, data, points, batch_size),
        found=plan.optimum,
        loss=plan.loss,
    )
    everywhere = linear_model_bounds(data.examples["x"], data.offsets, SOFTMAX, l2=plan.l2)
    return measured._replace(**{name: getattr(everywhere, name) for name in EVERYWHERE})


def _runs(
    comparison: ResolvedRun,
    task: Task,
    loss: Partial,
    algorithm: FedAlgorithm,
    probes: Callable[[Partial], Probes],
) -> History:
    """The comparison's runs of one algorithm, F evaluated; seeds lead all arrays."""
    problem = comparison.problem

    @jax.jit
    def everything(task, loss, timelines, params, keys) -> History:
        def one(timeline: Timeline, params: Params, key: Array) -> History:
            setup = Setup(
                task,
                timeline,
                params,
                eval_fn=lambda x: {"loss": loss(x)},
                eval_every=problem.setup.eval_every,
                weighting=problem.setup.weighting,
            )
            execution = comparison.execution
            return run(algorithm, setup, key, execution=execution, probes=probes(loss))[1]

        return jax.vmap(one)(timelines, params, keys)

    return everything(task, loss, problem.setup.timeline, problem.setup.params, problem.keys)


def _running_mean(values: Array, rounds: np.ndarray) -> np.ndarray:
    """Means over the rounds done, ``[n, T] -> [n, E]``."""
    sums = np.cumsum(np.asarray(values, np.float64), axis=1)
    return sums[:, rounds - 1] / rounds


def _frame(first_seed: int, history: History, best: float) -> pd.DataFrame:
    """Suboptimalities as tidy rows."""
    rounds = np.asarray(history.round[0])
    quantities = {"fedavg: model": np.asarray(history.metrics["loss"], np.float64)}
    if "shadow_loss" in history.probes:
        mean = _running_mean(history.probes["shadow_loss"], rounds)
        quantities["fedavg: mean over shadow iterates"] = mean
    rows = [
        (name, first_seed + seed, int(r), SUBOPTIMALITY, float(value - best))
        for name, values in quantities.items()
        for seed, line in enumerate(values)
        for r, value in zip(rounds, line, strict=True)
    ]
    return pd.DataFrame(rows, columns=["quantity", "seed", "round", "metric", "value"])


def _write(
    output: pathlib.Path, run: Mapping[str, Any], best: Optimum, diagnosis: Diagnosis
) -> None:
    """Writes ``diagnosis.json``, ``diagnosis.csv`` and ``diagnosis.png``."""
    constants = {
        name: {"value": value, "kind": kind_of(name)}
        for name, value in diagnosis.constants.known.items()
    }
    valid = [row for row in diagnosis.overlay.rows if row.valid]
    drawn = {row.bound for row in valid}
    values = {
        "run": run,
        "constants": constants,
        "optimum": {
            "value": best.value,
            "gradient_norm": best.gradient_norm,
            "newton_steps": best.steps,
        },
        "prescribed_lr": diagnosis.prescribed_lr,
        "bounds": {bound.name: bound.of for bound in (*FEDAVG, SHADOW) if bound.name in drawn},
        "bounds_left_out": diagnosis.overlay.skipped,
        "assumptions_not_met": diagnosis.unmet,
    }
    report.write_json(output / "diagnosis.json", values)
    frame = diagnosis.measured
    if valid:  # bounds have no seed
        rows = [(f"bound: {row.bound}", row.round, SUBOPTIMALITY, row.value) for row in valid]
        bounds = pd.DataFrame(rows, columns=["quantity", "round", "metric", "value"])
        frame = pd.concat([frame.astype({"seed": "Int64"}), bounds])
    figure = bound_curves(diagnosis.measured, SUBOPTIMALITY, diagnosis.overlay, by="quantity")
    report.write_all(output, {"diagnosis.csv": frame, "diagnosis.png": figure})
