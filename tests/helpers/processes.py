"""The environment of processes that tests start, and a port for them."""

import os
import pathlib
import socket


def environment(cache: pathlib.Path, **changes: str) -> dict[str, str]:
    """Returns this process's environment, with one CPU device instead of several.

    Processes with the same ``cache`` compile each program once.  It is not the cache of the tests,
    in which a killed process could leave a part of a file.
    """
    flags = os.environ.get("XLA_FLAGS", "").split()
    kept = [flag for flag in flags if "host_platform_device_count" not in flag]
    own = {"JAX_COMPILATION_CACHE_DIR": str(cache), "XLA_FLAGS": " ".join(kept)}
    return {**os.environ, "JAX_PLATFORMS": "cpu", **own, **changes}


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return server.getsockname()[1]
