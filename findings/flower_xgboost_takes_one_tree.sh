#!/bin/sh
# Flower's XGBoost bagging: one tree of each client is kept, and it votes for class 0.
#
# Guess: the model of a round has all trees that the clients grew in it, each for its class.  From every
# client but the first num_parallel_tree trees are taken, by default one, whatever it sends, and they are
# entered as trees of class 0.  A boosting round of three classes has three trees: those of classes 1 and 2
# are dropped, so that a class that the first client lacks is never predicted.  Of five local rounds the
# last four are dropped, with two classes as well.  flwr.server and flwr.serverapp do the same.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    flwr==1.42.0 xgboost-cpu==3.2.0 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import json

import numpy as np
import xgboost
from flwr.common import Code, FitRes, Parameters, Status
from flwr.server.strategy import FedXgbBagging
from flwr.serverapp.strategy.strategy_utils import aggregate_bagging

print("flwr", importlib.metadata.version("flwr"), "xgboost", xgboost.__version__)
generator = np.random.default_rng(0)
CENTRES = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])


def examples(count, labels):
    y = generator.choice(labels, count)
    return CENTRES[y] + generator.normal(size=(count, 2)), y


def grow(classes, rounds, labels):
    """What a client sends after so many rounds of boosting on its own examples."""
    settings = {"objective": "multi:softprob", "num_class": 3} if classes == 3 else {
        "objective": "binary:logistic"}
    settings |= {"max_depth": 3, "nthread": 1, "base_score": 0.5}  # one start for all clients
    booster = xgboost.train(settings, xgboost.DMatrix(*examples(200, labels)), rounds)
    return bytes(booster.save_raw("json"))


def model_of(raw):
    return json.loads(raw)["learner"]["gradient_booster"]["model"]


def with_all_trees(sent):
    """The first client's model with every tree of the others, each for its class."""
    whole = json.loads(sent[0])
    model = whole["learner"]["gradient_booster"]["model"]
    for raw in sent[1:]:
        other = model_of(raw)
        start = len(model["trees"])
        model["trees"] += [tree | {"id": start + i} for i, tree in enumerate(other["trees"])]
        model["tree_info"] += other["tree_info"]
        model["iteration_indptr"] += [start + i for i in other["iteration_indptr"][1:]]
    model["gbtree_model_param"]["num_trees"] = str(len(model["trees"]))
    return json.dumps(whole).encode()


def recall(raw, classes):
    """The share of each class that is predicted rightly."""
    booster = xgboost.Booster()
    booster.load_model(bytearray(raw))
    x, y = test
    out = booster.predict(xgboost.DMatrix(x))
    predicted = out.argmax(1) if classes == 3 else out > 0.5
    return [round(float((predicted == y)[y == label].mean()), 2) for label in range(classes)]


test = examples(1000, [0, 1, 2])
for classes, rounds in ((3, 1), (3, 5), (2, 5)):
    labels = list(range(classes))
    # The first of five clients lacks the last of three classes.
    sent = [grow(classes, rounds, [0, 1] if client == 0 else labels) for client in range(5)]
    status = Status(Code.OK, "")
    results = [(None, FitRes(status, Parameters([raw], ""), 200, {})) for raw in sent]
    result = FedXgbBagging().aggregate_fit(1, results, [])[0].tensors[0]
    again = b""
    for raw in sent:
        again = aggregate_bagging(again, raw)
    assert json.loads(again) == json.loads(result)
    grown = [len(model_of(raw)["trees"]) for raw in sent]
    kept = model_of(result)["tree_info"]
    print(f"{classes} classes, {rounds} rounds: {sum(grown)} trees grown, {len(kept)} kept, for classes {kept}")
    assert grown == [rounds * (classes if classes == 3 else 1)] * 5
    assert len(kept) == grown[0] + 4 and kept[grown[0]:] == [0] * 4
    if classes == 3:
        found, right = recall(result, 3), recall(with_all_trees(sent), 3)
        print(f"    recall by class {found}, with all trees {right}, of the second client {recall(sent[1], 3)}")
        assert found[2] == 0 and right[2] > 0.8
PYTHON
