#!/bin/sh
# FedScale's traces of availability: clients are online less than their traces say, by how often one asks.
#
# Guess: a client is online when the time of the day lies in one of the intervals of its trace.  Only one
# interval is looked at, and each question that comes after its end moves on to the next.  A client that is
# asked rarely lags behind its trace, and after the last interval of a day each question moves on by one, so
# that the next day begins with a late interval and those before it are missed.  Of clients with eight intervals
# that are online half of the time two thirds of it are seen with a question a minute, a third with one in four hours.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check numpy==2.4.6
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps fedscale==1.0
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata

import numpy as np
from fedscale.cloud.internal.client_metadata import ClientMetadata

print("fedscale", importlib.metadata.version("fedscale"))
MINUTE, HOUR, DAY, CLIENTS = 60, 3600, 24 * 3600, 100


def shares(minutes):
    """Shares of questions at random times answered with online, and of those that fall into an interval."""
    generator = np.random.default_rng(0)
    times = np.cumsum(generator.exponential(minutes * MINUTE, int(4 * DAY / (minutes * MINUTE))))
    answers, expected = [], []
    for _ in range(CLIENTS):
        # eight intervals, online half of the time
        bounds = np.sort(generator.uniform(0, DAY, 16)).tolist()
        trace = {"finish_time": DAY, "active": bounds[::2], "inactive": bounds[1::2]}
        client = ClientMetadata(0, 0, {"computation": 1, "communication": 1}, trace)
        answers.append([client.is_active(time) for time in times])
        expected.append([np.searchsorted(bounds, time % DAY) % 2 == 1 for time in times])
    answers, expected = np.array(answers), np.array(expected)
    assert not (answers & ~expected).any()
    return answers.mean().item(), expected.mean().item()


found = {minutes: shares(minutes) for minutes in (1, 10, 60, 240)}
for minutes, (given, expected) in found.items():
    print(
        f"a question every {minutes} minutes for four days: {CLIENTS} clients online {given:.1%} of the time,"
        f" by their traces {expected:.1%}"
    )
assert all(0.4 < expected < 0.55 for _, expected in found.values())
ratios = [given / expected for given, expected in found.values()]
print("part of the time online that is seen:", *(f"{ratio:.2f}" for ratio in ratios))
assert all(ratio < 0.8 for ratio in ratios) and ratios[-1] < 0.4
PYTHON
