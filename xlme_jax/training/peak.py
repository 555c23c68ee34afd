"""Peak FLOP/s of devices, for MFU."""

import jax

# Dense bfloat16 peaks in FLOP/s of one JAX device, from the vendors' data sheets, by a substring of
# `jax.Device.device_kind`; the first match is used, so longer names come first.
_PEAK_FLOPS = {
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v4": 275e12,
    "TPU v3": 61.5e12,
    "B200": 2250e12,
    "H200": 989e12,  # GH200 as well.
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "A10G": 70e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "V100": 125e12,
}


def peak_flops(device_kind: str) -> float | None:
    """Returns a device's peak FLOP/s (dense bfloat16; V100: float16), None where unknown."""
    fits = (peak for name, peak in _PEAK_FLOPS.items() if name.lower() in device_kind.lower())
    return next(fits, None)


def mesh_peak_flops(mesh: jax.sharding.Mesh) -> float | None:
    """Returns the peak FLOP/s of all devices of a mesh; None where unknown, as on CPUs.

    A peak measured at the start would be too low, and MFU too high, wherever other programs run.
    """
    peak = peak_flops(mesh.devices.flat[0].device_kind)
    return None if peak is None else peak * mesh.devices.size
