"""Federated learning as one compiled program: every client is a slice of a batched pytree."""

import importlib
from typing import TYPE_CHECKING, Any

from fedjax_sim import (
    algorithms,
    compression,
    data,
    local,
    objectives,
    prox,
    timelines,
    topologies,
    tree,
)
from fedjax_sim.algorithms import *  # noqa: F403
from fedjax_sim.checks import install_command as _install_command
from fedjax_sim.compression import compressed
from fedjax_sim.data import (
    FederatedData,
    complete_batches,
    empirical_task,
    epochs,
    from_assignment,
    from_clients,
    full_batch,
    generated_data,
    generated_task,
    shared_task,
    shuffled_repeats,
    stream,
    with_replacement,
)
from fedjax_sim.engine import (
    History,
    Probes,
    RunState,
    Update,
    Visit,
    advance,
    evaluation,
    execution,
    init,
    run,
)
from fedjax_sim.local import transforms
from fedjax_sim.runs import (
    Comparison,
    Halving,
    Options,
    Part,
    ProgressBar,
    Simulation,
    Storage,
    Sweep,
    Tuning,
    compare,
    finished_runs,
    forecast,
    simulate,
    sweep,
    tune,
)
from fedjax_sim.runs import views as _views
from fedjax_sim.studies.hypergradients.hypergradient import hypergradient
from fedjax_sim.studies.hypergradients.weights import weight_by_client
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Requires,
    Round,
    Setup,
    Spec,
    Task,
    Timeline,
    Work,
    specified,
    uniform_weights,
    weight_by_examples,
)
from fedjax_sim.wrappers import (
    average_rounds,
    diana,
    ef14,
    ef21,
    ef21_p,
    ema_rounds,
    fine_tuned,
    fixed_order,
    marina,
    per_step_uploads,
    personal_model,
    pp_marina,
    robust,
    selection,
    skip_nonfinite,
)
from fedjax_sim.wrappers.freeze import freeze
from fedjax_sim.wrappers.private import private
from fedjax_sim.wrappers.running_statistics import running_statistics

if TYPE_CHECKING:
    from fedjax_sim import datasets, diagnostics, models, problems, theory
    from fedjax_sim import reports as analysis
    from fedjax_sim.datasets import from_table
    from fedjax_sim.reports import LiveCurves, report
    from fedjax_sim.reports import figures as plotting
    from fedjax_sim.reports.figures.results import plot
    from fedjax_sim.runs import callbacks
    from fedjax_sim.studies import advice, valuation
    from fedjax_sim.studies.advice.advise import advise
    from fedjax_sim.studies.executions import measure_executions
    from fedjax_sim.studies.forks.fork import Alternative, fork
    from fedjax_sim.studies.setups import presets
    from fedjax_sim.studies.setups.saved import load
    from fedjax_sim.studies.setups.study import Study
    from fedjax_sim.wrappers import privacy

# Modules, and modules of names, that load on first use: `import fedjax_sim` stays fast and needs
# the core alone.
_LAZY = {
    "advice": "studies.advice",
    "analysis": "reports",
    "callbacks": "runs.callbacks",
    "datasets": "datasets",
    "diagnostics": "diagnostics",
    "models": "models",
    "plotting": "reports.figures",
    "presets": "studies.setups.presets",
    "privacy": "wrappers.privacy",
    "problems": "problems",
    "theory": "theory",
    "valuation": "studies.valuation",
}
_LAZY_NAMES = {
    "Alternative": "studies.forks.fork",
    "LiveCurves": "reports.live",
    "Study": "studies.setups.study",
    "advise": "studies.advice.advise",
    "fork": "studies.forks.fork",
    "from_table": "datasets",
    "load": "studies.setups.saved",
    "plot": "reports.figures.results",
    "report": "reports.page",
    "measure_executions": "studies.executions",
}

__all__ = [
    "Alternative",
    "Comparison",
    "FedAlgorithm",
    "FederatedData",
    "Halving",
    "History",
    "LiveCurves",
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
    "Study",
    "Sweep",
    "Task",
    "Timeline",
    "Tuning",
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
    "complete_batches",
    "compressed",
    "compression",
    "data",
    "datasets",
    "diagnostics",
    "diana",
    "ef14",
    "ef21",
    "ef21_p",
    "ema_rounds",
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
    "plot",
    "plotting",
    "pp_marina",
    "presets",
    "privacy",
    "private",
    "problems",
    "prox",
    "report",
    "robust",
    "run",
    "running_statistics",
    "selection",
    "shared_task",
    "shuffled_repeats",
    "simulate",
    "skip_nonfinite",
    "specified",
    "stream",
    "sweep",
    "theory",
    "timelines",
    "topologies",
    "transforms",
    "tree",
    "tune",
    "uniform_weights",
    "valuation",
    "weight_by_client",
    "weight_by_examples",
    "with_replacement",
]
__all__ += algorithms.__all__


def __getattr__(name: str) -> Any:
    if module := _LAZY.get(name) or _LAZY_NAMES.get(name):
        try:
            loaded = importlib.import_module(f"{__name__}.{module}")
        except ModuleNotFoundError as error:
            if (error.name or __name__).startswith(__name__):
                raise
            raise ImportError(
                f"{error.name} could not be imported, which fs.{name} needs; install an extra, "
                f"such as: {_install_command('cli')}"
            ) from error
        return loaded if name in _LAZY else getattr(loaded, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


_views.register(
    plot=lambda *arguments, **options: __getattr__("plot")(*arguments, **options),
    table=lambda *arguments: importlib.import_module(f"{__name__}.reports.views").table(*arguments),
)
