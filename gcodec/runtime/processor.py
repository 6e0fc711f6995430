"""Processors: the one that kernels are compiled for, and the levels for which kernels are shipped.

A level is a set of instructions that many processors have. Code for a level is slower than code
for the exact processor, by up to a quarter, and encodes to the same bytes.
"""

from __future__ import annotations

import functools
import os
from typing import Any, NamedTuple

from gcodec.errors import ParameterError

NATIVE = "native"
_V3 = [
    *("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt"),
    *("sse3", "sse4.1", "sse4.2", "ssse3", "xsave"),
]
_V4 = [*_V3, *(f"avx512{part}" for part in ("f", "bw", "cd", "dq", "vl"))]
# By name, the instruction set, LLVM's name of the processor, and the features that a host needs;
# the best level first. The widest loops of rANS need VBMI2, which Ice Lake and Zen 4 added. Every
# aarch64 has what its level uses, NEON; LLVM does not list it for a processor that is emulated.
_LEVELS: dict[str, tuple[str, str, list[str]]] = {
    "x86-64-v4-vbmi2": ("x86_64", "x86-64-v4", [*_V4, "avx512vbmi", "avx512vbmi2"]),
    "x86-64-v3": ("x86_64", "x86-64-v3", _V3),
    "aarch64": ("aarch64", "generic", []),
}
LEVELS = tuple(_LEVELS)


class Processor(NamedTuple):
    """What kernels are compiled for.

    Attributes
    ----------
    level : str
        Name of a level, or "native" for the exact processor.
    triple, name, features : str
        Platform, processor and features, as LLVM spells them.
    """

    level: str
    triple: str
    name: str
    features: str

    def has(self, feature: str) -> bool:
        """Return whether the processor has a feature, such as ``avx2``."""
        return f"+{feature}" in self.features.split(",")


def target() -> Processor:
    """Return the processor for which kernels are compiled: the host, or ``GCODEC_TARGET``.

    Raises
    ------
    ParameterError
        ``GCODEC_TARGET`` is no level that this processor can run.
    """
    return _target(os.environ.get("GCODEC_TARGET") or NATIVE)


@functools.cache
def _target(level: str) -> Processor:
    if level == NATIVE:
        return host()
    runnable = levels()
    if level not in runnable:
        raise ParameterError.of("GCODEC_TARGET", level, f"one of {', '.join((NATIVE, *runnable))}")
    return of_level(level)


def of_level(level: str) -> Processor:
    """Return the processor that has the features of a level and no others."""
    _, name, features = _LEVELS[level]
    return Processor(level, host().triple, name, ",".join(f"+{each}" for each in features))


def levels() -> list[str]:
    """Return the names of the levels that this processor can run, the best first."""
    own = host()
    kind = own.triple.partition("-")[0]
    return [
        level
        for level, (machine, _, features) in _LEVELS.items()
        if machine == kind and all(map(own.has, features))
    ]


@functools.cache
def host() -> Processor:
    """Return the processor of this machine."""
    llvm = binding()
    features = llvm.get_host_cpu_features().flatten()
    return Processor(NATIVE, llvm.get_process_triple(), llvm.get_host_cpu_name(), features)


@functools.cache
def binding() -> Any:
    """Return `llvmlite.binding`, ready to generate and load code for the host."""
    import llvmlite.binding as llvm

    # Numba does this too; llvmlite's older releases also need `initialize`.
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def machine_options(processor: Processor) -> dict[str, Any]:
    """Return the options of LLVM's target machine for a processor, which are Numba's."""
    # Code that can be loaded at any distance from the functions that it calls.
    relocation = "static" if processor.triple.startswith("x86") else "default"
    return {
        "cpu": processor.name,
        "features": processor.features,
        "opt": 3,
        "reloc": relocation,
        "codemodel": "jitdefault",
        "jit": True,
    }


def machine(processor: Processor) -> Any:
    """Return LLVM's target machine for a processor."""
    target = binding().Target.from_triple(processor.triple)
    return target.create_target_machine(**machine_options(processor))
