#!/bin/sh
# svfl's Shapley values: a client that harms has a positive one, and for minus the loss all are 0.
#
# Guess: the values are the mean marginal contributions, which may be negative and sum to the value
# of all clients together.  Negative ones are set to 0 in each order of the clients, and later
# clients of that order are compared with a sum that never fell.  So the values sum to more than
# there is, and a client with wrong labels earns by guessing where it comes first.  A utility
# below 0 gives 0 for everyone.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps svfl==0.1.0
"$folder/venv/bin/python" - <<'PYTHON'
import itertools
import math
from importlib.metadata import version

from svfl.svfl import calculate_sv

print("svfl", version("svfl"))
# Accuracy of the mean model of some clients; "c" has wrong labels.
accuracy = {"a": 0.8, "b": 0.8, "c": 0.1, "ab": 0.9, "ac": 0.5, "bc": 0.5, "abc": 0.7}


def shapley(utility):
    """From the definition; without clients the utility is 0."""
    values = {}
    for client in "abc":
        orders = [order[: order.index(client)] for order in itertools.permutations("abc")]
        gains = [utility("".join(sorted([*o, client]))) - (utility("".join(sorted(o))) if o else 0.0) for o in orders]
        values[client] = sum(gains) / len(gains)
    return values


def in_svfl(utility):
    return calculate_sv({client: client for client in "abc"}, utility, lambda models: "".join(sorted(models)))


def shown(values):
    return {client: round(value, 3) for client, value in values.items()}, "sum", round(sum(values.values()), 3)


right, found = shapley(accuracy.get), in_svfl(accuracy.get)
print("accuracy: svfl", *shown(found), "by definition", *shown(right))
assert math.isclose(sum(right.values()), accuracy["abc"])
assert right["c"] < -0.1 and found["c"] > 0
assert sum(found.values()) > sum(right.values()) + 0.05

right, found = (values(lambda who: accuracy[who] - 1) for values in (shapley, in_svfl))
print("minus the error: svfl", *shown(found), "by definition", *shown(right))
assert set(found.values()) == {0}
assert right["c"] < 0 < right["a"]
PYTHON
