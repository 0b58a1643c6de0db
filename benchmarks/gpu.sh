#!/usr/bin/env bash
# All benchmarks on a GPU, in eleven minutes from a checkout whose environment is there:
# results, tables and bars go to benchmarks/results/gpu (OUT).
#
#   bash benchmarks/gpu.sh                      # sets up .venv with JAX for CUDA 13 if need be
#   PYTHON=python3 bash benchmarks/gpu.sh       # an interpreter that has JAX with a GPU and the rest
#
# The two stages have MINUTES="6 5", the parts of the second equal shares of what is left; what
# does not come in time is named as left out. On an H100 with 16 cores W3 alone takes more than
# a minute and ResNet-18 more than two and a half, most of it for compiling.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ -z "${PYTHON:-}" ]]; then
    make .venv/.demo
    PYTHON=.venv/bin/python
    version=$("$PYTHON" -c 'import jax; print(jax.__version__)')
    "$PYTHON" -m pip install --quiet "jax[${EXTRA:-cuda13}]==$version"
fi
# The host's devices, too: parts that divide work among cores ask for them.
export JAX_PLATFORMS=${JAX_PLATFORMS:-cuda,cpu}
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$PWD/.jax_cache}
export XLA_PYTHON_CLIENT_PREALLOCATE=false # processes follow each other closely
# The flags that the command line sets; COMMAND_BUFFERS=0 leaves them out, for a comparison.
if [[ "${COMMAND_BUFFERS:-1}" == 1 ]]; then
    XLA_FLAGS=$("$PYTHON" -c 'import os
from fedjax_sim.engine.execution import use_command_buffers
use_command_buffers()
print(os.environ.get("XLA_FLAGS", ""))')
    export XLA_FLAGS
fi
"$PYTHON" -c 'import jax; print(jax.devices(), jax.__version__)'

read -r -a minutes <<<"${MINUTES:-6 5}"
out=${OUT:-benchmarks/results/gpu}
mkdir -p "$out"
measure() {
    "$PYTHON" -m benchmarks "$@" --repeats 1 --seconds 0.5 --out "$out" | tee -a "$out/report.txt"
}
measure accelerator --minutes "${minutes[0]}"
# Without what runs on the host's cores only.
measure rounds memory offload asynchrony composite sweep methods cells startup \
    --candidates ours jax-vmap jax-map resident host eager=vmapped loop sweep run \
    fedavg feddualavg scaffold fedmoswa fedsam --minutes "${minutes[1]}"
