#!/usr/bin/env bash
# The queue of measurements on a GPU, for at most MINUTES: see `python -m benchmarks.gpu --help`.
# Records go to results/gpu; the next call goes on behind them.
#
#   bash benchmarks/gpu.sh                         # sets up .venv with JAX for CUDA 13 if need be
#   PYTHON=python3 MINUTES=9 bash benchmarks/gpu.sh   # an interpreter that has JAX with a GPU
#   PYTHON=python3 bash benchmarks/gpu.sh --only goal torch --torch OTHER/bin/python
#
# Data sets lie in FEDJAX_SIM_DATA, whole or in parts (`python -m benchmarks.parts`).
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ -z "${PYTHON:-}" ]]; then
    make .venv/.demo
    PYTHON=.venv/bin/python
    version=$("$PYTHON" -c 'import jax; print(jax.__version__)')
    "$PYTHON" -m pip install --quiet "jax[${EXTRA:-cuda13}]==$version"
fi
# The host's devices, too: parts that divide work among cores ask for them, and checks run there.
export JAX_PLATFORMS=${JAX_PLATFORMS:-cuda,cpu}
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$PWD/.jax_cache}
export XLA_PYTHON_CLIENT_PREALLOCATE=false # processes follow each other closely
export PYTHONUNBUFFERED=1
# The flags that the command line sets; COMMAND_BUFFERS=0 leaves them out, for a comparison.
if [[ "${COMMAND_BUFFERS:-1}" == 1 ]]; then
    XLA_FLAGS=$("$PYTHON" -c 'import os
from fedjax_sim.engine.execution import use_command_buffers
use_command_buffers()
print(os.environ.get("XLA_FLAGS", ""))')
    export XLA_FLAGS
fi
if [[ -d "${FEDJAX_SIM_DATA:-}" ]]; then
    "$PYTHON" -m benchmarks.parts join "$FEDJAX_SIM_DATA"
fi
exec "$PYTHON" -m benchmarks.gpu --minutes "${MINUTES:-9}" "$@"
