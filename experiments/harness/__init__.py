# ruff: noqa: F403
"""Everything that the experiments of different papers share.

``options``    checks of options (beside those of ``fedjax_sim.checks``), folders, "3 seeds"
``runs``       sweeps, simulations and frames that are kept on disk and found again; seeds' keys
``data``       parts of data sets
``tables``     intervals over seeds, the paper's number beside ours, claims, marks at a grid's edge
``figures``    curves, lines over a hyper-parameter, saving
``report``     one text with its CSV, JSON and PNG files, and the command that wrote them
``redrawing``  reports that are functions of their CSV and JSON files
``controls``   factors of FedMoSWA's factorials, imported by its name
``effects``    their effects, paired by seed, imported by its name

An experiment is ``python -m experiments.<paper>.<script>``.  A script holds settings and published
numbers; its results are in ``experiments/results/<paper>``.  No paper's folder imports from
another's.
"""

from experiments.harness.data import *
from experiments.harness.figures import *
from experiments.harness.options import *
from experiments.harness.redrawing import *
from experiments.harness.report import *
from experiments.harness.runs import *
from experiments.harness.tables import *
