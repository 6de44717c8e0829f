"""Sharding of arrays over devices: the mesh, and the axes that split each parameter.

The devices form a mesh with three axes. Rows of a batch are split over data and fsdp;
parameters, and with them the moments of the optimizer, over fsdp and tensor:

    data    parameters are copied; devices differ in the rows they compute
    fsdp    each device keeps a part of each parameter; they exchange parts as they compute
    tensor  each device computes a part of each matrix product; they share their rows
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.mesh_utils import create_device_mesh, create_hybrid_device_mesh
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer.system.errors import UserError, check_range, setting

# Rows of a model family's sharding table: a regular expression for the whole path of a parameter,
# such as encoder_layers/0/feed_forward/hidden/kernel, and the mesh axis of each dimension.
ShardingRules = tuple[tuple[str, P], ...]

ROWS = ("data", "fsdp")  # the axes that rows of a batch are split over


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """See configs/base.py."""

    data: int = setting(may_change=True, recorded=False)
    fsdp: int = setting(may_change=True, recorded=False)
    tensor: int = setting(may_change=True, recorded=False)

    def __post_init__(self):
        check_range(self, "mesh", "data fsdp tensor", 0)
        if [self.data, self.fsdp, self.tensor].count(0) > 1:
            raise UserError(f"{self} leaves the devices to several axes; only one of them may be 0")

    def __str__(self) -> str:
        return f"mesh.data x mesh.fsdp x mesh.tensor = {self.data} x {self.fsdp} x {self.tensor}"


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The devices of all processes, or the given ones, as a mesh with axes data, fsdp, tensor.

    Raises UserError if the axes do not use all of the devices.
    """
    devices = jax.devices() if devices is None else devices
    shape = config.data, config.fsdp, config.tensor
    if 0 in shape:
        rest = len(devices) // math.prod(size for size in shape if size)
        shape = tuple(size or rest for size in shape)
    if math.prod(shape) != len(devices):
        raise UserError(
            f"{config} does not fit {len(devices)} device(s): the product must be their number, "
            "and a 0 stands for what the other two leave"
        )
    # Auto: with Explicit, JAX's default, every contraction would need an annotation.
    return Mesh(_grid(shape, devices), ("data", "fsdp", "tensor"), axis_types=3 * (AxisType.Auto,))


