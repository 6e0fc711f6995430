"""NVRTC through ctypes: compile a .cu file for an architecture on a machine without a device."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
from pathlib import Path
from typing import NamedTuple

from gcodec.runtime.device import LEAST_ARCHITECTURE, OPTIONS

# The options that CuPy adds, and a report of the resources of each kernel.
EXTRA_OPTIONS = ["-ftz=true", "--ptxas-options=-v", "--device-as-default-execution-space"]
_KERNEL = re.compile(r"Compiling entry function '(\w+)' for '\w+'")
_FUNCTION = re.compile(r"Function properties for (\w+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


class Resources(NamedTuple):
    """Resources of a kernel, as ptxas reports them.

    Attributes
    ----------
    kernel : str
    stack : int
        Bytes of the stack frames of the kernel and of the functions it calls.
    spilled : int
        Bytes of the spill stores and loads of the kernel and of the functions it calls.
    registers : int
        Registers of a thread.
    """

    kernel: str
    stack: int
    spilled: int
    registers: int


class Compiler:
    """A release of NVRTC.

    Parameters
    ----------
    path : Path
        The shared library.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        numbers = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(*map(ctypes.byref, numbers))
        self.version = tuple(number.value for number in numbers)

    def __str__(self) -> str:
        return "NVRTC " + ".".join(map(str, self.version))

    @functools.cached_property
    def architectures(self) -> tuple[int, ...]:
        """Architectures that this release and gcodec both support, such as 75 for sm_75."""
        count = ctypes.c_int()
        self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        supported = (ctypes.c_int * count.value)()
        self._library.nvrtcGetSupportedArchs(supported)
        return tuple(a for a in sorted(supported) if a >= LEAST_ARCHITECTURE)

    def resources(self, path: Path, architecture: int) -> list[Resources]:
        """Compile a file to machine code.

        Raises
        ------
        AssertionError
            With the log of NVRTC, if it reports an error or a warning.
        """
        return parse(self._log(path, architecture))

    def _log(self, path: Path, architecture: int) -> str:
        nvrtc, program = self._library, ctypes.c_void_p()
        name = path.name.encode()
        status = nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), path.read_bytes(), name, 0, None, None
        )
        assert status == 0, f"nvrtcCreateProgram returned {status}"
        try:
            options = [*OPTIONS, *EXTRA_OPTIONS, f"--gpu-architecture=sm_{architecture}"]
            array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = nvrtc.nvrtcCompileProgram(program, len(options), array)
            size = ctypes.c_size_t()
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            buffer = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, buffer)
            log = buffer.value.decode()
            assert status == 0, log
            assert "warning" not in log.lower(), log
        finally:
            nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
        return log


def parse(log: str) -> list[Resources]:
    """Read the report of ``ptxas -v``.

    ptxas lists a kernel, and with it each function that the kernel calls and that was not inlined.

    Raises
    ------
    AssertionError
        If a part of the report belongs to no kernel, so that its spills would go unnoticed.
    """
    kernels: list[Resources] = []
    for part in re.split(r"(?=Compiling entry function ')", log):
        frames = _FRAME.findall(part)
        named = _KERNEL.match(part)
        if named is None:
            assert not frames, log
            continue
        registers = _REGISTERS.findall(part)
        # One line of properties for each function, the kernel among them.
        assert len(registers) == 1 and len(frames) == len(_FUNCTION.findall(part)) >= 1, log
        stack = sum(int(frame) for frame, _, _ in frames)
        spilled = sum(int(stores) + int(loads) for _, stores, loads in frames)
        kernels.append(Resources(named[1], stack, spilled, int(registers[0])))
    return kernels


def find(place: Path) -> Path | None:
    """Return the newest NVRTC library in a folder and its subfolders, or the library itself."""
    if place.is_file():
        return place
    actual = [
        path
        for path in place.rglob("libnvrtc.so.*")
        if "builtins" not in path.name and ".alt" not in path.name
    ]
    return max(actual, key=lambda path: (int(path.name.split(".")[2]), str(path)), default=None)


@functools.cache
def installed() -> Compiler | None:
    """Return NVRTC from the place that ``GCODEC_NVRTC`` names, or from the installed package.

    The result is None if there is no library.
    """
    spec = importlib.util.find_spec("nvidia")
    homes = (spec.submodule_search_locations or []) if spec else []
    if named := os.environ.get("GCODEC_NVRTC"):
        homes = [named]
    for home in homes:
        if (path := find(Path(home))) is not None:
            return Compiler(path)
    assert not named, f"GCODEC_NVRTC names {named}, which holds no libnvrtc.so"
    return None
