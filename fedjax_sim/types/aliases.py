"""Names for the kinds of pytrees that pass between server and clients."""

from typing import Any, TypeAlias

from jax import Array

PyTree: TypeAlias = Any
Params: TypeAlias = PyTree
Message: TypeAlias = PyTree  # downlink: server -> client
Upload: TypeAlias = PyTree  # uplink: client -> server
ServerState: TypeAlias = PyTree  # its attribute `params` is the model to evaluate
ClientState: TypeAlias = PyTree  # state that one client keeps between its visits
Step: TypeAlias = Array | int
Device: TypeAlias = Any  # jax.Device, which type checkers reject as a type
Scalar: TypeAlias = Array | float  # a hyper-parameter: a number or a traced scalar
