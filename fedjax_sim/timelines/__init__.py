"""Timelines: cohorts of synchronous rounds, contacts and arrivals of asynchronous clients."""

# Asynchronous ones are simulated before a run, on the host in NumPy: no clock depends on a model.

from fedjax_sim.timelines.accounting import Spans, bits_moved, spans
from fedjax_sim.timelines.arrivals import arrivals, arrivals_in_flight
from fedjax_sim.timelines.availability import Availability, alternating, always
from fedjax_sim.timelines.buffers import allocate_buffers, held_versions, stacked
from fedjax_sim.timelines.contacts import InFlight, contacts, contacts_in_flight
from fedjax_sim.timelines.durations import (
    Durations,
    deterministic,
    exponential,
    from_trace,
    geometric,
    host_generator,
    log_normal,
    read_trace,
    two_speeds,
)
from fedjax_sim.timelines.failures import delay_uploads, lose_uploads
from fedjax_sim.timelines.groups import grouped_bernoulli
from fedjax_sim.timelines.interventions import delay_clients, lose_uploads_of, remove_clients
from fedjax_sim.timelines.poisson import overflow_probability, poisson, slots_for
from fedjax_sim.timelines.rounds import geometric_steps, repeat_rounds
from fedjax_sim.timelines.rules import Sampling, independent_of_data
from fedjax_sim.timelines.sampling import (
    bernoulli,
    cohort_of,
    cyclic,
    dropout,
    full,
    full_or_uniform,
    sample_without_replacement,
    single,
    stratified,
    uniform,
    weighted,
)
from fedjax_sim.timelines.separated import b_min_sep, balls_in_bins
from fedjax_sim.timelines.stepping import independent_counts, renewal_counts
from fedjax_sim.timelines.strata import Strata, arrange_by_stratum
from fedjax_sim.timelines.synchronous import synchronous

__all__ = [
    "Availability",
    "InFlight",
    "Sampling",
    "Spans",
    "allocate_buffers",
    "alternating",
    "always",
    "arrange_by_stratum",
    "arrivals",
    "arrivals_in_flight",
    "b_min_sep",
    "balls_in_bins",
    "bernoulli",
    "bits_moved",
    "cohort_of",
    "contacts",
    "contacts_in_flight",
    "cyclic",
    "delay_clients",
    "delay_uploads",
    "deterministic",
    "dropout",
    "exponential",
    "from_trace",
    "full",
    "full_or_uniform",
    "geometric",
    "geometric_steps",
    "grouped_bernoulli",
    "held_versions",
    "independent_counts",
    "independent_of_data",
    "log_normal",
    "lose_uploads",
    "lose_uploads_of",
    "overflow_probability",
    "poisson",
    "read_trace",
    "remove_clients",
    "renewal_counts",
    "repeat_rounds",
    "sample_without_replacement",
    "single",
    "slots_for",
    "spans",
    "stacked",
    "stratified",
    "synchronous",
    "two_speeds",
    "uniform",
    "weighted",
]
