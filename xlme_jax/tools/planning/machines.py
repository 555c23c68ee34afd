"""Specifications of accelerators and names of topologies.

TPUs: cloud.google.com/tpu/docs, the "System architecture" tables of v4, v5e, v5p and v6e: peak
bfloat16, HBM, and "bidirectional inter-chip interconnect", half of it in each direction (v4: 6
links of 50 GB/s per direction, from Jouppi et al., arXiv:2304.01433). A device is a chip: the two
TensorCores of v4 and v5p act as one. `hbm` is the usable memory, a little less than the nominal.

GPUs: NVIDIA's data sheets of A100 SXM, H100 SXM, H200 and HGX B200; bidirectional NVLink bandwidth
is 600, 900, 900 and 1800 GB/s. The network is taken from the DGX of the same generation: 8 x 200
(A100) or 8 x 400 Gbit/s per node.

Topologies are named as in libtpu (`v5e:16x16`, `v4:4x4x4`), by the number of GPUs (`h100:8`,
`a100:64`; nodes have 8), or by Google's product names: `v5e-256` and `v6e-256` count chips, but
`v4-128` and `v5p-256` count TensorCores, two per chip: 64 chips, `v4:4x4x4`, and 128, `v5p:4x4x8`.
`cpu:8` is eight virtual devices of this machine, for testing.
"""

import dataclasses
import math
import re

GIB = 1 << 30
GPUS_A_NODE = 8
# Fractions of the peak FLOP/s and of the HBM bandwidth that well-tuned encoders reach.
EFFICIENCY = 0.6
STREAMING = 0.8


@dataclasses.dataclass(frozen=True)
class Machine:
    """Specification of one accelerator.

    Attributes:
      name: name as in a topology, such as "v5e".
      platform: "tpu", "cuda" or "cpu".
      hbm: usable memory in bytes.
      flops: peak FLOP/s, dense bfloat16.
      hbm_bandwidth: bytes/s.
      link_bandwidth: bytes/s that one device sends over all of its ICI or NVLink links.
      network_bandwidth: bytes/s that one device sends to other nodes; 0 if links reach all devices.
      max_dims: dimensions of the torus; 0 for GPUs.
      cores: TensorCores per chip where product names count cores, as "v4-8" does; else 1.
      target: for GPUs, parameters of the compiler (compute capability, multiprocessors, L2 bytes,
        shared-memory bytes per multiprocessor, clock in GHz).
    """

    name: str
    platform: str
    hbm: int
    flops: float
    hbm_bandwidth: float
    link_bandwidth: float
    network_bandwidth: float = 0.0
    max_dims: int = 0
    cores: int = 1
    target: tuple[tuple[int, int], int, int, int, float] | None = None

    def seconds(self, flops: float, moved: float) -> tuple[float, float]:
        """Returns the estimated seconds of matrix products and of HBM traffic on one device.

        Args:
          flops: FLOPs of the products.
          moved: bytes read and written.
        """
        return flops / (self.flops * EFFICIENCY), moved / (self.hbm_bandwidth * STREAMING)


def _tpu(name: str, hbm: float, flops: float, bandwidth: float, link: float, **more) -> Machine:
    return Machine(name, "tpu", int(hbm * GIB), flops, bandwidth, link, **more)


def _gpu(name: str, hbm: int, flops: float, bandwidth: float, link: float, network: float, target):
    return Machine(name, "cuda", hbm, flops, bandwidth, link, network, target=target)


_AMPERE = ((8, 0), 108, 40 << 20, 164 << 10, 1.41)
_HOPPER = ((9, 0), 132, 50 << 20, 228 << 10, 1.98)
_BLACKWELL = ((10, 0), 148, 126 << 20, 228 << 10, 1.965)

