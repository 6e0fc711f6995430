"""The caller's arrays: inspected once per call, read as flat values, and answered in kind."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from gcodec.arrays import protocols
from gcodec.arrays.frameworks import FAILURES, Library, library_of, unreadable
from gcodec.arrays.protocols import BytesLike, ShapeLike, TensorLike, check_unmasked
from gcodec.errors import ParameterError
from gcodec.kernels.numeric import convert
from gcodec.kernels.numeric.convert import ConvertedArray, is_converted
from gcodec.runtime import Array
from gcodec.runtime.deferred import one_wait
from gcodec.runtime.device import Device, adopted, device_of, host
from gcodec.wire.primitives import (
    DTYPE_CODES,
    FLOATS,
    FLOATS8,
    INTEGERS,
    ITEMSIZE,
    LOG2_ADDRESSABLE,
    MAX_NDIM,
    UNCONVERTED,
)

NUMPY_DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float64": np.dtype(np.float64),
}
NUMPY_DTYPES |= {name: np.dtype(name) for name in INTEGERS}
NUMPY_DTYPES |= {name: np.dtype(getattr(ml_dtypes, name)) for name in FLOATS8}

_NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}
_CONVERTIBLE = ("bool", "int", "uint", "float", "object")  # prefixes of dtype names


class Tensor(NamedTuple):
    """Values of one array, as the codecs read them.

    Attributes
    ----------
    values : (n,) float32 array or ConvertedArray
        C-contiguous and aligned, on the device of the caller's array. The caller's own memory if
        it already has this layout, and on the host therefore read-only. Integers, booleans and
        floats of 8 bits keep their dtype and lie on the host, except for the bit patterns of a
        device.
    dtype : str
        Dtype of the caller's array.
    shape : tuple of int
    """

    values: np.ndarray
    dtype: str
    shape: tuple[int, ...]


class Source(NamedTuple):
    """An array that the caller passed, and where it lies; `inspect` makes one per call.

    Attributes
    ----------
    array : array
        The caller's object.
    name : str
        Name of the parameter, for error messages.
    library : Library or None
        Library of the array; None for NumPy, CuPy, and objects that only follow a protocol.
    resident : array or None
        CuPy view of an array on a CUDA device; None for an array on the host. The view of
        floats of 8 or 16 bits may have an integer dtype.
    device : Device or None
        Device of the array; None for the host.
    """

    array: Any
    name: str
    library: Library | None = None
    resident: Array | None = None
    device: Device | None = None

    @property
    def dtype(self) -> str:
        """Name of the dtype of an array that has a dtype."""
        if self.library is not None:
            return self.library.dtype_of(self.array)
        return _name_of((self.array if self.resident is None else self.resident).dtype)

    def stream(self) -> AbstractContextManager[object]:
        """Work on the array's device, and there on the stream of the array's library."""
        if self.device is None:
            return nullcontext()
        stream = None if self.library is None else self.library.stream_of(self.array)
        return self.device.current(stream)

    def context(self) -> AbstractContextManager[object]:
        """Do what `stream` does, and wait for the device once, at the end of the call."""
        return one_wait() if self.device is None else self._device_context(self.device)

    @contextmanager
    def _device_context(self, device: Device) -> Iterator[None]:
        with self.stream():
            with one_wait():
                yield
            if self.library is not None and self.library.reuses_memory:
                device.synchronize()

    def read(
        self, *, all_dtypes: bool = False, segments: bool = False, patterns: bool = False
    ) -> Tensor:
        """Read the values.

        Parameters
        ----------
        all_dtypes : bool
            Whether arrays of integers, booleans and floats of 8 bits are allowed.
        segments : bool
            Whether the caller reads the values by segments only. Values on the host that are not
            float32 are then a `ConvertedArray`.
        patterns : bool
            Whether the caller reads bit patterns with `bits_of`. Values on a device are then
            unsigned integers there, as many bytes each as the dtype has.

        Raises
        ------
        TypeError
            If the object is no array, is masked, holds no values, or lies on a device that
            gcodec does not support; or if gcodec does not support the dtype.
        ParameterError
            If the array has too many dimensions.
        ImportError, RuntimeError
            See `gcodec.runtime.device.CupyDevice`.
        """
        array, dtype = self.array_and_dtype()
        if dtype not in (DTYPE_CODES if all_dtypes else FLOATS):
            raise self.dtype_error(dtype)
        if array.ndim > MAX_NDIM:
            raise ParameterError.of(f"{self.name}.ndim", array.ndim, f"at most {MAX_NDIM}")
        if self.device is None:
            values = _host_values(array, dtype, segments)
        elif patterns:
            values = self.device.flat(array).view(f"u{ITEMSIZE[dtype]}")
        else:
            values = _device_values(self.device.flat(array), dtype)
        return Tensor(values, dtype, tuple(array.shape))

    def array_and_dtype(self) -> tuple[Array, str]:
        """View the array, as CuPy's or else as NumPy's; also return the name of its dtype.

        Raises
        ------
        TypeError
            See `as_numpy`.
        """
        if self.resident is not None:
            return self.resident, self.dtype
        array = self.as_numpy()
        return array, _name_of(array.dtype)

    def memory(self) -> np.ndarray | None:
        """View the memory of an array on the host; return None for an object that exposes none.

        Raises
        ------
        TypeError
            If the object is masked, is text or bytes, holds no values, lies on a device, or has a
            dtype that gcodec does not support.
        """
        x, name = self.array, self.name
        if self.library is not None:
            if self.dtype not in DTYPE_CODES:
                raise self.dtype_error(self.dtype)
            return self.library.memory(x, name)
        if type(x) is np.ndarray:
            return x
        check_unmasked(x, name)
        if isinstance(x, (np.ndarray, np.generic)):
            return np.asarray(x)
        return protocols.memory_of(x, name)

    def as_numpy(self) -> np.ndarray:
        """View an array on the host as a NumPy array; copy it only if it exposes no memory.

        Raises
        ------
        TypeError
            See `memory`; or if the object is no array.
        """
        x, name = self.array, self.name
        memory = self.memory()
        if memory is not None:
            return memory
        if not hasattr(type(x), "__array__"):
            raise TypeError(
                f"{name} is of type {type(x).__name__}: must be an array{advice_for(x, name)}"
            )
        try:
            array = np.asarray(x)
        except FAILURES as error:
            raise unreadable(name, error) from error
        declared = str(getattr(x, "dtype", ""))
        if array.dtype.kind == "f" and declared.lower().startswith(("int", "uint")):
            # Columns of pandas and polars become float64, which rounds large integers.
            raise TypeError(f"{name} has dtype {declared} and missing values: fill them first")
        if array.dtype.kind == "f" and array.ndim == 2 and hasattr(type(x), "dtypes"):
            _refuse_rounded(array, [str(dtype) for dtype in x.dtypes], name)
        return array

    def on_host(self) -> np.ndarray:
        """Return the array in its own dtype and shape: a view if possible, else a copy.

        Raises
        ------
        TypeError
            See `as_numpy`.
        """
        if self.resident is None:
            return self.as_numpy()
        return host(self.resident).view(NUMPY_DTYPES[self.dtype])

    def description(self) -> tuple[str, tuple[int, ...]]:
        """Return the dtype and the shape, without reading values of an array that states them.

        Raises
        ------
        TypeError
            See `as_numpy`.
        """
        x = self.array
        is_stated = isinstance(getattr(x, "dtype", None), np.dtype) and hasattr(x, "shape")
        if self.library is None and self.resident is None and not is_stated:
            x = self.as_numpy()
            return _name_of(x.dtype), x.shape
        return self.dtype, tuple(x.shape)

    def dtype_error(self, dtype: str) -> TypeError:
        """Return the error for an unsupported dtype, with advice on how to convert the array."""
        text = f"{self.name} has dtype {dtype}: gcodec takes {', '.join(FLOATS)}"
        if dtype in INTEGERS:
            text += "; gcodec.encode(…, 'raw') keeps integers and booleans unchanged"
        if dtype.startswith("complex"):
            return TypeError(f"{text}; give its real and imaginary parts one by one")
        if getattr(getattr(self.array, "dtype", None), "names", None):
            return TypeError(f"{text}; give its fields one by one")
        if dtype.startswith("key<"):
            return TypeError(f"{text}; give the bits of the key, jax.random.key_data({self.name})")
        if dtype.startswith(("datetime64", "timedelta64")):
            exact = f"gcodec.encode({self.name}.view(numpy.int64), 'lossless')"
            return TypeError(f"{text}; keep its exact bits by {exact}")
        if not dtype.startswith(_CONVERTIBLE):
            return TypeError(text)
        if self.library is not None:
            advice, view = self.library.to_float32, self.library.to_uint8
        elif isinstance(self.array, (np.ndarray, np.generic)):
            advice, view = "{x}.astype(numpy.float32)", "{x}.view(numpy.uint8)"
        else:
            advice, view = (
                "numpy.asarray({x}, numpy.float32)",
                "numpy.asarray({x}).view(numpy.uint8)",
            )
        kept = self.name if dtype in FLOATS8 else view.format(x=self.name)
        exact = f"its exact bits by gcodec.encode({kept}, 'lossless')"
        if dtype.endswith("_x2"):  # two values in a byte, which libraries convert by no cast
            return TypeError(f"{text}; keep {exact}")
        text += f"; convert it first, as in {advice.format(x=self.name)}"
        return TypeError(f"{text}, or keep {exact}" if dtype.startswith("float8") else text)

    def check_on_host(self, peer: str) -> None:
        """Raise TypeError if the array is on a device, although a peer needs it on the host."""
        if self.device is not None:
            advice = "cupy.asnumpy({x})" if self.library is None else self.library.to_host
            raise TypeError(
                f"{self.name} lies on a device, but {peer} needs it on the host: copy it first, "
                f"as in {advice.format(x=self.name)}"
            )

    def result_dtype(self, shape: tuple[int, ...], dtype: str) -> str:
        """Return the dtype of a result that is to be like this array.

        Parameters
        ----------
        shape : tuple of int
            Shape of the result, which this array must have.
        dtype : str
            Dtype of the frame. Results of one float dtype convert to another; integers,
            booleans and floats of 8 bits do not.

        Raises
        ------
        ParameterError
            If the shape or the dtype does not fit.
        TypeError
            If the object is no array that gcodec supports.
        """
        like, name = self.array, self.name
        if self.library is None and self.resident is None:
            protocols.check_no_device(like, name)
            has_dtype = hasattr(getattr(like, "dtype", None), "name")
            if not (hasattr(like, "shape") and has_dtype and hasattr(type(like), "__array__")):
                raise TypeError(f"{name} is of type {type(like).__name__}: must be an array")
        if tuple(like.shape) != shape:
            raise ParameterError.of(f"{name}.shape", tuple(like.shape), str(shape))
        if self.dtype not in (FLOATS if dtype in FLOATS else (dtype,)):
            allowed = f"one of {', '.join(FLOATS)}" if dtype in FLOATS else dtype
            raise ParameterError.of(f"{name}.dtype", self.dtype, allowed)
        return self.dtype

    def result(self, array: Array) -> Any:
        """Return `array` as an array of this array's library, on its device.

        `array` must have this array's dtype; floats of 8 and 16 bits on a device may be bit
        patterns. If gcodec does not know the library, the result is a NumPy array, or on a device
        a CuPy array.
        """
        if device_of(array) is not None:
            if self.library is not None:
                return self.library.from_device_view(array, self.dtype)
            return array.view(NUMPY_DTYPES[self.dtype])
        if self.library is not None:
            return self.library.make(array, self.array)
        if isinstance(self.array, np.generic):
            return array[()]
        dtype = getattr(self.array, "dtype", None)  # states the byte order, too
        return array.astype(dtype, copy=False) if isinstance(dtype, np.dtype) else array

    def target(self, dtype: str, shape: tuple[int, ...]) -> Array:
        """View the array to write a result to it; 16-bit floats on a device as bit patterns.

        Raises
        ------
        ParameterError
            Unless the array is writable and has exactly this dtype and shape.
        TypeError
            If the object is no array, or belongs to a library whose arrays never change.
        """
        array, name, library = self.array, self.name, self.library
        if isinstance(array, np.generic):
            raise ParameterError(f"{name} is a scalar: must be an array, which can be written to")
        if protocols.is_masked(array):
            raise TypeError(f"{name} is a masked array: pass the array below it, {name}.data")
        _check_mutable(library, name)
        if (library is not None or self.resident is not None) and self.dtype != dtype:
            raise ParameterError.of(f"{name}.dtype", self.dtype, dtype)
        view = self.memory() if self.resident is None else self.resident
        if view is None:
            kind = type(array).__name__
            raise TypeError(f"{name} is of type {kind}: must be an array to write to")
        if self.resident is None and view.dtype != NUMPY_DTYPES[dtype]:
            raise ParameterError.of(f"{name}.dtype", str(view.dtype), dtype)
        if tuple(view.shape) != shape:
            raise ParameterError.of(f"{name}.shape", tuple(view.shape), str(shape))
        if self.resident is not None:
            if device_of(array) is None and protocols.is_read_only_on_cuda(array):
                raise ParameterError(f"{name} is read-only: must be writable")
            if not view.flags.c_contiguous:
                raise ParameterError(f"{name} is strided: on a device it must be C-contiguous")
            view = view.view(np.uint16) if view.dtype.itemsize == 2 else view
        elif not view.flags.writeable:
            raise ParameterError(f"{name} is read-only: must be writable")
        elif not view.flags.c_contiguous and _overlaps_itself(view):
            state = "is broadcast" if 0 in view.strides else "overlaps itself"
            raise ParameterError(f"{name} {state}: each element must have memory of its own")
        if library is not None:
            library.note_write(array)
        return view


def inspect(x: TensorLike, name: str) -> Source:
    """Find the library and the device of an array; nothing else asks for them during a call.

    Parameters
    ----------
    x : array
        On the host: a NumPy array or scalar of any order, stride and byte order; an array of
        torch, JAX, TensorFlow or MLX; a DLPack exporter; a buffer; or an object with
        ``__array__``. On a CUDA device: a CuPy array, a torch tensor, or an object with
        ``__cuda_array_interface__``. `Source.read` refuses all other objects.
    name : str
        Name of the parameter, for error messages.

    Raises
    ------
    TypeError
        If the array holds no values, or lies on a CUDA device and has an unsupported dtype.
    ImportError, RuntimeError
        See `gcodec.runtime.device.CupyDevice`.
    """
    if isinstance(x, (np.ndarray, np.generic)):
        return Source(x, name)
    library = library_of(x)
    resident = None
    if library is not None:
        library.check(x, name)
        if library.dtype_of(x) in DTYPE_CODES:  # `Source.memory` refuses all others
            resident = library.device_view(x)
    elif device_of(x) is not None:
        resident = x
    elif protocols.is_on_cuda(x, name):
        resident = adopted(x)
    if resident is None:
        return Source(x, name, library)
    source = Source(x, name, library, resident, device_of(resident))
    if source.dtype not in DTYPE_CODES:
        raise source.dtype_error(source.dtype)
    return source


def is_array(x: object) -> bool:
    """Return whether an object is an array, or exports one; `Source.read` may still refuse it."""
    if isinstance(x, (np.ndarray, np.generic)) or library_of(x) is not None:
        return True
    if x is None or isinstance(x, (type, str, bytes, bytearray)):
        return False
    return protocols.exports_array(x)


def advice_for(x: object, name: str) -> str:
    """Return the end of an error message about an object that is no array."""
    if x is None:
        return ""
    if hasattr(type(x), "__members__"):  # an enumeration
        return f"; use its value, as in {name}.value"
    if hasattr(x, "state_dict"):
        return f"; its arrays are in {name}.state_dict()"
    for method in ("toarray", "todense"):  # sparse matrices
        if hasattr(x, method):
            return f"; convert it first, as in {name}.{method}()"
    if isinstance(x, (bytes, bytearray)):
        return f"; make one first, as in numpy.frombuffer({name}, numpy.uint8)"
    if isinstance(x, Mapping) or (isinstance(x, (list, tuple)) and any(map(is_array, x))):
        return "; gcodec.save_file stores trees of arrays, or encode each array by itself"
    if isinstance(x, (int, float)) or hasattr(type(x), "__getitem__"):
        return f"; make one first, as in numpy.asarray({name}, numpy.float32)"
    return ""


def _refuse_rounded(array: np.ndarray, columns: list[str], name: str) -> None:
    """Raise `TypeError` if a DataFrame has integers that a joint float dtype may have rounded.

    `columns` are the dtypes of the columns.
    """
    integers = [k for k, dtype in enumerate(columns) if dtype.lower().startswith(("int", "uint"))]
    exact = 2.0 ** (np.finfo(array.dtype).nmant + 1)  # up to which all integers are floats
    if integers and (np.abs(array[:, integers]) >= exact).any():
        raise TypeError(
            f"{name} becomes an array of {array.dtype.name}, which rounds some of its integers: "
            "encode its integer columns apart, after filling missing values"
        )


def _name_of(dtype: Any) -> str:
    """Return the name of a dtype; NumPy composes its own anew for each access."""
    return _NAMES.get(dtype) or str(dtype.name)


def _host_values(array: np.ndarray, dtype: str, segments: bool) -> Any:
    """Return (n,) values on the host as float32; those of `UNCONVERTED` dtypes as they are."""
    native = NUMPY_DTYPES[dtype]
    if array.dtype != native or not is_flat(array):
        array = np.require(array, native, ["C", "A"])
    array = read_only(array.reshape(-1))
    if dtype == "float32" or dtype in UNCONVERTED:
        return array
    converted = ConvertedArray(array if dtype == "float64" else array.view(np.uint16), dtype)
    return converted if segments else converted.whole()


def _device_values(array: Array, dtype: str) -> Array:
    """Return (n,) values on a device as float32; those of `UNCONVERTED` dtypes on the host."""
    if dtype in UNCONVERTED:
        return host(array).view(NUMPY_DTYPES[dtype])
    if dtype == "float32":
        return array
    if dtype == "float64":
        return convert.from_float64(array)
    return convert.from_16_bits(array.view(np.uint16), dtype)


def _overlaps_itself(array: np.ndarray) -> bool:
    """Return whether elements of an array may share memory, which those of slices do not."""
    nbytes = array.itemsize  # from the first to the last byte along the dimensions so far
    pairs = zip(array.strides, array.shape, strict=True)
    for stride, size in sorted((abs(stride), size) for stride, size in pairs if size > 1):
        if stride < nbytes:
            return True
        nbytes += stride * (size - 1)
    return False


def _check_mutable(library: Library | None, name: str) -> None:
    if library is not None and not library.writes:
        raise TypeError(
            f"{name} is an array of {library.title}, which cannot be written to: "
            "give a NumPy array"
        )


def byte_buffer(data: BytesLike, name: str) -> Any:
    """Return the memory of an array that contains bytes; return other bytes-like objects as is.

    Raises
    ------
    TypeError
        If the bytes cannot be reached, or the array is masked.
    """
    check_unmasked(data, name)
    library = library_of(data)
    if library is None:
        return data
    library.check(data, name)
    return library.memory(data, name)


def byte_view(data: BytesLike, name: str) -> memoryview:
    """View the memory of a bytes-like object or an array as single bytes.

    Raises
    ------
    TypeError
        If the object is not bytes-like, or not contiguous; see also `byte_buffer`.
    """
    buffer = byte_buffer(data, name)
    try:
        view = memoryview(buffer)
        return view.cast("B") if view.nbytes else memoryview(b"")  # Python casts no (3, 0)
    except (TypeError, ValueError) as error:
        text = f"{name} is of type {type(data).__name__}: must be bytes-like, in one block"
        advice = f"; pass {name}.read()" if hasattr(data, "read") else ""
        raise TypeError(text + advice) from error


def writable_bytes(out: BytesLike, name: str) -> memoryview:
    """View a buffer of the caller to write bytes to it.

    Raises
    ------
    ParameterError
        If the buffer is read-only.
    TypeError
        If the object is no contiguous buffer, or contains Python objects.
    """
    library = library_of(out)
    _check_mutable(library, name)
    try:
        buffer = memoryview(byte_buffer(out, name))
        target = buffer.cast("B")
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: {error}") from error
    if any("O" in part for part in buffer.format.split(":")[::2]):  # without names of fields
        raise TypeError(f"{name} contains Python objects: must be a buffer of numbers")
    if target.readonly:
        raise ParameterError(f"{name} is read-only: must be writable")
    if library is not None:
        library.note_write(out)
    return target


def as_dtype(values: Array, dtype: str) -> Array:
    """Convert (n,) float32 values to `dtype`; return values that already have it as they are.

    On a device 16-bit floats become bit patterns: not every release of CuPy has bfloat16.
    """
    if values.dtype == NUMPY_DTYPES[dtype]:
        return values
    if dtype == "float64":
        return convert.to_float64(values)
    bits = convert.to_16_bits(values, dtype)
    return bits if device_of(bits) is not None else bits.view(NUMPY_DTYPES[dtype])


def is_flat(array: Array) -> bool:
    """Return whether kernels can work on the array where it lies."""
    if type(array) is not np.ndarray and device_of(array) is not None:
        return True  # `Source.target` refuses all others
    return bool(array.flags.c_contiguous and array.flags.aligned)


def is_plain_array(array: Any, dtypes: Sequence[str | np.dtype[Any]], ndim: int = 1) -> bool:
    """Return whether an object is a C-contiguous array of a given dtype and `ndim` dimensions."""
    if not isinstance(array, np.ndarray) and device_of(array) is None:
        return False
    return array.ndim == ndim and array.dtype in dtypes and bool(array.flags.c_contiguous)


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a view of an array on the host that nothing can write to by mistake."""
    view = array.view()
    view.flags.writeable = False
    return view


