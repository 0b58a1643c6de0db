"""The methods of the comparison, with PFLlib's hyper-parameters, and its published accuracies."""

import fedjax_sim as fs
from experiments.personalised.problem import LR

# Test accuracy in % of the benchmark's page, Dirichlet(0.1), 20 clients: the mean over all test
# examples, best round. By our data set; the page has Fashion-MNIST, not MNIST.
PUBLISHED = {
    "cifar100": {
        "FedAvg": 31.9, "FedProx": 32.0, "Per-FedAvg": 44.3, "pFedMe": 47.3, "Ditto": 52.9,
        "APFL": 46.7,
    },
    "mnist": {
        "FedAvg": 85.9, "FedProx": 85.6, "Per-FedAvg": 95.1, "pFedMe": 97.3, "Ditto": 97.5,
        "APFL": 97.3,
    },
}  # fmt: skip

METHODS: dict[str, fs.FedAlgorithm] = {
    "FedAvg": fs.fedavg(LR),
    "FedAvg-FT": fs.fedavg_ft(LR, visits=1),
    "FedProx": fs.fedprox(LR, mu=0.01),
    "FedPer": fs.fedper(LR),
    "LG-FedAvg": fs.lg_fedavg(LR),
    "FedRep": fs.fedrep(LR, head_share=0.5),
    "FedBABU": fs.fedbabu(LR, visits=10),
    "Ditto": fs.ditto(LR, mu=1.0),
    "pFedMe": fs.pfedme(LR, mu=15.0, personal_lr=0.01, inner_steps=5),
    "APFL": fs.apfl(LR, alpha=0.5),
    "Per-FedAvg": fs.perfedavg(LR),
}
# Evaluations of these methods are rarer by this factor, as each one trains for ten epochs first.
EVALUATIONS_APART = {"FedBABU": 5}
# By data set: all methods where a round is cheap.
DEFAULT = {"mnist": tuple(METHODS), "cifar100": ("FedAvg", "Ditto", "FedRep")}
