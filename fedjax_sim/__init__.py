"""Federated learning as one compiled program: every client is a slice of a batched pytree."""

import importlib
from typing import TYPE_CHECKING, Any

from fedjax_sim import (
    algorithms,
    compression,
    data,
    evaluation,
    execution,
    local,
    objectives,
    prox,
    robust,
    timelines,
    transforms,
    tree,
)
from fedjax_sim.algorithms import *  # noqa: F403
from fedjax_sim.compression import compressed
from fedjax_sim.data.batches import epochs, full_batch, stream, with_replacement
from fedjax_sim.data.federated import FederatedData, from_assignment, from_clients
from fedjax_sim.data.generated import generated_data, generated_task
from fedjax_sim.data.task import empirical_task, shared_task
from fedjax_sim.engine import (
    History,
    Probes,
    RunState,
    Update,
    Visit,
    advance,
    init,
    run,
)
from fedjax_sim.hypergradients.hypergradient import hypergradient
from fedjax_sim.hypergradients.weights import weight_by_client
from fedjax_sim.simulation.compare import Comparison, compare
from fedjax_sim.simulation.forecast import forecast
from fedjax_sim.simulation.options import Options, Storage
from fedjax_sim.simulation.progress_bar import ProgressBar
from fedjax_sim.simulation.result import Simulation
from fedjax_sim.simulation.simulate import simulate
from fedjax_sim.specs import Spec, specified
from fedjax_sim.sweeps.parts import Part
from fedjax_sim.sweeps.result import Sweep
from fedjax_sim.sweeps.sweep import finished_runs, sweep
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Requires,
    Round,
    Setup,
    Task,
    Timeline,
    Work,
    uniform_weights,
    weight_by_examples,
)
from fedjax_sim.wrappers import (
    average_rounds,
    diana,
    ef14,
    ef21,
    ef21_p,
    fixed_order,
    marina,
    per_step_uploads,
    pp_marina,
    skip_nonfinite,
)
from fedjax_sim.wrappers.fine_tuning import fine_tuned
from fedjax_sim.wrappers.freeze import freeze
from fedjax_sim.wrappers.parts import personal_model
from fedjax_sim.wrappers.private import private
from fedjax_sim.wrappers.running_statistics import running_statistics

if TYPE_CHECKING:
    from fedjax_sim import (
        advice,
        analysis,
        callbacks,
        datasets,
        diagnostics,
        models,
        plotting,
        privacy,
        problems,
        theory,
        valuation,
    )
    from fedjax_sim.advice.advise import advise
    from fedjax_sim.cli import presets
    from fedjax_sim.cli.saved import load
    from fedjax_sim.datasets import from_table
    from fedjax_sim.forks.fork import Alternative, fork
    from fedjax_sim.simulation.executions import measure_executions

# Packages that load on first use, so that `import fedjax_sim` stays fast.
_LAZY = {
    "advice", "analysis", "callbacks", "datasets", "diagnostics", "models", "plotting", "privacy",
    "problems", "theory", "valuation",
}  # fmt: skip

__all__ = [
    "Alternative",
    "Comparison",
    "FedAlgorithm",
    "FederatedData",
    "History",
    "Options",
    "Oracle",
    "Part",
    "Probes",
    "ProgressBar",
    "Requires",
    "Round",
    "RunState",
    "Setup",
    "Simulation",
    "Spec",
    "Storage",
    "Sweep",
    "Task",
    "Timeline",
    "Update",
    "Visit",
    "Work",
    "advance",
    "advice",
    "advise",
    "algorithms",
    "analysis",
    "average_rounds",
    "callbacks",
    "compare",
    "compressed",
    "compression",
    "data",
    "datasets",
    "diagnostics",
    "diana",
    "ef14",
    "ef21",
    "ef21_p",
    "empirical_task",
    "epochs",
    "evaluation",
    "execution",
    "fine_tuned",
    "finished_runs",
    "fixed_order",
    "forecast",
    "fork",
    "freeze",
    "from_assignment",
    "from_clients",
    "from_table",
    "full_batch",
    "generated_data",
    "generated_task",
    "hypergradient",
    "init",
    "load",
    "local",
    "marina",
    "measure_executions",
    "models",
    "objectives",
    "per_step_uploads",
    "personal_model",
    "plotting",
    "pp_marina",
    "presets",
    "privacy",
    "private",
    "problems",
    "prox",
    "robust",
    "run",
    "running_statistics",
    "shared_task",
    "simulate",
    "skip_nonfinite",
    "specified",
    "stream",
    "sweep",
    "theory",
    "timelines",
    "transforms",
    "tree",
    "uniform_weights",
    "valuation",
    "weight_by_client",
    "weight_by_examples",
    "with_replacement",
]
__all__ += algorithms.__all__


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "presets":
        return importlib.import_module(f"{__name__}.cli.presets")
    if name == "advise":  # needs theory and diagnostics
        return importlib.import_module(f"{__name__}.advice.advise").advise
    if name in ("Alternative", "fork"):  # need tables and figures
        return getattr(importlib.import_module(f"{__name__}.forks.fork"), name)
    if name == "from_table":  # the data sets load on first use
        return importlib.import_module(f"{__name__}.datasets").from_table
    if name == "load":  # knows the models of the command line
        return importlib.import_module(f"{__name__}.cli.saved").load
    if name == "measure_executions":  # needs the models
        return importlib.import_module(f"{__name__}.simulation.executions").measure_executions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
