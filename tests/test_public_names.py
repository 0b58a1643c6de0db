"""The public names are a promise: this list changes only on purpose, with the changelog."""

import importlib
import inspect
import pathlib
import subprocess
import sys

import fedjax_sim as fs

# Without the algorithms: their files' ``__all__`` are the list.
PUBLIC = """
Alternative Comparison FedAlgorithm FederatedData Halving History LiveCurves Options Oracle Part
Probes ProgressBar Requires Round RunState Setup Simulation Spec Storage Study Sweep Task Timeline
Tuning Update Visit Work advance advice advise algorithms analysis average_rounds callbacks compare
complete_batches compressed compression data datasets diagnostics diana ef14 ef21 ef21_p ema_rounds
empirical_task epochs evaluation execution fine_tuned finished_runs fixed_order forecast fork freeze
from_assignment from_clients from_table full_batch generated_data generated_task hypergradient init
load local marina measure_executions models objectives per_step_uploads personal_model plot plotting
pp_marina presets privacy private problems prox report robust run running_statistics selection
shared_task shuffled_repeats simulate skip_nonfinite specified stream sweep theory timelines
topologies transforms tree tune uniform_weights valuation weight_by_client weight_by_examples
with_replacement
""".split()


def test_public_names():
    assert sorted(fs.__all__) == sorted([*PUBLIC, *fs.algorithms.__all__])
    assert all(hasattr(fs, name) for name in fs.__all__)


def test_algorithms_are_functions_of_one_file_each():
    names = fs.algorithms.__all__
    assert {"fedavg", "scaffold", "fedmoswa", "quafl"} <= set(names)
    for name in names:
        assert getattr(fs, name) is getattr(fs.algorithms, name)
        assert getattr(fs, name).__module__.startswith("fedjax_sim.algorithms.")


def test_the_list_of_algorithms_is_complete():
    names = []
    for path in sorted(pathlib.Path(fs.algorithms.__file__).parent.glob("[!_]*.py")):
        module = importlib.import_module(f"fedjax_sim.algorithms.{path.stem}")
        listed = getattr(module, "__all__", [])  # staleness.py has weights, no algorithm
        names += [name for name in listed if inspect.isfunction(getattr(module, name))]
    assert fs.algorithms.__all__ == sorted(names)


def test_import_is_light():
    """The core needs none of the extras; importing it must not pay for them either."""
    heavy = """
    pandas matplotlib rich tyro sklearn tensorflow_datasets PIL orbax scipy.stats flax
    fedjax_sim.models fedjax_sim.datasets fedjax_sim.reports.figures fedjax_sim.diagnostics
    fedjax_sim.studies.advice fedjax_sim.theory fedjax_sim.problems fedjax_sim.reports
    fedjax_sim.studies.setups.presets fedjax_sim.studies.setups.study fedjax_sim.studies.valuation
    """.split()
    code = f"import sys, fedjax_sim; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
