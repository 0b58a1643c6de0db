"""The protocol buffer ``tf.train.Example``, read without TensorFlow."""

from typing import Any

import numpy as np

from fedjax_sim.checks import import_extra
from fedjax_sim.datasets.dataset import DataError


def parse_example(data: bytes, where: object = "tf.train.Example") -> dict[str, Any]:
    """Returns the features: float32 or int64 ``[n]``, or a list of bytes."""
    protocol = import_extra("tensorflow_datasets.proto", "datasets").tf_example_pb2
    try:
        example = protocol.Example.FromString(data)
    except Exception as error:  # protobuf's own kinds, which its implementations do not share
        raise DataError(f"{where}: {error}; expected the message tf.train.Example") from error
    return {name: _values(feature) for name, feature in example.features.feature.items()}


def _values(feature: Any) -> Any:
    kind = feature.WhichOneof("kind")
    if kind in (None, "bytes_list"):
        return list(feature.bytes_list.value)
    dtype = np.float32 if kind == "float_list" else np.int64
    return np.array(getattr(feature, kind).value, dtype)
