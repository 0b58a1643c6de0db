"""Setups and algorithms by options: those of presets and of the command line.

:class:`Run` has all options, :class:`Study` also own parts, and :func:`resolve` builds a comparison
from them.  ``saved`` is apart, since it reads folders by the reports.
"""

from fedjax_sim.studies.setups.attack import Alie, Attacked
from fedjax_sim.studies.setups.build import (
    ResolvedRun,
    check_steps,
    of_first_partition,
    of_seed,
    one_seed,
    resolve,
)
from fedjax_sim.studies.setups.checks import check_fine_tuning, check_study
from fedjax_sim.studies.setups.clients import Clients, NoShift
from fedjax_sim.studies.setups.compression import NoCodec
from fedjax_sim.studies.setups.config_file import (
    Record,
    all_differences,
    as_json,
    differences,
    fixed_values,
    members_of,
    read,
    read_saved,
    record_of,
    refuse_own,
    to_json,
    validated,
)
from fedjax_sim.studies.setups.data import Generated, HuggingFace, Table, Text, examples_digest
from fedjax_sim.studies.setups.entries import LR, AlgorithmEntry, StepsPerVisit
from fedjax_sim.studies.setups.execution import (
    ExecutionOptions,
    MeasuredExecution,
    arithmetic,
    strategy_of,
)
from fedjax_sim.studies.setups.fields import (
    EXTENSIBLE,
    FREE,
    HIDDEN,
    OPEN,
    Count,
    Field,
    Finite,
    Gigabytes,
    Index,
    Positive,
    Range,
    Seed,
    check,
    fields_of,
    flat,
    group,
    having,
    kind_of,
    names_of,
    replaced,
)
from fedjax_sim.studies.setups.losses import Losses
from fedjax_sim.studies.setups.model import NoAdapters, initial_params
from fedjax_sim.studies.setups.modules import load_study
from fedjax_sim.studies.setups.own_digests import NO_DIGESTS, OwnDigests, of_parts, of_setup
from fedjax_sim.studies.setups.partition import Dirichlet, Natural
from fedjax_sim.studies.setups.presets import PRESETS, options
from fedjax_sim.studies.setups.privacy import (
    Accounts,
    GaussianNoise,
    NoPrivacy,
    accounts_of,
    check_noise,
    check_parts,
)
from fedjax_sim.studies.setups.problem import (
    Parts,
    Problem,
    Wrappers,
    clients_of,
    entries_of,
    load_dataset,
    prepare,
    seed_keys,
)
from fedjax_sim.studies.setups.registry import ALGORITHMS, algorithms_of
from fedjax_sim.studies.setups.robust import check_uploads
from fedjax_sim.studies.setups.run import Run
from fedjax_sim.studies.setups.settings import (
    SHARED,
    AlgorithmOptions,
    HyperParameters,
    check_tuning,
    checked,
    resolve_hyper,
)
from fedjax_sim.studies.setups.study import Study, own_names, shown_settings
from fedjax_sim.studies.setups.time import Rounds

__all__ = ["Study", "options", "resolve"]
