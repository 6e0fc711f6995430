"""What the class of a codec writes, or may fuse: four methods on flat arrays, and its laws."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

import numpy as np

from gcodec.arrays import NUMPY_DTYPES, Tensor, check_sum, empty_like_shape
from gcodec.errors import ParameterError
from gcodec.fields.walk import Piece, Walk
from gcodec.kernels import arithmetic, convert, pool
from gcodec.kernels.device import device_of, no_twin
from gcodec.kernels.memory import Drainable, empty_beside, release
from gcodec.kernels.reduce import INFINITY_BITS, max_abs_bits_corrected, newly_infinite
from gcodec.params import Parameters
from gcodec.payload import Payload, Undecided
from gcodec.scalars import wanted, when_known
from gcodec.seek import Blocks, SeekTable
from gcodec.wire import FLOATS

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

    def _pack(self, symbols: Symbols) -> Payload | Undecided:
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

    def _describe(self, payload: Payload, n: int, walk: Walk) -> Iterator[Piece]:
        """Tell what the bits of a payload are, in order; raise `FormatError` where they are wrong.

        What is not told is shown as undecoded. See `gcodec.fields`.
        """
        return iter(())

    # What a class may fuse, with the same bits.

    def _encode(self, values: np.ndarray, seed: int, prior: Symbols | None) -> Payload | Undecided:
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
