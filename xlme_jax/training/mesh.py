"""Device mesh, logical axis rules, and the shardings that follow from them."""

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp", "tensor")

# Logical axis of a parameter or activation -> mesh axes. Names that are not listed are replicated.
LOGICAL_AXIS_RULES = (
    ("batch", ("data", "fsdp")),
    # The table has most parameters of XLM-E Base, so it is split over all axes that can split it.
    ("vocab", ("fsdp", "tensor")),
    # The negatives of the contrastive loss are not split over data, as each replica needs them all.
    ("queue", ("fsdp", "tensor")),
    ("embed", "fsdp"),
    ("mlp", "tensor"),
    ("heads", "tensor"),
    ("length", None),
    ("activation_embed", None),
    ("table_embed", None),
    ("qkv", None),
    ("kv", None),
    ("norm", None),
    ("buckets", None),
    ("layers", None),
)


def rules_within_replica() -> tuple[tuple[str, Any], ...]:
    """Returns the rules for code that runs separately on each part of the data axis."""
    return tuple((name, "fsdp" if name == "batch" else axes) for name, axes in LOGICAL_AXIS_RULES)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Sizes of the mesh axes; at most one may be -1, which takes the remaining devices.

    Attributes:
      data: replicas of the parameters; batches are split.
      fsdp: parameters and batches are split, parameters are gathered when used.
      tensor: heads, feed-forward width and vocabulary are split.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def shape(self, device_count: int) -> tuple[int, int, int]:
        """Returns the sizes of the axes on `device_count` devices.

        Raises:
          ValueError: a size is invalid, or the product of the sizes is not `device_count`.
        """
        sizes = [self.data, self.fsdp, self.tensor]
        if any(size == 0 or size < -1 for size in sizes) or sizes.count(-1) > 1:
            raise ValueError(
                f"Mesh(data={self.data}, fsdp={self.fsdp}, tensor={self.tensor}): sizes must be "
                "positive, at most one may be -1 (the rest)."
            )
        product = math.prod(size for size in sizes if size > 0)
        if -1 in sizes and device_count % product == 0:
            sizes[sizes.index(-1)] = device_count // product
        if math.prod(sizes) != device_count:
            raise ValueError(
                f"Mesh(data={self.data}, fsdp={self.fsdp}, tensor={self.tensor}) does not fit "
                f"{device_count} devices; set the sizes so that their product is {device_count}, "
                "or one of them to -1."
            )
        return sizes[0], sizes[1], sizes[2]


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Returns the mesh over all devices of all processes.

    Of several TPU slices, only the data axis crosses from one to the next. To JAX a node of GPUs is
    a slice too; there any axis may cross nodes, and the last axes stay inside a node if possible.

    Axes are `Auto`: under JAX's default explicit axes linen's logical constraints fail.

    Args:
      config: the sizes of the axes.
      devices: the devices; None takes all.

    Raises:
      ValueError: the sizes do not fit the devices, or the data axis does not fit the slices.
    """
    devices = list(jax.devices() if devices is None else devices)
    shape = config.shape(len(devices))
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    if slices > 1 and getattr(devices[0], "platform", "tpu") == "tpu":
        if shape[0] % slices:
            raise ValueError(
                f"Mesh.data = {shape[0]} must be a multiple of the {slices} slices of this job: "
                "only the data axis crosses the network between slices."
            )
        inner = (shape[0] // slices, *shape[1:])
        grid = mesh_utils.create_hybrid_device_mesh(inner, (slices, 1, 1), devices=devices)
    else:
        try:
            grid = mesh_utils.create_device_mesh(shape, devices=devices)
        except NotImplementedError:  # E.g. a 16 x 16 torus has no axis of 32 chips, or of 8.
            grid = mesh_utils.create_device_mesh(
                shape, devices=devices, allow_split_physical_axes=True
            )
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a batch, whose rows are split over data x fsdp."""
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def batch_shards(mesh: Mesh) -> int:
    """Returns the number of parts of a batch, data x fsdp, by which its rows must be divisible."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def shardings(boxed: Any, mesh: Mesh) -> Any:
    """Returns the NamedShardings of a tree of boxed (logically partitioned) abstract arrays.

    A dimension that its mesh axes do not divide is replicated instead, as XLA needs equal shards.

    Args:
      boxed: tree of ShapeDtypeStructs, those with logical axis names in linen's boxes.
      mesh: the mesh.

    Returns:
      The tree, unboxed, of NamedShardings.
    """
    specs = nn.logical_to_mesh(nn.get_partition_spec(boxed), LOGICAL_AXIS_RULES)

    def sharding(spec: PartitionSpec, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        axes = [
            axis if axis is not None and size % _axis_size(mesh, axis) == 0 else None
            for axis, size in zip(spec, leaf.shape)
        ]
        return NamedSharding(mesh, PartitionSpec(*axes))

    return jax.tree.map(
        sharding, specs, unbox(boxed), is_leaf=lambda x: isinstance(x, PartitionSpec)
    )


def unbox(tree: Any) -> Any:
    """Returns a tree without linen's boxes around leaves; applies no sharding constraints."""

    def is_box(leaf: Any) -> bool:
        return isinstance(leaf, nn.LogicallyPartitioned)

    return jax.tree.map(
        lambda leaf: leaf.unbox(apply_constraint=False) if is_box(leaf) else leaf,
        tree,
        is_leaf=is_box,
    )


