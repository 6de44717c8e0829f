"""How arrays lie on the devices: rows of a batch split over them, everything else copied."""

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def data_mesh(devices=None) -> jax.sharding.Mesh:
    """All local devices, or the given ones, along one axis named 'data'."""
    devices = jax.local_devices() if devices is None else devices
    # Auto: with Explicit, JAX's default, every contraction would need an annotation.
    return jax.make_mesh((len(devices),), ("data",), (AxisType.Auto,), devices=devices)


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def split_rows(mesh: jax.sharding.Mesh, axis: int) -> NamedSharding:
    """The given axis of an array split over the devices."""
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, "data"))
