"""What this machine and this installation are; nothing of it is imported to find out."""

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
}
"""Modules, and the distributions that bring them."""

_LEAST = re.compile(r"([A-Za-z0-9_.-]+)\s*>=\s*([0-9.]+)$")


def processor() -> str:
    """Name the processor, as far as the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":")[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def version_of(distributions: tuple[str, ...]) -> str | None:
    """Return the version of the first of some distributions that is installed, or None."""
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def optional_versions() -> dict[str, str]:
    """Return the versions of the optional modules that are installed."""
    found = {}
    for module, distributions in OPTIONAL.items():
        if importlib.util.find_spec(module) is not None:
            found[module] = version_of(distributions) or "of unknown version"
    return found


def least_versions() -> dict[str, str]:
    """Return the least version of each distribution that gcodec is installed with."""
    try:
        wanted = importlib.metadata.requires("gcodec") or []
    except importlib.metadata.PackageNotFoundError:  # run from its sources
        return {}
    return {match[1]: match[2] for text in wanted if (match := _LEAST.match(text))}


def is_older(version: str, least: str) -> bool:
    """Tell whether a version is below another, by the numbers that both begin with."""
    one, other = ([int(n) for n in re.findall(r"\d+", text)[:3]] for text in (version, least))
    length = min(len(one), len(other))
    return one[:length] < other[:length]


def gpus() -> list[str]:
    """Return the names of NVIDIA's devices, as their driver tells; none without a driver."""
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
