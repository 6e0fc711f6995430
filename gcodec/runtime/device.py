"""Devices: where an array that is not on the host lies, and how kernels run there.

With `foreign` and `staging` all that touches CuPy, which is imported where an array on a CUDA
device comes in, and never before. A shell declared as ``@dispatched`` does its work on the device
where its first argument lies: the function of the same name in `gcodec.kernels` then launches the
kernels of the ``.cu`` files beside the Numba kernels. Those of NumPy's own arrays cost one
comparison of types.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from gcodec.runtime import deferred
from gcodec.runtime.staging import DIRECT_SIZE, Staging

SOURCES = Path(__file__).parents[1]  # root of the package; headers are included from it
# CuPy adds -ftz=true, which no kernel may depend on: they work on bits where it matters.
OPTIONS = ("--std=c++17", "--fmad=false", f"-I{SOURCES}")
LEAST_ARCHITECTURE = 75  # compute capability times ten
_MOST_BLOCKS = 1 << 10  # of a kernel that writes to pinned memory
_INSTALL = "pip install 'gcodec[cuda12]' or 'gcodec[cuda13]', after the CUDA version of the driver"

_P = ParamSpec("_P")
_R = TypeVar("_R")
_in_use: list[Device] = []  # put there by `use`


class Device(abc.ABC):
    """Something that holds arrays and runs kernels.

    Its arrays have `size`, `shape`, `dtype`, `nbytes`, `itemsize`, `ndim` and
    ``flags.c_contiguous``. Contiguous ones can be copied, sliced, seen by ``view(dtype)`` and
    ``reshape``, and written to by ``a[i:j] = b``, as those of NumPy.
    """

    @abc.abstractmethod
    def owns(self, x: Any) -> bool:
        """Whether `x` is an array of this device."""

    @abc.abstractmethod
    def empty(self, n: int, dtype: Any) -> Any:
        """Return an uninitialised (n,) array, aligned for any vector."""

    @abc.abstractmethod
    def zeros(self, n: int, dtype: Any) -> Any:
        """Return an (n,) array of zero bits."""

    @abc.abstractmethod
    def to_device(self, array: np.ndarray) -> Any:
        """Copy an array of the host."""

    @abc.abstractmethod
    def fetch(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """Copy arrays, or `deferred.Leading`, to the host; wait once for all that was launched."""

    def to_host(self, array: Any) -> np.ndarray:
        """Copy an array to the host, and with it what was noted; see `gcodec.runtime.deferred`."""
        known = deferred.known_of(self, array)
        return deferred.fetch(self, array)[0] if known is None else known

    @abc.abstractmethod
    def address(self, array: Any) -> int:
        """Return where a contiguous array lies."""

    @abc.abstractmethod
    def flat(self, array: Any) -> Any:
        """Return an array as (n,), contiguous and aligned; a view where it is that already."""

    @abc.abstractmethod
    def overlap(self, a: Any, b: Any) -> bool:
        """Whether two arrays may share memory."""

    @abc.abstractmethod
    def launch(
        self, source: str, name: str, grid: int | tuple[int, ...], block: int, *args: Any
    ) -> None:
        """Launch a kernel on the current stream.

        Parameters
        ----------
        source : str
            Its file: "signs" for ``signs.cu``.
        name : str
        grid : int or tuple of int
            Blocks. Nothing is launched where it is 0.
        block : int
            Threads of a block.
        *args
            Arrays of this device, and NumPy scalars of exactly the declared types.
        """


class CupyDevice(Device):
    """A CUDA device, through CuPy.

    Parameters
    ----------
    number : int
        Of the device.

    Raises
    ------
    ImportError
        Where CuPy is missing.
    RuntimeError
        Where there is no driver, or the device is too old.
    """

    def __init__(self, number: int) -> None:
        self.cupy = cupy_module()
        self.number = number
        try:
            found = int(self.cupy.cuda.Device(number).compute_capability)
        except Exception as error:
            raise RuntimeError(f"CUDA device {number} cannot be used: {error}") from error
        if found < LEAST_ARCHITECTURE:
            raise RuntimeError(
                f"CUDA device {number} has compute capability {found / 10}: "
                f"gcodec needs {LEAST_ARCHITECTURE / 10}; copy the arrays to the host first"
            )
        self._modules: dict[str, Any] = {}

    def owns(self, x: Any) -> bool:
        """Whether `x` is a CuPy array on this device."""
        return isinstance(x, self.cupy.ndarray) and x.device.id == self.number

    def empty(self, n: int, dtype: Any) -> Any:
        """Return an uninitialised (n,) array."""
        with self.cupy.cuda.Device(self.number):
            return self.cupy.empty(n, dtype)

    def zeros(self, n: int, dtype: Any) -> Any:
        """Return an (n,) array of zero bits."""
        with self.cupy.cuda.Device(self.number):
            return self.cupy.zeros(n, dtype)

    def to_device(self, array: np.ndarray) -> Any:
        """Copy an array of the host."""
        with self.cupy.cuda.Device(self.number):
            return self.cupy.asarray(array)

    def fetch(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """Copy arrays to the host, on the current stream; see `Staging`."""
        cuda = self.cupy.cuda
        with cuda.Device(self.number), Staging(cuda, cuda.get_current_stream()) as staging:
            copies = [
                self._start_leading(given, staging)
                if isinstance(given, deferred.Leading)
                else self._start_whole(given, staging)
                for given in arrays
            ]
            staging.finish()
            rests = [rest for rest in (copy.rest() for copy in copies) if rest[1].size]
            for source, target in rests:
                staging.copy(source, target)
            if rests:
                staging.finish()
        return [copy.array for copy in copies]

    def _start_whole(self, given: Any, staging: Staging) -> _Copy:
        source = self.cupy.ascontiguousarray(given)
        target = np.empty(source.nbytes, np.uint8)
        staging.copy(source.data, target)
        return _Copy(source, target, target.view(source.dtype).reshape(source.shape))

    def _start_leading(self, given: deferred.Leading, staging: Staging) -> _Copy:
        """Have a kernel write the first bytes to pinned memory; only the device knows how many.

        The host reads the count together with them, and then copies the remaining bytes.
        """
        source, count = given.array, np.zeros(1, np.int64)
        target = np.empty(source.nbytes, np.uint8)
        staging.copy(given.count.data, count.view(np.uint8))
        direct = target[:DIRECT_SIZE]
        words = direct.size // 4
        address = np.uintp(staging.reserve(direct))  # the same on the device
        sizes = np.int64(words), given.count, np.int64(given.unit), np.int64(given.more)
        grid = min(-(-words // 256), _MOST_BLOCKS)
        self.launch("leading", "copy_leading", grid, 256, source.view(np.uint32), *sizes, address)
        return _Copy(source, target, target, direct.size, (given, count))

    def address(self, array: Any) -> int:
        """Return where a contiguous array lies."""
        return int(array.data.ptr)

    def flat(self, array: Any) -> Any:
        """Return an array as (n,), contiguous and aligned to 16 bytes."""
        with self.cupy.cuda.Device(self.number):
            found = self.cupy.ascontiguousarray(array).reshape(-1)
            return found if found.data.ptr % 16 == 0 else found.copy()

    def overlap(self, a: Any, b: Any) -> bool:
        """Whether two arrays may share memory."""
        return bool(self.cupy.may_share_memory(a, b))

    def launch(
        self, source: str, name: str, grid: int | tuple[int, ...], block: int, *args: Any
    ) -> None:
        """Launch a kernel on CuPy's current stream; its file is compiled when first used."""
        blocks = grid if isinstance(grid, tuple) else (grid,)
        if 0 in blocks:
            return
        with self.cupy.cuda.Device(self.number):
            self._module(source).get_function(name)(blocks, (block,), args)

    def _module(self, source: str) -> Any:
        if source not in self._modules:
            # CuPy keeps what it compiled, by the text of the source but not of what that includes.
            text = f"// {_headers()}\n" + sources()[source].read_text()
            module = self.cupy.RawModule(code=text, options=OPTIONS, backend="nvrtc")
            try:
                module.compile()
            except Exception as error:
                raise RuntimeError(
                    f"{source}.cu cannot be compiled for CUDA device {self.number} by "
                    f"{self._compiler()}; CuPy and the driver must be of the same CUDA version: "
                    f"{error}"
                ) from error
            self._modules[source] = module
        return self._modules[source]

    def _compiler(self) -> str:
        """Return the name of the compiler, or raise `RuntimeError` if it is missing."""
        try:
            major, minor = self.cupy.cuda.nvrtc.getVersion()
        except Exception as error:
            raise RuntimeError(
                "CuPy does not find NVRTC, the CUDA library that compiles the kernels of gcodec. "
                f"The extras of gcodec bring it: {_INSTALL}. A CUDA toolkit on the library path "
                f"has it too. CuPy reports: {error}"
            ) from error
        return f"NVRTC {major}.{minor}"


