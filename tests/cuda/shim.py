"""A device without a GPU: g++ compiles the .cu files, and each CUDA thread is a fiber; see shim.h.

The arrays of the shim are no NumPy arrays, and host code that uses them as such fails. A test that
passes therefore used only kernels. New memory is filled with a pattern and lies between guards,
which the shim checks after each launch.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gcodec.runtime import deferred
from gcodec.runtime.device import SOURCES, Device, sources

Order = Literal["index", "reversed", "shuffled"]
ORDERS: tuple[Order, ...] = ("index", "reversed", "shuffled")
HERE = Path(__file__).parent
COMPILER = os.environ.get("CXX") or shutil.which("g++")
# Do not contract floating-point instructions, as with --fmad=false.
FLAGS = ["-std=c++17", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-fno-exceptions"]
FLAGS += ["-U_FORTIFY_SOURCE", "-fno-strict-aliasing", "-Wall", "-Wextra", "-Werror", "-lm"]
FLAGS += [
    "-Wno-attributes",
    "-Wno-unused-function",
    "-Wno-unknown-pragmas",
    "-Wno-unused-const-variable",
]
KERNEL = re.compile(r'extern "C" __global__ void\s*(?:__launch_bounds__\(.*?\)\s*)?(\w+)\s*\(')
PATTERN, GUARD = 0xA5, 64
GUARD_BYTES = bytes([PATTERN]) * GUARD
SLOT = 8  # bytes of the largest argument: a pointer or a number
# These processors can flush subnormal numbers, as code compiled by CuPy does.
FLUSHES = platform.machine() in ("x86_64", "AMD64")
_LETTERS = {np.dtype(code).char: code for code in "bBhHiIqQfd?"}


class ShimArray:
    """An array in the memory of a `ShimDevice`, which host code cannot access."""

    def __init__(self, memory: np.ndarray, array: np.ndarray) -> None:
        self.memory = memory  # including the guards
        self.array = array

    size = property(lambda self: self.array.size)
    shape = property(lambda self: self.array.shape)
    dtype = property(lambda self: self.array.dtype)
    ndim = property(lambda self: self.array.ndim)
    nbytes = property(lambda self: self.array.nbytes)
    flags = property(lambda self: self.array.flags)
    itemsize = property(lambda self: self.array.itemsize)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, key: Any) -> ShimArray:
        actual = self.array[key]
        if not isinstance(actual, np.ndarray):
            raise TypeError("an element of a device array was read")
        return type(self)(self.memory, actual)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, np.ndarray):
            raise TypeError("a host array was written to a device array")
        self.array[key] = value.array if isinstance(value, ShimArray) else value

    def view(self, dtype: Any = None) -> ShimArray:
        return type(self)(self.memory, self.array.view(*([] if dtype is None else [dtype])))

    def reshape(self, *shape: Any) -> ShimArray:
        return type(self)(self.memory, self.array.reshape(*shape))

    def copy(self) -> ShimArray:
        result = _room(self.array.size, self.array.dtype)
        result.array[:] = self.array.reshape(-1)
        return type(self)(result.memory, result.array.reshape(self.array.shape))

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a device array was used as one of the host")

    __array__ = __array_ufunc__ = __array_function__ = __iter__ = __bool__ = __float__ = _refuse
    __int__ = __index__ = __eq__ = __lt__ = __gt__ = __add__ = __mul__ = __invert__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class ShimDevice(Device):
    """A device that runs kernels on the host, in a certain order of threads and blocks.

    Attributes
    ----------
    order : {"index", "reversed", "shuffled"} or None
        Order of threads and blocks. None takes one of these for each launch, by chance.
    fetched : int
        Number of times that the host waited for arrays.
    launched : list of str
        Names of the launched kernels, in order.
    """

    def __init__(self, order: Order | None = "index") -> None:
        self.order = order
        self.fetched = 0
        self.launched: list[str] = []
        self._random = np.random.default_rng(0)

    def owns(self, x: Any) -> bool:
        return isinstance(x, ShimArray)

    def empty(self, n: int, dtype: Any) -> ShimArray:
        return _room(int(n), np.dtype(dtype))

    def zeros(self, n: int, dtype: Any) -> ShimArray:
        result = self.empty(n, dtype)
        result.array.view(np.uint8)[:] = 0
        return result

    def to_device(self, array: np.ndarray) -> ShimArray:
        result = self.empty(array.size, array.dtype)
        result.array[:] = np.asarray(array).reshape(-1)
        return result.reshape(array.shape)

    def fetch(self, arrays: Sequence[ShimArray]) -> list[np.ndarray]:
        self.fetched += 1
        results = []
        for array in arrays:
            if isinstance(array, deferred.LeadingBytes):
                size = array.array.size
                room = self.empty(size, np.uint8)
                words = room.view(np.uint32)
                bits = array.count, array.unit, array.more
                arguments = array.array.view(np.uint32), size // 4, *bits, words
                self.launch("leading", "copy_leading", 3, 64, *arguments)
                array = room
            results.append(array.array.copy())
        return results

    def address(self, array: ShimArray) -> int:
        return int(array.array.ctypes.data)

    def flat(self, array: ShimArray) -> ShimArray:
        inner = array.array
        if inner.flags.c_contiguous and inner.ctypes.data % 16 == 0:
            return array.reshape(-1)
        return array.copy().reshape(-1)

    def overlap(self, a: ShimArray, b: ShimArray) -> bool:
        return np.may_share_memory(a.array, b.array)

    def run(self, source: str, name: str, grid: tuple[int, ...], block: int, *args: Any) -> None:
        assert all(type(b) is int for b in grid), "a grid consists of plain integers"
        limits = zip(grid, (2**31 - 1, 65535, 65535), strict=False)
        assert all(blocks <= most for blocks, most in limits) and block <= 1024, "too large"
        run, wanted = _kernel(source, name)
        assert len(wanted) == len(args), f"{name} takes {len(wanted)} arguments, not {len(args)}"
        held = [_argument(name, k, *pair) for k, pair in enumerate(zip(wanted, args, strict=True))]
        slots = ctypes.create_string_buffer(b"".join(held) + bytes(SLOT))
        first = ctypes.addressof(slots)
        pointers = (ctypes.c_void_p * (len(held) + 1))(
            *range(first, first + SLOT * len(held) + 1, SLOT)
        )
        sizes = (ctypes.c_uint * 3)(*(*grid, 1, 1)[:3])
        threads, order = self._places(block), self._places(math.prod(grid))
        self.launched.append(name)
        message = run(pointers, sizes, block, threads, order).decode()
        assert not message, f"{source}.cu, {name}: {message}"
        for k, argument in enumerate(args):
            if isinstance(argument, ShimArray):
                _check_guards(name, k, argument)

    def _places(self, n: int) -> bytes:
        order = self.order or ORDERS[self._random.integers(len(ORDERS))]
        if order == "shuffled":
            return self._random.permutation(n).astype(np.uint32).tobytes()
        return _sorted_places(n, order)


@functools.lru_cache(256)
def _sorted_places(n: int, order: Order) -> bytes:
    places = np.arange(n, dtype=np.uint32)
    return (places[::-1] if order == "reversed" else places).tobytes()


def _room(n: int, dtype: np.dtype[Any]) -> ShimArray:
    """Return an array of 0xA5 with guards on both sides, aligned to 256 bytes as on a device."""
    nbytes = n * dtype.itemsize
    memory = np.full(nbytes + 2 * GUARD + 256, PATTERN, np.uint8)
    start = GUARD + -(memory.ctypes.data + GUARD) % 256
    return ShimArray(memory, memory[start : start + nbytes].view(dtype))


def _check_guards(name: str, k: int, array: ShimArray) -> None:
    start, size = array.memory.ctypes.data, array.memory.size
    begin = GUARD + -(start + GUARD) % 256
    stop = begin + size - 2 * GUARD - 256
    before = array.memory[begin - GUARD : begin].tobytes()
    behind = array.memory[stop : stop + GUARD].tobytes()
    assert before == behind == GUARD_BYTES, f"{name} wrote outside of argument {k}"


def _argument(name: str, k: int, wanted: str, argument: Any) -> bytes:
    """Return the slot of argument k after checking it against its declaration in the kernel.

    A wanted type is the letter of a NumPy dtype, V or W for vectors, after * for a pointer.
    """
    letter = wanted[-1]
    if wanted[0] == "*":
        assert isinstance(argument, ShimArray), (
            f"{name}, argument {k}: no device array but {argument!r}"
        )
        contiguous = argument.array.flags.c_contiguous
        assert contiguous, f"{name}, argument {k}: not contiguous"
        alignment = 16 if letter in "VW" else np.dtype(_LETTERS[letter]).itemsize
        address = argument.array.ctypes.data
        assert address % alignment == 0, f"{name}, argument {k}: not aligned"
        if letter not in "VW":  # vectors of four elements may view any array
            width = np.dtype(_LETTERS[letter]).itemsize
            assert argument.itemsize == width, f"{name}, argument {k}: not of {width} bytes"
        return address.to_bytes(SLOT, sys.byteorder)
    assert isinstance(argument, np.generic), (
        f"{name}, argument {k}: {argument!r} is no NumPy scalar"
    )
    _same(name, k, argument.dtype, letter)
    return argument.tobytes().ljust(SLOT, b"\0")


def _same(name: str, k: int, dtype: np.dtype[Any], letter: str) -> None:
    wanted = np.dtype(_LETTERS[letter])
    assert dtype == wanted, f"{name}, argument {k}: {dtype} was given for {wanted}"


@functools.cache
def _kernel(source: str, name: str) -> tuple[Any, list[str]]:
    """Return the function that runs a kernel, and the types of the kernel's parameters."""
    library = _library(source)
    types, run = (getattr(library, f"shim_{what}_{name}") for what in ("types", "run"))
    types.restype = run.restype = ctypes.c_char_p
    run.argtypes = *2 * [ctypes.c_void_p], ctypes.c_uint, *2 * [ctypes.c_char_p]
    return run, re.findall(r"\*?.", types().decode())