def _axis_size(mesh: Mesh, axis: str | tuple[str, ...]) -> int:
    """Returns the number of parts into which one or several mesh axes split a dimension."""
    names = (axis,) if isinstance(axis, str) else axis
    return math.prod(mesh.shape[name] for name in names)


def batch_share(mesh: Mesh) -> tuple[int, int]:
    """Returns the index of the share of a batch that this process feeds, and how many there are.

    Processes whose devices hold the same rows feed the same share, for example where the tensor
    axis spans several processes.

    Raises:
      ValueError: the rows of processes overlap partially, so that they cannot be split.
    """
    # {process: parts of the batch that its devices hold}; a batch of `shards` rows has one in each.
    parts: dict[int, set[int]] = collections.defaultdict(set)
    shards = batch_shards(mesh)
    slices: dict[Any, Any] = dict(batch_sharding(mesh).devices_indices_map((shards,)))
    for device, (part, *_) in slices.items():
        parts[device.process_index].update(range(*part.indices(shards)))
    shares = sorted({tuple(sorted(share)) for share in parts.values()})
    has_equal_sizes = len({len(share) for share in shares}) == 1
    if [row for share in shares for row in share] != list(range(shards)) or not has_equal_sizes:
        raise ValueError(
            f"Mesh {dict(mesh.shape)} gives the {jax.process_count()} processes overlapping rows "
            f"{shares}. Set Mesh.tensor to a divisor or a multiple of the devices per process."
        )
    return shares.index(tuple(sorted(parts[jax.process_index()]))), len(shares)


def put_batch(batch: Any, sharding: NamedSharding, shares: int = 1) -> Any:
    """Returns a batch as global arrays, made of the rows of all processes.

    Args:
      batch: tree of arrays with this process's share of the rows.
      sharding: the sharding of the batch (`batch_sharding`).
      shares: number of equal shares (`batch_share`).
    """

    def put(rows: np.ndarray) -> jax.Array:
        shape = (rows.shape[0] * shares, *rows.shape[1:])
        return jax.make_array_from_process_local_data(sharding, rows, shape)

    return jax.tree.map(put, batch)


def check_divisible(rows: Mapping[str, int], mesh: Mesh, micro_batches: int) -> None:
    """Raises ValueError if the rows of a stream cannot be split evenly.

    Args:
      rows: {stream: rows of a batch}.
      mesh: the mesh, whose axes data and fsdp split batches.
      micro_batches: parts in which each of these shares is processed.
    """
    parts = batch_shards(mesh) * micro_batches
    for name, count in rows.items():
        if count % parts:
            raise ValueError(
                f"Stream {name!r} has rows = {count}, not divisible by {parts} = mesh data x fsdp "
                f"({batch_shards(mesh)}) x micro_batches ({micro_batches}). Choose rows = "
                f"{math.ceil(count / parts) * parts}, or another mesh."
            )
