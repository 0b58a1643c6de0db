"""Asynchrony as data: clocks, contacts and arrivals, simulated before a run, make its timeline."""

from fedjax_sim.asynchrony.accounting import Spans, bits_moved, spans
from fedjax_sim.asynchrony.arrivals import arrivals, arrivals_in_flight
from fedjax_sim.asynchrony.availability import Availability, alternating, always
from fedjax_sim.asynchrony.contacts import InFlight, contacts, contacts_in_flight
from fedjax_sim.asynchrony.durations import (
    deterministic,
    exponential,
    geometric,
    log_normal,
    read_trace,
    traced,
    two_speeds,
)
from fedjax_sim.asynchrony.stepping import literal, renewal
from fedjax_sim.asynchrony.synchronous import synchronous
from fedjax_sim.asynchrony.timelines import holdings, planned, stacked

__all__ = [
    "Availability",
    "InFlight",
    "Spans",
    "alternating",
    "always",
    "arrivals",
    "arrivals_in_flight",
    "bits_moved",
    "contacts",
    "contacts_in_flight",
    "deterministic",
    "exponential",
    "geometric",
    "holdings",
    "literal",
    "log_normal",
    "planned",
    "read_trace",
    "renewal",
    "spans",
    "stacked",
    "synchronous",
    "traced",
    "two_speeds",
]
