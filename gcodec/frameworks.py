"""Array libraries: how an array of each is recognised, read where it lies, and made.

A library is recognised by the modules that are already loaded, never imported.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from gcodec.wire import DTYPE_CODES

_FAILURES = (AssertionError, AttributeError, BufferError, RuntimeError, TypeError, ValueError)
_HOST_DEVICES = (1, 3, 11, 13)  # of DLPack: CPU, CUDA host, ROCm host and CUDA managed memory
_CONVERTIBLE = ("bool", "int", "uint", "float", "object")  # how such a dtype's name begins
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Library:
    """What all libraries have in common.

    Attributes
    ----------
    title : str
        What messages call it.
    module : str
        Which is loaded where there are arrays of it.
    types : tuple of str
        The classes of its arrays, in `module`.
    to_float32 : str
        How a caller converts ``{x}``.
    writes : bool
        Whether its arrays can be written to.
    """

    title: ClassVar[str]
    module: ClassVar[str]
    types: ClassVar[tuple[str, ...]]
    to_float32: ClassVar[str]
    writes: ClassVar[bool] = False

    @property
    def api(self) -> Any:
        """The loaded module."""
        return sys.modules[self.module]

    def owns(self, x: Any) -> bool:
        """Whether `x` is an array of this library."""
        module = sys.modules.get(self.module)  # None also where an import is being kept out
        return isinstance(x, tuple(getattr(module, name, ()) for name in self.types))

    def dtype_of(self, x: Any) -> str:
        """Return the name of the dtype of `x`."""
        return str(x.dtype).rpartition(".")[2]

    def check(self, x: Any, name: str) -> None:
        """Raise TypeError unless `x` is one dense array that holds values."""

    def check_host(self, x: Any, name: str) -> None:
        """Raise TypeError unless `x` lies on the host."""

    def memory(self, x: Any, name: str) -> np.ndarray:
        """View `x` as a NumPy array of the same dtype.

        Raises
        ------
        TypeError
            If it is on another device, or holds no values.
        """
        self.check(x, name)
        self.check_host(x, name)
        try:
            return self.view(x)
        except _FAILURES as error:
            raise _unreadable(name, error) from error

    def view(self, x: Any) -> np.ndarray:
        """View `x`, an array on the host, as a NumPy array."""
        return np.asarray(x)

    def make(self, array: np.ndarray, like: Any) -> Any:
        """Make an array of the library of `array`, on the device of `like`."""
        raise NotImplementedError

    def note_write(self, x: Any) -> None:
        """Tell the library that the memory of `x` is written to."""


class _Torch(Library):
    title, module, types = "torch", "torch", ("Tensor",)
    to_float32 = "{x}.float()"
    writes = True

    def check(self, x: Any, name: str) -> None:
        if x.device.type == "meta":
            raise TypeError(f"{name} is on meta and holds no values")
        if x.layout is not self.api.strided or x.is_nested:
            raise TypeError(f"{name} is no dense tensor: make it one, as in {name}.to_dense()")

    def check_host(self, x: Any, name: str) -> None:
        if x.device.type != "cpu":
            raise TypeError(
                f"{name} is on {x.device}: copy it to the host first, as in {name}.cpu()"
            )

    def view(self, x: Any) -> np.ndarray:
        x = x.detach()
        if x.dtype is self.api.bfloat16:
            bits: np.ndarray = x.view(self.api.int16).numpy()
            return bits.view(_BFLOAT16)
        array: np.ndarray = x.numpy()
        return array

    def make(self, array: np.ndarray, like: Any) -> Any:
        if array.dtype == _BFLOAT16:
            tensor = self.api.from_numpy(array.view(np.int16)).view(self.api.bfloat16)
        else:
            tensor = self.api.from_numpy(array)
        return tensor.to(like.device)

    def note_write(self, x: Any) -> None:
        if not x.is_inference():  # a backward pass that needs the old values then says so
            self.api.autograd.graph.increment_version(x)


class _Jax(Library):
    title, module, types = "JAX", "jax", ("Array",)
    to_float32 = "{x}.astype(jax.numpy.float32)"

    def check(self, x: Any, name: str) -> None:
        if isinstance(x, self.api.core.Tracer):
            raise TypeError(
                f"{name} is traced and holds no values: call gcodec outside of jax.jit, "
                "jax.grad and jax.vmap"
            )

    def check_host(self, x: Any, name: str) -> None:
        platforms = {device.platform for device in x.sharding.device_set}
        if platforms != {"cpu"}:
            raise TypeError(
                f"{name} is on {', '.join(platforms)}: copy it to the host first, "
                f"as in jax.device_get({name})"
            )

    def make(self, array: np.ndarray, like: Any) -> Any:
        wide = array.dtype == np.float64  # as `like` is: made where that was enabled
        with self._x64() if wide else nullcontext():
            if like.committed:
                return self.api.device_put(array, like.sharding)
            with self.api.default_device(next(iter(like.sharding.device_set))):
                return self.api.device_put(array)

    def _x64(self) -> Any:
        if hasattr(self.api, "enable_x64"):
            return self.api.enable_x64(True)
        return self.api.experimental.enable_x64()


class _TensorFlow(Library):
    title, module = "TensorFlow", "tensorflow"
    types = ("Tensor", "Variable", "IndexedSlices", "SparseTensor", "RaggedTensor")
    to_float32 = "tensorflow.cast({x}, tensorflow.float32)"

    def check(self, x: Any, name: str) -> None:
        if not isinstance(x, (self.api.Tensor, self.api.Variable)):
            raise TypeError(f"{name} is of {type(x).__name__}: must be one dense tensor")
        if not hasattr(x, "numpy"):
            raise TypeError(
                f"{name} is symbolic and holds no values: call gcodec outside of "
                "tensorflow.function, or through tensorflow.py_function"
            )

    def check_host(self, x: Any, name: str) -> None:
        if x.device and "CPU" not in x.device:
            raise TypeError(
                f"{name} is on {x.device}: copy it to the host first, as in {name}.numpy()"
            )

    def view(self, x: Any) -> np.ndarray:
        tensor = self.api.convert_to_tensor(x)  # what a variable holds
        # A bfloat16 scalar is no array to NumPy; of larger tensors numpy() is a copy.
        return np.asarray(tensor.numpy() if tensor.ndim == 0 else tensor)

    def dtype_of(self, x: Any) -> str:
        return str(x.dtype.name)

    def make(self, array: np.ndarray, like: Any) -> Any:
        with self.api.device(like.device):
            return self.api.convert_to_tensor(array)


class _Mlx(Library):
    title, module, types = "MLX", "mlx.core", ("array",)
    to_float32 = "{x}.astype(mlx.core.float32)"

    def view(self, x: Any) -> np.ndarray:
        if x.dtype == self.api.bfloat16:  # which has no buffer format
            return np.asarray(memoryview(x.view(self.api.uint16))).view(_BFLOAT16)
        return np.asarray(memoryview(x))

    def make(self, array: np.ndarray, like: Any) -> Any:
        if array.dtype == _BFLOAT16:
            return self.api.array(array.view(np.uint16)).view(self.api.bfloat16)
        return self.api.array(array, dtype=like.dtype)


_LIBRARIES = (_Torch(), _Jax(), _TensorFlow(), _Mlx())


def library_of(x: Any) -> Library | None:
    """Return the library of an array; None for NumPy's and for what is of none."""
    if isinstance(x, (np.ndarray, np.generic)):
        return None
    return next((library for library in _LIBRARIES if library.owns(x)), None)


