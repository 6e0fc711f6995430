"""What a codec is: a frozen set of parameters with quantize → Symbols → pack, and back.

All floating point is on the left of `Symbols`, all bytes on the right. A codec's class writes four
methods on flat arrays (`_quantize`, `_dequantize`, `_pack`, `_unpack`), and may fuse others with
the same bits. All that users call is given here once: intake, checks, allocation, compositions.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np

from gcodec.arrays.intake import (
    NUMPY_DTYPES,
    Tensor,
    check_sum,
    empty_like_shape,
    intake,
    is_flat,
    nonfinite_error,
    shares_memory,
    size_of,
    writable,
)
from gcodec.errors import Corrupt, ParameterError, Truncated
from gcodec.inspect.walker import FieldSpan, FieldValue, FieldWalker
from gcodec.kernels.bits.pack import check_length
from gcodec.kernels.numeric import arithmetic, convert
from gcodec.kernels.numeric.philox import check_seed
from gcodec.kernels.numeric.reduce import INFINITY_BITS, max_abs_bits_corrected, newly_infinite
from gcodec.payload import Payload, Selection
from gcodec.runtime import pool
from gcodec.runtime.deferred import once, settled, wanted, when_known
from gcodec.runtime.device import device_of, host, no_twin
from gcodec.runtime.memory import Drainable, empty_beside, release
from gcodec.wire.kinds import Choice, Float32, Integer, binary32, check_number
from gcodec.wire.params import Parameters, param
from gcodec.wire.primitives import FLOATS, encode_name, max_header_nbytes
from gcodec.wire.seek import Blocks, SeekTable, most_nbytes

# All that a codec outside this package needs; see ``docs/add-a-codec.md``.
__all__ = [
    "Choice",
    "Codec",
    "Corrupt",
    "FieldSpan",
    "FieldValue",
    "FieldWalker",
    "Float32",
    "Integer",
    "ParameterError",
    "Payload",
    "Symbols",
    "Truncated",
    "binary32",
    "check_length",
    "nonfinite_error",
    "param",
    "register",
]

Symbols = Any  # each codec declares its own NamedTuple

_PART = 1 << 18  # elements that stay in a cache while they are converted
_SAFE = 2.0**127  # a sum of magnitudes that is far from the end of float32

_H = TypeVar("_H", bound="Hooks")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Hooks(Parameters):
    """What a codec is made of; `gcodec.Codec` adds what users call."""

    id: ClassVar[int]
    name: ClassVar[str]
    # Whether `_quantize` itself refuses NaN and Inf, so that no one else has to read the values
    # for it; and up to which magnitude it takes all tensors, whose x̂ is finite as float32.
    refuses_nonfinite: ClassVar[bool] = False
    takes_up_to: ClassVar[float] = math.inf
    # Whether it takes NaN and Inf, which stay in the residual: who wants to know looks there.
    keeps_nonfinite: ClassVar[bool] = False
    # Whether `_largest` bounds x̂ by symbols that the host has.
    tells_largest: ClassVar[bool] = False
    # Whether `_quantize` looks at its prior: else no one keeps symbols for it.
    uses_prior: ClassVar[bool] = False
    # Whether `_quantize` and `_encode` read values by segments only, so that those on the host may
    # be a `ConvertedArray`: a tensor that is not float32 then needs no float32 copy of its size.
    reads_segments: ClassVar[bool] = False
    # Whether its kernels have twins, for arrays on a CUDA device; and whether payloads are read on
    # the host, as they are small, though the tensor is not.
    has_twins: ClassVar[bool] = False
    symbols_on_host: ClassVar[bool] = False
    # Whether it looks at the shape of a tensor; and the shape, which `_of_shape` sets.
    uses_shape: ClassVar[bool] = False
    _shape: ClassVar[tuple[int, ...] | None] = None
    # Whether it also takes tensors of integers and booleans, unchanged; see `_of_dtype`.
    takes_integers: ClassVar[bool] = False

    # What a class writes. Arrays are flat; `values` and `out` are float32.

    def _quantize(self, values: np.ndarray, seed: int, prior: Symbols | None) -> Symbols:
        raise NotImplementedError

    def _dequantize(self, symbols: Symbols, out: np.ndarray) -> None:
        raise NotImplementedError

    def _pack(self, symbols: Symbols) -> Payload | Selection[Payload]:
        """Turn symbols into a message; its codec has every ``auto`` resolved."""
        raise NotImplementedError

    def _unpack(self, payload: Payload, n: int) -> Symbols:
        """Check everything that bytes from a stranger can get wrong; raise `FormatError`."""
        raise NotImplementedError

    def max_payload_nbits(self, n: int) -> int:
        """Return the most bits of the payload of n elements."""
        raise NotImplementedError

    # What a class of which some parameters have no twins of their kernels says.

    @property
    def on_device(self) -> bool:
        """Whether arrays on a CUDA device are coded there."""
        return self.has_twins

    def _check_device(self, *arrays: Any) -> None:
        """Raise TypeError if one of the arrays is on a device where the codec does not work."""
        if device_of(*arrays) is not None and not self.on_device:
            raise no_twin(str(self))

    # What a class that looks at more of a tensor than its elements is told of it.

    def _of_shape(self: _H, shape: Any) -> _H:
        """Return the codec for tensors of this shape, a tuple or an integer."""
        if not self.uses_shape:
            return self
        bound: _H = object.__new__(type(self))
        bound.__dict__.update(self.__dict__)
        dims = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)
        object.__setattr__(bound, "_shape", dims)
        return bound

    def _of_dtype(self: _H, dtype: str) -> _H:
        """Return the codec for tensors of this dtype; raise `ParameterError` if there is none."""
        if dtype not in FLOATS:
            raise ParameterError.of("dtype", dtype, f"one of {', '.join(FLOATS)} for {self}")
        return self

    @property
    def _values_dtype(self) -> np.dtype[Any]:
        """Dtype of the arrays that `_quantize` reads and `_dequantize` writes."""
        return np.dtype(np.float32)

    def _shape_of(self, n: int) -> tuple[int, ...]:
        """Return the shape of a tensor of n elements; that of a vector where none was told."""
        return (n,) if self._shape is None else self._shape

    # What a class of variable length may add.

    @property
    def seek_blocks(self) -> Blocks | None:
        """What blocks of a seek table count; None: no table."""
        return None

    def seek_count(self, n: int) -> int:
        """Return how many there are of that in n elements, or are at most."""
        return n

    def _index(self, payload: Payload, n: int, log2_block: int) -> SeekTable:
        """Return the table of a payload, found by decoding it from bit 0; raise `FormatError`."""
        raise NotImplementedError

    def _decode_sparse(self, payload: Payload, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return what few elements a message sends; memory must not depend on n.

        Returns
        -------
        positions : (k,) int64 array
            Rising.
        values : (k,) float32 array
        """
        raise ParameterError(f"frame: {self} sends all elements; use decode")

    def _bare_nbits(self, n: int, data: np.ndarray, scalars: dict[str, Any]) -> int:
        """Bits of a payload of n elements, where its bytes alone tell; else `ParameterError`."""
        nbits = self.max_payload_nbits(n)
        return nbits if -(-nbits // 8) == data.size else 8 * data.size

    # What a class should add, for those who look at payloads.

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        """Tell what the bits of a payload are, in order; raise `FormatError` where they are wrong.

        What is not told is shown as undecoded. See `gcodec.inspect`.
        """
        return iter(())

    # What a class may fuse, with the same bits.

    def _encode(
        self, values: np.ndarray, seed: int, prior: Symbols | None
    ) -> Payload | Selection[Payload]:
        return self._pack(self._quantize(values, seed, prior))

    def _decode(self, payload: Payload, n: int, out: np.ndarray | None = None) -> np.ndarray:
        """Return the values of a message, or write them to `out`, some even if it is wrong."""
        symbols = self._unpack(payload, n)  # before there is memory for the values
        values = empty_beside(n, self._values_dtype, payload.data) if out is None else out
        self._dequantize(symbols, values)
        return values

    def _part_unit(self, n: int) -> int:
        """Return a number of elements at whose multiples `_part` divides n; 0: nowhere."""
        return 0

    def _part(self, symbols: Symbols, start: int, stop: int) -> Symbols:
        """Return symbols that `_dequantize` turns into elements `start` to `stop - 1`.

        Both are multiples of `_part_unit`, but for a `stop` that is the number of all elements.
        """
        raise NotImplementedError

    def _decode_as(
        self, dtype: str, payload: Payload, n: int, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the values of a message on the host in a dtype of floats, or write them to `out`.

        Codecs that define `_part` dequantize and convert one part after another. Others decode to
        a float32 array, whose memory is released while it is converted.
        """
        if dtype == "float32":
            return self._decode(payload, n, out)
        unit = self._part_unit(n)
        symbols = self._unpack(payload, n) if unit else None
        values = np.empty(0, np.float32) if unit else self._decode(payload, n)
        is_own = not np.may_share_memory(values, payload.data)
        drained: Any = Drainable(values) if is_own else values
        converted = empty_beside(n, NUMPY_DTYPES[dtype], payload.data) if out is None else out
        length = -(-_PART // max(unit, 1)) * max(unit, 1)

        def task(start: int, stop: int) -> None:
            room = np.empty(min(length, stop - start) if unit else 0, np.float32)
            for at in range(start, stop, length):
                end = min(at + length, stop)
                part = room[: end - at] if unit else values[at:end]
                if unit:
                    self._dequantize(self._part(symbols, at, end), part)
                convert.put(part, dtype, converted[at:end])
                release(drained, at, end)

        pool.run(task, n, length)
        return converted

    def _decode_range(self, payload: Payload, n: int, start: int, stop: int) -> np.ndarray:
        """Return values start to stop - 1 of n, 0 <= start <= stop <= n.

        Here all are decoded. Who overrides this takes time and memory for the range, not for all,
        but for what has to be read before; returns the same bits; and refuses what is wrong in
        what it reads.
        """
        return self._decode(payload, n)[start:stop].copy()

    def _quantize_residual(
        self,
        tensor: Tensor,
        residual: np.ndarray,
        decay: np.float32,
        seed: int,
        prior: Symbols | None,
        out: np.ndarray,
    ) -> Symbols:
        """Quantise u = x + decay·residual, and write u − x̂ to `out`.

        That is another array than `residual`, which is then only read. Or, on the host, the very
        same: then it is as it was where a `ParameterError` is raised.
        """
        minus = np.float32(-1)  # u − x̂ is u + (−1)·x̂, bit for bit
        values, top, is_sure = self._corrected(tensor, residual, decay, out)
        if is_sure:
            symbols = self._quantize(values, seed, prior)
            self._dequantize_add(symbols, tensor.dtype, minus, values)
            return symbols
        if self.tells_largest and tensor.dtype in ("float32", "float64"):
            wanted(top)  # with what the host needs for the symbols
        else:
            top = INFINITY_BITS
        symbols = self._quantize(values, seed, prior)
        self._dequantize_add(symbols, tensor.dtype, minus, values)

        def check(wrong: bool) -> None:
            if wrong:
                raise ParameterError(f"x: must not pass the range of {self} or {tensor.dtype}")

        largest = _number_of(top)
        if not largest < _SAFE or not largest + self._largest(symbols) < _SAFE:
            when_known(newly_infinite(values, tensor.values, residual, decay), check)
        if values is not out:
            out[:] = values
        return symbols

    def _largest(self, symbols: Symbols) -> float:
        """Return a bound of |x̂|, but for its rounding."""
        return math.inf

    def _corrected(
        self, tensor: Tensor, residual: np.ndarray, decay: np.float32, out: np.ndarray
    ) -> tuple[np.ndarray, Any, bool]:
        """Return u, the bits of its largest magnitude, and whether it is sure to be taken.

        u is in `out`, unless that is the residual and something may yet fail. NaN and Inf are
        refused here only where all else is sure to be taken.
        """
        x, most = tensor.values, self.takes_up_to
        is_told = self.refuses_nonfinite and tensor.dtype in ("float32", "float64")
        if most < math.inf:  # a device would have to wait
            is_told = is_told and most > 0 and device_of(x) is None
        top: Any = INFINITY_BITS
        if out is not residual:
            top = arithmetic.correct(x, residual, decay, out)
        elif is_told:
            top = max_abs_bits_corrected(x, residual, decay)
        if is_told and most == math.inf:
            check_sum(top, x)
        is_sure = is_told and (most == math.inf or _number_of(top) <= most)
        if out is not residual:
            return out, top, is_sure
        values = out if is_sure else empty_like_shape(out.size)
        return values, arithmetic.correct(x, residual, decay, values), is_sure

    def _dequantize_add(
        self, symbols: Symbols, dtype: str, scale: np.float32, out: np.ndarray
    ) -> None:
        decoded = empty_like_shape(out.size, out)
        self._dequantize(symbols, decoded)
        arithmetic.add_scaled(convert.round_to(decoded, dtype), scale, out)

    # The laws; None where none holds.

    @property
    def unbiased(self) -> bool:
        """Whether the expectation of the decoded value, over seeds, is the value."""
        return False

    def contraction(self, n: int) -> float | None:
        """δ with ‖x − x̂‖² ≤ (1 − δ)·‖x‖² for every x of n elements, or None."""
        return None

    def variance(self, n: int) -> float | None:
        """ω with E‖x − x̂‖² ≤ ω·‖x‖² for every x of n elements, or None."""
        return None

    def _require(self, fits: bool, n: int, shape: tuple[int, ...] | None = None) -> None:
        """Raise `ParameterError` unless symbols, and their shape, fit what they are decoded to."""
        if not fits or (shape is not None and math.prod(shape) != n):
            raise ParameterError(f"symbols: they are not those of {n} elements")


def _number_of(bits: Any) -> float:
    """Return the float32 of a bit pattern; of one that a device has yet to tell, wait for it."""
    return float(np.uint32(int(bits)).view(np.float32))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Codec(Hooks):
    """Base of all codecs; see `gcodec.register`."""

    def quantize(self, x: Any, *, seed: int = 0, prior: Symbols | None = None) -> Symbols:
        """Turn a gradient into integers and the few scalars that are sent verbatim.

        Parameters
        ----------
        x : array of n elements
            See `gcodec.encode`. No policy for NaN and Inf applies here.
        seed : int
            From 0 to 2**64 - 1.
        prior : Symbols, optional
            What this codec made of the same tensor at the previous step.

        Returns
        -------
        NamedTuple
            The codec's own `Symbols`.

        Raises
        ------
        ParameterError, TypeError
        """
        tensor = intake(x, integers=self.takes_integers, segments=self.reads_segments)
        self._check_device(tensor.values)
        codec = self._of_dtype(tensor.dtype)._of_shape(tensor.shape)
        with once():
            symbols: Symbols = settled(codec._quantize(tensor.values, check_seed(seed), prior))
        return symbols

    def quantize_residual(
        self,
        x: Any,
        residual: np.ndarray,
        *,
        decay: float = 1.0,
        seed: int = 0,
        prior: Symbols | None = None,
    ) -> Symbols:
        """Quantise u = x + decay·residual and set residual to u − x̂.

        x̂ is what decoding returns, rounded to the dtype of `x`.

        Parameters
        ----------
        x : array of n elements
        residual : float32 array of n elements
            C-contiguous; updated in place. Untouched when an error is raised.
        decay : float
        seed : int
            From 0 to 2**64 - 1.
        prior : Symbols, optional
            What this codec made of the same tensor at the previous step.

        Returns
        -------
        NamedTuple
            The codec's own `Symbols`.

        Raises
        ------
        ParameterError, TypeError
        """
        tensor = intake(x)
        decay = check_number("decay", decay, "a number, finite as float32")
        if not math.isfinite(binary32(decay)):
            raise ParameterError.of("decay", decay, "a number, finite as float32")
        self._check_device(tensor.values)
        shape = tuple(residual.shape) if hasattr(residual, "shape") else np.shape(residual)
        kept = writable(residual, "residual", "float32", shape)
        if kept.size != tensor.values.size:
            raise ParameterError.of("residual.shape", shape, f"of {tensor.values.size} elements")
        if not is_flat(kept):
            raise ParameterError("residual is strided: must be C-contiguous")
        if (device := device_of(kept)) is not device_of(tensor.values):
            raise ParameterError("residual and x are on different devices")
        if (device.overlap if device else np.may_share_memory)(kept, tensor.values):
            raise ParameterError("residual shares memory with x: must be an array of its own")
        codec, flat = self._of_shape(tensor.shape), kept.reshape(-1)
        left = empty_like_shape(flat.size, flat) if device else flat  # it may fail in the end
        with once():
            made = codec._quantize_residual(
                tensor, flat, np.float32(decay), check_seed(seed), prior, left
            )
            symbols: Symbols = settled(made)
        if device:
            flat[:] = left
        return symbols

    def dequantize(self, symbols: Symbols, shape: Any) -> np.ndarray:
        """Return the float32 array of `shape` that the symbols stand for.

        Raises
        ------
        ParameterError
            If the symbols are not those of as many elements.
        """
        out = empty_beside(size_of(shape), self._values_dtype, None)
        self._of_shape(shape)._dequantize(symbols, out)
        return out.reshape(shape)

    def pack(self, symbols: Symbols) -> Payload:
        """Turn symbols into the published bytes."""
        with once():
            return self._pack(symbols).settled()

    def unpack(self, payload: Payload, shape: Any) -> Symbols:
        """Turn the published bytes into symbols.

        Raises
        ------
        FormatError
            If the bytes are not those of as many elements.
        """
        payload = self._checked(payload, size_of(shape))
        with once():
            return payload.codec._of_shape(shape)._unpack(payload, size_of(shape))

    def encode(self, x: Any, *, seed: int = 0, prior: Symbols | None = None) -> Payload:
        """Quantise and pack; see `quantize`."""
        tensor = intake(x, integers=self.takes_integers, segments=self.reads_segments)
        self._check_device(tensor.values)
        codec = self._of_dtype(tensor.dtype)._of_shape(tensor.shape)
        with once():
            payload = codec._encode(tensor.values, check_seed(seed), prior).settled()
        if shares_memory(payload.data, tensor.values):  # and outlives the caller's array
            payload = payload._replace(data=payload.data.copy())
        return payload

    def decode(
        self,
        payload: Payload | bytes | bytearray | memoryview | np.ndarray,
        shape: Any,
        *,
        nbits: int | None = None,
        **scalars: Any,
    ) -> np.ndarray:
        """Decode a payload, or bare bytes that another system wrote.

        Parameters
        ----------
        payload : Payload or bytes-like
        shape : tuple of int or int
            Of the gradient, in elements.
        nbits : int, optional
            Bits of a bare payload, where its bytes do not tell.
        **scalars
            The values that the original keeps outside the bytes, such as ``threshold=0.25``.

        Returns
        -------
        float32 array of `shape`
            For a `Payload` of integers or booleans, an array of their dtype.

        Raises
        ------
        ParameterError
            If a scalar is missing, unknown or out of range.
        FormatError
            If the bytes are wrong.
        """
        if not isinstance(payload, Payload):
            payload = self._bare_payload(payload, size_of(shape), nbits, scalars)
        elif nbits is not None or scalars:
            raise ParameterError("nbits and scalars belong to bare bytes; a Payload has its own")
        payload = self._checked(payload, size_of(shape))
        codec = payload.codec._of_shape(shape)
        with once():
            values: np.ndarray = codec._decode(payload, size_of(shape))
        return values.reshape(shape)

    def _checked(self, payload: Payload, n: int) -> Payload:
        """Return a message of n elements that is one of this kind of codec, and whole."""
        if type(payload.codec) is not type(self):
            raise ParameterError.of("payload.codec", str(payload.codec), f"a {self.name} codec")
        if unresolved := payload.codec.unresolved():
            raise ParameterError(f"payload.codec: {unresolved[0]} is not resolved")
        for field in payload.codec.message_fields():
            if field.name not in payload.scalars:
                raise ParameterError(f"payload.scalars: {field.name} is missing")
        self._check_device(payload.data)
        if payload.codec.symbols_on_host:
            payload = payload._replace(data=host(payload.data))
        device = device_of(payload.data)
        data = device.flat(payload.data) if device else np.ascontiguousarray(payload.data)
        if data.dtype != np.uint8:
            raise ParameterError.of("payload.data", str(data.dtype), "of uint8")
        if data.size != -(-payload.nbits // 8):
            kind = Truncated if 8 * data.size < payload.nbits else Corrupt
            raise kind(f"the payload has {data.size} bytes for {payload.nbits} bits")
        if payload.seek is not None:
            count = payload.codec.seek_count(n)
            payload.seek.check(payload.codec.seek_blocks, count, payload.nbits)
        return payload._replace(data=data)

    def max_encoded_nbytes(
        self, n: int, name: str | None = None, *, dtype: str = "float32"
    ) -> int:
        """Return the most bytes that `gcodec.encode` makes of a tensor.

        Parameters
        ----------
        n : int
            Number of elements.
        name : str, optional
            Name of the tensor.
        dtype : str
            Dtype of the tensor. It matters for integers and booleans alone, which only ``raw``
            takes: all floats have the same bound.

        Raises
        ------
        ParameterError
            If the codec takes no tensors of that dtype.
        """
        payload = -(-self._of_dtype(dtype).max_payload_nbits(size_of(n)) // 8)
        title = 0 if name is None else len(encode_name(name))
        header = max_header_nbytes(n, title, self.fields_nbytes())
        has_blocks = type(self).seek_blocks is not Codec.seek_blocks  # whatever "auto" becomes
        return payload + header + (most_nbytes(n, payload) if has_blocks else 0)

    def _bare_payload(
        self, data: Any, n: int, nbits: int | None, scalars: Mapping[str, Any]
    ) -> Payload:
        kinds = {field.name: field.kind for field in self.message_fields()}
        for name in scalars:
            if name not in kinds:
                allowed = ", ".join(kinds) or "none"
                raise ParameterError(f"{name}: scalars of a {self.name} message are: {allowed}")
        given = {name: kinds[name].check(name, value) for name, value in scalars.items()}
        codec = self.of_message(given)
        own = {d.name: getattr(codec, d.attribute) for d in codec.declared() if d.in_message}
        values = own | given
        missing = [name for name in kinds if name not in values]
        for name in (*codec.unresolved(), *missing):
            raise ParameterError(f"{name}: bare bytes do not tell it; give it as {name}=…")
        try:
            flat = np.frombuffer(data, np.uint8) if device_of(data) is None else data
        except (TypeError, ValueError, BufferError) as error:
            raise TypeError(f"payload is a {type(data).__name__}: must be bytes-like") from error
        if nbits is None:
            nbits = codec._bare_nbits(n, flat, values)
        if not isinstance(nbits, (int, np.integer)) or nbits < 0:
            raise ParameterError.of("nbits", nbits, "a non-negative integer")
        return Payload(codec, values, flat, int(nbits))


_C = TypeVar("_C", bound="type[Codec]")

_registry: dict[str, type[Codec]] = {}  # in the order of their ids


def register(*, id: int, name: str) -> Callable[[_C], _C]:
    """Make a class a codec: a frozen dataclass, known by `name` in specs and `id` in frames.

    Parameters
    ----------
    id : int
        On the wire, never reused; 192 to 255 are for codecs of one's own.
    name : str
        In lower case.

    Raises
    ------
    ParameterError
        If the id or the name is taken.
    """

    def decorate(cls: _C) -> _C:
        global _registry
        if not isinstance(id, int) or not 1 <= id <= 255:
            raise ParameterError.of("id", id, "from 1 to 255")
        for other in _registry.values():
            same = (other.__module__, other.__qualname__) == (cls.__module__, cls.__qualname__)
            if (other.id == id or other.name == name) and not same:
                raise ParameterError.of("id or name", (id, name), f"free; {other.name} has it")
        cls.id, cls.name = id, name
        every = _registry | {name: dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)}
        _registry = dict(sorted(every.items(), key=lambda item: item[1].id))
        with_id.cache_clear()
        return cls

    return decorate


def registered() -> dict[str, type[Codec]]:
    """Return the codecs known so far, by name, in the order of their ids."""
    return dict(_registry)


@functools.cache
def with_id(id: int) -> type[Codec] | None:
    """Return the codec that frames call `id`, if it is known so far."""
    return next((cls for cls in _registry.values() if cls.id == id), None)
