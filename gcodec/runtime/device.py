"""Devices: memory outside the host, and the kernels that run there.

Only this module and `staging` use CuPy. They import it when the caller passes an array on a CUDA
device, and not before. A function declared as ``@dispatched`` runs on the device of its first
argument: the function of the same name in a ``_cuda`` module of `gcodec.kernels` launches kernels
of a ``.cu`` file. For NumPy arrays, the dispatch costs one comparison of types.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import operator
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from gcodec.runtime import Array, deferred
from gcodec.runtime.staging import DIRECT_SIZE, Staging

SOURCES = Path(__file__).parents[1]  # root of the package, and of the included headers
# CuPy adds -ftz=true. No kernel may depend on it, so kernels compute with bits where it matters.
OPTIONS = ("--std=c++17", "--fmad=false", f"-I{SOURCES}")
LEAST_ARCHITECTURE = 75  # compute capability times ten
_MAX_PINNED_BLOCKS = 1 << 10  # of a kernel that writes to pinned memory
_INSTALL = "pip install 'gcodec[cuda12]' or 'gcodec[cuda13]', after the CUDA version of the driver"
_KERNEL = re.compile(
    r'extern "C" __global__ void\s*(?:__launch_bounds__\(.*?\)\s*)?(\w+)\s*\((.*?)\)', re.DOTALL
)
_PARAMETER = re.compile(r"(?:^|,)\s*(?:const )?(\w+)(\*?) ")

_P = ParamSpec("_P")
_R = TypeVar("_R")
_in_use: list[Device] = []  # the devices of `use`


class Device(abc.ABC):
    """Memory for arrays, and a processor that runs kernels.

    The arrays have `size`, `shape`, `dtype`, `nbytes`, `itemsize`, `ndim` and
    ``flags.c_contiguous``. Contiguous arrays support ``copy()``, slices, ``view(dtype)``,
    ``reshape`` and ``a[i:j] = b``, as NumPy arrays do.
    """

    @abc.abstractmethod
    def owns(self, x: object) -> bool:
        """Return whether `x` is an array of this device."""

    def current(self, stream: int | None = None) -> contextlib.AbstractContextManager[object]:
        """Make this device the one on which operations of its arrays run.

        Parameters
        ----------
        stream : int, optional
            Pointer to a stream of another library, on which the operations then run. It waits for
            what the former stream has to do, and the former stream waits for it in the end.
        """
        return contextlib.nullcontext()

    def synchronize(self) -> None:
        """Wait for all operations of the current stream."""
        return None

    @abc.abstractmethod
    def empty(self, n: int, dtype: Any) -> Array:
        """Return an uninitialized (n,) array, aligned for any vector."""

    @abc.abstractmethod
    def zeros(self, n: int, dtype: Any) -> Array:
        """Return an (n,) array of zero bits."""

    @abc.abstractmethod
    def to_device(self, array: np.ndarray) -> Array:
        """Copy a host array to the device."""

    @abc.abstractmethod
    def fetch(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """Copy arrays or `LeadingBytes` to the host; wait once for all launched kernels."""

    def to_host(self, array: Array) -> np.ndarray:
        """Copy an array to the host, together with all notes; see `gcodec.runtime.deferred`."""
        host_copy = deferred.host_copy_of(self, array)
        return deferred.fetch(self, array)[0] if host_copy is None else host_copy

    @abc.abstractmethod
    def address(self, array: Array) -> int:
        """Return the address of a contiguous array."""

    @abc.abstractmethod
    def flat(self, array: Array) -> Array:
        """Return an array as (n,), contiguous and aligned; a view if possible, else a copy."""

    @abc.abstractmethod
    def overlap(self, a: Array, b: Array) -> bool:
        """Return whether two arrays may share memory."""

    def launch(
        self, source: str, name: str, grid: int | tuple[int, ...], block: int, *args: Any
    ) -> None:
        """Launch a kernel on the current stream.

        Parameters
        ----------
        source : str
            Name of the kernel's file: "signs" for ``signs.cu``.
        name : str
            Name of the kernel.
        grid : int or tuple of int
            Number of blocks. Nothing is launched if it is 0.
        block : int
            Threads per block.
        *args
            Arguments of the kernel: arrays of this device, `Deferred` numbers, and numbers, each
            of which is converted to the type that the kernel declares.
        """
        blocks = grid if isinstance(grid, tuple) else (grid,)
        if 0 not in blocks:
            types = _parameters(source)[name]
            arguments = [as_type(value) for as_type, value in zip(types, args, strict=True)]
            self.run(source, name, blocks, block, *arguments)

    @abc.abstractmethod
    def run(self, source: str, name: str, grid: tuple[int, ...], block: int, *args: Any) -> None:
        """Launch a kernel with numbers of exactly the declared types; see `launch`.

        The elements of arrays have the declared width, but may have another type.
        """


class CupyDevice(Device):
    """A CUDA device, through CuPy.

    Parameters
    ----------
    number : int
        Number of the device.

    Raises
    ------
    ImportError
        CuPy is missing.
    RuntimeError
        The driver is missing, or the device is too old.
    """

    def __init__(self, number: int) -> None:
        self.cupy = cupy_module()
        self.number = number
        try:
            capability = int(self.cupy.cuda.Device(number).compute_capability)
        except Exception as error:
            raise RuntimeError(f"CUDA device {number} cannot be used: {error}") from error
        if capability < LEAST_ARCHITECTURE:
            raise RuntimeError(
                f"CUDA device {number} has compute capability {capability / 10}: "
                f"gcodec needs {LEAST_ARCHITECTURE / 10}; copy the arrays to the host first"
            )
        self._modules: dict[str, Any] = {}
        self._kernels: dict[tuple[str, str], Any] = {}

    def owns(self, x: Any) -> bool:
        """Return whether `x` is a CuPy array on this device."""
        return isinstance(x, self.cupy.ndarray) and x.data.device_id == self.number

    @contextlib.contextmanager
    def current(self, stream: int | None = None) -> Iterator[None]:
        """Make this device and a stream the current ones; see `Device.current`."""
        cuda = self.cupy.cuda
        with cuda.Device(self.number):
            former = cuda.get_current_stream()
            if stream is None or stream == former.ptr:
                yield
                return
            with self.on_stream(stream) as own:
                own.wait_event(former.record(cuda.Event(disable_timing=True)))
                try:
                    yield
                finally:
                    former.wait_event(own.record(cuda.Event(disable_timing=True)))

    @contextlib.contextmanager
    def on_stream(self, stream: int) -> Iterator[Any]:
        """Make a stream of another library CuPy's current one, without any waiting.

        This is for a thread that does all its work on that stream.
        """
        cuda = self.cupy.cuda
        with cuda.Device(self.number):
            if hasattr(cuda.Stream, "from_external"):
                own = cuda.Stream.from_external(_Stream(stream))
            else:  # before CuPy 14
                own = cuda.ExternalStream(stream, self.number)
            with own:
                yield own

    def synchronize(self) -> None:
        """Wait for all operations of the current stream."""
        with self.cupy.cuda.Device(self.number):
            self.cupy.cuda.get_current_stream().synchronize()

    def empty(self, n: int, dtype: Any) -> Array:
        """Return an uninitialized (n,) array."""
        with self.cupy.cuda.Device(self.number):
            return self.cupy.empty(n, dtype)

    def zeros(self, n: int, dtype: Any) -> Array:
        """Return an (n,) array of zero bits."""
        with self.cupy.cuda.Device(self.number):
            return self.cupy.zeros(n, dtype)

    def to_device(self, array: np.ndarray) -> Array:
        """Copy a host array to the device."""
        with self.cupy.cuda.Device(self.number):
            return self.cupy.asarray(array)

    def fetch(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """Copy arrays to the host, on the current stream; see `Staging`."""
        cuda = self.cupy.cuda
        with cuda.Device(self.number), Staging(cuda, cuda.get_current_stream()) as staging:
            copies = [
                self._start_leading(array, staging)
                if isinstance(array, deferred.LeadingBytes)
                else self._start_whole(array, staging)
                for array in arrays
            ]
            staging.finish()
            remainders = [pair for pair in map(_Copy.remainder, copies) if pair[1].size]
            for source, target in remainders:
                staging.copy(source, target)
            if remainders:
                staging.finish()
        return [copy.array for copy in copies]

    def _start_whole(self, array: Array, staging: Staging) -> _Copy:
        source = self.cupy.ascontiguousarray(array)
        target = np.empty(source.nbytes, np.uint8)
        staging.copy(source.data, target)
        return _Copy(source, target, target.view(array.dtype).reshape(array.shape))

    def _start_leading(self, leading: deferred.LeadingBytes, staging: Staging) -> _Copy:
        """Start a kernel that writes leading bytes to pinned memory.

        Only the device knows the number of bytes. The host reads this count together with the
        bytes, and then copies the remaining bytes.
        """
        source, count = leading.array, np.zeros(1, np.int64)
        target = np.empty(source.nbytes, np.uint8)
        staging.copy(leading.count.data, count.view(np.uint8))
        direct = target[:DIRECT_SIZE]
        words = direct.size // 4
        address = np.uintp(staging.reserve(direct))  # the same on the device
        arguments = source.view(np.uint32), words, leading.count, leading.unit, leading.more
        grid = min(-(-words // 256), _MAX_PINNED_BLOCKS)
        self.launch("leading", "copy_leading", grid, 256, *arguments, address)
        return _Copy(source, target, target, (leading, count))

    def address(self, array: Array) -> int:
        """Return the address of a contiguous array."""
        return int(array.data.ptr)

    def flat(self, array: Array) -> Array:
        """Return an array as (n,), contiguous and aligned to 16 bytes."""
        with self.cupy.cuda.Device(self.number):
            flat = self.cupy.ascontiguousarray(array).reshape(-1)
            return flat if flat.data.ptr % 16 == 0 else flat.copy()

    def overlap(self, a: Array, b: Array) -> bool:
        """Return whether two arrays may share memory."""
        return bool(self.cupy.may_share_memory(a, b))

    def run(self, source: str, name: str, grid: tuple[int, ...], block: int, *args: Any) -> None:
        """Launch a kernel on CuPy's current stream; compile its file at the first use."""
        with self.cupy.cuda.Device(self.number):
            kernel = self._kernels.get((source, name))
            if kernel is None:
                kernel = self._module(source).get_function(name)
                self._kernels[source, name] = kernel
            kernel(grid, (block,), args)

    def _module(self, source: str) -> Any:
        if source not in self._modules:
            # CuPy's cache key covers the text of the source, but not the included headers.
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
        """Return the compiler's name and version, or raise `RuntimeError` if it is missing."""
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
        The target with the dtype and shape of the source.
    leading : (LeadingBytes, (1,) int64 array) or None
        The request, and the target of its count; None if the whole array is copied.
    """

    source: Array
    target: np.ndarray
    array: np.ndarray
    leading: tuple[deferred.LeadingBytes, np.ndarray] | None = None

    def remainder(self) -> tuple[Any, np.ndarray]:
        """Return the source and target of the remaining bytes, once the count has arrived."""
        if self.leading is None:
            return None, self.target[:0]
        request, count = self.leading
        words = (int(count[0]) * request.unit + request.more + 31) // 32
        return self.source.data + DIRECT_SIZE, self.target[DIRECT_SIZE : max(4 * words, 0)]


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


@functools.cache
def _parameters(source: str) -> dict[str, list[Callable[[Any], Any]]]:
    """Return, for each kernel of a file, the functions that convert its arguments."""
    return {
        name: [_conversion(*parameter) for parameter in _PARAMETER.findall(parameters)]
        for name, parameters in _KERNEL.findall(sources()[source].read_text())
    }


def _conversion(type_name: str, star: str) -> Callable[[Any], Any]:
    """Return the function that converts a value to the type of a parameter."""
    if star:
        return _words_of
    # A type of ``types.cuh`` has its number of bits in its name, a dtype its number of bytes.
    name = type_name if type_name == "bool" else f"{type_name[0]}{int(type_name[1:]) // 8}"
    number = np.dtype(name).type
    return number if type_name[0] == "f" else lambda value: number(operator.index(value))


def _words_of(value: Any) -> Any:
    """Return the array of a `Deferred` number; arrays and addresses are returned unchanged."""
    return value.words if type(value) is deferred.Deferred else value


def device_of(*arrays: object) -> Device | None:
    """Return the device of the first of the arrays that is not on the host, or None."""
    for x in arrays:
        if type(x) is np.ndarray or x is None:  # the usual cases
            continue
        if (device := _device_of(x)) is not None:
            return device
    return None


def _device_of(x: Any) -> Device | None:
    if type(x) is deferred.Deferred:
        return x.device
    for device in reversed(_in_use):
        if device.owns(x):
            return device
    types: Any = getattr(sys.modules.get("cupy"), "ndarray", ())
    if isinstance(x, types):
        return cuda_device(x.data.device_id)
    return None


def current_device(*arrays: object) -> contextlib.AbstractContextManager[object]:
    """Make the device of the first of the arrays that is not on the host current, if any is."""
    device = device_of(*arrays)
    return contextlib.nullcontext() if device is None else device.current()


def host(array: Array) -> np.ndarray:
    """Return an array on the host: the same array if it is there, else a copy."""
    device = device_of(array)
    return array if device is None else device.to_host(array)


def all_on_host(arrays: Sequence[Array]) -> list[np.ndarray]:
    """Return arrays that are all on the host, or all on one device, on the host; wait once."""
    device = device_of(*arrays)
    return list(arrays) if device is None else deferred.fetch(device, *arrays)


def beside(array: Array, other: Array) -> Array:
    """Return an array in the memory of another: the same array, or a copy there."""
    device = device_of(other)
    if device_of(array) is device:
        return array
    return host(array) if device is None else device.to_device(host(array))


@contextlib.contextmanager
def use(device: Device) -> Iterator[Device]:
    """Recognize the arrays of `device`, which need not be a `CupyDevice`."""
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
    """Declare a function that has a twin for arrays on a device.

    The twin is the function of the same name and parameters in another module. It is called if
    the dispatching argument is on a device, and its results are on that device, too.

    Parameters
    ----------
    source : str
        Full name of the twin's module.
    by : str
        Name of the dispatching parameter; by default, the first one.
    """

    def declare(function: Callable[_P, _R]) -> Callable[_P, _R]:
        name = function.__name__
        position = list(inspect.signature(function).parameters).index(by) if by else 0

        @functools.wraps(function)
        def shell(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            array = args[position] if position < len(args) else kwargs.get(by)
            if type(array) is np.ndarray or _device_of(array) is None:
                return function(*args, **kwargs)
            return _twin(source, name)(*args, **kwargs)

        shell.twin = source  # type: ignore[attr-defined]
        return shell

    return declare


@functools.cache
def _twin(source: str, name: str) -> Callable[..., Any]:
    """Return the twin of a function in another module, or raise `TypeError`."""
    try:
        return getattr(importlib.import_module(source), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise no_twin(name) from error


def no_twin(name: str) -> TypeError:
    """Return the error of a function or codec that does not support arrays on a device."""
    return TypeError(
        f"{name} takes no arrays on a CUDA device yet: copy them to the host first, as in "
        "cupy.asnumpy(x) or x.cpu()"
    )


def has_cupy() -> bool:
    """Return whether CuPy is installed."""
    return "cupy" in sys.modules or importlib.util.find_spec("cupy") is not None


def cupy_module() -> Any:
    """Import CuPy, or raise `ImportError` with instructions for its installation."""
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise ImportError(
            f"Arrays on a CUDA device need CuPy: {_INSTALL}; or copy the arrays to the host first."
        ) from error


def adopted(x: object) -> Array:
    """Return an array of another library on a CUDA device as a CuPy array, without a copy.

    Parameters
    ----------
    x : object
        Array with ``__dlpack__`` or ``__cuda_array_interface__``.

    Raises
    ------
    ImportError, RuntimeError
        See `CupyDevice`.
    """
    cupy = cupy_module()
    try:
        return cupy.from_dlpack(x) if hasattr(type(x), "__dlpack__") else cupy.asarray(x)
    except RuntimeError as error:
        raise RuntimeError(f"an array on a CUDA device cannot be used there: {error}") from error


class _Stream(NamedTuple):
    """A stream as an object of the CUDA stream protocol."""

    pointer: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer
