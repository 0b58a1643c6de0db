"""Directory of a run: identity, history and checkpoints, safe against a kill at any moment.

The rows of a segment are written first, then the checkpoint that records the history's length.
"""

import json
import pathlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.engine import RunState
from fedjax_sim.execution import distributed
from fedjax_sim.simulation import history
from fedjax_sim.simulation.files import replacing
from fedjax_sim.simulation.identity import (
    algorithm_identity,
    arrays_digest,
    description,
    sharded_digest,
)
from fedjax_sim.types import FedAlgorithm, Setup


class Store:
    """Directory of a run: identity, history, checkpoints."""

    def __init__(self, directory: pathlib.Path, identity: dict, checkpoint_seconds: float):
        import orbax.checkpoint as ocp  # slow to import, and needed only here

        self._ocp = ocp
        self.history = directory / "history.csv"
        self._interval = checkpoint_seconds
        self._saved = time.monotonic()
        self.checkpoints = directory / "checkpoints"
        directory.mkdir(parents=True, exist_ok=True)
        if distributed.is_first():
            claim(directory / "run.json", identity)
        distributed.wait("directory claimed")
        claim(directory / "run.json", identity)
        self._manager = ocp.CheckpointManager(
            self.checkpoints.absolute(),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=2, enable_async_checkpointing=False, create=True
            ),
        )
        self._length = 0

    @property
    def last_round(self) -> int | None:
        return self._manager.latest_step()

    def restore(self, state: RunState) -> RunState:
        """Returns the latest checkpoint, or ``state`` if there is none; cuts the history to it."""
        args, step = self._ocp.args, self.last_round
        if step is None:
            if distributed.is_first():
                self._length = history.create(self.history)
            return state
        # Devices of this process, not of the process that saved it.
        shapes = jax.tree.map(
            lambda x: (
                x
                if isinstance(x, np.ndarray)  # states on the host
                else jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
            ),
            state,
        )
        saved = self._manager.restore(
            step,
            args=args.Composite(state=args.StandardRestore(shapes), meta=args.JsonRestore()),
        )
        self._length = saved["meta"]["history_bytes"]
        if distributed.is_first():
            history.truncate(self.history, self._length)
        return jax.tree.map(_uncommitted, saved["state"])

    def append(self, rows: Iterable[history.Row]) -> None:
        if distributed.is_first():
            self._length = history.append(self.history, rows)

    def save_if_due(self, state: RunState) -> None:
        """Saves unless the last checkpoint is younger than ``checkpoint_seconds``."""
        if distributed.any_of(time.monotonic() - self._saved >= self._interval):
            self.save(state)

    def save(self, state: RunState) -> None:
        step = int(np.max(state.round))
        if step == self.last_round:
            return
        args = self._ocp.args
        meta = {"history_bytes": self._length}
        self._manager.save(
            step, args=args.Composite(state=args.StandardSave(state), meta=args.JsonSave(meta))
        )
        self._saved = time.monotonic()


def _uncommitted(x: Array) -> Array:
    """Returns an uncommitted copy of an array on one device, which may move to other devices.

    Arrays that are divided over devices, or on the host, stay there.
    """
    if isinstance(x, np.ndarray) or len(x.sharding.device_set) > 1:
        return x
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_uncommitted(jax.random.key_data(x)))
    return jnp.asarray(np.asarray(x))


def claim(path: pathlib.Path, identity: dict) -> None:
    """Writes a run's identity, or compares it with the identity that is there.

    Raises:
        ValueError: the directory holds another run, or its file is damaged.
    """
    if not path.exists():
        with replacing(path) as partial:
            partial.write_text(json.dumps(identity, indent=2, sort_keys=True) + "\n")
        return
    try:
        known = dict(json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); expected a JSON object: choose another directory or "
            "delete this one"
        ) from error
    identity = json.loads(json.dumps(identity))
    differing = sorted(k for k in known.keys() | identity.keys() if known.get(k) != identity.get(k))
    if differing:
        raise ValueError(
            f"directory {str(path.parent)!r} holds another run: {', '.join(differing)} differ; "
            "choose another directory or delete this one"
        )


def identify(
    algorithm: FedAlgorithm,
    config: Mapping[str, Any] | None,
    setup: Setup,
    keys: Array,
    names: Sequence[str],
) -> dict[str, Any]:
    """Returns the values that make two calls the same run: digests and the given config."""
    timeline = jax.tree.map(np.asarray, setup.timeline)
    placement = setup.task.placement
    # Another number of devices may continue a run with data by client, and no process has it all.
    by_client = placement is not None and placement.axis is not None
    data_digest = sharded_digest if by_client else arrays_digest
    return {
        "algorithm": algorithm_identity(algorithm),
        "config": dict(config or {}),
        "data": data_digest((setup.task, setup.eval_fn)),
        "timeline": arrays_digest(timeline),
        "params": arrays_digest(setup.params),
        "key": arrays_digest(keys),
        "eval_every": setup.eval_every,
        "weighting": description(setup.weighting),
        "replicas": list(names),
    }
