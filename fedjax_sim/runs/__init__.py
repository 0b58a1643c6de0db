"""Runs with progress reports, files, checkpoints and resuming; comparisons, sweeps, forecasts."""

from fedjax_sim.runs import callbacks, interrupt, views
from fedjax_sim.runs.callbacks import (
    Action,
    BestModel,
    Callback,
    CsvLog,
    Diverged,
    Divergence,
    DivergenceError,
    EarlyStopping,
    Event,
    MLflow,
    TensorBoard,
    TimeLimit,
    WandB,
)
from fedjax_sim.runs.callbacks.direction import Mode, sign
from fedjax_sim.runs.comparison import Comparison, compare
from fedjax_sim.runs.executors import Resident
from fedjax_sim.runs.history import Clock, melted
from fedjax_sim.runs.interrupt import exit_code
from fedjax_sim.runs.options import DEFAULT_OPTIONS, Options, Storage
from fedjax_sim.runs.planning.forecast import forecast
from fedjax_sim.runs.planning.measuring import metric_shapes, names_of_numbers
from fedjax_sim.runs.planning.needs import Forecast, Seconds
from fedjax_sim.runs.programs import Programs, programs_of
from fedjax_sim.runs.progress_bar import ProgressBar, in_jupyter
from fedjax_sim.runs.result import Progress, Simulation
from fedjax_sim.runs.seeds import Seed, seed_column, seed_names
from fedjax_sim.runs.simulation import check_stored, simulate
from fedjax_sim.runs.storage.client_rows import of_finite_models
from fedjax_sim.runs.storage.environment import code_digest, environment
from fedjax_sim.runs.storage.files import (
    FolderError,
    RecoveryWarning,
    digest,
    is_sealed,
    read_json,
    read_npz,
    replacing,
    write_json,
    write_npz,
    write_text,
)
from fedjax_sim.runs.storage.folders import (
    Kind,
    check_kind,
    folder_names,
    is_seed,
    recorded_names,
    runs_in,
)
from fedjax_sim.runs.storage.identity import arrays_digest, timeline_arrays
from fedjax_sim.runs.storage.locks import FolderInUseError, locked
from fedjax_sim.runs.storage.model_files import Models, Which, joined, named_leaves
from fedjax_sim.runs.storage.outcome import Outcome
from fedjax_sim.runs.storage.run_functions import identified, trace_run
from fedjax_sim.runs.storage.run_identity import data_values
from fedjax_sim.runs.storage.store import RunFolder, check_extension
from fedjax_sim.runs.storage.traces import Trace, trace
from fedjax_sim.runs.sweeps.blocks import block_functions
from fedjax_sim.runs.sweeps.grid import Configuration, Part, cut, expand
from fedjax_sim.runs.sweeps.halving import Halving
from fedjax_sim.runs.sweeps.result import Sweep, SweepRun
from fedjax_sim.runs.sweeps.store import is_unfinished, read_runs
from fedjax_sim.runs.sweeps.sweep import SweepProgress, finished_runs, sweep
from fedjax_sim.runs.sweeps.trial import Trial
from fedjax_sim.runs.sweeps.tuning import Tried, Tuning, tune

__all__ = [
    "DEFAULT_OPTIONS",
    "Action",
    "BestModel",
    "Callback",
    "Clock",
    "Comparison",
    "Configuration",
    "CsvLog",
    "Diverged",
    "Divergence",
    "DivergenceError",
    "EarlyStopping",
    "Event",
    "FolderError",
    "FolderInUseError",
    "Forecast",
    "Halving",
    "Kind",
    "MLflow",
    "Mode",
    "Models",
    "Options",
    "Outcome",
    "Part",
    "Programs",
    "Progress",
    "ProgressBar",
    "RecoveryWarning",
    "Resident",
    "RunFolder",
    "Seconds",
    "Seed",
    "Simulation",
    "Storage",
    "Sweep",
    "SweepProgress",
    "SweepRun",
    "TensorBoard",
    "TimeLimit",
    "Trace",
    "Trial",
    "Tried",
    "Tuning",
    "WandB",
    "Which",
    "arrays_digest",
    "block_functions",
    "callbacks",
    "check_extension",
    "check_kind",
    "check_stored",
    "code_digest",
    "compare",
    "cut",
    "data_values",
    "digest",
    "environment",
    "exit_code",
    "expand",
    "finished_runs",
    "folder_names",
    "forecast",
    "identified",
    "in_jupyter",
    "interrupt",
    "is_sealed",
    "is_seed",
    "is_unfinished",
    "joined",
    "locked",
    "melted",
    "metric_shapes",
    "named_leaves",
    "names_of_numbers",
    "of_finite_models",
    "programs_of",
    "read_json",
    "read_npz",
    "read_runs",
    "recorded_names",
    "replacing",
    "runs_in",
    "seed_column",
    "seed_names",
    "sign",
    "simulate",
    "sweep",
    "timeline_arrays",
    "trace",
    "trace_run",
    "tune",
    "views",
    "write_json",
    "write_npz",
    "write_text",
]