class _Copy(NamedTuple):
    """A copy to the host that has been started.

    Attributes
    ----------
    source : array on the device
        Contiguous; it must exist until the copy has ended.
    target : (n,) uint8 array
    array : array
        The target, as it is returned.
    begun : int or None
        Number of leading bytes that are on their way; None for all.
    leading : (scalars.Leading, (1,) int64 array) or None
        The request, and the count that is on its way; None if all bytes are.
    """

    source: Any
    target: np.ndarray
    array: np.ndarray
    begun: int | None = None
    leading: tuple[deferred.Leading, np.ndarray] | None = None

    def rest(self) -> tuple[Any, np.ndarray]:
        """Return the source and target of the remaining bytes, once the count has arrived."""
        if self.begun is None or self.leading is None:
            return None, self.target[:0]
        given, count = self.leading
        words = (int(count[0]) * given.unit + given.more + 31) // 32
        return self.source.data + self.begun, self.target[self.begun : max(4 * words, 0)]


@functools.cache
def sources() -> dict[str, Path]:
    """Return the ``.cu`` files by their names, which are unique in the package."""
    return {path.stem: path for path in sorted(SOURCES.rglob("*.cu"))}


@functools.cache
def _headers() -> str:
    """Return the hash of all headers."""
    digest = hashlib.blake2b(digest_size=16)
    for header in sorted(SOURCES.rglob("*.cuh")):
        digest.update(header.name.encode() + b"\0" + header.read_bytes())
    return digest.hexdigest()


