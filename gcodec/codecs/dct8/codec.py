"""dct8: the k largest coefficients of the DCT of each chunk, as levels of 8 bits or as float32.

The encoder cuts a tensor into chunks and applies an orthonormal DCT-II of one, two or three
dimensions to each chunk. Of each chunk it sends the k coefficients of largest magnitude; among
equal magnitudes, those of the lowest index. The residual of `gcodec.Feedback` contains the others.

- ``layout=flat``: a chunk is a run of the flattened tensor, which zeros extend to whole chunks.
- ``layout=tiles``: a chunk is a tile of the matrix (first dimension × all others). The last row
  and column are repeated to fill the tiles at its ends, and no tile is larger than the matrix.
  Vectors, and all tensors if ``chunk`` is one size, are cut into runs of as many elements as a
  tile has, up to 4096; the last element is repeated.

The payload is one bit string, most significant bit first. It contains the scales of all chunks;
then, for the chunks with a nonzero scale, signs, magnitudes or levels, and positions in the chunk.
`gcodec.codecs.dct8.levels` defines the levels, `gcodec.kernels.prefix.dct_words` the codewords of
magnitudes, and `gcodec.kernels.transform.dct_inverse` the arithmetic of decoding, in one fixed
order with the same result everywhere. Where no side of a chunk exceeds 256, the encoder's
transform, `gcodec.kernels.transform.dct_forward`, has a fixed order, too. For longer sides it is
SciPy's, whose last bits differ between machines; on a device it has another order. The bytes may
then differ, but every machine decodes them to the same values.

Sources: Panthalia (``affine8`` with ``layout=flat``); Peng et al., "DeMo: Decoupled momentum
optimization", arXiv 2411.19870 (k coefficients of each tile).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import numpy as np

from gcodec.arrays.nonfinite import nonfinite_error
from gcodec.arrays.source import is_plain_array
from gcodec.codec import Codec, register
from gcodec.codecs.dct8 import chunks, describe, levels, transform
from gcodec.codecs.dct8 import payload as payload_coding
from gcodec.codecs.dct8.chunks import Chunks
from gcodec.codecs.dct8.levels import Levels
from gcodec.errors import Corrupt, ParameterError
from gcodec.fields.walker import FieldSpan, FieldWalker
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.kernels.numeric.scan import starts_of
from gcodec.kernels.transform.basis import MOST_POINTS
from gcodec.payload import Payload
from gcodec.runtime.memory import empty_beside
from gcodec.wire.kinds import Choice, Integer, Sizes
from gcodec.wire.params import Scalars, param

__all__ = ["DCT8", "DCT8Symbols"]

_MOST = 2**16  # elements of a chunk
_SAFE = 2.0**125  # a sum that is safely below the end of binary32


class DCT8Symbols(NamedTuple):
    """The sent coefficients of a tensor.

    Attributes
    ----------
    n : int
        Number of elements of the tensor.
    size : int
        Number of elements of a chunk.
    scales : (count, 1) or (count, 2) float32 array
        Scales of each chunk; see `gcodec.codecs.dct8.levels.Levels`.
    codes : (coded, k) uint8 or uint32 array
        Levels of the chunks with a nonzero scale; see `gcodec.codecs.dct8.levels.Levels`.
    positions : (coded, k) int32 array
        Positions of these levels in their chunk, in ascending order.
    """

    n: int
    size: int
    scales: np.ndarray
    codes: np.ndarray
    positions: np.ndarray

    @property
    def levels(self) -> Levels:
        """Scales and codes."""
        return Levels(self.scales, self.codes)


@register(id=11, name="dct8")
class DCT8(Codec):
    """The largest coefficients of the DCT of chunks.

    Parameters
    ----------
    chunk : tuple of one to three int
        Sizes of a chunk, each up to 4096, with a product of at most 65536; ``64x64`` in specs.
    k : int
        Number of coefficients that are sent for each chunk; all if a chunk has fewer.
    layout : {"flat", "tiles"}
        Whether a chunk is a run of the flattened tensor, or a tile of the tensor as a matrix.
    values : {"sign7", "affine8", "float32"}
        Format of a coefficient: a sign and 7 bits relative to the largest magnitude; 8 bits within
        the range of the coefficients, like Panthalia; or float32, like DeMo.
    index : {"auto", "fixed", "rice"}
        Code for the positions: fixed width, or Rice codewords of their gaps. ``"auto"`` is the
        shorter code.
    """

    symbols_type = DCT8Symbols
    refuses_nonfinite = True
    takes_up_to = 2.0**100  # sums of the at most 2^16 elements of a chunk stay below 2^120
    uses_shape = True
    has_cuda_kernels = True
    reads_segments = True
    symbols_on_host = True
    bounds_decoded = True
    fused_dtypes = ("float32", "float64")
    peers: ClassVar = {
        "demo": "dct8:layout=tiles",
        "distro": "dct8:k=8,layout=tiles",
        "panthalia": "dct8:values=affine8",
    }

    chunk: tuple[int, ...] = param(
        Sizes(3, MOST_POINTS, _MOST), (64, 64), "sizes of a chunk, such as 64x64"
    )
    k: int = param(Integer(1, _MOST), 32, "sent coefficients of each chunk")
    layout: str = param(
        Choice("flat", "tiles"), "flat", "chunks of the flattened tensor, or tiles of a matrix"
    )
    values: str = param(
        Choice(*levels.VALUES),
        "sign7",
        "sign and 7 bits of the largest magnitude, 8 bits of the range, or float32",
    )
    index: str = param(
        Choice(*payload_coding.INDEX, unsent=("auto",)),
        "auto",
        "code for positions: fixed width, or Rice codes of gaps",
    )

    def check(self) -> None:
        """Raise `ParameterError` for tiles of three sizes."""
        if self.layout == "tiles" and len(self.chunk) == 3:
            raise ParameterError.of("chunk", self.chunk, "one or two sizes with layout=tiles")

    def _chunks(self, n: int) -> Chunks:
        if self.layout == "flat":
            return chunks.flat(n, self.chunk)
        shape = self._bound_shape(n)
        columns = math.prod(shape[1:]) if len(shape) > 1 else None
        return chunks.tiles(n, columns, self.chunk, MOST_POINTS)

    def contraction(self, n: int) -> float | None:
        """Return the least share of the k largest coefficients, less the error of their levels.

        None for tiles, whose repeated elements also count, and if the result is not above 0. The
        share holds where the largest coefficient of each chunk is at least 2^-126: scales of
        smaller ones have few bits.
        """
        size = math.prod(self.chunk)
        k = min(self.k, size)
        # The error of a level is at most 1/250 of the largest magnitude, which is among the k
        # coefficients. The error of the transforms is below 2^-17 of the norm.
        error = 0 if self.values == "float32" else k / 250**2
        delta = k / size * (1 - error) - 2.0**-15
        return delta if self.layout == "flat" and delta > 0 else None

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of all chunks; without a shape, for any matrix of n elements."""
        if self.layout == "tiles" and self._shape is None and n:
            # Tiles cover less than four times the matrix; those of a vector are runs.
            count = 4 * -(-n // min(*self.chunk, n))
            size = min(math.prod(self.chunk), 4 * n)
        else:
            count, size = self._chunks(n).count, self._chunks(n).size
        return payload_coding.longest_nbits(
            count, size, min(self.k, size), self.values, self.index
        )

    def _quantize(self, values: np.ndarray, seed: int, prior: DCT8Symbols | None) -> DCT8Symbols:
        cut = self._chunks(values.size)
        selected = transform.select(values, cut, min(self.k, cut.size))
        if selected is None:
            if not all_finite(values):
                raise nonfinite_error(values)
            raise ParameterError("x: must not exceed float32 when it is transformed")
        symbols = self._symbols(cut, *selected)
        del selected  # frees memory
        if not self._decodes_finite(symbols):
            raise ParameterError("x: must not exceed float32 when it is decoded")
        return symbols

    def _symbols(
        self, cut: Chunks, positions: np.ndarray, coefficients: np.ndarray
    ) -> DCT8Symbols:
        scales, codes = levels.quantize(coefficients, self.values)
        if len(codes) < cut.count:
            positions = positions[levels.coded_chunks(scales)]
        return DCT8Symbols(cut.n, cut.size, scales, codes, positions)

    def _quantize_sum(
        self, x: np.ndarray, update: ResidualUpdate, seed: int
    ) -> tuple[DCT8Symbols, int] | None:
        cut = self._chunks(x.size)
        selected = transform.select_of_sums(x, cut, min(self.k, cut.size), update)
        if selected is not None:
            symbols = self._symbols(cut, *selected)
            # The transform is orthonormal: no sum exceeds 2^8 times the largest coefficient.
            most = 2.0**9 * self._decoded_bound(symbols, math.inf)
            if most <= self.takes_up_to:
                self._dequantize_add(symbols, "float32", np.float32(-1), update.new_residual)
                return symbols, int(np.float32(most).view(np.uint32))
        update.restore()
        return None

    def _decodes_finite(self, symbols: DCT8Symbols) -> bool:
        if self._decoded_bound(symbols, math.inf) < _SAFE:
            return True
        decoded = empty_beside(symbols.n, np.float32, None)
        self._dequantize(symbols, decoded)
        return all_finite(decoded)

    def _dequantize_into(
        self, symbols: DCT8Symbols, dtype: str, out: np.ndarray, add: np.float32 | None
    ) -> None:
        cut = self._chunks(out.size)
        n, size, scales, codes, positions = symbols
        coded = levels.coded_chunks(scales)
        shape = np.count_nonzero(coded), min(self.k, size)
        fits = (n, size, len(scales)) == (out.size, cut.size, cut.count)
        self._require(fits and codes.shape == positions.shape == shape, out.size)
        starts = starts_of(shape[1] * coded)
        coefficients = levels.dequantize(Levels(scales, codes), self.values).reshape(-1)
        transform.restore(starts, positions.reshape(-1), coefficients, cut, out, add=add)

    def _decoded_bound(self, symbols: DCT8Symbols, largest: float) -> float:
        return levels.most(symbols.levels, min(self.k, symbols.size), self.values)

    def _check_symbols(self, symbols: DCT8Symbols) -> None:
        n, size, scales, codes, positions = symbols
        dtypes = "float32", "uint32" if self.values == "float32" else "uint8", "int32"
        for array, dtype in zip((scales, codes, positions), dtypes, strict=True):
            self._require(is_plain_array(array, (dtype,), 2), n)
        shape = np.count_nonzero(levels.coded_chunks(scales)), min(self.k, size)
        fits = codes.shape == positions.shape == shape
        fits = fits and bool((positions[:, 1:] > positions[:, :-1]).all())
        fits = fits and bool((positions[:, 0] >= 0).all() and (positions[:, -1] < size).all())
        self._require(fits, n)

    def _pack(self, symbols: DCT8Symbols) -> Payload:
        _, size, scales, codes, positions = symbols
        index, written = payload_coding.write(
            Levels(scales, codes), positions, size, self.values, self.index
        )
        return Payload(self.replaced(index=index), {}, *written)

    def _unpack(self, payload: Payload, n: int) -> DCT8Symbols:
        cut = self._chunks(n)
        k = min(self.k, cut.size)
        reader = payload_coding.Reader(payload.data, payload.nbits)
        scales = reader.scales(cut.count, k, self.values)
        count = int(levels.coded_chunks(scales).sum())
        codes = reader.codes(count, k, self.values)
        positions = reader.positions(count, k, cut.size, self.index)
        symbols = DCT8Symbols(n, cut.size, scales, codes, positions)
        if not self._decodes_finite(symbols):
            raise Corrupt("a value exceeds float32")
        return symbols

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        cut = self._chunks(n)
        k = min(self.k, cut.size)
        return describe.payload_fields(walk, cut.count, cut.size, k, self.values, self.index)

    def _bare_nbits(self, n: int, data: np.ndarray, scalars: Scalars) -> None:
        return None
