"""mxnet-2bit: the 2-bit gradient compression of Apache MXNet, byte for byte.

For each element v = x (+ residual), the code is 11 and x̂ = t if v ≥ t; 10 and x̂ = −t if v ≤ −t;
otherwise 00 and x̂ = 0. The first element is in the most significant bits of the first byte; zero
bits fill the last 4-byte word. MXNet's message contains neither n nor t. Bits per element: 2.

``form=sparse``, for tensors with few sent elements, is gcodec's own; MXNet's guide leaves it to
the future. It is one bit string, MSB first: a bit for each sent element, 1 for −t; then the
positions of these elements, in an index code (`gcodec.entropy.positions`). The number of sent
elements is a scalar. ``form=context`` is gcodec's own, too: the string that
`gcodec.entropy.context.coder` writes, with the symbols 0 for 0, 2 for t and 3 for −t.

NaN has the code 00 and stays in the residual; ±Inf is sent as ±t at every step and stays in the
residual; −0 is 0. MXNet does the same, and no step here casts a NaN.

Example: t = 0.5, x = (0.5, −0.5, 0.49, −0.7, 1.2) is ``e2 c0 00 00``; in the sparse form, with a
bitmap of positions, it is ``6d 80``, 9 bits of which are valid.

Source: apache/mxnet, src/kvstore/gradient_compression-inl.h, release 1.9.1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gcodec.arrays.source import Tensor
from gcodec.codec import Codec, register
from gcodec.entropy import positions as position_coding
from gcodec.entropy.coder import BitSpan, Written
from gcodec.entropy.context import symbol_coder
from gcodec.entropy.positions import IndexString
from gcodec.errors import Corrupt, ParameterError, Truncated
from gcodec.fields.contexts import context_string
from gcodec.fields.packed import lookup, packed, signs
from gcodec.fields.positions import positions as positions_in
from gcodec.fields.walker import FieldSpan, FieldWalker, describe_each
from gcodec.kernels.bits import sent_codes
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.computed_symbols import Read, read_by, symbols_in
from gcodec.kernels.bits.dequantize import LEVELS_2BIT, LevelString, dequantize
from gcodec.kernels.bits.pack import check_length, pack_fields, packer, unpack_fields, unpacker
from gcodec.kernels.bits.sent_codes import turned
from gcodec.kernels.numeric import convert, scatter
from gcodec.kernels.numeric.arithmetic import ResidualUpdate, corrected
from gcodec.kernels.numeric.reduce import sum_squares
from gcodec.kernels.numeric.scalar_rules import bounded_rms
from gcodec.kernels.quantize.threshold import TWO_BIT, check_codes_2bit, quantize
from gcodec.payload import Payload, Selection
from gcodec.runtime import Array
from gcodec.runtime.deferred import Deferred, as_float32, when_known
from gcodec.runtime.device import beside, device_of
from gcodec.runtime.lanes import BLOCK
from gcodec.runtime.memory import Drainable, empty_beside
from gcodec.wire.kinds import Choice, Float32, Integer
from gcodec.wire.params import Field, Scalars, param
from gcodec.wire.primitives import FLOATS
from gcodec.wire.seek import Blocks

_SMALLEST, _LARGEST = 2.0**-126, 3.4028235e38  # normal float32
_SMALLEST_TEXT = 1e-6  # the smallest number above zero with six decimals
# Multiple of the tensor's root mean square for threshold=auto. On gradients of real training it
# has the least error under feedback, and an error within 5 % of the least without.
_AUTO_RMS = 1.25
_NBITS = attrgetter("nbits")
_COUNT = Field("count", Integer(0, position_coding.MOST), "number of sent elements")
# Sent elements up to which an array of positions takes less time than computing them when read.
_FEW = 1 << 22


class TwoBitSymbols(NamedTuple):
    """The packed codes and the threshold of a tensor.

    Attributes
    ----------
    codes : (4·ceil(n / 16),) uint8 array
        Two bits per element.
    threshold : float
    n : int
        Number of elements.
    shape : tuple of int, optional
        Shape of the tensor; None for a vector.
    """

    codes: np.ndarray
    threshold: float
    n: int
    shape: tuple[int, ...] | None = None


@register(id=3, name="mxnet-2bit")
class MXNet2Bit(Codec):
    """MXNet's 2-bit quantizer: a threshold or zero.

    Parameters
    ----------
    threshold : float or "auto"
        Threshold above zero, normal as float32 or inf. ``"auto"`` is 1.25 times the root mean
        square of each tensor: a fixed threshold sends nothing if gradients are means over the
        minibatch.
    server : {"no", "yes"}
        Whether the decoder uses the threshold itself, or the number that an MXNet server reads
        from a text with six decimals.
    form : {"dense", "sparse", "context", "auto"}
        ``"dense"`` is MXNet's own message. ``"sparse"`` stores signs and positions of the elements
        that reach the threshold. ``"context"`` codes each element by the scales of its row and
        column. ``"auto"`` is the shortest of these.
    index : {"rice", "eliasfano", "bitmap", "rans", "huffman", "auto"}
        Code for the positions of the sparse form. ``"auto"`` is the shortest.
    """

    symbols_type = TwoBitSymbols
    symbols_dtypes: ClassVar = {"codes": ("uint8",)}
    keeps_nonfinite = True
    has_cuda_kernels = True
    fused_dtypes = FLOATS
    reads_segments = True
    uses_shape = True
    peers: ClassVar = {"mxnet-2bit": "mxnet-2bit"}

    threshold: float | str = param(
        Float32(
            "a number above zero, normal as float32 or inf",
            lambda t: _SMALLEST <= t <= _LARGEST or t == math.inf,
            words=("auto",),
        ),
        0.5,
        "least magnitude that is sent, and its value; auto: 1.25 times the tensor's rms",
        in_message=True,
    )
    server: str = param(
        Choice("no", "yes"), "no", "decode with the six-decimal threshold of an MXNet server"
    )
    form: str = param(
        Choice("dense", "sparse", "context", unsent=("auto",)),
        "dense",
        "dense: MXNet's codes; sparse: signs and positions of sent elements; context: codes by "
        "the scales of rows and columns; auto: the shortest",
    )
    index: str = param(
        Choice(*position_coding.CODES, unsent=("auto",)),
        "rice",
        "code for the positions of the sparse form",
    )

    def scalar_fields(self) -> tuple[Field, ...]:
        """Return the field of the number of sent elements, for the sparse form."""
        return () if self.form in ("dense", "context") else (_COUNT,)

    def check(self) -> None:
        """Raise `ParameterError` if a server would read the threshold as zero."""
        if isinstance(self.threshold, float) and self._level == 0:
            raise ParameterError.of("threshold", self.threshold, "above 5e-7 with server=yes")

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of n codes in whole words, or of n signs and positions if more."""
        dense = 8 * TWO_BIT.nbytes(n)
        if self.form == "context":
            return symbol_coder.longest_nbits(n)
        if self.form != "sparse":
            return dense
        return max(dense, n + position_coding.longest_nbits(n, n, self.index))

    @property
    def seek_blocks(self) -> Blocks | None:
        """The unit of blocks: sent elements or states of rANS; None for the dense form."""
        if self.form == "context":
            return "states"
        return None if self.form == "dense" else position_coding.seek_blocks(self.index)

    @property
    def symbols_on_host(self) -> bool:  # type: ignore[override]
        """Whether symbols are packed on the host: for the sparse form, which has few symbols."""
        return self.form == "sparse"

    @property
    def _level(self) -> np.float32:
        """The value to which the code 11 is decoded."""
        assert isinstance(self.threshold, float)
        if self.server == "yes" and math.isfinite(self.threshold):
            return np.float32(f"{np.float32(self.threshold):f}")
        return np.float32(self.threshold)

    def _level_in(self, dtype: str) -> np.float32:
        """Round the level to the dtype of the tensor."""
        return convert.round_number(float(self._level), dtype)

    def _threshold_of(self, values: np.ndarray) -> Any:
        """Return the threshold of this tensor, a number or a `Deferred`."""
        if isinstance(self.threshold, float):
            return self.threshold
        squares = sum_squares(values)
        when_known(squares, _check_finite)
        smallest = _SMALLEST_TEXT if self.server == "yes" else _SMALLEST
        return bounded_rms(squares, values.size, _AUTO_RMS, smallest, _LARGEST)

    def _quantize(
        self, values: np.ndarray, seed: int, prior: TwoBitSymbols | None
    ) -> TwoBitSymbols:
        threshold = self._threshold_of(values)
        codes = quantize(values, TWO_BIT, as_float32(threshold), check=self._check_of(values))
        return self._symbols(codes, threshold, values.size)

    def _quantize_residual(
        self, tensor: Tensor, update: ResidualUpdate, seed: int, prior: TwoBitSymbols | None
    ) -> TwoBitSymbols:
        values = tensor.values
        if self.threshold == "auto":
            values = corrected(values, update.residual, update.decay)
        threshold = level = self._threshold_of(values)
        rounded = self.server == "yes" or tensor.dtype not in ("float32", "float64")
        if rounded or type(level) is not Deferred:  # a deferred threshold is the level
            codec = self.replaced(threshold=float(threshold))
            level = codec._level_in(tensor.dtype)
            if not np.isfinite(level) and math.isfinite(codec._level):
                # Only the unfused method detects that a sent value exceeds the dtype's range.
                return super()._quantize_residual(tensor, update, seed, prior)
        levels = as_float32(threshold), as_float32(level)
        codes = quantize(tensor.values, TWO_BIT, *levels, update, self._check_of(tensor.values))
        return self._symbols(codes, threshold, values.size)

    def _symbols(self, codes: np.ndarray, threshold: Any, n: int) -> TwoBitSymbols:
        return TwoBitSymbols(codes, threshold, n, self._bound_shape(n))

    def _dequantize_into(
        self, symbols: TwoBitSymbols, dtype: str, out: np.ndarray, add: np.float32 | None
    ) -> None:
        self._check_size(symbols, out.size)
        _, code, level = self._level_string(symbols, dtype)
        dequantize(beside(symbols.codes, out), code, level, out, add)

    def _level_string(self, symbols: TwoBitSymbols, dtype: str) -> LevelString:
        level = self._with_threshold(symbols)._level_in(dtype)
        return LevelString(symbols.codes, LEVELS_2BIT, level)

    def _slice_unit(self, n: int) -> int:
        return BLOCK

    def _slice(self, symbols: TwoBitSymbols, start: int, stop: int) -> TwoBitSymbols:
        codes = symbols.codes[TWO_BIT.nbytes(start) : TWO_BIT.nbytes(stop)]
        return TwoBitSymbols(codes, symbols.threshold, stop - start)

    def _check_size(self, symbols: TwoBitSymbols, n: int) -> None:
        fits = symbols.n == n and symbols.codes.size == TWO_BIT.nbytes(n)
        self._require(fits, n, symbols.shape)

    def _check_symbols(self, symbols: TwoBitSymbols) -> None:
        self._check_size(symbols, symbols.n)
        if device_of(symbols.codes) is not None:
            return  # a device made its codes itself
        try:
            check_codes_2bit(symbols.codes, symbols.n)
        except Corrupt as error:
            raise ParameterError(f"symbols: {error}") from error

    def _pack(self, symbols: TwoBitSymbols) -> Payload | Selection[Payload]:
        codes, n, shape = symbols.codes, symbols.n, symbols.shape or (symbols.n,)
        codec = self.replaced(form="dense", index="rice")
        if isinstance(symbols.threshold, float):  # a deferred threshold is set with the payload
            codec = codec._with_threshold(symbols)
        dense = Payload(codec, {"threshold": symbols.threshold}, codes, 8 * codes.size)
        if self.form == "sparse":
            return _sparse_payload(dense, sent_codes.sent(codes), n, self.index)
        if self.form == "context":
            string = symbol_coder.write(_symbols_of(codes, n), shape, BitString())
            return _context_payload(dense, string)
        if self.form == "auto":
            return _shortest(codes, dense, n, shape, self.index)
        return dense

    def _bare_nbits(self, n: int, data: np.ndarray, scalars: Scalars) -> int | None:
        return None if self.form == "sparse" else super()._bare_nbits(n, data, scalars)

    def _decode(self, payload: Payload, n: int, out: np.ndarray | None = None) -> np.ndarray:
        if self.form != "sparse" or out is None or device_of(out) is None:
            return super()._decode(payload, n, out)
        scatter.put(out, *self._decode_sparse(payload, n))
        return out

    def _unpack(self, payload: Payload, n: int) -> TwoBitSymbols:
        codes = payload.data
        if self.form == "sparse":
            codes = sent_codes.codes_of(*self._sent(payload, n), n)
        elif self.form == "context":
            codes = self._read_context(payload, n)
        else:
            check_length(payload.nbits, 8 * TWO_BIT.nbytes(n))
            check_codes_2bit(codes, n)
        return self._symbols(codes, float(self.threshold), n)

    def _read_context(self, payload: Payload, n: int) -> np.ndarray:
        """Return the packed codes of a context string."""
        string = self._string(payload, n)  # checked before memory is allocated
        codes = empty_beside(TWO_BIT.nbytes(n), np.uint8, payload.data)
        codes[:] = 0

        def take(start: int, part: np.ndarray) -> None:
            if device_of(part) is not None:  # a device decodes all symbols at once
                codes[:] = pack_fields(turned(part), TWO_BIT)
                return
            stop = -(-(start + part.size) // 4)
            packer(2, True)(turned(part), codes[start // 4 : stop])

        string.read(take)
        return codes

    def _sent(self, payload: Payload, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of a sparse form, and the bytes of at least as many sign bits."""
        string = self._string(payload, n)
        return string.read(), payload.data[: -(-string.k // 8)]

    def _string(self, payload: Payload, n: int) -> Any:
        if self.form == "dense":
            return None
        if self.form == "context":
            return symbol_coder.open(BitSpan.of(payload), n, 3)
        k = payload.scalars["count"]
        if payload.nbits < k:
            raise Truncated(f"the payload has {payload.nbits} bits for {k} sent elements")
        return IndexString(BitSpan.of(payload, k), self.index, k, n)

    @property
    def _is_sparse(self) -> bool:
        return self.form == "sparse"

    def _decode_sparse(self, payload: Payload, n: int) -> tuple[np.ndarray, np.ndarray]:
        if not self._is_sparse:
            return super()._decode_sparse(payload, n)
        positions, signs = self._sent(payload, n)
        minus = np.unpackbits(signs, count=positions.size).view(np.bool_)
        return positions, np.where(minus, -self._level, self._level)

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        level = float(self._level)
        if self.form == "dense":
            yield from packed(walk, TWO_BIT, n, "level", "code", lookup("0 -+", level))
        elif self.form == "context":
            codes = describe_each(lookup("0 +-", level))
            yield from context_string(walk, "code", n, codes)
            walk.finish()
        else:
            k = payload.scalars["count"]
            yield from signs(walk, k, level)
            yield from positions_in(walk, self.index, k, n)

    def _with_threshold(self, symbols: TwoBitSymbols) -> MXNet2Bit:
        is_same = symbols.threshold == self.threshold
        return self if is_same else self.replaced(threshold=float(symbols.threshold))


def _check_finite(squares: float) -> None:
    if not math.isfinite(squares):
        raise ParameterError("x: threshold=auto needs finite values, but x contains NaN or Inf")


def _sparse_payload(
    dense: Payload,
    sent: tuple[np.ndarray, np.ndarray],
    n: int,
    index: str,
    plans: list[position_coding.Plan] | None = None,
) -> Payload:
    """Return the sparse form of a dense payload, given what `sent_codes.sent` returns."""
    positions, signs = sent
    # Those of codes on the host are in memory that nobody else uses.
    held = Drainable(positions) if device_of(dense.data) is None else positions
    index, written = position_coding.write(held, n, index, (signs, positions.size), plans)
    codec = dense.codec.replaced(form="sparse", index=index)
    return Payload(codec, {**dense.scalars, "count": positions.size}, *written)


def _context_payload(dense: Payload, string: Written) -> Payload:
    """Return the context form of a dense payload, given its string."""
    return Payload(dense.codec.replaced(form="context"), dense.scalars, *string)


def _symbols_of(codes: Array, n: int) -> Any:
    """Return the symbols of a context string: as they are read, or an array on a device."""
    if device_of(codes) is not None:
        return sent_codes.turned(unpack_fields(codes, n, TWO_BIT))
    return symbols_in(codes, 4, _symbol_reader(), n)


@functools.cache
def _symbol_reader() -> Read:
    codes = np.empty(4 * 256, np.uint8)
    unpacker(TWO_BIT.width, True)(np.arange(256, dtype=np.uint8), codes)
    return read_by(turned(codes).reshape(256, 4))


def _shortest(
    codes: Array, dense: Payload, n: int, shape: tuple[int, ...], index: str
) -> Payload | Selection[Payload]:
    """Return the payload of the shortest form; among equals, dense precedes sparse.

    A context string must be shorter than both. A device writes it in any case, since the host
    writes the sparse form, and can compare the three only when the device is done.
    """
    if device_of(codes) is None:
        return _shortest_on_host(codes, dense, n, shape, index)
    if not n:
        return dense
    from gcodec.kernels.bits.sent_codes_cuda import listed

    symbols = _symbols_of(codes, n)
    planned = symbol_coder.plan(symbols, shape)
    context = _context_payload(dense, symbol_coder.write_planned(planned, symbols, BitString(), n))
    estimate: Any = planned.nbits
    sent = listed(codes)

    def select(payload: Callable[[int], Payload]) -> Payload:
        sparse = _sparse_payload(payload(0), sent(), n, index)
        exact = min(payload(0), sparse, key=_NBITS)
        if exact.nbits <= symbol_coder.SHORTEST or int(estimate) >= exact.nbits:
            return exact
        return min(exact, payload(1), key=_NBITS)

    return Selection([dense, context], select, (estimate,))


def _shortest_on_host(
    codes: np.ndarray, dense: Payload, n: int, shape: tuple[int, ...], index: str
) -> Payload:
    """Return the payload of the shortest form; see `_shortest`.

    The sparse form is written only if it is the shortest. Only rANS is written before its size is
    known.
    """
    computed = sent_codes.SentPositions(codes)
    k = computed.size
    sent = sent_codes.sent(codes) if k <= _FEW else None
    plans = position_coding.plans_of(computed if sent is None else sent[0], n, index)

    def sparse() -> Payload:
        return _sparse_payload(dense, sent or sent_codes.sent(codes), n, index, plans)

    best, nbits = dense, k + plans[0].nbits if plans else 0
    if plans and plans[0].code == "rans":
        best, sent = min(dense, sparse(), key=_NBITS), None  # frees memory for the next string
        nbits = best.nbits
    least = min(nbits, dense.nbits)
    string = symbol_coder.write_shorter(_symbols_of(codes, n), shape, BitString(), least)
    if not isinstance(string, int):
        return _context_payload(dense, string)
    return sparse() if nbits < best.nbits else best