def device_of(*arrays: Any) -> Device | None:
    """Return the device on which the first of the arrays lies that is on one; None for none."""
    for x in arrays:
        if type(x) is not np.ndarray and (device := _device_of(x)) is not None:
            return device
    return None


def _device_of(x: Any) -> Device | None:
    if type(x) is deferred.Deferred:
        return x.device
    for device in reversed(_in_use):
        if device.owns(x):
            return device
    module = sys.modules.get("cupy")
    types: Any = getattr(module, "ndarray", ())
    if types and isinstance(x, types):
        return cuda_device(int(x.device.id))
    return None


def host(array: Any) -> np.ndarray:
    """Return an array on the host: the very array where it lies there, else a copy."""
    device = device_of(array)
    found: np.ndarray = array if device is None else device.to_host(array)
    return found


def hosted(*arrays: Any) -> Sequence[np.ndarray]:
    """Return arrays on the host, those of a device fetched at once."""
    there = device_of(arrays[0])
    return arrays if there is None else deferred.fetch(there, *arrays)


def beside(array: Any, other: Any) -> Any:
    """Return an array where another lies: the very array, or a copy on that device or the host."""
    device = device_of(other)
    if device_of(array) is device:
        return array
    return host(array) if device is None else device.to_device(host(array))


def placed(array: np.ndarray, beside: Any) -> Any:
    """Return an array of the host on the device of another array, if that is on one."""
    device = device_of(beside)
    return array if device is None or device.owns(array) else device.to_device(array)


@contextlib.contextmanager
def use(device: Device) -> Iterator[Device]:
    """Let arrays of `device` be known as such: how tests put another in CuPy's place."""
    _in_use.append(device)
    try:
        yield device
    finally:
        _in_use.remove(device)


@functools.cache
def cuda_device(number: int) -> CupyDevice:
    """Return a CUDA device; see `CupyDevice`."""
    return CupyDevice(number)


def dispatched(source: str, by: str = "") -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Declare a shell whose work the function of its name in ``gcodec.kernels.SOURCE`` can do.

    A source with a dot in it is the whole name of a module.

    That has the same arguments and meaning, and is called where the first argument, or the one
    named by `by`, is an array on a device; what it returns lies there too.
    """

    def declare(function: Callable[_P, _R]) -> Callable[_P, _R]:
        name = function.__name__
        at = list(inspect.signature(function).parameters).index(by) if by else 0

        @functools.wraps(function)
        def shell(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            array = args[at] if at < len(args) else kwargs.get(by)
            if type(array) is np.ndarray or _device_of(array) is None:
                return function(*args, **kwargs)
            try:
                twin = getattr(importlib.import_module(source), name)
            except (ModuleNotFoundError, AttributeError) as error:
                raise no_twin(name) from error
            found: _R = twin(*args, **kwargs)
            return found

        shell.twin = source  # type: ignore[attr-defined]
        return shell

    return declare


def no_twin(what: str) -> TypeError:
    """Say that arrays on a device are not taken."""
    return TypeError(
        f"{what} takes no arrays on a CUDA device yet: copy them to the host first, as in "
        "cupy.asnumpy(x) or x.cpu()"
    )


def has_cupy() -> bool:
    """Whether CuPy is installed."""
    return "cupy" in sys.modules or importlib.util.find_spec("cupy") is not None


def cupy_module() -> Any:
    """Import CuPy, or say how to get it."""
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise ImportError(
            f"Arrays on a CUDA device need CuPy: {_INSTALL}; or copy the arrays to the host first."
        ) from error
