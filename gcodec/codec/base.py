"""Codecs: quantize a tensor to symbols, pack symbols into a payload, and back.

All floating-point operations happen before `Symbols`, all bytes are written after them. A codec
class implements four methods on flat arrays (`_quantize`, `_dequantize`, `_pack`, `_unpack`) and
may fuse others with the same bits. The base class implements everything that users call: it reads
the caller's arrays, checks arguments, allocates memory and composes the four methods.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from gcodec.arrays import source as sources
from gcodec.arrays.nonfinite import check_top
from gcodec.arrays.protocols import BytesLike, ShapeLike, TensorLike
from gcodec.arrays.source import NUMPY_DTYPES, Tensor, inspect, is_plain_array, possible_shape
from gcodec.codec import residuals
from gcodec.errors import Corrupt, ParameterError, Truncated
from gcodec.fields.walker import FieldSpan, FieldWalker
from gcodec.kernels.bits.dequantize import LevelString
from gcodec.kernels.numeric import arithmetic, convert
from gcodec.kernels.numeric.arithmetic import ResidualUpdate, ValueStatistics
from gcodec.kernels.numeric.philox import check_seed
from gcodec.payload import HeaderlessBytes, Payload, Selection
from gcodec.runtime import Array, pool
from gcodec.runtime.arithmetic import exact
from gcodec.runtime.deferred import Deferred, one_wait, resolved
from gcodec.runtime.device import Device, current_device, device_of, host, no_twin
from gcodec.runtime.memory import Drainable, clear, empty_beside, flattened, release
from gcodec.runtime.reuse import result_beside
from gcodec.wire.kinds import check_float32, check_integer
from gcodec.wire.params import Parameters, Scalars
from gcodec.wire.primitives import (
    DTYPE_CODES,
    FLOATS,
    LOG2_ADDRESSABLE,
    MAGIC,
    UNCONVERTED,
    encode_name,
    max_header_nbytes,
)
from gcodec.wire.seek import Blocks, SeekTable, most_nbytes

Symbols = Any  # each codec declares its own NamedTuple

_PART = 1 << 17  # elements that stay in a cache while several passes process them

_Self = TypeVar("_Self", bound="Codec")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Codec(Parameters):
    """Base class of all codecs; see `gcodec.register`.

    A codec is an immutable set of parameters and holds no state.

    Attributes
    ----------
    id : int
        Number of the codec in frames.
    name : str
        Name of the codec in specs.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> codec = gcodec.parse("minmax:bits=4")
    >>> payload = codec.encode(np.linspace(-1, 1, 4, dtype=np.float32))
    >>> codec.decode(payload, (2, 2))
    array([[-1.        , -0.33333334],
           [ 0.33333334,  1.        ]], dtype=float32)
    >>> codec.max_encoded_nbytes(1000), codec.unbiased
    (602, False)
    """

    id: ClassVar[int]
    name: ClassVar[str]
    # Class of the symbols; other objects are refused where users pass symbols.
    symbols_type: ClassVar[type] = object
    # Dtypes that the vectors among the fields of the symbols may have.
    symbols_dtypes: ClassVar[Mapping[str, Sequence[str]]] = {}
    # Whether `_quantize` itself raises for NaN and Inf, so that no other pass has to check.
    refuses_nonfinite: ClassVar[bool] = False
    # The codec accepts every tensor up to this magnitude, and its decoded values and their errors
    # are finite.
    takes_up_to: ClassVar[float] = math.inf
    # Whether the codec accepts NaN and Inf, and leaves them in the residual. `_refusing` returns a
    # codec that refuses them instead, by `_check_of`.
    keeps_nonfinite: ClassVar[bool] = False
    # No decoded value exceeds this multiple of the largest value, or of 1.
    decoded_factor: ClassVar[float] = math.inf
    # Whether `_decoded_bound` computes another bound, from symbols that are on the host.
    bounds_decoded: ClassVar[bool] = False
    # Whether `_quantize` reads its `prior`; otherwise `Feedback` keeps no symbols.
    uses_prior: ClassVar[bool] = False
    # Whether every bit pattern comes back, so that NaN and Inf need no policy.
    keeps_every_bit: ClassVar[bool] = False
    # Whether messages are differences from another tensor, without which nothing is encoded or
    # decoded. `registered` leaves such codecs out; `parse` and frames know them.
    needs_base: ClassVar[bool] = False
    # Whether `_quantize` and `_encode` read values by segments only. Values on the host may then
    # be a `ConvertedArray`, so tensors of other dtypes need no float32 copy.
    reads_segments: ClassVar[bool] = False
    # Whether training suffers without error feedback, because the codec drops the same parts of a
    # tensor at every step. No choice without feedback then considers the codec.
    needs_feedback: ClassVar[bool] = False
    # Dtypes for which `_dequantize_into` can add values to an array. A codec with such dtypes
    # implements it in place of `_dequantize`.
    fused_dtypes: ClassVar[Sequence[str]] = ()
    # Whether `_quantize_in_place` and `_quantize_sum` can also round x̂ to dtypes other than
    # `fused_dtypes`; see `residuals.leaves_rounded`.
    leaves_rounded: ClassVar[bool] = False
    # Whether the codec's kernels have CUDA twins.
    has_cuda_kernels: ClassVar[bool] = False
    # Whether payloads, being small, are read on the host even for a tensor on a device.
    symbols_on_host: ClassVar[bool] = False
    # Whether the codec depends on the shape of a tensor, and the shape that `_with_shape` binds.
    uses_shape: ClassVar[bool] = False
    _shape: ClassVar[tuple[int, ...] | None] = None
    # Whether only the size of a payload matters, so that `_pack` need not write its bytes; see
    # `_sized`.
    _is_sizing: ClassVar[bool] = False
    # Whether the codec also accepts integers, booleans and floats of 8 bits; see `_with_dtype`.
    accepts_all_dtypes: ClassVar[bool] = False
    # Methods and formats of other systems by their usual names, and the spec that stands for each.
    peers: ClassVar[Mapping[str, str]] = {}

    # --- Methods for users

    @exact
    def quantize(self, x: TensorLike, *, seed: int = 0, prior: Symbols | None = None) -> Symbols:
        """Turn a gradient into integers, and the few scalars that the payload stores verbatim.

        Parameters
        ----------
        x : array of n elements
            Gradient; see `gcodec.encode`. No policy for NaN and Inf applies.
        seed : int
            Seed for stochastic rounding, from 0 to 2**64 - 1.
        prior : Symbols, optional
            Symbols of the same tensor at the previous step, from this codec.

        Returns
        -------
        NamedTuple
            The codec's own `Symbols`.

        Raises
        ------
        ParameterError
            If the seed is invalid, or the codec refuses the values.
        TypeError
            If `x` is no array, or has a dtype or device that the codec does not support.
        """
        source = inspect(x, "x")
        with source.context():
            tensor = self._read_source(source)
            codec = self._bound_to(tensor)
            self._check_prior(prior)
            return resolved(codec._quantize(tensor.values, check_seed(seed), prior))

    @exact
    def quantize_residual(
        self,
        x: TensorLike,
        residual: TensorLike,
        *,
        decay: float = 1.0,
        seed: int = 0,
        prior: Symbols | None = None,
    ) -> Symbols:
        """Quantize u = x + decay·residual, and set the residual to u − x̂.

        x̂ is the decoded tensor, rounded to the dtype of `x`.

        Parameters
        ----------
        x : array of n elements
            Gradient; see `gcodec.encode`.
        residual : float32 array of n elements
            C-contiguous array on the device of `x`, updated in place. An error leaves it
            unchanged; an interrupt, such as KeyboardInterrupt, may have updated a part of it.
        decay : float
            Factor of the residual, finite as float32.
        seed : int
            Seed for stochastic rounding, from 0 to 2**64 - 1.
        prior : Symbols, optional
            Symbols of the same tensor at the previous step, from this codec.

        Returns
        -------
        NamedTuple
            The codec's own `Symbols`.

        Raises
        ------
        ParameterError
            If an argument is invalid, or the codec refuses the values.
        TypeError
            If an argument is no array, or has a dtype or device that the codec does not support.
        """
        source = inspect(x, "x")
        with source.stream():
            tensor = source.read()
            decay = check_float32("decay", decay)
            self._check_prior(prior)
            codec, device = self._bound_to(tensor), source.device
            old = _flat_residual(residual, tensor.values, device)
            # On a device an error may be found after all kernels have run.
            new = empty_beside(old.size, np.float32, old) if device else old
            update = ResidualUpdate(old, np.float32(decay), new)
            with one_wait():
                symbols: Symbols = resolved(
                    codec._quantize_residual(tensor, update, check_seed(seed), prior)
                )
            if device:
                old[:] = new
            return symbols

    @exact
    def dequantize(self, symbols: Symbols, shape: ShapeLike) -> np.ndarray:
        """Return the float32 array of `shape` that the symbols represent.

        Raises
        ------
        ParameterError
            If these are not symbols of the codec, or their number does not match the shape.
        """
        sizes = possible_shape(shape)
        self._check_type("symbols", symbols)
        self._check_symbols(symbols)
        out = result_beside(math.prod(sizes), self._values_dtype, None)
        self._with_shape(sizes)._dequantize(symbols, out)
        return out.reshape(sizes)

    @exact
    def pack(self, symbols: Symbols) -> Payload:
        """Write symbols as the bytes that the paper or system defines.

        Raises
        ------
        ParameterError
            If these are not symbols of the codec.
        """
        self._check_type("symbols", symbols)
        with current_device(*symbols), one_wait():
            self._check_symbols(symbols)
            return self._pack_checked(symbols).resolved()

    @exact
    def unpack(self, payload: Payload, shape: ShapeLike) -> Symbols:
        """Read the symbols of a tensor of `shape`.

        Raises
        ------
        FormatError
            If the bytes are damaged, or belong to a tensor of another size.
        TypeError
            If `payload` is no `Payload`.
        """
        sizes = possible_shape(shape)
        n = math.prod(sizes)
        payload = self._checked(payload, n)
        with current_device(payload.data), one_wait():
            return payload.codec._with_shape(sizes)._unpack(payload, n)

    @exact
    def encode(self, x: TensorLike, *, seed: int = 0, prior: Symbols | None = None) -> Payload:
        """Quantize and pack; see `quantize`."""
        source = inspect(x, "x")
        with source.context():
            tensor = self._read_source(source)
            codec = self._bound_to(tensor)
            self._check_prior(prior)
            payload = codec._encode(tensor.values, check_seed(seed), prior).resolved()
        # The payload outlives the caller's array.
        if sources.shares_memory(payload.data, tensor.values):
            payload = payload._replace(data=payload.data.copy())
        return payload

    @exact
    def decode(
        self,
        payload: Payload | BytesLike,
        shape: ShapeLike,
        *,
        nbits: int | None = None,
        **scalars: object,
    ) -> np.ndarray:
        """Decode a payload, or bare bytes that another system wrote.

        Parameters
        ----------
        payload : Payload or bytes-like
            Payload of this kind of codec, or bytes without any header; or an array that
            contains these bytes.
        shape : tuple of int or int
            Shape of the tensor.
        nbits : int, optional
            Number of bits of bare bytes, for formats in which the bytes do not determine it.
        **scalars
            Values that the original system stores outside of the bytes, such as
            ``threshold=0.25``.

        Returns
        -------
        float32 array of `shape`
            For a `Payload` of integers, booleans or floats of 8 bits, an array of their dtype; for
            one of ``lossless`` and float64, of float64.

        Raises
        ------
        ParameterError
            If a scalar is missing, unknown or out of range, or no array can have the shape.
        FormatError
            If the bytes are damaged, or belong to a tensor of another size.
        """
        sizes = possible_shape(shape)
        n = math.prod(sizes)
        if not isinstance(payload, Payload):
            payload = self._with_shape(sizes)._bare_payload(payload, n, nbits, scalars)
        elif nbits is not None or scalars:
            names = ", ".join([*(["nbits"] if nbits is not None else []), *scalars])
            raise ParameterError(f"{names}: only for bare bytes; a Payload has its own")
        payload = self._checked(payload, n)
        with current_device(payload.data), one_wait():
            values: np.ndarray = payload.codec._with_shape(sizes)._decode(payload, n)
        return values.reshape(sizes)

    def max_encoded_nbytes(
        self, n: int, name: str | None = None, *, dtype: str = "float32"
    ) -> int:
        """Return the largest number of bytes that `gcodec.encode` can produce for a tensor.

        Parameters
        ----------
        n : int
            Number of elements.
        name : str, optional
            Name of the tensor.
        dtype : str
            Dtype of the tensor. Float dtypes have the same bound, unless a codec keeps every bit.

        Raises
        ------
        ParameterError
            If the codec does not support the dtype, or no array can have `n` elements.
        """
        codec = self._bound(_shape=None) if self._shape is not None else self
        return codec._most_encoded_nbytes(n, name, dtype)

    def _most_encoded_nbytes(self, n: int, name: str | None, dtype: str) -> int:
        """Do what `max_encoded_nbytes` does, for tensors of the bound shape if there is one."""
        allowed = f"an integer from 0 to 2^{LOG2_ADDRESSABLE} - 1"
        n = check_integer("n", n, 0, (1 << LOG2_ADDRESSABLE) - 1, allowed)
        payload = -(-self._with_dtype(dtype).max_payload_nbits(n) // 8)
        name_nbytes = 0 if name is None else len(encode_name(name))
        header = max_header_nbytes(n, name_nbytes, self.fields_nbytes())
        # Ask the class: an instance with an unresolved "auto" cannot know.
        has_blocks = type(self).seek_blocks is not Codec.seek_blocks
        return payload + header + (most_nbytes(n, payload) if has_blocks else 0)

    @property
    def unbiased(self) -> bool:
        """Whether the expectation of each decoded value, over the seeds, is the value itself."""
        return False

    def contraction(self, n: int) -> float | None:
        """Return δ with ‖x − x̂‖² ≤ (1 − δ)·‖x‖² for every x of n elements, or None."""
        return None

    def variance(self, n: int) -> float | None:
        """Return ω with E‖x − x̂‖² ≤ ω·‖x‖² for every x of n elements, or None."""
        return None

    # --- Methods that every codec implements. Arrays are flat; `values` and `out` are float32.

    def _quantize(self, values: Array, seed: int, prior: Symbols | None) -> Symbols:
        self._check_encodes()
        raise self._undefined("_quantize")

    def _dequantize(self, symbols: Symbols, out: Array) -> None:
        self._dequantize_into(symbols, "float32", out, None)

    def _check_symbols(self, symbols: Symbols) -> None:
        """Raise `ParameterError` for symbols that the codec does not make, unless `_pack` does."""

    def _pack(self, symbols: Symbols) -> Payload | Selection[Payload]:
        """Write the payload; its codec has every ``auto`` resolved."""
        raise self._undefined("_pack")

    def _unpack(self, payload: Payload, n: int) -> Symbols:
        """Read untrusted bytes: check everything, and raise `FormatError` for any damage."""
        raise self._undefined("_unpack")

    def max_payload_nbits(self, n: int) -> int:
        """Return the largest number of bits of a payload of n elements."""
        raise self._undefined("max_payload_nbits")

    def _undefined(self, method: str) -> NotImplementedError:
        """Return the error for a class that lacks a method which every codec implements."""
        return NotImplementedError(f"{type(self).__name__} must define the method {method}")

    # --- Methods that a codec should implement to describe its payloads

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        """Describe the bits of a payload in order; raise `FormatError` at damage.

        Bits that no span describes are shown as undecoded. See `gcodec.fields`.
        """
        return iter(())

    # --- Methods for codecs with few CUDA kernels, and for codecs that use shape or dtype

    @property
    def on_device(self) -> bool:
        """Whether the codec runs on the device of an array on a CUDA device."""
        return self.has_cuda_kernels

    def _read_source(self, source: sources.Source) -> Tensor:
        """Read the values that are to be encoded."""
        return source.read(
            all_dtypes=self.accepts_all_dtypes,
            segments=self.reads_segments,
            patterns=self.keeps_every_bit,
        )

    def _check_encodes(self) -> None:
        """Raise `ParameterError` if the codec encodes no tensor, or none by itself."""
        if self.needs_base:
            advice = "use gcodec.encode_patch(new, base=old)"
            raise ParameterError(f"codec: {self} needs a base; {advice}")

    def _check_device(self, array: Array) -> None:
        """Raise TypeError if the array is on a device where the codec does not run."""
        if not self.on_device and device_of(array) is not None:
            raise no_twin(str(self))

    def _refusing(self: _Self) -> _Self:
        """Return a codec that finds NaN and Inf itself and refuses them, if it can choose to."""
        return self._bound(refuses_nonfinite=True) if self.keeps_nonfinite else self

    def _check_of(self, values: Array) -> Callable[[int | Deferred], None] | None:
        """Return the function that refuses NaN and Inf; None if the codec accepts them.

        It gets the bit pattern of a magnitude that is finite only if the values, or their sum with
        a residual, are.
        """
        return functools.partial(check_top, values=values) if self.refuses_nonfinite else None

    def _with_shape(self: _Self, shape: ShapeLike) -> _Self:
        """Return the codec bound to a shape, given as a tuple of sizes or an integer."""
        if not self.uses_shape:
            return self
        sizes = shape if type(shape) is tuple else sources.dimensions(shape)
        return self if sizes == self._shape else self._bound(_shape=sizes)

    def _bound(self: _Self, **attributes: object) -> _Self:
        """Return a copy with other attributes that are not parameters."""
        bound: _Self = object.__new__(type(self))
        bound.__dict__.update(self.__dict__, **attributes)
        return bound

    def _clusters(self, arrays: Sequence[np.ndarray], dtype: str) -> Sequence[int]:
        """Assign nonempty tensors of one dtype to clusters, by number.

        The tensors of a cluster share a frame; see `gcodec.encode_many`.
        """
        return [0] * len(arrays)

    def _with_dtype(self: _Self, dtype: str) -> _Self:
        """Return the codec bound to a dtype; raise `ParameterError` for an unsupported dtype."""
        supported = tuple(DTYPE_CODES) if self.accepts_all_dtypes else FLOATS
        if dtype not in supported:
            raise ParameterError.of("dtype", dtype, f"one of {', '.join(supported)} for {self}")
        return self

    @classmethod
    @functools.lru_cache(maxsize=256)  # most frames share a few codecs and dtypes
    def _of_header(
        cls, parameters: bytes, scalars: bytes, dtype: str
    ) -> tuple[Any, dict[str, object]]:
        """Return the codec of a message, bound to a dtype, and the scalars; see `from_header`."""
        try:
            codec = cls.from_header(parameters)
            values = codec.read_scalars(memoryview(scalars))
            codec = codec.of_message(values)._with_dtype(dtype)
        except ParameterError as error:
            raise Corrupt(f"the parameters do not fit together: {error}") from None
        if unresolved := codec.unresolved():
            raise Corrupt(f"{unresolved[0]}: the frame does not state its value")
        return codec, values

    def _bound_to(self: _Self, tensor: Tensor) -> _Self:
        """Return the codec bound to the dtype and shape of a tensor; check the device."""
        self._check_device(tensor.values)
        return self._with_dtype(tensor.dtype)._with_shape(tensor.shape)

    @property
    def _values_dtype(self) -> np.dtype[Any]:
        """Dtype of the arrays that `_quantize` reads and `_dequantize` writes."""
        return np.dtype(np.float32)

    def _bound_shape(self, n: int) -> tuple[int, ...]:
        """Return the bound shape, or the shape of a vector of n elements."""
        return (n,) if self._shape is None else self._shape

    # --- Methods for codecs of variable length

    @property
    def seek_blocks(self) -> Blocks | None:
        """Unit of the seek table's blocks; None for a codec without seek tables."""
        return None

    def seek_count(self, n: int) -> int:
        """Return the number of these units in n elements, or an upper bound."""
        return n

    def products(self, n: int) -> int:
        """Return the number of multiplications of factors that decode n elements; see `Limits`."""
        return 0

    def _string(self, payload: Payload, n: int) -> Any:
        """Open the string that ends a payload, or return None if its codes have a fixed width.

        See `gcodec.entropy.coder.CodedString`.
        """
        return None

    def _index(self, payload: Payload, n: int, log2_block: int) -> SeekTable:
        """Decode a payload from bit 0 to build its seek table; raise `FormatError`."""
        return self._string(payload, n).blocks(log2_block)

    def _decode_sparse(self, payload: Payload, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Decode a sparse payload; memory must not depend on n.

        Returns
        -------
        positions : (k,) int64 array
            In ascending order.
        values : (k,) float32 array
        """
        raise ParameterError(f"frame: {self} sends all elements; use decode")

    @property
    def _is_sparse(self) -> bool:
        """Whether a payload contains positions of the sent elements; see `_decode_sparse`."""
        return False

    def _elements(
        self, symbols: Symbols, n: int, beside: Array | None = None
    ) -> tuple[Array, Array] | None:
        """Return the elements that symbols send, or None if they send all n.

        Returns
        -------
        positions : (k,) int64 array
            In ascending order. Arrays that the method makes may lie on the device of `beside`.
        values : (k,) float32 array
        """
        return None

    def _read_elements(
        self, payload: Payload, n: int, beside: Array
    ) -> tuple[Array, Array] | None:
        """Read the elements of a payload that sends few of n, with all checks; see `_elements`.

        The result is None if `_dequantize_add` adds the symbols of the payload as fast.
        """
        is_short = self._is_sparse and payload.nbits < n >> 3
        return self._decode_sparse(payload, n) if is_short and device_of(beside) is None else None

    def _bare_nbits(self, n: int, data: np.ndarray, scalars: Scalars) -> int | None:
        """Return the number of bits of bare bytes; None if these do not determine it.

        The end of a string is found by decoding it.
        """
        string = self._string(Payload(self, scalars, data, 8 * data.size), n)
        if string is None:
            nbits = self.max_payload_nbits(n)
            return nbits if -(-nbits // 8) == data.size else 8 * data.size
        return string.read(lambda at, symbols: None, bits_follow=True)

    # --- Compositions, which a codec may fuse with the same bits

    def _encode(
        self, values: Array, seed: int, prior: Symbols | None
    ) -> Payload | Selection[Payload]:
        return self._pack_checked(self._quantize(values, seed, prior))

    def _pack_checked(self, symbols: Symbols) -> Payload | Selection[Payload]:
        """Do what `_pack` does, with errors that name the method of an unfinished codec."""
        title = type(self).__name__
        if not self.has_cuda_kernels:  # symbols on a device may be unknown to the host
            self._check_type(f"{title}._quantize()", symbols)
        payload: object = self._pack(symbols)
        if isinstance(payload, Selection):
            return payload
        if not isinstance(payload, Payload):
            raise TypeError(f"{title}._pack() returns {type(payload)}: must return a Payload")
        data: object = payload.data
        if type(data) not in (np.ndarray, HeaderlessBytes) and device_of(payload.data) is None:
            raise TypeError(f"{title}._pack() returns data of {type(data)}: must be a uint8 array")
        return payload

    def _sends(self, values: Array) -> bool:
        """Return whether the payload consists of these float32 values on the host, unchanged.

        The values are then checked while the frame is written, not in a pass of its own.
        """
        return False

    def _try(self, values: np.ndarray, seed: int) -> tuple[np.ndarray, Symbols]:
        """Return the decoded values of a tensor on the host, and symbols for `_sized`."""
        symbols = self._quantize(values, seed, None)
        decoded = empty_beside(values.size, self._values_dtype, None)
        self._dequantize(symbols, decoded)
        return decoded, symbols

    def _sized(self, symbols: Symbols) -> Payload | Selection[Payload]:
        """Return the payload of symbols on the host, possibly with zeros in place of its bytes.

        Its codec, scalars and size are those of `_pack`, which needs fewer kernels if it knows the
        size without writing.
        """
        return self._bound(_is_sizing=True)._pack(symbols)

    def _decode(self, payload: Payload, n: int, out: Array | None = None) -> np.ndarray:
        """Return the values, or write them to `out`; an error may leave `out` half written."""
        symbols = self._unpack(payload, n)  # validate before allocating
        values = result_beside(n, self._values_dtype, payload.data) if out is None else out
        self._dequantize(symbols, values)
        return values

    def _slice_unit(self, n: int) -> int:
        """Return the number of elements at whose multiples `_slice` can split n; 0: nowhere."""
        return 0

    def _slice(self, symbols: Symbols, start: int, stop: int) -> Symbols:
        """Return the symbols that `_dequantize` turns into elements `start` to `stop - 1`.

        Both are multiples of `_slice_unit`, except that `stop` may be the number of all elements.
        """
        raise NotImplementedError

    def _sliceable(self, symbols: Symbols) -> Symbols:
        """Return symbols with what `_slice` would otherwise compute for each slice."""
        return symbols

    def _dequantized(
        self, symbols: Symbols, start: int, stop: int, length: int
    ) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the values of `_sliceable` symbols part by part, in a buffer that stays cached."""
        buffer = np.empty(min(length, stop - start), np.float32)
        for begin in range(start, stop, length):
            end = min(begin + length, stop)
            part = buffer[: end - begin]
            self._dequantize(self._slice(symbols, begin, end), part)
            yield slice(begin, end), part

    def _part_length(self, n: int) -> int:
        """Return the number of elements of a part that stays in a cache, or 0 without `_slice`."""
        unit = self._slice_unit(n)
        return max(_PART // unit, 1) * unit if unit else 0

    def _adder(
        self, symbols: Symbols, dtype: str, scale: np.float32
    ) -> Callable[[int, int, np.ndarray, bool], None]:
        """Return a function that adds elements `start` to `stop - 1` to an array on the host.

        It gets `start`, `stop`, the array, and whether the array is fresh; see `_slice`, which
        must be implemented, `_dequantize_add` and `_dequantize_scaled`.
        """
        symbols = self._sliceable(symbols)

        def add(start: int, stop: int, out: np.ndarray, is_fresh: bool) -> None:
            put = self._dequantize_scaled if is_fresh else self._dequantize_add
            put(self._slice(symbols, start, stop), dtype, scale, out)

        return add

    def _level_string(self, symbols: Symbols, dtype: str) -> LevelString | None:
        """Return symbols on the host as a string of codes of ±level and 0; None if they are not.

        `_slice_unit` must not be 0. Strings of the same code are added by one kernel.
        """
        return None

    def _decode_as(
        self, dtype: str, payload: Payload, n: int, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the values in the frame's dtype, or write them to `out`.

        The payload is on the host, except for codecs that keep every bit. 16-bit floats on a
        device are bit patterns.

        Codecs that define `_slice` dequantize and convert part by part. Other codecs decode to a
        float32 array, whose memory is released during the conversion.
        """
        if dtype == "float32" or dtype in UNCONVERTED:
            return self._decode(payload, n, out)
        length = self._part_length(n)
        if length:
            symbols = self._sliceable(self._unpack(payload, n))
            kind = NUMPY_DTYPES[dtype]
            converted = result_beside(n, kind, payload.data) if out is None else out

            def convert_slices(start: int, stop: int) -> None:
                for places, part in self._dequantized(symbols, start, stop, length):
                    convert.put(part, dtype, converted[places])

            pool.run(convert_slices, n, length)
            return converted
        values = self._decode(payload, n)
        is_own = not np.may_share_memory(values, payload.data)
        drained: object = Drainable(values) if is_own else values
        converted = result_beside(n, NUMPY_DTYPES[dtype], payload.data) if out is None else out

        def convert_values(start: int, stop: int) -> None:
            for begin in range(start, stop, _PART):
                end = min(begin + _PART, stop)
                convert.put(values[begin:end], dtype, converted[begin:end])
                release(drained, begin, end)

        pool.run(convert_values, n, _PART)
        return converted

    def _decode_range(self, payload: Payload, n: int, start: int, stop: int) -> np.ndarray:
        """Return the values `start` to `stop - 1` of n, 0 <= start <= stop <= n.

        This method unpacks all symbols, and dequantizes all values unless `_slice` is defined. An
        override returns the same bits, takes time and memory for the range and the data that
        precedes it, and verifies all bytes that it reads.
        """
        unit = self._slice_unit(n)
        if not unit or start == stop or device_of(payload.data) is not None:
            return self._decode(payload, n)[start:stop].copy()
        symbols = self._unpack(payload, n)
        first, last = start - start % unit, min(-(-stop // unit) * unit, n)
        values = np.empty(last - first, self._values_dtype)
        self._dequantize(self._slice(symbols, first, last), values)
        return values[start - first : stop - first]

    def _quantize_residual(
        self, tensor: Tensor, update: ResidualUpdate, seed: int, prior: Symbols | None
    ) -> Symbols:
        """Quantize u = x + decay·residual, and write u − x̂ to `update.new_residual`.

        That is another array than the residual, which is then only read; or, on the host, the same
        array, which an error leaves unchanged.
        """
        if not update.is_in_place:
            return self._replace_residual(tensor, update, seed, prior)
        update = update.saving()
        try:
            return self._replace_residual(tensor, update, seed, prior)
        except BaseException:
            update.restore()
            raise

    def _replace_residual(
        self, tensor: Tensor, update: ResidualUpdate, seed: int, prior: Symbols | None
    ) -> Symbols:
        """Do what `_quantize_residual` does, where an update in place saves the residual."""
        return residuals.quantize_sum(self, tensor, update, seed, prior)

    def _quantize_sum(
        self, x: np.ndarray, update: ResidualUpdate, seed: int
    ) -> tuple[Symbols, int] | None:
        """Quantize u = x + decay·residual on the host, part by part, and write u − x̂.

        Each part stays in the cache from the sum to the new residual, `update.new_residual`. An
        error leaves that array undefined, except for what `update.restore` restores. The result is
        None, and nothing is written, if the codec cannot do so for these values.

        Returns
        -------
        symbols : Symbols
        most : int
            Bit pattern of a bound of the magnitudes of u; NaN is larger than infinity.
        """
        return None

    def _quantize_in_place(
        self, values: np.ndarray, statistics: ValueStatistics, dtype: str, seed: int
    ) -> Symbols | None:
        """Quantize values on the host, and replace them by their quantization errors, values − x̂.

        This takes one pass over the values; the result is None if that is impossible. `dtype` is
        the dtype to which x̂ is rounded first.
        """
        return None

    def _quantize_with_statistics(
        self, values: Array, statistics: ValueStatistics, seed: int, prior: Symbols | None
    ) -> Symbols:
        """Quantize values, given what the pass that adds the residual found."""
        return self._quantize(values, seed, prior)

    def _decoded_bound(self, symbols: Symbols, largest: float) -> float:
        """Return an upper bound of |x̂| before rounding, given that of |x|."""
        return self.decoded_factor * max(largest, 1)

    def _correct(self, x: Array, update: ResidualUpdate) -> ValueStatistics:
        """Write x + decay·residual to `update.new_residual`; if that is the residual, save it."""
        if device_of(x) is not None:
            return ValueStatistics(
                arithmetic.correct(x, update.residual, update.decay, update.new_residual)
            )
        return self._add_residual(x, update)

    def _add_residual(self, x: np.ndarray, update: ResidualUpdate) -> ValueStatistics:
        """Do what `_correct` does on the host.

        A codec whose quantizer needs other numbers of the sum overrides this method with a pass
        that finds them, too; see `ValueStatistics`.
        """
        return arithmetic.add_residual(x, update)

    def _dequantize_add(self, symbols: Symbols, dtype: str, scale: np.float32, out: Array) -> None:
        """Add ``scale`` times the decoded values, rounded to `dtype`, to `out`."""
        if dtype in self.fused_dtypes:
            self._dequantize_into(symbols, dtype, out, scale)
            return
        length = self._part_length(out.size) if device_of(out) is None else 0
        if not length:
            decoded = result_beside(out.size, np.float32, out)
            self._dequantize(symbols, decoded)
            convert.add_rounded(decoded, dtype, scale, out)
            return
        symbols = self._sliceable(symbols)

        def task(start: int, stop: int) -> None:
            for places, part in self._dequantized(symbols, start, stop, length):
                convert.add_rounded(part, dtype, scale, out[places])

        pool.run(task, out.size, length)

    def _dequantize_scaled(
        self, symbols: Symbols, dtype: str, scale: np.float32, out: Array
    ) -> None:
        """Do what `_dequantize_add` does for an array of zeros, whatever `out` contains."""
        clear(out)
        self._dequantize_add(symbols, dtype, scale, out)

    def _read_adder(
        self, payload: Payload, n: int, dtype: str
    ) -> Callable[[np.float32, Array], None]:
        """Read a payload, with all checks, and return the function that adds it to an array.

        The function gets a scale and an (n,) array; see `_dequantize_add`.
        """
        return functools.partial(self._dequantize_add, self._unpack(payload, n), dtype)

    def _dequantize_into(
        self, symbols: Symbols, dtype: str, out: Array, add: np.float32 | None
    ) -> None:
        """Write the values, rounded to one of `fused_dtypes`, to `out`, or add a multiple."""
        raise self._undefined("_dequantize")

    # --- Checks

    def _check_type(self, name: str, symbols: Symbols) -> None:
        """Raise `ParameterError` unless an object has the types of the codec's symbols."""
        if not isinstance(symbols, self.symbols_type):
            allowed = f"{self.symbols_type.__name__}, as {self.name} makes them"
            raise ParameterError.of(name, type(symbols).__name__, allowed)
        for field, dtypes in self.symbols_dtypes.items():
            vector = getattr(symbols, field)
            if not is_plain_array(vector, dtypes):
                kind = f"C-contiguous vector of {' or '.join(dtypes)}"
                raise ParameterError(f"{name}.{field}: must be a {kind}, as {self.name} makes it")

    def _check_prior(self, prior: Symbols | None) -> None:
        """Raise `ParameterError` for a prior of another codec."""
        if prior is not None:
            self._check_type("prior", prior)

    def _require(self, fits: bool, n: int, shape: tuple[int, ...] | None = None) -> None:
        """Raise `ParameterError` unless symbols fit n elements, and their shape has n elements."""
        if not fits or (shape is not None and math.prod(shape) != n):
            raise ParameterError(f"symbols: they do not match {n} elements")

    def _checked(self, payload: Payload, n: int) -> Payload:
        """Check that a payload is complete, and belongs to this kind of codec and n elements."""
        if not isinstance(payload, Payload):
            raise TypeError(f"payload is of type {type(payload).__name__}: must be a Payload")
        codec = payload.codec
        if type(codec) is not type(self):
            raise ParameterError.of("payload.codec", str(codec), f"a {self.name} codec")
        if unresolved := codec.unresolved():
            raise ParameterError(f"payload.codec: {unresolved[0]} is not resolved")
        for field in codec.message_fields():
            if field.name not in payload.scalars:
                raise ParameterError(f"payload.scalars: {field.name} is missing")
            field.kind.check(field.name, payload.scalars[field.name])
        self._check_device(payload.data)
        data = flattened(host(payload.data) if codec.symbols_on_host else payload.data)
        if data.dtype != np.uint8:
            raise ParameterError.of("payload.data", str(data.dtype), "uint8")
        _check_nbits("payload.nbits", payload.nbits)
        if data.size != -(-payload.nbits // 8):
            error = Truncated if 8 * data.size < payload.nbits else Corrupt
            raise error(f"the payload has {data.size} bytes for {payload.nbits} bits")
        if payload.seek is not None:
            payload.seek.check(codec.seek_blocks, codec.seek_count(n), payload.nbits)
        return payload._replace(data=data)

    def _bare_payload(
        self, data: BytesLike, n: int, nbits: int | None, scalars: Scalars
    ) -> Payload:
        """Make a payload of bare bytes and the caller's scalars."""
        kinds = {field.name: field.kind for field in self.message_fields()}
        for name in scalars:
            if name not in kinds:
                allowed = ", ".join(kinds) or "none"
                raise ParameterError(f"{name}: scalars of a {self.name} message are: {allowed}")
        scalars = {name: kinds[name].check(name, value) for name, value in scalars.items()}
        codec = self.of_message(scalars)
        defaults = {d.name: getattr(codec, d.attribute) for d in codec.declared() if d.in_message}
        values = defaults | scalars
        missing = [name for name in kinds if name not in values]
        for name in (*codec.unresolved(), *missing):
            text = f"{name}: must be given, as {name}=…, since the bytes do not state {name}"
            if isinstance(data, bytes) and data.startswith(MAGIC):
                text += "; they begin as a frame does, which gcodec.decode decodes"
            raise ParameterError(text)
        flat: Any = data
        if device_of(flat) is None:
            flat = np.frombuffer(sources.byte_view(data, "payload"), np.uint8)
        if nbits is None:
            nbits = codec._bare_nbits(n, flat, values)
            if nbits is None:
                raise ParameterError(
                    f"nbits: must be given, as nbits=…, since bytes of {codec} do not state nbits"
                )
        return Payload(codec, values, flat, _check_nbits("nbits", nbits))


def _flat_residual(residual: TensorLike, values: Array, device: Device | None) -> Array:
    """Return a residual of values as an (n,) array of the same memory, or raise an error.

    Raises
    ------
    ParameterError
        If its size, layout or device is another one, or if it shares memory with the values.
    TypeError
        If it is no float32 array.
    """
    source = inspect(residual, "residual")
    shape = source.description()[1]
    array = source.target("float32", shape)
    if array.size != values.size:
        raise ParameterError.of("residual.shape", shape, f"of {values.size} elements")
    if not sources.is_flat(array):
        raise ParameterError("residual is strided: must be C-contiguous")
    if device_of(array) is not device:
        raise ParameterError("residual and x are on different devices")
    if (device.overlap if device else np.may_share_memory)(array, values):
        raise ParameterError("residual shares memory with x: must be an array of its own")
    return array.reshape(-1)


def _check_nbits(name: str, nbits: object) -> int:
    """Return a number of bits as an int, or raise `ParameterError`."""
    return check_integer(name, nbits, 0, (1 << 64) - 1, "a non-negative integer")


CodecLike: TypeAlias = str | Mapping[str, object] | Codec
"""A codec, or the spec of one; see `gcodec.parse`."""
