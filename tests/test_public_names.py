"""The public names are a promise: this list changes only on purpose, with the changelog."""

import subprocess
import sys

import fedjax_sim as fs

PUBLIC = """
FedAlgorithm FederatedData History Oracle Probes Round RunState Setup Sweep Task Timeline
Update Visit Work advance agd algorithms async_sgd asynchrony averaged_fedavg
averaged_feddualavg average_rounds weight_by_examples cohort compressed compression data
diagnostics empirical_task epochs favano fedac fedacg fedadagrad fedadam fedasam fedasync
fedavg fedavg_subgradient fedavgm fedbuff feddualavg feddualavg_osp feddyn fedgamma fedlesam
fedmid fedmid_osp fedmo fedmoswa fedprox fedsam fedsgd fedsmoo fedswa fedyogi
from_assignment from_clients full_batch gradient_controls gradients instances mb_ac_sgd
mb_sgd mofedsam offload participation placement processes prox quafl quantization
reweighting run scaffold shared_task simulate start stream sweep theory uniform_weights
with_replacement
""".split()


def test_public_names():
    assert sorted(fs.__all__) == sorted(PUBLIC)
    assert all(hasattr(fs, name) for name in PUBLIC)


def test_import_is_light():
    """The core needs none of the extras; importing it must not pay for them either."""
    heavy = "pandas matplotlib rich tyro sklearn tensorflow_datasets PIL orbax scipy.stats".split()
    code = f"import sys, fedjax_sim; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