MACHINES = {
    machine.name: machine
    for machine in (
        _tpu("v4", 31.75, 275e12, 1.2e12, 300e9, max_dims=3, cores=2),
        _tpu("v5e", 15.75, 197e12, 0.82e12, 200e9, max_dims=2),
        _tpu("v5p", 95.0, 459e12, 2.765e12, 600e9, max_dims=3, cores=2),
        _tpu("v6e", 31.25, 918e12, 1.64e12, 400e9, max_dims=2),
        _gpu("a100-40", 42_298_834_944, 312e12, 1.555e12, 300e9, 25e9, _AMPERE),
        _gpu("a100", 84_987_740_160, 312e12, 2.039e12, 300e9, 25e9, _AMPERE),
        _gpu("h100", 84_942_979_072, 989e12, 3.35e12, 450e9, 50e9, _HOPPER),
        _gpu("h200", 151_397_597_184, 989e12, 4.8e12, 450e9, 50e9, _HOPPER),
        _gpu("b200", 191_514_411_008, 2250e12, 7.7e12, 900e9, 50e9, _BLACKWELL),
        Machine("cpu", "cpu", 16 * GIB, 1e12, 5e10, 1e10),
    )
}
_ALIASES = {"v5litepod": "v5e", "v5lite": "v5e", "a100-80": "a100"}
# Shapes of the slices that Google offers: {torus dimensions: {chips: shape}}.
_SLICES = {
    2: {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"},
    3: {
        **{4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8"},
        **{256: "4x8x8", 512: "8x8x8", 1024: "8x8x16", 2048: "8x16x16", 4096: "16x16x16"},
    },
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """Connected accelerators of one kind.

    Attributes:
      machine: the accelerator.
      dims: shape of the torus; (number of devices,) for GPUs and CPUs.
    """

    machine: Machine
    dims: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name as in libtpu, such as v5e:16x16 or h100:8."""
        return f"{self.machine.name}:{'x'.join(map(str, self.dims))}"

    @property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(self.dims)

    @property
    def nodes(self) -> int:
        """Number of GPU nodes, which a network connects; 1 for other accelerators."""
        return -(-self.size // GPUS_A_NODE) if self.machine.platform == "cuda" else 1


def parse_topology(text: str) -> Topology:
    """Parses the name of a topology; see the module's docstring.

    Raises:
      ValueError: the name is invalid; the message lists valid ones.
    """
    names = ", ".join(MACHINES)
    sold = re.fullmatch(r"([a-z0-9]+)-(\d+)", text)
    named = re.fullmatch(r"([a-z0-9-]+):(\d+(?:x\d+)*)", text)
    match = named or sold
    name = _ALIASES.get(match[1], match[1]) if match else ""
    if match is None or name not in MACHINES or (named is None and not MACHINES[name].max_dims):
        raise ValueError(
            f"--topology={text!r} is unknown. Pass KIND:SHAPE, such as v5e:16x16, v4:4x4x4 or "
            f"h100:8, where KIND is one of {names}; or a TPU product name, such as v5e-256."
        )
    machine = MACHINES[name]
    if named is None:
        return _product_topology(text, machine, int(match[2]))
    dims = tuple(map(int, match[2].split("x")))
    if 0 in dims or len(dims) != max(machine.max_dims, 1):
        example = {0: f"{name}:8", 2: f"{name}:4x4", 3: f"{name}:2x2x4"}[machine.max_dims]
        raise ValueError(f"--topology={text!r}: invalid shape for {name}; pass one like {example}.")
    if machine.platform == "cuda" and dims[0] > GPUS_A_NODE and dims[0] % GPUS_A_NODE:
        raise ValueError(
            f"--topology={text!r}: nodes have {GPUS_A_NODE} GPUs; pass a multiple of {GPUS_A_NODE}."
        )
    return Topology(machine, dims)


def _product_topology(text: str, machine: Machine, count: int) -> Topology:
    """Returns the topology of a TPU product.

    Args:
      text: name of the product, for the error.
      machine: the accelerator.
      count: number in the name, which counts chips or TensorCores (`Machine.cores`).

    Raises:
      ValueError: Google offers no such slice.
    """
    chips, remainder = divmod(count, machine.cores)
    slices = _SLICES[machine.max_dims]
    if remainder or chips not in slices:
        offered = ", ".join(f"{machine.name}-{size * machine.cores}" for size in slices)
        raise ValueError(f"--topology={text!r}: no such slice; available slices are {offered}.")
    return Topology(machine, tuple(map(int, slices[chips].split("x"))))
