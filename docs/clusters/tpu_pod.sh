#!/bin/bash
# Runs a comparison on all hosts of a Cloud TPU pod slice:
#     NAME=my-slice ZONE=us-central2-b bash docs/clusters/tpu_pod.sh femnist --rounds 500
# A preset or config.json comes first. RESULTS is a bucket, mounted at the same place on every host,
# for results and checkpoints.
set -euo pipefail
: "${NAME:?the name of the slice}" "${ZONE:?its zone}"
RESULTS="${RESULTS:-/mnt/results}"

tpu() { gcloud compute tpus tpu-vm ssh "${NAME}" --zone "${ZONE}" --worker=all --command "$1"; }

# Assigned first, since a failed substitution inside a command does not end the script.
origin="$(git remote get-url origin)"
tpu "test -d fedjax_sim || git clone '${origin}' fedjax_sim"
tpu "cd fedjax_sim && python3 -m venv .venv && .venv/bin/pip install -q . 'jax[tpu]'"
# The hosts find each other by the slice's metadata.
tpu "cd fedjax_sim && .venv/bin/fedjax-sim run ${*@Q} --distributed \
    --output '${RESULTS}/run'"
