#!/bin/sh
# Flower's FedAvg: arrays of integers become 0 as soon as two clients take part.
#
# Guess: the mean of two equal numbers is that number.  The average is formed in place, and a client's
# share, below 1, is first cast to the dtype of the array: to 0 for integers.  110 minibatches counted
# by every client become 0; with one client they stay 110.  PyTorch's layers of batch normalisation that
# average over all minibatches (momentum=None) divide by this counter, so the first minibatch of each
# round replaces the running mean.  With inplace=False the mean of int64 is right, and that of uint8
# wraps, as 110 x 10 examples is 76 modulo 256.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check flwr==1.42.0
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import logging

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg

logging.disable(logging.CRITICAL)
print("flwr", importlib.metadata.version("flwr"))


def average(dtype, clients, inplace):
    arrays = ndarrays_to_parameters([np.array([110, 7], dtype)])
    replies = [(None, FitRes(Status(Code.OK, ""), arrays, 10, {})) for _ in range(clients)]
    parameters, _ = FedAvg(inplace=inplace).aggregate_fit(1, replies, [])
    (mean,) = parameters_to_ndarrays(parameters)
    print(f"[110, 7] as {dtype} from {clients} clients, inplace={inplace}: {mean.tolist()} {mean.dtype}")
    return mean.tolist()


assert average("float32", 2, True) == [110, 7]
for dtype in ("int64", "int32", "uint8"):
    assert average(dtype, 1, True) == [110, 7]
    assert average(dtype, 2, True) == [0, 0]
    assert average(dtype, 2, False) == [7.6 if dtype == "uint8" else 110, 7]
assert FedAvg().inplace
PYTHON
