"""topk: the elements of largest magnitude, and where they are.

Of n elements k = min(n, max(1, round(ratio·n))) are sent, the product in binary64 and halves to
even, or min(n, k) where k is given; of equal magnitudes those of the lowest index. With a
threshold t > 0 it is all of |x| ≥ t, and the message says k. NaN and Inf are refused. What is not
sent decodes to +0.

The payload is one bit string, most significant bit first: the values in the order of their
positions (`gcodec.entropy.values`), and the positions (`gcodec.entropy.positions`), which end
with the payload. Bits per element: about k/n·(log2(n/k) + 1.44 + those of a value), less where the
positions cluster.

Example: x = (0.5, −3, 0, 2, 0.25), k = 2, value=float32, index=bitmap is
``c0 40 00 00 40 00 00 00 50``, of which 69 bits count.

Sources: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017;
Stich et al., "Sparsified SGD with memory", NeurIPS 2018.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gcodec.arrays.nonfinite import nonfinite_error
from gcodec.codec import Codec, register
from gcodec.entropy import positions as position_coding
from gcodec.entropy import values as value_coding
from gcodec.entropy.coder import BitSpan
from gcodec.entropy.positions import IndexString
from gcodec.entropy.values import SparseValues
from gcodec.errors import Corrupt, ParameterError, Truncated
from gcodec.inspect.positions import positions
from gcodec.inspect.values import values
from gcodec.inspect.walker import FieldSpan, FieldWalker
from gcodec.kernels.numeric import convert, scatter, select
from gcodec.payload import Payload
from gcodec.wire.kinds import Choice, Float32
from gcodec.wire.params import param
from gcodec.wire.seek import Blocks, SeekTable


class TopKSymbols(NamedTuple):
    """What is sent.

    Attributes
    ----------
    n : int
        Elements of the tensor.
    positions : (k,) int64 array
        Rising.
    values : SparseValues
    """

    n: int
    positions: np.ndarray
    values: SparseValues


@register(id=9, name="topk")
class TopK(Codec):
    """The k elements of largest magnitude.

    Parameters
    ----------
    value : {"float32", "float16", "bfloat16", "int8", "sign"}
        What each is sent as: a float; a byte with a step for each 256; a sign, with the mean
        magnitude of all.
    index : {"auto", "rice", "eliasfano", "bitmap", "rans", "huffman"}
        What positions are coded in; ``"auto"``: whichever is shortest.
    k : int or "ratio"
        How many are sent. A spec must ask for at least 1; a message may state 0.
    ratio : float
        Share of the elements that is sent, above 0, up to 1; one is at least.
    threshold : float
        The least magnitude that is sent, in place of k and the ratio; 0: none.
    """

    refuses_nonfinite = True
    has_cuda_kernels = True
    reads_segments = True
    symbols_on_host = True

    value: str = param(Choice(*value_coding.VALUES), "float32", "what a value is sent as")
    index: str = param(
        Choice(*position_coding.CODES, unsent=("auto",)), "auto", "what positions are coded in"
    )
    k: int | str = param(position_coding.COUNT, "ratio", "elements that are sent; ratio: by that")
    ratio: float = param(position_coding.SHARE, position_coding.RATIO, "share that is sent")
    threshold: float = param(
        Float32("a number, not negative", lambda t: 0 <= t < math.inf),
        0.0,
        "least magnitude that is sent, in place of k; 0: none",
    )

    def check(self) -> None:
        """Refuse more than one way to tell how many."""
        if self.k != "ratio" and self.threshold:
            raise ParameterError.of("threshold", self.threshold, "0 where k is given")
        if self.ratio != position_coding.RATIO and (self.k != "ratio" or self.threshold):
            raise ParameterError.of("ratio", self.ratio, "left out where k or threshold is given")

    def contraction(self, n: int) -> float | None:
        """Return k/n for float32 without a threshold; None else."""
        if self.threshold or self.value != "float32":
            return None
        return self._most(n) / n if n else 1.0

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of the values and of the longest string of positions."""
        k = self._most(n)
        return value_coding.nbits(k, self.value) + position_coding.longest_nbits(n, k, self.index)

    @property
    def seek_blocks(self) -> Blocks | None:
        """Sent values, or states of rANS."""
        return position_coding.seek_blocks(self.index)

    def _most(self, n: int) -> int:
        """Return how many of n elements are sent, or are at most."""
        if self.threshold:
            return n
        return position_coding.sent(n, self.k, self.ratio)

    def _quantize(self, values: np.ndarray, seed: int, prior: TopKSymbols | None) -> TopKSymbols:
        if self.threshold:
            found = select.take_at_least(values, np.float32(self.threshold))
        else:
            found = select.take_largest(values, self._most(values.size))
        if found is None:
            raise nonfinite_error(values)
        positions, elements = found
        return TopKSymbols(values.size, positions, value_coding.quantize(elements, self.value))

    def _dequantize(self, symbols: TopKSymbols, out: np.ndarray) -> None:
        scatter.put(out, symbols.positions, self._values(symbols, out.size))

    def _dequantize_add(
        self, symbols: TopKSymbols, dtype: str, scale: np.float32, out: np.ndarray
    ) -> None:
        values = convert.round_to(self._values(symbols, out.size), dtype)
        scatter.add(out, symbols.positions, values, scale)

    def _values(self, symbols: TopKSymbols, n: int) -> np.ndarray:
        self._require(symbols.n == n, n)
        return value_coding.dequantize(symbols.values, self.value, symbols.positions.size)

    def _pack(self, symbols: TopKSymbols) -> Payload:
        n, positions, values = symbols
        front = value_coding.packed(values, self.value, positions.size)
        index, written = position_coding.write(positions, n, self.index, front)
        codec = self.replaced(index=index)
        if self.threshold:  # a reader needs no more than what came of it
            codec = codec.replaced(k=positions.size, threshold=0.0)
        return Payload(codec, {}, *written)

    def _unpack(self, payload: Payload, n: int) -> TopKSymbols:
        string = self._string(payload, n)
        values = value_coding.read(payload.data, string.k, self.value)
        return TopKSymbols(n, string.read(), values)

    def _string(self, payload: Payload, n: int) -> IndexString:
        """Return the positions of a payload that has all the values."""
        if self.threshold:
            raise Corrupt("a message says how many are sent, and no threshold")
        k = self._most(n)
        first = value_coding.nbits(k, self.value)
        if payload.nbits < first:
            raise Truncated(f"the payload has {payload.nbits} bits, {k} values {first}")
        return IndexString(BitSpan.of(payload, first), self.index, k, n)

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        if self.threshold:
            raise Corrupt("a message says how many are sent, and no threshold")
        k = self._most(n)
        yield from values(walk, k, self.value)
        span = BitSpan(payload.data, walk.at, walk.end)
        yield from positions(walk, IndexString(span, self.index, k, n))

    def _decode_sparse(self, payload: Payload, n: int) -> tuple[np.ndarray, np.ndarray]:
        symbols = self._unpack(payload, n)
        return symbols.positions, self._values(symbols, n)

    def _index(self, payload: Payload, n: int, log2_block: int) -> SeekTable:
        return self._string(payload, n).blocks(log2_block)

    def _bare_nbits(self, n: int, data: np.ndarray, scalars: dict[str, Any]) -> int:
        raise ParameterError("nbits: the bytes of topk do not tell it; give it as nbits=…")