def dtype_error(x: Any, name: str, dtype: str) -> TypeError:
    """Say that an array of this dtype is not taken, and how to convert it."""
    text = f"{name} has dtype {dtype}: gcodec takes {', '.join(DTYPE_CODES)}"
    if dtype.startswith("complex"):
        return TypeError(f"{text}; give its real and imaginary parts one by one")
    if not dtype.startswith(_CONVERTIBLE):
        return TypeError(text)
    library = library_of(x)
    if library is not None:
        advice = library.to_float32
    elif isinstance(x, (np.ndarray, np.generic)):
        advice = "{x}.astype(numpy.float32)"
    else:
        advice = "numpy.asarray({x}, numpy.float32)"
    return TypeError(f"{text}; convert it first, as in {advice.format(x=name)}")


def as_numpy(x: Any, name: str) -> np.ndarray:
    """View an array of any kind as a NumPy array; a copy only where it shows no memory.

    Raises
    ------
    TypeError
        For what is no array, masked, of a wrong dtype, or not on the host.
    """
    array = memory_of(x, name)
    if array is not None:
        return array
    if not hasattr(type(x), "__array__"):
        raise TypeError(
            f"{name} is a {type(x).__name__}: must be an array; "
            f"make one first, as in numpy.asarray({name}, numpy.float32)"
        )
    try:
        return np.asarray(x)
    except _FAILURES as error:
        raise _unreadable(name, error) from error


def memory_of(x: Any, name: str) -> np.ndarray | None:
    """View the memory of an array of any kind; None for what shows none.

    Raises
    ------
    TypeError
        As for `as_numpy`.
    """
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: fill it first, as in {name}.filled(0)")
    if isinstance(x, (np.ndarray, np.generic)):
        return np.asarray(x)
    library = library_of(x)
    if library is not None:
        if library.dtype_of(x) not in DTYPE_CODES:
            raise dtype_error(x, name, library.dtype_of(x))
        return library.memory(x, name)
    check_no_device(x, name)
    if isinstance(x, (str, bytes, bytearray)):
        raise TypeError(f"{name} is a {type(x).__name__}: must be an array")
    if hasattr(type(x), "__dlpack__"):
        return _from_dlpack(x, name)
    return _from_buffer(x, name)


def check_no_device(x: Any, name: str) -> None:
    """Raise TypeError for an array of an unknown library that is on no host.

    Protocols are looked up on the type, as an object may answer to every name.
    """
    where = None
    if hasattr(type(x), "__cuda_array_interface__"):
        where = "a CUDA device"
    elif hasattr(type(x), "__dlpack_device__"):
        kind, number = x.__dlpack_device__()
        if kind not in _HOST_DEVICES:
            where = f"device {int(number)} of DLPack's kind {int(kind)}"
    if where is not None:
        raise TypeError(f"{name} is on {where}: copy it to the host first")


def _from_dlpack(x: Any, name: str) -> np.ndarray | None:
    try:
        return np.from_dlpack(x)
    except _FAILURES as error:
        if hasattr(type(x), "__array__"):
            return None
        raise TypeError(f"{name} cannot be read through DLPack: {_first_line(error)}") from error


def _from_buffer(x: Any, name: str) -> np.ndarray | None:
    try:
        buffer = memoryview(x)
    except TypeError:  # no buffer at all
        return None
    except _FAILURES as error:
        raise _unreadable(name, error) from error
    try:
        return np.asarray(buffer)
    except _FAILURES as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> TypeError:
    return TypeError(f"{name} cannot be read: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
