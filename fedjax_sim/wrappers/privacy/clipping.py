"""Bounds of the norm of uploads."""

import copy
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim import tree
from fedjax_sim.checks import check_positive, is_concrete
from fedjax_sim.types import Scalar, Upload

Clip = Scalar | Mapping[str, Scalar]  # of the whole upload, or of its parts by name


def clip_upload(upload: Upload, clip: Clip) -> Upload:
    r"""Returns :math:`u \min(1, C / \|u\|)`; 0 for an upload that contains NaN or Inf.

    Leaves are in single precision at least: rounding to half precision would exceed the bound, and
    that of a sum would change more than one client's share of it.  ``clip`` is C, or a bound for
    each part, by the names of the upload's fields.
    """
    finite = tree.all_finite(upload)
    upload = tree.where(finite, upload, tree.zeros_like(upload))
    if not isinstance(clip, Mapping):
        return _clip(upload, clip)
    parts = _parts(upload)
    if parts.keys() != clip.keys():
        raise ValueError(
            f"clip has the parts {', '.join(sorted(clip))}; expected those of the upload, "
            f"{', '.join(sorted(parts)) or 'which has none: expected one number'}"
        )
    clipped = {name: _clip(part, clip[name]) for name, part in parts.items()}
    if isinstance(upload, dict):
        result = copy.copy(upload)  # of the same class, with the same keys
        for name in upload:
            result[name] = clipped[str(name)]
        return result
    return (
        type(upload)(*clipped.values()) if hasattr(upload, "_fields") else tuple(clipped.values())
    )


def total_clip(clip: Clip) -> Scalar:
    r"""Returns the bound of the norm over all parts, :math:`\sqrt{\sum_j C_j^2}`."""
    if not isinstance(clip, Mapping):
        return clip
    # In the order of the names, which is the one of a spec's arguments.
    return jnp.sqrt(sum(jnp.square(jnp.asarray(clip[name], float)) for name in sorted(clip)))


def check_clip(clip: Clip) -> None:
    """Refuses bounds that are not positive."""
    if isinstance(clip, Mapping):
        if not clip:
            raise ValueError("clip has no parts; expected a bound, or one per part of the upload")
        check_positive(**{f"clip[{name!r}]": bound for name, bound in clip.items()})
    else:
        check_positive(clip=clip)


def check_finite(clip: Clip) -> None:
    """Refuses an infinite bound, which no noise can cover."""
    for bound in clip.values() if isinstance(clip, Mapping) else [clip]:
        if is_concrete(bound) and not np.isfinite(np.asarray(bound)).all():
            raise ValueError(f"clip is {clip}; expected a finite one with noise")


def _clip(x: Upload, bound: Scalar) -> Upload:
    x = tree.wide(x)
    factor = tree.clip_factor(bound, x)
    return jax.tree.map(lambda leaf: (factor * leaf).astype(leaf.dtype), x)


def _parts(upload: Upload) -> dict[str, Any]:
    """Returns the parts of an upload at its top level, by name or number."""
    if isinstance(upload, dict):
        return {str(name): part for name, part in upload.items()}
    if isinstance(upload, tuple):
        names = getattr(upload, "_fields", map(str, range(len(upload))))
        return dict(zip(names, upload, strict=True))
    return {}
