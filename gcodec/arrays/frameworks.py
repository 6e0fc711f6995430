"""Array libraries: how to recognize, read and create the arrays of each.

A library is recognized by its loaded modules; this module never imports one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from gcodec.runtime import Array
from gcodec.runtime.device import adopted, cuda_device
from gcodec.wire.primitives import FLOATS8

FAILURES = (AssertionError, AttributeError, BufferError, RuntimeError, TypeError, ValueError)
"""Exceptions that libraries raise for an array that they cannot hand over."""

_OWN_DTYPES = {
    name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", *FLOATS8, "float8_e8m0fnu")
}
"""Dtypes that NumPy itself lacks, as do several ways to hand over memory."""
_BFLOAT16 = _OWN_DTYPES["bfloat16"]
CUDA_DEVICE = 2  # DLPack's code


class Library:
    """Base class of all libraries.

    Attributes
    ----------
    title : str
        Name for error messages.
    module : str
        Module that is loaded if the program has arrays of the library.
    types : tuple of str
        Names of the array classes in `module`.
    to_float32, to_uint8, to_host : str
        Expressions that convert the array ``{x}``, view its bytes, and copy it from a device, for
        error messages.
    writes : bool
        Whether the library's arrays can be written to.
    reuses_memory : bool
        Whether the memory of an array that the program has dropped may get new values while CuPy's
        stream still reads it.
    """

    title: ClassVar[str]
    module: ClassVar[str]
    types: ClassVar[tuple[str, ...]]
    to_float32: ClassVar[str]
    to_uint8: ClassVar[str]
    to_host: ClassVar[str]
    writes: ClassVar[bool] = False
    reuses_memory: ClassVar[bool] = False

    @property
    def api(self) -> Any:
        """The loaded module."""
        return sys.modules[self.module]

    def owns(self, x: Any) -> bool:
        """Return whether `x` is an array of this library."""
        module = sys.modules.get(self.module)  # also None if the import is blocked
        for name in self.types:  # noqa: SIM110 - a loop takes less time than a generator
            if isinstance(x, getattr(module, name, ())):
                return True
        return False

    def dtype_of(self, x: Any) -> str:
        """Return the name of the dtype of `x`."""
        return _name_of(x.dtype)

    def check(self, x: Any, name: str) -> None:
        """Raise TypeError unless `x` is one dense array with values."""

    def check_host(self, x: Any, name: str) -> None:
        """Raise TypeError unless `x` lies on the host."""

    def device_error(self, name: str, place: str) -> TypeError:
        """Return the error for an array on a device, with advice on how to copy it."""
        advice = self.to_host.format(x=name)
        return TypeError(f"{name} is on {place}: copy it to the host first, as in {advice}")

    def memory(self, x: Any, name: str) -> np.ndarray:
        """View `x`, which has passed `check`, as a NumPy array of the same dtype.

        Raises
        ------
        TypeError
            If `x` lies on another device, or cannot be viewed.
        """
        self.check_host(x, name)
        try:
            return self.view(x)
        except FAILURES as error:
            raise unreadable(name, error) from error

    def view(self, x: Any) -> np.ndarray:
        """View `x`, an array on the host, as a NumPy array."""
        return np.asarray(x)

    def make(self, array: np.ndarray, like: Any) -> Any:
        """Create an array of this library from `array`, on the device of `like`."""
        raise NotImplementedError

    def note_write(self, x: Any) -> None:
        """Inform the library that the memory of `x` is about to be written to."""

    def device_view(self, x: Any) -> Array | None:
        """Return a CuPy view of `x`, or None for the host; short floats may be integers."""
        return None

    def from_device_view(self, array: Array, dtype: str) -> Any:
        """Create an array of this library from a CuPy array without a copy; see `device_view`."""
        raise NotImplementedError

    def stream_of(self, x: Any) -> int | None:
        """Return a pointer to the stream on which the library works on `x`.

        The result is None for a library whose stream is unknown. DLPack then makes CuPy's current
        stream wait for `x`, and the library for results.
        """
        return None


class _Torch(Library):
    title, module, types = "torch", "torch", ("Tensor",)
    to_float32, to_uint8, to_host = "{x}.float()", "{x}.view(torch.uint8)", "{x}.cpu()"
    writes = True

    def check(self, x: Any, name: str) -> None:
        if x.device.type == "meta":
            raise TypeError(f"{name} is on meta and holds no values")
        if self.api.nn.parameter.is_lazy(x):
            raise TypeError(
                f"{name} is an uninitialized parameter and holds no values: run its "
                "model once first"
            )
        if hasattr(x, "to_local"):
            raise TypeError(
                f"{name} is a {type(x).__name__}, of which each rank holds a part: pass the "
                f"part of this rank, {name}.to_local(), or all of it, {name}.full_tensor()"
            )
        if x.is_quantized:
            raise TypeError(f"{name} is quantized: convert it first, as in {name}.dequantize()")
        if x.layout is not self.api.strided or x.is_nested:
            raise TypeError(
                f"{name} is not a dense tensor: convert it first, as in {name}.to_dense()"
            )
        if self._is_traced(x):  # `numpy` of some returns memory without values
            raise TypeError(
                f"{name} is traced and holds no values: call gcodec outside of torch.vmap, "
                "torch.func and torch.export"
            )
        if x.is_neg():  # its memory, which DLPack hands over as it is, has the other signs
            raise TypeError(
                f"{name} is a view that torch negates when it reads it: convert it first, as in "
                f"{name}.resolve_neg()"
            )
        if not _is_stored(x):
            raise TypeError(
                f"{name} has a storage of {x.untyped_storage().nbytes()} bytes and holds no "
                "values: gather or restore it first, as FSDP's summon_full_params does"
            )

    def check_host(self, x: Any, name: str) -> None:
        if x.device.type != "cpu":
            raise self.device_error(name, x.device)

    def view(self, x: Any) -> np.ndarray:
        x = x.detach()
        kind = _OWN_DTYPES.get(self.dtype_of(x))
        if kind is None:
            return x.numpy()
        bits: np.ndarray = x.view(getattr(self.api, f"int{8 * kind.itemsize}")).numpy()
        return bits.view(kind)

    def _is_traced(self, x: Any) -> bool:
        """Return whether a tensor stands for values that another tensor has, or none has."""
        is_wrapped: bool = self.api._C._functorch.is_functorch_wrapped_tensor(x)
        if is_wrapped or type(x).__name__ in ("FakeTensor", "FunctionalTensor"):
            return True
        return bool(self.api._is_functional_tensor(x))

    def make(self, array: np.ndarray, like: Any) -> Any:
        if array.dtype.name in _OWN_DTYPES:
            bits = self.api.from_numpy(array.view(f"i{array.itemsize}"))
            tensor = bits.view(getattr(self.api, array.dtype.name))
        else:
            tensor = self.api.from_numpy(array)
        return tensor.to(like.device)

    def device_view(self, x: Any) -> Array | None:
        if x.device.type != "cuda":
            return None
        x = x.detach()
        if x.element_size() <= 2 or not x.dtype.is_floating_point:
            x = x.view(getattr(self.api, f"int{8 * x.element_size()}"))
        with cuda_device(x.device.index).current(self.stream_of(x)):
            return adopted(x)

    def from_device_view(self, array: Array, dtype: str) -> Any:
        torch_dtype = getattr(self.api, dtype)
        # Some releases of CuPy have no bfloat16, and some of DLPack no booleans.
        if array.dtype.itemsize <= 2 or not torch_dtype.is_floating_point:
            return self.api.from_dlpack(array.view(f"i{array.dtype.itemsize}")).view(torch_dtype)
        return self.api.from_dlpack(array)

    def stream_of(self, x: Any) -> int | None:
        return int(self.api.cuda.current_stream(x.device).cuda_stream)

    def note_write(self, x: Any) -> None:
        if not x.is_inference():  # so that a backward pass that needs the old values raises
            self.api.autograd.graph.increment_version(x)


def _is_stored(x: Any) -> bool:
    """Return whether the storage of a strided tensor contains it; FSDP shrinks storages to 0."""
    try:
        stored = x.untyped_storage().nbytes()
    except NotImplementedError:  # a traced tensor has no storage, and `view` refuses it
        return True
    count = x.numel()
    if count and not x.is_contiguous():
        count = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return not count or (x.storage_offset() + count) * x.element_size() <= stored


class _Jax(Library):
    title, module, types = "JAX", "jax", ("Array",)
    to_float32, to_uint8 = "{x}.astype(jax.numpy.float32)", "{x}.view(jax.numpy.uint8)"
    to_host = "jax.device_get({x})"
    reuses_memory = True

    def check(self, x: Any, name: str) -> None:
        if isinstance(x, self.api.core.Tracer):
            raise TypeError(
                f"{name} is traced and holds no values: call gcodec outside of jax.jit, "
                "jax.grad and jax.vmap, or call roundtrip and encode_padded of gcodec.jax inside"
            )

    def check_host(self, x: Any, name: str) -> None:
        platforms = {device.platform for device in x.sharding.device_set}
        if platforms != {"cpu"}:
            raise self.device_error(name, ", ".join(platforms))

    def device_view(self, x: Any) -> Array | None:
        if x.is_deleted() or len(x.sharding.device_set) > 1:
            return None
        if x.__dlpack_device__()[0] != CUDA_DEVICE:
            return None
        if x.dtype.itemsize == 2 or x.dtype.name in _OWN_DTYPES:
            x = self.api.lax.bitcast_convert_type(x, f"int{8 * x.dtype.itemsize}")
        return adopted(x)

    def from_device_view(self, array: Array, dtype: str) -> Any:
        if array.dtype.itemsize == 2 or dtype in _OWN_DTYPES:
            bits = self.api.numpy.from_dlpack(array.view(f"i{array.dtype.itemsize}"))
            return self.api.lax.bitcast_convert_type(bits, dtype)
        with self._x64() if array.dtype.itemsize == 8 else nullcontext():
            return self.api.numpy.from_dlpack(array)

    def make(self, array: np.ndarray, like: Any) -> Any:
        # An array of 64-bit elements, as `like` is, needs x64 to be enabled.
        with self._x64() if array.dtype.itemsize == 8 else nullcontext():
            if like.committed:
                return self.api.device_put(array, like.sharding)
            with self.api.default_device(next(iter(like.sharding.device_set))):
                return self.api.device_put(array)

    def node(
        self, x: Any
    ) -> tuple[bool, list[Any], list[Any], Callable[[Sequence[Any]], Any]] | None:
        """Return a pytree node that is registered with JAX by its parts; None for a leaf.

        Returns
        -------
        is_sequence : bool
            Whether the keys are indices.
        keys, children : list
            Keys and children of the node.
        rebuild : callable
            Function that returns a node like `x` with other children.
        """
        tree_util = getattr(sys.modules.get(self.module), "tree_util", None)
        if tree_util is None:  # JAX is not imported, or its import has not finished
            return None
        pairs, definition = tree_util.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)
        if any(not path for path, _ in pairs):
            return None
        indices = tree_util.SequenceKey, tree_util.FlattenedIndexKey
        entries = [path[0] for path, _ in pairs]
        is_sequence = bool(entries) and all(isinstance(entry, indices) for entry in entries)
        names = "key", "idx", "name"  # of JAX's own entries; a node may have texts instead
        keys = [
            next((getattr(entry, name) for name in names if hasattr(entry, name)), entry)
            for entry in entries
        ]
        return is_sequence, keys, [child for _, child in pairs], definition.unflatten

    def _x64(self) -> Any:
        if hasattr(self.api, "enable_x64"):
            return self.api.enable_x64(True)
        return self.api.experimental.enable_x64()


class _TensorFlow(Library):
    title, module = "TensorFlow", "tensorflow"
    types = ("Tensor", "Variable", "IndexedSlices", "SparseTensor", "RaggedTensor")
    to_float32 = "tensorflow.cast({x}, tensorflow.float32)"
    to_uint8, to_host = "tensorflow.bitcast({x}, tensorflow.uint8)", "{x}.numpy()"

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
            raise self.device_error(name, x.device)

    def view(self, x: Any) -> np.ndarray:
        tensor = self.api.convert_to_tensor(x)  # the value of a variable
        # NumPy cannot view a bfloat16 scalar; of larger tensors, numpy() would return a copy.
        return np.asarray(tensor.numpy() if tensor.ndim == 0 else tensor)

    def dtype_of(self, x: Any) -> str:
        return str(x.dtype.name)

    def make(self, array: np.ndarray, like: Any) -> Any:
        with self.api.device(like.device):
            return self.api.convert_to_tensor(array)


class _Mlx(Library):
    title, module, types = "MLX", "mlx.core", ("array",)
    to_float32, to_uint8 = "{x}.astype(mlx.core.float32)", "{x}.view(mlx.core.uint8)"
    to_host = "numpy.asarray({x})"

    def view(self, x: Any) -> np.ndarray:
        if x.dtype == self.api.bfloat16:  # the buffer protocol has no bfloat16
            return np.asarray(memoryview(x.view(self.api.uint16))).view(_BFLOAT16)
        return np.asarray(memoryview(x))

    def make(self, array: np.ndarray, like: Any) -> Any:
        if array.dtype == _BFLOAT16:
            return self.api.array(array.view(np.uint16)).view(self.api.bfloat16)
        return self.api.array(array, dtype=like.dtype)


TORCH, JAX = _Torch(), _Jax()
_LIBRARIES = (TORCH, JAX, _TensorFlow(), _Mlx())


@functools.cache
def _name_of(dtype: object) -> str:
    return str(dtype).rpartition(".")[2]


def library_of(x: Any) -> Library | None:
    """Return the library of an array; None for NumPy's arrays and for unknown objects."""
    if x is None or isinstance(x, (np.ndarray, np.generic, bytes, memoryview)):
        return None
    for library in _LIBRARIES:  # a loop takes less time than a generator
        if library.owns(x):
            return library
    return None


def unreadable(name: str, error: Exception) -> TypeError:
    """Return the error for an array that cannot be read."""
    return TypeError(f"{name} cannot be read: {first_line(error)}")


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).partition("\n")[0]
