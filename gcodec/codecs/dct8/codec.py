"""dct8: the k largest coefficients of the DCT of each chunk, as levels of 8 bits.

A tensor is cut into chunks, each is put through an orthonormal DCT-II of one, two or three
dimensions, and of each chunk the k coefficients of largest magnitude are sent; of equal ones those
of the lowest index. What the others held is in the residual of `gcodec.Feedback`.

- ``layout=flat``: the flattened tensor, with zeros behind it; a chunk is a run of it.
- ``layout=tiles``: tiles of the matrix (first dimension × all others), whose last row and column
  fill up the tiles at its ends; no tile is larger than the matrix. Vectors, and all tensors where
  ``chunk`` is one size, are cut into runs of as many elements as a tile has, up to 4096; the last
  element fills up.

The payload is one bit string, most significant bit first: scales of all chunks; then, of those
whose scales are not 0, signs, magnitudes or levels, and positions. See
`gcodec.codecs.dct8.levels` for what a level is, `gcodec.kernels.prefix.dct_words` for how
magnitudes are written, and `gcodec.kernels.transform.dct_inverse` for the arithmetic of decoding:
one fixed order, equal everywhere. The encoder's transform is BLAS or SciPy's, whose last bits
differ between machines: another machine may write other bytes, and reads these to the same values.

Sources: Panthalia (``affine8`` with ``layout=flat``); Peng et al., "DeMo: Decoupled momentum
optimization", arXiv 2411.19870 (tiles, k of them).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gcodec.arrays.nonfinite import nonfinite_error
from gcodec.codec import Codec, register
from gcodec.codecs.dct8 import chunks, describe, levels, transform
from gcodec.codecs.dct8 import payload as payload_coding
from gcodec.codecs.dct8.chunks import Chunks
from gcodec.codecs.dct8.levels import Levels
from gcodec.errors import Corrupt, ParameterError
from gcodec.inspect.walker import FieldSpan, FieldWalker
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.kernels.transform.basis import MOST_POINTS
from gcodec.payload import Payload
from gcodec.runtime.memory import empty_beside
from gcodec.wire.kinds import Choice, Integer, Sizes
from gcodec.wire.params import param

__all__ = ["DCT8", "DCT8Symbols"]

_MOST = 2**16  # elements of a chunk


class DCT8Symbols(NamedTuple):
    """Coefficients that are sent.

    Attributes
    ----------
    n : int
        Elements of the tensor.
    size : int
        Elements of a chunk.
    scales : (count, 1) or (count, 2) float32 array
        Of each chunk; see `gcodec.codecs.dct8.levels.Levels`.
    codes : (live, k) uint8 array
        Of the chunks whose scales are not 0.
    places : (live, k) int32 array
        In their chunk, rising.
    """

    n: int
    size: int
    scales: np.ndarray
    codes: np.ndarray
    places: np.ndarray


@register(id=11, name="dct8")
class DCT8(Codec):
    """The largest coefficients of the DCT of chunks.

    Parameters
    ----------
    chunk : tuple of one to three int
        Its sizes, each up to 4096, of at most 65536 elements; ``64x64`` in specs.
    k : int
        Coefficients that are sent of each chunk; all, where it has fewer.
    layout : {"flat", "tiles"}
        What a chunk is: a run of the flattened tensor, or a tile of it as a matrix.
    values : {"sign7", "affine8"}
        What a coefficient is sent as: a sign and 7 bits of the largest magnitude; or 8 bits of
        the range, as Panthalia does.
    index : {"auto", "fixed", "rice"}
        How positions are written: in a fixed width, or their gaps in Rice words; ``auto``:
        whichever is shorter.
    """

    refuses_nonfinite = True
    takes_up_to = 0.0  # coefficients may pass float32
    uses_shape = True
    has_cuda_kernels = True
    symbols_on_host = True
    bounds_decoded = True

    chunk: tuple[int, ...] = param(
        Sizes(3, MOST_POINTS, _MOST), (64, 64), "sizes of a chunk, such as 64x64"
    )
    k: int = param(Integer(1, _MOST), 32, "coefficients that are sent of each chunk")
    layout: str = param(
        Choice("flat", "tiles"), "flat", "chunks of the flattened tensor, or tiles of a matrix"
    )
    values: str = param(
        Choice(*levels.VALUES), "sign7", "sign and 7 bits of the largest, or 8 bits of the range"
    )
    index: str = param(
        Choice(*payload_coding.INDEX, unsent=("auto",)),
        "auto",
        "fixed width, or Rice words of gaps",
    )

    def check(self) -> None:
        """Refuse tiles of three sizes."""
        if self.layout == "tiles" and len(self.chunk) == 3:
            raise ParameterError.of("chunk", self.chunk, "one or two sizes with layout=tiles")

    def _chunks(self, n: int) -> Chunks:
        if self.layout == "flat":
            return chunks.flat(n, self.chunk)
        matrix = self._shape is not None and len(self._shape) > 1
        columns = math.prod(self._shape[1:]) if matrix and self._shape else None
        return chunks.tiles(n, columns, self.chunk, MOST_POINTS)

    def contraction(self, n: int) -> float | None:
        """Return what the k largest of a chunk surely hold, less what levels and sums lose.

        None for tiles, whose fill counts with them, and where that is too little.
        """
        size = math.prod(self.chunk)
        k = min(self.k, size)
        # A level is off by at most 1/250 of the largest magnitude, whose square is part of what
        # the k hold; the transforms by less than 2^-17 of the norm.
        delta = k / size * (1 - k / 250**2) - 2.0**-15
        return delta if self.layout == "flat" and delta > 0 else None

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of all chunks, in any matrix of n elements if no shape is known."""
        if self.layout == "tiles" and self._shape is None and n:
            # Tiles cover less than four times the matrix, and are runs of it where it is a line.
            count = 4 * -(-n // min(*self.chunk, n))
            size = min(math.prod(self.chunk), 4 * n)
        else:
            count, size = self._chunks(n).count, self._chunks(n).size
        return payload_coding.longest_nbits(
            count, size, min(self.k, size), self.values, self.index
        )

    def _quantize(self, values: np.ndarray, seed: int, prior: DCT8Symbols | None) -> DCT8Symbols:
        cut = self._chunks(values.size)
        found = transform.select(values, cut, min(self.k, cut.size))
        if found is None:
            if not all_finite(values):
                raise nonfinite_error(values)
            raise ParameterError("x: must not pass float32 when it is transformed")
        places, coefficients = found
        scales, codes = levels.quantize(coefficients, self.values)
        live = levels.live(scales)
        symbols = DCT8Symbols(values.size, cut.size, scales, codes, places[live])
        if not self._decodes_finite(symbols):
            raise ParameterError("x: must not pass float32 when it is decoded")
        return symbols

    def _decodes_finite(self, symbols: DCT8Symbols) -> bool:
        k = symbols.codes.shape[1]
        if levels.surely_finite(symbols.scales, k, self.values):
            return True
        decoded = empty_beside(symbols.n, np.float32, None)
        self._dequantize(symbols, decoded)
        return all_finite(decoded)

    def _dequantize(self, symbols: DCT8Symbols, out: np.ndarray) -> None:
        cut = self._chunks(out.size)
        n, size, scales, codes, places = symbols
        live = levels.live(scales)
        shape = np.count_nonzero(live), min(self.k, size)
        fits = (n, size, len(scales)) == (out.size, cut.size, cut.count)
        self._require(fits and codes.shape == places.shape == shape, out.size)
        starts = np.zeros(cut.count + 1, np.int64)
        np.cumsum(shape[1] * live, out=starts[1:])
        found = levels.dequantize(Levels(scales, codes), self.values)
        transform.restore(starts, places.reshape(-1), found.reshape(-1), cut, out)

    def _decoded_bound(self, symbols: DCT8Symbols) -> float:
        return levels.most(symbols.scales, min(self.k, symbols.size), self.values)

    def _pack(self, symbols: DCT8Symbols) -> Payload:
        _, size, scales, codes, places = symbols
        found = Levels(scales, codes)
        index, written = payload_coding.write(found, places, size, self.values, self.index)
        return Payload(self.replaced(index=index), {}, *written)

    def _unpack(self, payload: Payload, n: int) -> DCT8Symbols:
        cut = self._chunks(n)
        k = min(self.k, cut.size)
        reader = payload_coding.Reader(payload.data, payload.nbits)
        scales = reader.scales(cut.count, self.values)
        live = int(levels.live(scales).sum())
        codes = reader.codes(live, k, self.values)
        places = reader.places(live, k, cut.size, self.index)
        symbols = DCT8Symbols(n, cut.size, scales, codes, places)
        if not self._decodes_finite(symbols):
            raise Corrupt("a value passes float32")
        return symbols

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        cut = self._chunks(n)
        sizes = cut.count, cut.size, min(self.k, cut.size)
        return describe.pieces(walk, *sizes, self.values, self.index)

    def _bare_nbits(self, n: int, data: np.ndarray, scalars: dict[str, Any]) -> int:
        raise ParameterError("nbits: the bytes of dct8 do not tell it; give it as nbits=…")
