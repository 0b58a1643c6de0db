"""Arguments of ``simulate``, ``compare`` and ``sweep`` from settings in one list."""

import contextlib
import dataclasses
import types
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import pytest

import fedjax_sim as fs
from fedjax_sim.engine.execution import devices

_STORAGE = [field.name for field in dataclasses.fields(fs.Storage)]
_OPTIONS = [field.name for field in dataclasses.fields(fs.Options)]

# A callback with a segment per evaluation.
SINGLE = types.SimpleNamespace(poll=lambda: None, every_evaluation=True)


def records(
    *, callbacks=(), more_callbacks=(), progress=None, divergence=None, **settings: Any
) -> dict[str, Any]:
    """Returns ``callbacks``, ``storage`` and ``options``; other names as they are.

    Args:
        callbacks, more_callbacks: callbacks.
        progress: function of the progress after every segment.
        divergence: action of a :class:`fedjax_sim.runs.callbacks.Divergence`.
        settings: fields of ``fs.Storage`` and of ``fs.Options``, and further arguments.
    """
    callbacks = [*callbacks, *more_callbacks]
    if progress is not None:
        callbacks.append(types.SimpleNamespace(progress=progress))
    if divergence is not None:
        callbacks.append(fs.callbacks.Divergence(divergence))
    storage = {name: settings.pop(name) for name in _STORAGE if name in settings}
    options = {name: settings.pop(name) for name in _OPTIONS if name in settings}
    settings |= {"callbacks": callbacks} if callbacks else {}
    settings |= {"storage": fs.Storage(**storage)} if storage else {}
    return settings | ({"options": fs.Options(**options)} if options else {})


@contextlib.contextmanager
def on_devices(chosen: Sequence[Any] | None) -> Iterator[None]:
    """Context in which sweeps run on these devices; None: on all."""
    if chosen is None:
        yield
    elif len(chosen) == 1:
        with jax.default_device(chosen[0]):
            yield
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(devices, "workers", lambda: list(chosen))
            yield


def sweep_on(chosen: Sequence[Any] | None, *arguments: Any, **settings: Any) -> fs.Sweep:
    """The sweep of these arguments on these devices."""
    with on_devices(chosen):
        return fs.sweep(*arguments, **records(**settings))
