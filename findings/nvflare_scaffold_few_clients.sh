#!/bin/sh
# NVFlare's SCAFFOLD: with a sample of the clients the server's control grows to a multiple of the mean control.
#
# Guess: the server's control is the mean of all clients' controls: after a round it changes by the sampled
# clients' mean change times sampled / all clients.  It changes by the mean change itself.  Of 20 clients
# with the gradient 1, two in each round, the control is 10 when each was asked once, and the clients
# move ten times as far as their gradient says from then on.  With all clients in every round it is right.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check nvflare==2.9.0
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import numpy as np
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AlgorithmConstants
from nvflare.app_common.workflows.scaffold import Scaffold

print("nvflare", importlib.metadata.version("nvflare"))
CLIENTS, RATE, STEPS = 20, 0.01, 5


class Server(Scaffold):
    """The server with clients in this process, each with the gradient 1 everywhere."""

    def start(self):
        self.fl_ctx = FLContext()
        self.model = FLModel(params={"x": np.zeros(1)}, params_type=ParamsType.FULL, meta={})
        self._global_ctrl_weights = {"x": np.zeros(1)}
        self.own = np.zeros(CLIENTS)
        self.history = [(0.0, 0.0)]

    def sample_clients(self, number):
        return [(self.current_round * number + i) % CLIENTS for i in range(number)]

    def send_model_and_wait(self, targets, data):
        control, results = data.meta[AlgorithmConstants.SCAFFOLD_CTRL_GLOBAL]["x"].item(), []
        for client in targets:
            moved = -STEPS * RATE * (1 - self.own[client] + control)
            change = -control - moved / (STEPS * RATE)
            self.own[client] += change
            results.append(
                FLModel(
                    params={"x": np.array([moved])},
                    params_type=ParamsType.DIFF,
                    current_round=self.current_round,
                    meta={"client_name": str(client), AlgorithmConstants.SCAFFOLD_CTRL_DIFF: {"x": np.array([change])}},
                )
            )
        return results

    def save_model(self, model):
        self.history.append((model.params["x"].item(), self._global_ctrl_weights["x"].item()))

    def event(self, *arguments, **options):
        pass

    fire_event_with_data = info = debug = event


def run(sampled, rounds):
    server = Server(num_clients=sampled, num_rounds=rounds)
    server.start()
    server._run_rounds()
    moves = np.diff([x for x, _ in server.history]) / (-STEPS * RATE)
    return server.own.mean(), server.history[-1][1], moves


for sampled, rounds in ((CLIENTS, 3), (2, 13)):
    mean, control, moves = run(sampled, rounds)
    print(f"{sampled} of {CLIENTS}: mean of the controls {mean:.3f}, the server's {control:.3f}, last step over rate {moves[-1]:.3f}")
    right = CLIENTS / sampled
    assert abs(mean - 1) < 1e-6 and abs(control - right) < 1e-6 and abs(moves[-1] - right) < 1e-6
PYTHON
