"""Facts about this machine and this installation, without importing the packages."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import platform
import re

NEEDED = (
    *("numpy", "numba", "llvmlite", "scipy", "bitarray", "click", "rich", "safetensors"),
    *("ml_dtypes", "google-crc32c"),
)
OPTIONAL = {
    "torch": ("torch",),
    "jax": ("jax",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "mlx": ("mlx",),
    "cupy": ("cupy", "cupy-cuda12x", "cupy-cuda13x"),
    "matplotlib": ("matplotlib",),
    "numcodecs": ("numcodecs",),
    "zarr": ("zarr",),
    "mpi4py": ("mpi4py",),
    "flwr": ("flwr",),
    "nvflare": ("nvflare",),
}
"""Optional modules, and the distributions that contain them."""

_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)\s*>=\s*([0-9.]+)$")


def processor() -> str:
    """Return the name of the processor, as the system reports it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":")[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def version_of(distributions: tuple[str, ...]) -> str | None:
    """Return the version of the first distribution that is installed, or None."""
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def optional_versions() -> dict[str, str]:
    """Return the versions of the optional modules that are installed."""
    return {
        module: version_of(distributions) or "of unknown version"
        for module, distributions in OPTIONAL.items()
        if importlib.util.find_spec(module) is not None
    }


def minimum_versions() -> dict[str, str]:
    """Return the minimum version of each distribution that gcodec requires."""
    try:
        requirements = importlib.metadata.requires("gcodec") or []
    except importlib.metadata.PackageNotFoundError:  # gcodec runs from its sources
        return {}
    return {match[1]: match[2] for text in requirements if (match := _REQUIREMENT.match(text))}


def is_older(version: str, minimum: str) -> bool:
    """Return whether a version is below a minimum, by the leading numbers of both."""
    own, limit = ([int(n) for n in re.findall(r"\d+", text)[:3]] for text in (version, minimum))
    length = min(len(own), len(limit))
    return own[:length] < limit[:length]


def gpus() -> list[str]:
    """Return the names of the NVIDIA devices that the driver reports; none without a driver."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if platform.system() == "Windows" else "libcuda.so.1")
        count, handle = ctypes.c_int(), ctypes.c_int()
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return []
        names = []
        for device in range(count.value):
            name = ctypes.create_string_buffer(256)
            if not driver.cuDeviceGet(ctypes.byref(handle), device):
                driver.cuDeviceGetName(name, len(name), handle)
                names.append(name.value.decode(errors="replace"))
        return names
    except (OSError, AttributeError):
        return []
