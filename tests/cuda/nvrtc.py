"""NVRTC through ctypes: compiles a .cu file for an architecture, with no device at hand."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

from gcodec.kernels.device import OPTIONS

# What CuPy adds, and a report of what each kernel needs.
MORE = ["-ftz=true", "--ptxas-options=-v", "--device-as-default-execution-space"]
_KERNEL = re.compile(
    r"Compiling entry function '(\w+)' for '\w+'.*?(\d+) bytes stack frame, (\d+) bytes spill "
    r"stores, (\d+) bytes spill loads.*?Used (\d+) registers",
    re.DOTALL,
)


class Need(NamedTuple):
    """What a kernel needs: bytes of spills, and registers of a thread."""

    kernel: str
    stack: int
    spilled: int
    registers: int


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the library of the package ``nvidia-cuda-nvrtc``; None where it is missing."""
    spec = importlib.util.find_spec("nvidia")
    for home in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(home).rglob("libnvrtc.so.*"), reverse=True):
            if "builtins" not in path.name and ".alt" not in path.name:
                return ctypes.CDLL(str(path))
    return None


def compiled(path: Path, architecture: int) -> list[Need]:
    """Compile a file to machine code, and tell what its kernels need; fails with NVRTC's log."""
    nvrtc = library()
    assert nvrtc is not None
    program = ctypes.c_void_p()
    text = path.read_bytes()
    made = nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, path.name.encode(), 0, None, None)
    assert made == 0, f"NVRTC says {made}"
    try:
        options = [*OPTIONS, *MORE, f"--gpu-architecture=sm_{architecture}"]
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = nvrtc.nvrtcCompileProgram(program, len(options), array)
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        said = log.value.decode()
        assert status == 0, said
        assert "warning" not in said.lower(), said
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    found = _KERNEL.findall(said)
    return [Need(name, int(f), int(s) + int(r), int(u)) for name, f, s, r, u in found]
