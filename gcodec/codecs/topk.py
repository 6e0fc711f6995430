"""topk: the elements of largest magnitude, and their positions.

The codec sends k = min(n, max(1, round(ratio·n))) of n elements; the product is binary64, and
halves are rounded to even. If k is specified, it sends min(n, k). Among equal magnitudes, the
elements of the lowest index are sent. With a threshold t > 0, all elements with |x| ≥ t are sent,
and the message states k. NaN and Inf are refused. Elements that are not sent decode to +0.

The payload is one bit string, most significant bit first. It contains the values in the order of
their positions (`gcodec.entropy.values`), and then the positions (`gcodec.entropy.positions`),
which end with the payload. Bits per element: about k/n·(log2(n/k) + 1.44 + b) if a value takes b
bits, and less where the positions cluster.

Example: x = (0.5, −3, 0, 2, 0.25), k = 2, value=float32, index=bitmap is
``c0 40 00 00 40 00 00 00 50``, 69 bits of which are valid.

Sources: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017;
Stich et al., "Sparsified SGD with memory", NeurIPS 2018.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gcodec.arrays.nonfinite import nonfinite_error
from gcodec.codec import register
from gcodec.codec.sparse import SparseCodec
from gcodec.entropy import positions as position_coding
from gcodec.entropy import values as value_coding
from gcodec.entropy.coder import BitSpan
from gcodec.entropy.positions import IndexString
from gcodec.entropy.values import SparseValues
from gcodec.errors import Corrupt, ParameterError, Truncated
from gcodec.fields.positions import positions
from gcodec.fields.values import values
from gcodec.fields.walker import FieldSpan, FieldWalker
from gcodec.kernels.numeric import select
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.kernels.numeric.reduce import max_abs_bits
from gcodec.payload import Payload
from gcodec.runtime.device import device_of
from gcodec.runtime.memory import Drainable
from gcodec.wire.kinds import Choice, Float32
from gcodec.wire.params import Scalars, param
from gcodec.wire.seek import Blocks


class TopKSymbols(NamedTuple):
    """The sent elements of a tensor.

    Attributes
    ----------
    n : int
        Number of elements of the tensor.
    positions : (k,) int64 array
        Positions of the sent elements, in ascending order.
    values : SparseValues
        Values of the sent elements.
    """

    n: int
    positions: np.ndarray
    values: SparseValues


def exact_payload(n: int, positions: np.ndarray, values: np.ndarray) -> Payload:
    """Return the payload of float32 values at ascending int64 positions among n elements."""
    symbols = TopKSymbols(n, positions, value_coding.quantize(values, "float32"))
    return TopK().replaced(k=positions.size).pack(symbols)


@register(id=9, name="topk")
class TopK(SparseCodec):
    """The k elements of largest magnitude.

    Parameters
    ----------
    value : {"float32", "float16", "bfloat16", "int8", "sign"}
        Format of a sent value: a float; a byte, with a step for each 256 values; or a sign, with
        the mean magnitude of all sent values.
    index : {"auto", "rice", "eliasfano", "bitmap", "rans", "huffman"}
        Code for the positions. ``"auto"`` is the shortest.
    k : int or "ratio"
        Number of sent elements. A spec must ask for at least 1; a message may state 0.
    ratio : float
        Share of the elements that is sent, above 0 and up to 1; at least one element is sent.
    threshold : float
        Least magnitude that is sent, which replaces k and the ratio. 0.0 stands for none; a spec
        leaves it out.
    """

    symbols_type = TopKSymbols
    symbols_dtypes: ClassVar = {"positions": ("int64",)}
    refuses_nonfinite = True
    has_cuda_kernels = True
    reads_segments = True
    symbols_on_host = True
    peers: ClassVar = {"byteps-topk": "topk"}

    value: str = param(Choice(*value_coding.VALUES), "float32", "format of a sent value")
    index: str = param(position_coding.INDEX, "auto", "code for positions; auto: the shortest")
    k: int | str = param(position_coding.COUNT, "ratio", "sent elements; ratio: that share of all")
    ratio: float = param(
        position_coding.SHARE, position_coding.RATIO, "share of elements that is sent"
    )
    threshold: float = param(
        Float32("a number above 0, finite", lambda t: 0 < t < math.inf, unset=0.0),
        0.0,
        "least magnitude that is sent, in place of k",
    )

    def check(self) -> None:
        """Raise `ParameterError` if more than one of k, ratio and threshold is given."""
        if self.k != "ratio" and self.threshold:
            raise ParameterError.of("threshold", self.threshold, "left out where k is given")
        if self.ratio != position_coding.RATIO and (self.k != "ratio" or self.threshold):
            raise ParameterError.of("ratio", self.ratio, "left out where k or threshold is given")

    def contraction(self, n: int) -> float | None:
        """Return k/n for float32 without a threshold, and None otherwise."""
        if self.threshold or self.value != "float32":
            return None
        return self._most(n) / n if n else 1.0

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of the values and of the longest string of positions."""
        k = self._most(n)
        return value_coding.nbits(k, self.value) + position_coding.longest_nbits(n, k, self.index)

    @property
    def seek_blocks(self) -> Blocks | None:
        """The unit of blocks: sent values, or states of rANS; see `positions.seek_blocks`."""
        return position_coding.seek_blocks(self.index)

    def _most(self, n: int) -> int:
        """Return the number of n elements that are sent; with a threshold, its upper bound n."""
        if self.threshold:
            return n
        return position_coding.sent(n, self.k, self.ratio)

    def _quantize(self, values: np.ndarray, seed: int, prior: TopKSymbols | None) -> TopKSymbols:
        if self.threshold:
            selected = select.take_at_least(values, np.float32(self.threshold))
        else:
            selected = select.take_largest(values, self._most(values.size))
        return self._symbols(values, selected)

    def _quantize_sum(
        self, x: np.ndarray, update: ResidualUpdate, seed: int
    ) -> tuple[TopKSymbols, int] | None:
        k = self._most(x.size)
        suggested = None if self.threshold else select.guess(x, k, update)
        if suggested is None:
            return None
        selected = select.take_largest_of_sums(x, update, k, suggested)
        symbols = self._symbols(update.new_residual, selected)
        assert selected is not None
        top_bits = max_abs_bits(selected[1])
        self._dequantize_add(symbols, "float32", np.float32(-1), update.new_residual)
        return symbols, top_bits

    def _symbols(self, values: np.ndarray, selected: tuple[Any, np.ndarray] | None) -> TopKSymbols:
        """Quantize selected elements, given by positions and values."""
        if selected is None:
            raise nonfinite_error(values)
        positions, elements = selected
        return TopKSymbols(values.size, positions, value_coding.quantize(elements, self.value))

    def _elements(
        self, symbols: TopKSymbols, n: int, beside: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        self._require(symbols.n == n, n)
        positions = symbols.positions
        return positions, value_coding.dequantize(symbols.values, self.value, positions.size)

    def _check_symbols(self, symbols: TopKSymbols) -> None:
        n, positions, values = symbols
        fits = value_coding.fits(values, self.value, positions.size)
        self._require(fits and position_coding.rise(positions, n), n)

    def _encode(self, values: np.ndarray, seed: int, prior: TopKSymbols | None) -> Payload:
        k = self._most(values.size)
        if self.threshold or 4 * k <= values.size or device_of(values) is not None:
            return self._pack(self._quantize(values, seed, prior), is_own=True)
        return self._pack(self._symbols(values, select.take_many(values, k)), is_own=True)

    def _pack(self, symbols: TopKSymbols, is_own: bool = False) -> Payload:
        """Return the message of symbols, which it may destroy if nobody else uses them."""
        n, positions, values = symbols
        data, nbits = value_coding.packed(values, self.value, positions.size, is_own=is_own)
        front = Drainable(data), nbits
        held = Drainable(positions) if is_own and type(positions) is np.ndarray else positions
        index, written = position_coding.write(held, n, self.index, front)
        codec = self.replaced(index=index)
        if self.threshold:  # the message states k in place of the threshold
            codec = codec.replaced(k=positions.size, threshold=0.0)
        return Payload(codec, {}, *written)

    def _unpack(self, payload: Payload, n: int) -> TopKSymbols:
        string = self._string(payload, n)
        values = value_coding.read(payload.data, string.k, self.value)
        return TopKSymbols(n, string.read(), values)

    def _string(self, payload: Payload, n: int) -> IndexString:
        """Open the string of positions of a payload, which must contain all values."""
        k = self._message_count(n)
        first = value_coding.nbits(k, self.value)
        if payload.nbits < first:
            raise Truncated(f"the payload has {payload.nbits} bits, but {k} values take {first}")
        return IndexString(BitSpan.of(payload, first), self.index, k, n)

    def _message_count(self, n: int) -> int:
        """Return the number of sent elements that a message states."""
        if self.threshold:
            raise Corrupt("the message contains a threshold instead of the number of elements")
        return self._most(n)

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        k = self._message_count(n)
        yield from values(walk, k, self.value)
        yield from positions(walk, self.index, k, n)

    def _bare_nbits(self, n: int, data: np.ndarray, scalars: Scalars) -> None:
        return None