@functools.cache
def _library(source: str) -> ctypes.CDLL:
    """Compile a .cu file unless its library exists already."""
    path = sources().get(source, HERE / f"{source}.cu")
    text = path.read_text()
    digest = hashlib.blake2b(repr((text, FLAGS, COMPILER)).encode(), digest_size=12)
    for header in (HERE / "shim.h", *sorted(SOURCES.rglob("*.cuh"))):
        digest.update(header.read_bytes())
    target = _directory() / f"{source}-{digest.hexdigest()}.so"
    if not target.exists():
        lines = ['#include "shim.h"', f'#include "{path}"']
        lines += [f"SHIM_KERNEL({name})" for name in KERNEL.findall(text)]
        assert COMPILER is not None
        part = target.with_suffix(f".{os.getpid()}.part")
        command = [COMPILER, "-x", "c++", "-", f"-I{HERE}", f"-I{SOURCES}", "-o", str(part)]
        done = subprocess.run(
            [*command, *FLAGS], input="\n".join(lines) + "\n", text=True, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        part.replace(target)  # atomic, because workers of pytest-xdist may compile at once
        for old in set(target.parent.glob(f"{source}-*.so")) - {target}:
            old.unlink(missing_ok=True)
    return ctypes.CDLL(str(target))


@functools.cache
def _directory() -> Path:
    """Make the directory of compiled files with write permission only for this user."""
    home = HERE.parent.parent / "build" / "shim"
    with contextlib.suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
        if os.access(home, os.W_OK):
            return home
    return Path(tempfile.mkdtemp(prefix="gcodec-shim-"))


@functools.cache
def kernels() -> list[tuple[str, str]]:
    """Return files and names of all kernels."""
    paths = sources().values()
    return [(path.stem, name) for path in paths for name in KERNEL.findall(path.read_text())]
