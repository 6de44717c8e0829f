"""How arrays lie on the devices: rows of a batch split over them, everything else copied."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def data_mesh(devices=None) -> jax.sharding.Mesh:
    """All devices of all processes, or the given ones, along one axis named 'data'."""
    devices = jax.devices() if devices is None else devices
    # Auto: with Explicit, JAX's default, every contraction would need an annotation.
    return jax.make_mesh((len(devices),), ("data",), (AxisType.Auto,), devices=devices)


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def split_rows(mesh: jax.sharding.Mesh, axis: int) -> NamedSharding:
    """The given axis of an array split over the devices."""
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, "data"))


def distribute(make: Callable[[np.ndarray], Any], rows: np.ndarray, sharding: NamedSharding) -> Any:
    """`make(rows)`, a tree of arrays that begin with the axes of `rows`, split like these.

    Each process makes the parts of its own devices, and no others.
    """
    parts = [
        jax.device_put(make(rows[index]), device)
        for device, index in sharding.addressable_devices_indices_map(rows.shape).items()
    ]
    return jax.tree.map(
        lambda *leaves: jax.make_array_from_single_device_arrays(
            (*rows.shape, *leaves[0].shape[rows.ndim :]), sharding, list(leaves)
        ),
        *parts,
    )