def _grid(shape: tuple[int, int, int], devices: Sequence[jax.Device]) -> np.ndarray:
    """The devices in a shape that makes neighbours of those with fast links."""
    if devices[0].platform != "tpu":  # the devices of a host have consecutive numbers
        # jax.make_mesh would take GPU nodes for TPU slices, and refuse.
        return np.asarray(devices).reshape(shape)
    num_slices = len({getattr(device, "slice_index", 0) for device in devices})
    if num_slices == 1:
        return create_device_mesh(shape, devices, allow_split_physical_axes=True)
    data, fsdp, tensor = shape
    if data % num_slices:
        raise UserError(
            f"mesh.data = {data} is not divisible by the {num_slices} TPU slices of this job; "
            "the other axes must lie within a slice"
        )
    return create_hybrid_device_mesh(
        (data // num_slices, fsdp, tensor),
        (num_slices, 1, 1),
        devices,
        allow_split_physical_axes=True,
    )


def data_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of `make_mesh` with all devices along data."""
    return make_mesh(MeshConfig(data=0, fsdp=1, tensor=1), devices)


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P())


def state_sharding(mesh: Mesh, state: Any, rules: ShardingRules) -> Any:
    """The NamedSharding of each array of a TrainState, of parameters, or of their shapes.

    The optimizer's moments are split like their parameters. Moments with fewer dimensions, and
    arrays that belong to no parameter, are copied. Extra state, all below an attribute named
    `extra`, is copied unless a rule names it.

    A dimension that the size of its mesh axis does not divide is copied along that axis: a
    vocabulary of 37,000 is copied over tensor=16, but split over tensor=8. Heads may be cut: 8
    heads over tensor=16 become halves, which is correct but costs more messages.

    Raises ValueError for a parameter that more than one rule matches and, if parameters are
    split, for one that none matches. Otherwise the latter is copied: see `without_a_rule`.
    """
    are_split = mesh.shape["fsdp"] * mesh.shape["tensor"] > 1

    def leaf(path, x) -> NamedSharding:
        spec = partition_spec(path, rules, strict=are_split)
        if len(spec) > len(x.shape):
            spec = P()
        axes = [
            axis if axis is None or size % mesh.shape[axis] == 0 else None
            for axis, size in zip(spec, x.shape)
        ]
        return NamedSharding(mesh, P(*axes))

    return jax.tree_util.tree_map_with_path(leaf, state)


def summed_over_rows(mesh: Mesh, rules: ShardingRules, gradient: Callable) -> Callable:
    """`gradient(params, rows, *others) -> grads, sums`, which sees only a device's own rows.

    rows: a tree of arrays [A, B, ...]. In `gradient`, B are the device's own rows, and parameters
    are whole along fsdp. Its results are the device's own, too. They are then summed over all
    rows: gradients are scattered over fsdp, and their parts summed over data. So each gradient is
    sent once, no matter how often its parameter is used or into how many parts A the rows are
    cut. Along tensor XLA splits the work, as elsewhere.
    """
    if row_shards(mesh) == 1:
        return gradient

    def summed(params: Any, rows: Any, *others: Any) -> tuple[Any, Any]:
        shardings = state_sharding(mesh, params, rules)

        def along(axis: str) -> Any:
            def leaf(sharding: NamedSharding) -> P:
                is_split = mesh.shape[axis] > 1
                return P(*(axis if is_split and x == axis else None for x in sharding.spec))

            return jax.tree.map(leaf, shardings)

        along_fsdp, along_tensor = along("fsdp"), along("tensor")

        def of_own_rows(params: Any, rows: Any, *others: Any) -> tuple[Any, Any]:
            # Without this, XLA would make the arrays whole along tensor before our collectives.
            own = {"in_specs": (along_tensor,), "out_specs": along_tensor}
            own |= {"axis_names": {"tensor"}, "check_vma": False}
            gather = jax.shard_map(lambda tree: jax.tree.map(_gather, tree, along_fsdp), **own)
            scatter = jax.shard_map(lambda tree: _scatter(tree, along_fsdp), **own)
            grads, sums = gradient(gather(params), rows, *others)
            return scatter(grads), jax.lax.psum(sums, ROWS)

        # With check_vma a model would have to say which of its arrays differ between devices.
        return jax.shard_map(
            of_own_rows,
            mesh=mesh,
            in_specs=(along_fsdp, split_rows(mesh, axis=1).spec, *[P()] * len(others)),
            out_specs=(along_fsdp, P()),
            axis_names=set(ROWS),
            check_vma=False,
        )(params, rows, *others)

    return summed


def on_each_device(kernel: Callable, *arrays: jax.Array, with_heads: int = 0) -> Any:
    """`kernel(*arrays)`; within `summed_over_rows`, of each device's part of the arrays.

    There XLA splits arrays only along tensor, which kernels with a sharding rule of their own do
    not expect. with_heads: the first `with_heads` arrays, and then the result, are [B, T, H, K].
    Heads are split over tensor, if it divides those of each. All else goes to each device whole.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.manual_axes or "tensor" not in mesh.auto_axes:  # a search splits all axes itself
        return kernel(*arrays)

    is_split = all(x.shape[2] % mesh.shape["tensor"] == 0 for x in arrays[:with_heads])
    heads = [P(None, None, "tensor") if is_split else P()] * with_heads
    others = [P()] * (len(arrays) - with_heads)
    specs = {"in_specs": (*heads, *others), "out_specs": heads[0] if heads else P()}
    return jax.shard_map(kernel, axis_names={"tensor"}, check_vma=False, **specs)(*arrays)


def _gather(x: jax.Array, spec: P) -> jax.Array:
    if "fsdp" not in spec:
        return x
    return jax.lax.all_gather(x, "fsdp", axis=spec.index("fsdp"), tiled=True)


def _scatter(grads: Any, specs: Any) -> Any:
    """Sums gradients over all rows; a device keeps its own parts."""
    structure = jax.tree.structure(grads)
    pairs = list(zip(jax.tree.leaves(grads), jax.tree.leaves(specs), strict=True))

    def is_vector(x: jax.Array, spec: P) -> bool:
        return x.ndim == 1 and "fsdp" not in spec

    # Summed as one vector: a kernel for each would take longer to start than to run.
    vectors, split_again = ravel_pytree([pair[0] for pair in pairs if is_vector(*pair)])
    sums = iter(split_again(jax.lax.psum(vectors, ROWS)))

    def leaf(x: jax.Array, spec: P) -> jax.Array:
        if is_vector(x, spec):
            return next(sums)
        if "fsdp" not in spec:
            return jax.lax.psum(x, ROWS)
        x = jax.lax.psum_scatter(x, "fsdp", scatter_dimension=spec.index("fsdp"), tiled=True)
        return jax.lax.psum(x, "data")

    return structure.unflatten([leaf(*pair) for pair in pairs])


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gathered(x: jax.Array, whole: NamedSharding, split: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, whole)


# By default the gradient would be made whole, as the parameter was; beside a data axis, XLA then
# adds up whole gradients instead of scattering them.
_gathered.defvjp(
    lambda x, whole, split: (_gathered(x, whole, split), None),
    lambda whole, split, _, gradient: (jax.lax.with_sharding_constraint(gradient, split),),
)


def gather_fsdp(mesh: Mesh, params: Any, rules: ShardingRules) -> Any:
    """Inside jit: the parameters whole along fsdp, as products with rows need them.

    Otherwise XLA would split the activations, and sum whole logits. Gradients are split again.
    Use it for programs without gradients, and for those that need all rows at once, as batch
    normalisation does. For the gradient of a sum over rows use `summed_over_rows`.
    """

    def leaf(x: jax.Array, split: NamedSharding) -> jax.Array:
        spec = P(*(None if axis == "fsdp" else axis for axis in split.spec))
        return _gathered(x, NamedSharding(mesh, spec), split)

    return jax.tree.map(leaf, params, state_sharding(mesh, params, rules))


def without_a_rule(params: Any, rules: ShardingRules) -> list[str]:
    """The parameters that no rule matches, such as encoder_layers/0/adapter/kernel."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    return [name_of(path) for path in paths if not _matches(path, rules)]


def name_of(path: jax.tree_util.KeyPath) -> str:
    """The name of a parameter: the dict keys that its path ends with, joined by slashes.

    Dicts further up, such as those of an optimizer with several parts, do not count.
    """
    own = itertools.takewhile(lambda key: isinstance(key, jax.tree_util.DictKey), reversed(path))
    return "/".join(str(key.key) for key in reversed(list(own)))


def _matches(path: jax.tree_util.KeyPath, rules: ShardingRules) -> list[tuple[str, P]]:
    return [row for row in rules if re.fullmatch(row[0], name_of(path))]


def partition_spec(path: jax.tree_util.KeyPath, rules: ShardingRules, *, strict: bool = True) -> P:
    """The split of a leaf by the rules; its last keys, those of dicts, name a parameter.

    A leaf without such keys, such as a counter of the optimizer, is copied. Without `strict` so is
    one that no rule matches.
    """
    name, matches = name_of(path), _matches(path, rules)
    if not name:
        return P()
    if not matches and (not strict or jax.tree_util.GetAttrKey("extra") in path):
        return P()
    if len(matches) != 1:
        found = ", ".join(pattern for pattern, _ in matches) or "none"
        raise ValueError(
            f"one row of the family's sharding table must match the parameter {name}; "
            f"found: {found}"
        )
    return matches[0][1]


def bytes_per_device(tree: Any) -> int:
    """The bytes that a tree of arrays, or of shapes with shardings, takes on each device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def row_shards(mesh: Mesh) -> int:
    """The number of parts into which the rows of a batch are split."""
    return math.prod(mesh.shape[axis] for axis in ROWS)


def split_rows(mesh: Mesh, axis: int) -> NamedSharding:
    """Splits the given axis of an array, its rows, over data and fsdp; copies it over tensor."""
    return NamedSharding(mesh, P(*[None] * axis, ROWS))


def split_over_all(mesh: Mesh) -> NamedSharding:
    """Splits the first axis of an array over all devices."""
    return NamedSharding(mesh, P(mesh.axis_names))


def distribute(make: Callable[[np.ndarray], Any], rows: np.ndarray, sharding: NamedSharding) -> Any:
    """`make(rows)`, a tree of arrays that begin with the axes of `rows`, split by `sharding`.

    Each process makes only the parts of its own devices, each once.
    """
    made: dict[str, Any] = {}
    parts = []
    for device, index in sharding.addressable_devices_indices_map(rows.shape).items():
        key = str(index)  # slices have no hash before Python 3.12
        if key not in made:
            made[key] = make(rows[index])
        parts.append(jax.device_put(made[key], device))
    return jax.tree.map(
        lambda *leaves: jax.make_array_from_single_device_arrays(
            (*rows.shape, *leaves[0].shape[rows.ndim :]), sharding, list(leaves)
        ),
        *parts,
    )