def shares_memory(data: Array, values: Array | ConvertedArray) -> bool:
    """Return whether bytes on the host may lie in the memory of values that were read."""
    source = values.source if is_converted(values) else values
    are_numpy = type(data) is np.ndarray and type(source) is np.ndarray
    return are_numpy and bool(np.may_share_memory(data, source))


def dimensions(shape: ShapeLike) -> tuple[int, ...]:
    """Return a shape, given as a tuple of integers or an integer, as a tuple.

    Raises
    ------
    ParameterError
        If a size is negative or no integer.
    """
    sizes: Any = shape
    try:
        sizes = tuple(sizes)
    except TypeError:
        sizes = (sizes,)
    for size in sizes:
        if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 0:
            raise ParameterError.of("shape", shape, "non-negative integers")
    return tuple(map(int, sizes))


def possible_shape(shape: ShapeLike) -> tuple[int, ...]:
    """Return a shape as a tuple; see `dimensions`.

    Raises
    ------
    ParameterError
        If no array can have this shape.
    """
    sizes = dimensions(shape)
    if len(sizes) > MAX_NDIM:
        raise ParameterError.of("shape", shape, f"at most {MAX_NDIM} sizes")
    if math.prod(filter(None, sizes)) >> LOG2_ADDRESSABLE:
        allowed = f"sizes whose product, without zeros, is below 2^{LOG2_ADDRESSABLE}"
        raise ParameterError.of("shape", shape, allowed)
    return sizes


def size_of(shape: ShapeLike) -> int:
    """Return the number of elements of a shape; see `dimensions`."""
    return math.prod(dimensions(shape))
