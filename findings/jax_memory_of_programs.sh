#!/bin/sh
# JAX on a CPU: the memory of compiled programs does not return to the system when they are dropped.
#
# A program of two operations takes about 1.5 MiB.  Deleting all jitted functions and calling
# jax.clear_caches() are expected to give it back; the resident memory stays, since the allocator of
# glibc keeps the freed blocks.  malloc_trim(0) returns nine tenths.  A test suite or a sweep with
# thousands of small programs needs it.  Linux with glibc only.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu JAX_ENABLE_COMPILATION_CACHE=0 "$folder/venv/bin/python" - <<'PYTHON'
import ctypes
import gc
import pathlib
import resource

import jax
import jax.numpy as jnp

print("jax", jax.__version__)


def resident():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


x = jnp.float32(1.0)
jax.jit(lambda x: x + 1)(x)
start = resident()
programs = [jax.jit(lambda x, n=n: jnp.sin(x * n) + n) for n in range(150)]
for number in range(150):
    programs[number](x)
added = resident() - start

del programs
gc.collect()
deleted = resident() - start
jax.clear_caches()
gc.collect()
cleared = resident() - start
ctypes.CDLL(None).malloc_trim(0)
trimmed = resident() - start

print(f"150 programs of two operations: {added:.0f} MiB")
print(f"functions deleted: {deleted:.0f}, then clear_caches(): {cleared:.0f} MiB")
print(f"then malloc_trim(0): {trimmed:.0f} MiB")
assert added > 100
assert deleted > 0.8 * added
assert cleared > 0.8 * added
assert trimmed < 0.4 * added
PYTHON
