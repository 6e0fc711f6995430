"""sparseloco: the largest elements of each tile, in a few bins.

A tensor is a matrix of its first dimension and all others; a vector has one column for each
element of a run. The sides of its tiles are the largest divisors, up to `chunk`, of the sides of
the matrix, so all tiles have the same size. The codec sends the k elements of largest magnitude of
each tile, or all elements of a smaller tile; an odd number above 1 is lowered by 1. Among equal
magnitudes, it sends the elements of the lowest index. NaN and Inf are refused. Other elements
decode to +0.

With B bins, shift m = mean of all sent values x, and scale d = `sigmas`/B times their standard
deviation (with N − 1; 1 if it is 0 or overflows), the bin of x is (x − m)/d + B/2, rounded to an
integer, halves to even, from 0 to B − 1. It decodes to μ + m, where μ is the mean of x − m in the
bin. Sums are float64, and all other arithmetic is float32.

The payload is one bit string, most significant bit first. It contains m, d and all μ as float32;
then the bins, in as many bits each as B − 1 takes (``code=none``), or in bytes of 8, 4, 2 or 1 of
them that form a string of `gcodec.entropy.ranged` (``code=huffman``); and then the positions
(`gcodec.entropy.positions`) in the order of the tiles, which end with the payload. A sent value
takes about 9 bits; Templar's messages take 20 bits for the same information.

Sources: Sarfi et al., "Communication efficient LLM pre-training with SparseLoCo", arXiv
2508.15706; one-covenant/templar 2.1.28, ``src/tplr/compress.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from gcodec.arrays.nonfinite import check_corrected, nonfinite_error
from gcodec.codec import Codec, register
from gcodec.codec.sparse import SparseCodec
from gcodec.entropy import positions as position_coding
from gcodec.entropy import ranged
from gcodec.entropy.coder import BitSpan, into
from gcodec.entropy.positions import IndexString
from gcodec.errors import Corrupt, ParameterError, Truncated
from gcodec.fields import ranged as ranged_fields
from gcodec.fields.positions import positions as position_fields
from gcodec.fields.walker import FieldSpan, FieldValue, FieldWalker, describe_each
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.fields import read_fields
from gcodec.kernels.bits.pack import FieldLayout, pack_fields, pack_to, unpack_fields
from gcodec.kernels.numeric.arithmetic import ResidualUpdate, add_residual
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.numeric.reduce import (
    LANES,
    TILE,
    all_finite,
    fold,
    max_abs_bits,
    moments,
    tile_squares,
)
from gcodec.kernels.prefix.value_classes import AllPositions
from gcodec.kernels.quantize.quantiles import CODES, sums_of_codes
from gcodec.kernels.quantize.scalar_quantize import put_points
from gcodec.kernels.transform import tile_order
from gcodec.kernels.transform.chunk_layout import Layout, gather
from gcodec.kernels.transform.dct_select import largest, largest_of_sums
from gcodec.payload import Payload
from gcodec.runtime import Array, pool
from gcodec.runtime.deferred import fetch, require
from gcodec.runtime.device import device_of
from gcodec.runtime.memory import aligned_zeros, empty_beside
from gcodec.runtime.reuse import result_beside
from gcodec.wire.kinds import Choice, Float64, Integer
from gcodec.wire.params import Scalars, param
from gcodec.wire.seek import Blocks, SeekTable

_CODES = ("none", "huffman")
_SIGMAS = 6.0
_PART = 1 << 18  # elements whose tiles stay in a cache
_NUMBERS = 2  # float32 numbers before the means of the bins: shift and scale


class Tiles(NamedTuple):
    """Tiles of a matrix, of `height` times `width` elements.

    Attributes
    ----------
    rows, columns : int
        Numbers of tiles above and beside each other.
    height, width : int
        Sides of a tile.
    """

    rows: int
    columns: int
    height: int
    width: int

    @classmethod
    def of(cls, shape: tuple[int, ...], chunk: int) -> Tiles:
        """Return the tiles of a tensor, whose sides are at most `chunk`."""
        if len(shape) < 2:
            n = math.prod(shape)
            width = largest_divisor(n, chunk)
            return cls(n // width, 1, 1, width)
        m, n = shape[0], math.prod(shape[1:])
        height, width = largest_divisor(m, chunk), largest_divisor(n, chunk)
        return cls(m // height, n // width, height, width)

    @property
    def size(self) -> int:
        """Number of elements of a tile."""
        return self.height * self.width

    @property
    def total(self) -> int:
        """Number of tiles."""
        return self.rows * self.columns

    def sent(self, k: int) -> int:
        """Return how many of k elements a tile sends: an even number, or one."""
        most = min(k, self.size)
        return most if most == 1 else most // 2 * 2

    def cut(self, values: np.ndarray) -> np.ndarray:
        """Return the (m, size) elements of the tiles that (n,) values of whole rows contain."""
        if self.columns == 1:
            return values.reshape(-1, self.size)
        out = empty_beside(values.size, np.float32, values)
        layout = Layout(self.columns * self.width, self.height, self.width, edge=False)
        gather(values, layout, 0, out)
        return out.reshape(-1, self.size)

    def elements(self, positions: np.ndarray) -> np.ndarray:
        """Return the elements of the flat tensor at positions in the order of the tiles."""
        if self.columns == 1:
            return positions
        tile = positions // self.size  # several times as fast as divmod
        inside = positions - tile * self.size
        above, below = tile // self.columns, inside // self.width
        left, column = tile - above * self.columns, inside - below * self.width
        row = above * self.height + below
        return (row * self.columns + left) * self.width + column


def largest_divisor(n: int, most: int) -> int:
    """Return the largest divisor of n that is at most `most`."""
    if n <= most:
        return max(n, 1)
    small = (i for i in range(1, min(most, math.isqrt(n)) + 1) if n % i == 0)
    return max(d for i in small for d in (i, n // i) if d <= most)


def select(
    values: np.ndarray, tiles: Tiles, k: int, update: ResidualUpdate | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k largest elements of each tile, and their positions in it.

    Parameters
    ----------
    values : (n,) float32 array
    tiles : Tiles
    k : int
        From 1 to the size of a tile.
    update : ResidualUpdate, optional
        Residual that is added to the values, and replaced by the sums.

    Returns
    -------
    positions : (tiles, k) int32 array
        Ascending.
    sent : (tiles, k) float32 array

    Raises
    ------
    ParameterError
        If a value is NaN or Inf.
    """
    if device_of(values) is not None:
        return _select_on_device(values, tiles, k)
    positions = np.empty((tiles.total, k), np.int32)
    sent = np.empty((tiles.total, k), np.float32)
    band = tiles.size * tiles.columns
    step = max(_PART // band, 1) * band

    def is_finite(start: int, stop: int) -> bool:
        own, part = slice(start // tiles.size, stop // tiles.size), values[start:stop]
        out = positions[own], sent[own]
        if update is None:
            return largest(tiles.cut(part), k, *out)
        own_update = update.part(start, stop)
        if tiles.columns == 1:
            return largest_of_sums(tiles.cut(part), own_update, k, *out)
        add_residual(part, own_update)
        return largest(tiles.cut(own_update.new_residual), k, *out)

    def task(start: int, stop: int) -> bool:
        return all(is_finite(at, min(at + step, stop)) for at in range(start, stop, step))

    if not all(pool.run(task, values.size, band)):
        if update is not None:
            check_corrected(values, update.former, update.decay)
        raise nonfinite_error(values)
    return positions, sent


def _select_on_device(values: Array, tiles: Tiles, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Do what `select` does where the values are, and copy the result to the host."""
    positions, sent = (
        empty_beside(tiles.total * k, dtype, values) for dtype in (np.int32, np.float32)
    )
    out = positions.reshape(-1, k), sent.reshape(-1, k)
    is_finite = largest(tiles.cut(values), k, *out)
    require(is_finite, lambda: nonfinite_error(values))
    fetched = fetch(device_of(values), *out)
    return fetched[0], fetched[1]


def binned(sent: np.ndarray, bins: int, sigmas: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the bins of values, and what decodes them.

    Parameters
    ----------
    sent : float32 array
        At least one value.
    bins : int
        From 2 to 256.
    sigmas : float
        Standard deviations that the bins span.

    Returns
    -------
    codes : uint8 array
        In the shape of `sent`.
    parameters : (2 + bins,) float32 array
        Shift, scale, and the mean of each bin without the shift.

    Raises
    ------
    ParameterError
        If the mean of a bin exceeds float32.
    """
    codes = np.empty(sent.size, np.uint8)

    def put(start: int, part: np.ndarray) -> None:
        codes[start : start + part.size] = part

    parameters = put_bins(sent.reshape(-1), bins, sigmas, put)
    return codes.reshape(sent.shape), parameters


def put_bins(
    sent: np.ndarray, bins: int, sigmas: float, put: Callable[[int, np.ndarray], None]
) -> np.ndarray:
    """Pass the bins of (n,) values to a function, part by part; return the parameters.

    The function gets the first element of a part, a multiple of 8, and the bins of the part. See
    `binned`.
    """
    shift = np.float32(moments(sent).total / sent.size)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        deviation = math.sqrt(_squares_about(sent, shift) / max(sent.size - 1, 1))
        scale = np.float32(sigmas * deviation / bins)
        if not 0 < scale < math.inf:
            scale = np.float32(1)
        sums, counts = np.zeros(CODES), np.zeros(CODES, np.int64)
        for start in range(0, sent.size, _PART):
            centered = sent[start : start + _PART] - shift
            numbers = np.rint(centered / scale + np.float32(bins // 2))
            codes = np.clip(numbers, 0, bins - 1).astype(np.uint8)
            sums_of_codes(centered, codes, sums, counts)
            put(start, codes)
        means = (sums[:bins] / np.maximum(counts[:bins], 1)).astype(np.float32)
        if not all_finite(means + shift):
            raise ParameterError("x: the mean of a bin must not exceed float32")
    return np.concatenate([[shift, scale], means])


def _squares_about(values: np.ndarray, shift: np.float32) -> float:
    """Return the sum of the squares of (n,) values − shift, in the order of `sum_squares`."""
    sums = np.empty(-(-values.size // TILE))

    def task(start: int, stop: int) -> None:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for at in range(start, stop, _PART):
                end = min(at + _PART, stop)
                own = sums[at // TILE : -(-end // TILE)]
                tile_squares(values[at:end] - shift, TILE, 1, np.empty(LANES), own)

    pool.run(task, values.size, TILE)
    return fold(sums)


class SparseLoCoSymbols(NamedTuple):
    """The sent elements of a tensor.

    Attributes
    ----------
    n : int
        Number of elements of the tensor.
    positions : (m,) int64 array
        Positions of all sent elements in the order of the tiles, ascending.
    bins : (m,) uint8 array
        Bin of each.
    parameters : (2 + bins,) float32 array
        See `binned`; empty for an empty tensor.
    shape : tuple of int, optional
        Shape of the tensor; None for a vector.
    """

    n: int
    positions: np.ndarray
    bins: np.ndarray
    parameters: np.ndarray
    shape: tuple[int, ...] | None = None


@register(id=19, name="sparseloco")
class SparseLoCo(SparseCodec):
    """The largest elements of tiles, in a few bins.

    Parameters
    ----------
    k : int
        Number of elements that a tile sends.
    chunk : int
        Largest side of a tile, from 2 to 256.
    bins : int
        Number of bins, from 2 to 256.
    sigmas : float
        Standard deviations that the bins span.
    index : {"auto", "rice", "eliasfano", "bitmap", "rans", "huffman"}
        Code for the positions. ``"auto"`` is the shortest.
    code : {"auto", "none", "huffman"}
        Code of the bins: fixed width, or Huffman words for bytes of them. ``"auto"`` is the
        shortest.
    """

    symbols_type = SparseLoCoSymbols
    symbols_dtypes: ClassVar = {
        "positions": ("int64",),
        "bins": ("uint8",),
        "parameters": ("float32",),
    }
    refuses_nonfinite = True
    reads_segments = True
    has_cuda_kernels = True
    symbols_on_host = True
    takes_up_to = 2.0**126
    decoded_factor = 4.0
    uses_shape = True
    peers: ClassVar = {"templar": "sparseloco", "sparseloco": "sparseloco"}

    k: int = param(Integer(1, 1 << 16), 64, "elements that a tile sends")
    chunk: int = param(Integer(2, 256), 64, "largest side of a tile")
    bins: int = param(Integer(2, 256), 4, "number of bins")
    sigmas: float = param(
        Float64("a number above 0, finite", lambda sigmas: 0 < sigmas < math.inf),
        _SIGMAS,
        "standard deviations that the bins span",
        in_frame=False,
    )
    index: str = param(position_coding.INDEX, "auto", "code for positions; auto: the shortest")
    code: str = param(
        Choice(*_CODES, unsent=("auto",)), "auto", "code of the bins; auto: the shortest"
    )

    def variance(self, n: int) -> float | None:
        """Return 1: the mean of a bin is no farther from its values than 0 is."""
        return 1.0

    def _tiles(self, n: int, shape: tuple[int, ...] | None = None) -> Tiles:
        """Return the tiles of n elements in a shape, or else in the bound one."""
        return Tiles.of(shape or self._bound_shape(n), self.chunk)

    def _sent(self, n: int, shape: tuple[int, ...] | None = None) -> int:
        """Return the number of sent elements; see `_tiles`."""
        tiles = self._tiles(n, shape)
        return tiles.total * tiles.sent(self.k) if n else 0

    def _sends_all(self, n: int) -> bool:
        """Return whether all n > 0 elements are sent, in the order of the tensor."""
        tiles = self._tiles(n)
        return tiles.columns == 1 and tiles.sent(self.k) == tiles.size

    @property
    def _first(self) -> int:
        """Number of bits before the bins."""
        return 32 * (_NUMBERS + self.bins)

    @property
    def _width(self) -> int:
        """Bits of a bin."""
        return (self.bins - 1).bit_length()

    @property
    def _layout(self) -> FieldLayout:
        """Layout of bins in the bytes of a string."""
        return FieldLayout(1 << (self._width - 1).bit_length())

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of numbers and bins, and of the longest string of positions."""
        if not n:
            return 0
        k = self._sent(n)
        bins = k * self._width
        if self.code == "huffman":
            bins = ranged.longest_nbits("huffman", self._layout.nbytes(k))
        return self._first + bins + position_coding.longest_nbits(n, k, self.index)

    @property
    def seek_blocks(self) -> Blocks | None:
        """The unit of blocks: sent values, or states of rANS; see `positions.seek_blocks`."""
        return position_coding.seek_blocks(self.index)

    # --- quantize and dequantize

    def _quantize(
        self, values: np.ndarray, seed: int, prior: SparseLoCoSymbols | None
    ) -> SparseLoCoSymbols:
        n = values.size
        if not n:
            return _no_symbols(self._bound_shape(n))
        return self._selected(values)[0]

    def _encode(self, values: np.ndarray, seed: int, prior: SparseLoCoSymbols | None) -> Payload:
        n = values.size
        if device_of(values) is not None or not n or not self._sends_all(n):
            return self._pack(self._quantize(values, seed, prior))
        if not all_finite(values):
            raise nonfinite_error(values)
        layout = self._layout
        grouped = np.empty(layout.nbytes(n), np.uint8)

        def put(start: int, bins: np.ndarray) -> None:
            first = layout.nbytes(start)
            pack_to(bins, layout, grouped[first : first + layout.nbytes(bins.size)])

        parameters = put_bins(values, self.bins, self.sigmas, put)
        return self._message(n, AllPositions(n), grouped, parameters)

    def _quantize_sum(
        self, x: np.ndarray, update: ResidualUpdate, seed: int
    ) -> tuple[SparseLoCoSymbols, int] | None:
        if not x.size:
            return None
        symbols, top_bits = self._selected(x, update)
        self._dequantize_add(symbols, "float32", np.float32(-1), update.new_residual)
        return symbols, top_bits

    def _selected(
        self, values: np.ndarray, update: ResidualUpdate | None = None
    ) -> tuple[SparseLoCoSymbols, int]:
        """Return the symbols of what `select` returns, and the bits of the largest magnitude."""
        n, tiles = values.size, self._tiles(values.size)
        positions, sent = select(values, tiles, tiles.sent(self.k), update)
        top_bits = int(max_abs_bits(sent.reshape(-1))) if update is not None else 0
        bins, parameters = binned(sent, self.bins, self.sigmas)
        del sent  # its memory is that of the next array
        flat = (positions + tiles.size * np.arange(tiles.total)[:, None]).reshape(-1)
        shape = self._bound_shape(n)
        return SparseLoCoSymbols(n, flat, bins.reshape(-1), parameters, shape), top_bits

    def _elements(
        self, symbols: SparseLoCoSymbols, n: int, beside: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        self._check_size(symbols, n)
        if not n:
            return symbols.positions, np.empty(0, np.float32)
        values = np.empty(symbols.bins.size, np.float32)
        put_points(symbols.bins, self._points(symbols.parameters), values)
        tiles = self._tiles(n, symbols.shape)
        if tiles.columns == 1:
            return symbols.positions, values
        return tile_order.in_tensor(symbols.positions, values, tiles[1:], tiles.sent(self.k))

    def _points(self, parameters: np.ndarray) -> np.ndarray:
        """Return the decoded value of each bin, as a (256,) float32 array."""
        points = aligned_zeros(256, np.float32)
        points[: self.bins] = parameters[_NUMBERS:] + parameters[0]
        return points

    def _decode(self, payload: Payload, n: int, out: np.ndarray | None = None) -> np.ndarray:
        if device_of(out) is not None or not n or not self._sends_all(n):
            return super()._decode(payload, n, out)
        parameters, bins, string = self._opened(payload, n)
        string.check_all()
        values = result_beside(n, np.float32, None) if out is None else out
        put_points(bins, self._points(parameters), values)
        return values

    def _decode_as(
        self, dtype: str, payload: Payload, n: int, out: np.ndarray | None = None
    ) -> np.ndarray:
        # Elements are not listed where all of them are sent.
        base = Codec if n and self._sends_all(n) else SparseCodec
        return base._decode_as(self, dtype, payload, n, out)

    def _check_size(self, symbols: SparseLoCoSymbols, n: int) -> None:
        sent = self._sent(n, symbols.shape)
        fits = symbols.n == n and symbols.positions.size == symbols.bins.size == sent
        if fits and n:
            tiles = self._tiles(n, symbols.shape)
            fits = tile_order.sends(symbols.positions, tiles.size, tiles.sent(self.k))
        self._require(fits, n, symbols.shape)

    # --- pack

    def _check_symbols(self, symbols: SparseLoCoSymbols) -> None:
        n, positions, bins, parameters, _ = symbols
        self._check_size(symbols, n)
        fits = parameters.size == (_NUMBERS + self.bins if n else 0)
        fits = fits and int(bins.max(initial=0)) < self.bins
        self._require(fits and position_coding.rise(positions, n), n)

    def _pack(self, symbols: SparseLoCoSymbols) -> Payload:
        n, positions, bins, parameters, _ = symbols
        if not n:
            return Payload(self._of_message("rice", "none"), {}, bins, 0)
        return self._message(n, positions, pack_fields(bins, self._layout), parameters)

    def _message(
        self,
        n: int,
        positions: position_coding.Positions,
        grouped: np.ndarray,
        parameters: np.ndarray,
    ) -> Payload:
        """Return the message of n > 0 elements, given the bins as bytes of a string."""
        data = parameters.astype(">f4").view(np.uint8)
        code, front = self._bins_after(data, grouped, positions.size)
        index, written = position_coding.write(positions, n, self.index, front)
        return Payload(self._of_message(index, code), {}, *written)

    def _of_message(self, index: str, code: str) -> SparseLoCo:
        """Return the codec as messages state it: without `sigmas`."""
        return self.replaced(index=index, code=code, sigmas=_SIGMAS)

    def _bins_after(
        self, data: np.ndarray, grouped: np.ndarray, k: int
    ) -> tuple[str, position_coding.Front]:
        """Return the code of k bins, and the bits up to them, given the bytes before them."""
        nbits, layout = k * self._width, self._layout
        if self.code != "none":
            plan = ranged.Plan.of("huffman", byte_counts(grouped))
            if self.code == "huffman" or plan.nbits < nbits:
                front = BitString.of(data)
                return "huffman", plan.write(grouped, grouped.size, front, 0)[:2]
        if layout.width != self._width:
            grouped = pack_fields(unpack_fields(grouped, k, layout), FieldLayout(self._width))
        return "none", (np.concatenate([data, grouped]), self._first + nbits)

    def _unpack(self, payload: Payload, n: int) -> SparseLoCoSymbols:
        shape = self._bound_shape(n)
        if not n:
            IndexString(BitSpan.of(payload), self.index, 0, 0).read()
            return _no_symbols(shape)
        parameters, bins, string = self._opened(payload, n)
        positions, tiles = string.read(), self._tiles(n)
        each = tiles.sent(self.k)
        if not tile_order.sends(positions, tiles.size, each):
            raise _count_error(each)
        return SparseLoCoSymbols(n, positions, bins, parameters, shape)

    def _opened(self, payload: Payload, n: int) -> tuple[np.ndarray, np.ndarray, IndexString]:
        """Return the numbers, the bins and the string of positions of a payload."""
        span, k = BitSpan.of(payload), self._sent(n)
        if span.nbits < self._first + k // 8:  # a byte of a string has at most eight bins
            raise Truncated(f"the payload has {span.nbits} bits for {k} values")
        parameters = self._numbers(payload.data)
        bins, end = self._read_bins(span.after(self._first), k)
        if int(bins.max(initial=0)) >= self.bins:
            raise self._bin_error(int(bins.max()))
        return parameters, bins, IndexString(span.after(end), self.index, k, n)

    def _numbers(self, data: np.ndarray) -> np.ndarray:
        """Return shift, scale and means from the start of a payload."""
        parameters = data[: self._first // 8].view(">f4").astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            decoded = parameters[_NUMBERS:] + parameters[0]
        if not all_finite(np.append(decoded, parameters[1])):
            raise Corrupt("a number of the bins is not finite")
        return parameters

    def _bin_error(self, number: int) -> Corrupt:
        return Corrupt(f"a value has the bin {number} of {self.bins}")

    def _read_bins(self, span: BitSpan, k: int) -> tuple[np.ndarray, int]:
        """Return k bins, and the bit after them."""
        if self.code == "none":
            end = span.first + k * self._width
            if end > span.end:
                raise Truncated(f"the payload has {span.end} bits for {k} values")
            return read_fields(span.data, span.first, self._width, k).astype(np.uint8), end
        layout = self._layout
        grouped = np.empty(layout.nbytes(k), np.uint8)
        string = ranged.open_string("huffman", span._replace(seek=None), grouped.size)
        end = string.read(into(grouped), bits_follow=True)
        fill = 8 * grouped.size - k * layout.width
        if int(grouped[-1]) & (1 << fill) - 1:
            raise _fill_error()
        return unpack_fields(grouped, k, layout), end

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        if not n:
            walk.finish()
            return
        names = ("shift", "scale", *(f"mean of bin {bin}" for bin in range(self.bins)))
        describe = describe_each(lambda number, index: FieldValue(number, names[index]), "float32")
        read_numbers = partial(self._numbers, walk.data)
        parameters = yield from walk.checked(
            "scale", "number", 32, len(names), describe, read_numbers
        )
        values = (parameters[_NUMBERS:] + parameters[0]).tolist()
        k, width, tiles = self._sent(n), self._layout.width, self._tiles(n)

        def describe_bin(bin: int, index: int) -> FieldValue:
            if bin >= self.bins:
                raise self._bin_error(bin)
            return FieldValue(bin, decoded=(values[bin],))

        def describe_byte(byte: int, index: int) -> FieldValue:
            each, number = 8 // width, index * (8 // width)
            bins = [byte >> 8 - width - width * i & (1 << width) - 1 for i in range(each)]
            own, fill = bins[: k - number], bins[k - number :]
            if max(own) >= self.bins:
                raise self._bin_error(max(own))
            if any(fill):
                raise _fill_error()
            decoded = tuple(values[bin] for bin in own)
            return FieldValue(byte, ", ".join(map(str, own)), decoded=decoded, number=number)

        if self.code == "none":
            yield from walk.fields("level", "bin", self._width, k, describe_each(describe_bin))
        else:
            count, describe = self._layout.nbytes(k), describe_each(describe_byte)
            yield from ranged_fields.string(
                walk, "huffman", "level", "bins", count, describe, bits_follow=True
            )
        for piece in position_fields(walk, self.index, k, n):
            yield _in_tensor(piece, tiles, tiles.sent(self.k))

    def _index(self, payload: Payload, n: int, log2_block: int) -> SeekTable:
        return self._opened(payload, n)[2].blocks(log2_block)

    def _bare_nbits(self, n: int, data: np.ndarray, scalars: Scalars) -> None:
        return None


def _no_symbols(shape: tuple[int, ...]) -> SparseLoCoSymbols:
    positions, parameters = np.empty(0, np.int64), np.empty(0, np.float32)
    return SparseLoCoSymbols(0, positions, np.empty(0, np.uint8), parameters, shape)


def _in_tensor(piece: FieldSpan, tiles: Tiles, each: int) -> FieldSpan:
    """Convert a description from a position in the order of the tiles to the element."""
    if piece.element is None:
        return piece
    if piece.number is not None and piece.element // tiles.size != piece.number // each:
        raise _count_error(each)
    return piece._replace(element=int(tiles.elements(np.array([piece.element]))[0]))


def _count_error(each: int) -> Corrupt:
    return Corrupt(f"a tile does not have {each} positions")


def _fill_error() -> Corrupt:
    return Corrupt("the bits of a byte after the last bin are not zero")
