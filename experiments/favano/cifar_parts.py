"""Further parts of the CIFAR-10 experiment: clients per contact, messages of few bits."""

from collections.abc import Callable

import pandas as pd

import fedjax_sim as fs
from experiments.favano import methods
from experiments.favano.images import Runs, shrunk
from experiments.favano.outcomes import accuracy

SELECTED = (10, 20, 50)  # of 100 clients, contacted at a time
BITS, CELL = 14, 1e-4  # of messages: the lattice of QuAFL's program

Part = Callable[[Runs], dict[str, pd.DataFrame]]


def selected(runs: Runs) -> dict[str, pd.DataFrame]:
    """Figure 7: FAVANO with more and fewer clients per contact."""
    histories = []
    for s in dict.fromkeys(shrunk(count, runs.scale) for count in SELECTED):
        frame = runs(methods.favano(), "non-IID", cohort=s).assign(algorithm=f"s = {s}")
        histories.append(frame)
        print(f"s = {s}: {accuracy(frame)}", flush=True)
    return {"": pd.concat(histories)}


def quantised(runs: Runs) -> dict[str, pd.DataFrame]:
    """FAVANO[QNN], and messages of few bits."""
    up, down = fs.compression.lattice(BITS, CELL), fs.compression.uniform(2**BITS)
    in_bits = methods.coded(methods.favano(), f"messages of {BITS} bits", up, down)
    cases = {
        "FAVANO": (methods.favano(), False),
        "FAVANO[QNN]": (methods.favano(), True),
        f"FAVANO, {BITS}-bit messages": (in_bits, False),
        f"FAVANO[QNN], {BITS}-bit messages": (in_bits, True),
        f"QuAFL, {BITS}-bit lattice": (methods.quafl_coded(BITS, CELL), False),
    }
    histories = []
    for name, (method, low_bit) in cases.items():
        frame = runs(method, "non-IID", low_bit=low_bit).assign(algorithm=name)
        histories.append(frame)
        print(f"{name}: {accuracy(frame)}", flush=True)
    return {"": pd.concat(histories)}
