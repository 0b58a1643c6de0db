#!/bin/sh
# Flower's DPFedAvgFixed: where clients add the noise, the server adds as much again.
#
# Guess: with server_side_noising=False the clients' noise is all there is, of deviation z C / n in the mean
# of n clients, as with True.  The client's wrapper adds it to its update, and the server adds the same amount to
# every model that arrives, whatever the setting.  The noise in the mean is sqrt(2) of what was asked for: a
# comparison of local and central noise at equal z shows local noise to be worse, at a privacy that
# is better than reported.  The adaptive wrapper inherits it.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check flwr==1.42.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import logging

import numpy as np
from flwr.client import NumPyClient
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.client.dpfedavg_numpy_client import DPFedAvgNumPyClient
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import DPFedAvgAdaptive, DPFedAvgFixed, FedAvg

logging.disable(logging.CRITICAL)
print("flwr", importlib.metadata.version("flwr"))
CLIENTS, CLIP, NOISE, SIZE = 16, 2.0, 1.5, 20_000


class Still(NumPyClient):
    """A client whose training changes nothing."""

    def fit(self, parameters, config):
        parameters[0] = parameters[0] + 1e-9  # an update of exactly 0 has no norm to divide by
        return parameters, 10, {}


class Local(ClientProxy):
    """A client in this process."""

    def fit(self, ins, timeout, group_id):
        client = DPFedAvgNumPyClient(Still())
        arrays, count, metrics = client.fit(parameters_to_ndarrays(ins.parameters), ins.config)
        return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), count, metrics)

    def get_properties(self, ins, timeout, group_id):
        raise NotImplementedError

    get_parameters = evaluate = reconnect = get_properties


def deviation(rule, on_server, **settings):
    """Deviation of the model after a round in which nobody trains, over z C / n."""
    np.random.seed(0)
    manager = SimpleClientManager()
    for number in range(CLIENTS):
        manager.register(Local(str(number)))
    inner = FedAvg(fraction_fit=1.0, min_fit_clients=CLIENTS, min_available_clients=CLIENTS)
    strategy = rule(inner, CLIENTS, noise_multiplier=NOISE, server_side_noising=on_server, **settings)
    start = ndarrays_to_parameters([np.zeros(SIZE)])
    results = [
        (client, client.fit(ins, None, None)) for client, ins in strategy.configure_fit(1, start, manager)
    ]
    parameters, _ = strategy.aggregate_fit(1, results, [])
    asked = strategy.noise_multiplier * CLIP / CLIENTS
    return parameters_to_ndarrays(parameters)[0].std() / asked


for rule, settings in ((DPFedAvgFixed, {"clip_norm": CLIP}), (DPFedAvgAdaptive, {"init_clip_norm": CLIP})):
    found = {on_server: deviation(rule, on_server, **settings) for on_server in (True, False)}
    print(f"{rule.__name__}: noise in the mean over what was asked for, added by the server")
    print(f"    {found[True]:.3f}, added by clients {found[False]:.3f}; expected 1 and 1")
    assert abs(found[True] - 1) < 0.03 and abs(found[False] - 2**0.5) < 0.03
PYTHON
