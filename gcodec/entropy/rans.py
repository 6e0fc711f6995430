"""rANS (range asymmetric numeral systems): 32 interleaved states, which grow with each symbol.

Each symbol s has an integer frequency f(s), and c(s) is the sum of the frequencies of all smaller
symbols. All frequencies add up to 2^P, with P from 12 to 15. Encoding s turns a state x into

    x' = floor(x / f)·2^P + (x mod f) + c

which is about x·2^P/f, so s costs log2(2^P / f(s)) bits, a fractional number. The decoder finds s
from x' mod 2^P, which lies from c(s) to below c(s) + f(s), and x = f·floor(x' / 2^P) + x' mod 2^P
− c. States stay from 2^16 to below 2^32: before encoding, a state of at least f·2^(32 − P) emits
its 16 lower bits as a word; after decoding, a state below 2^16 reads the next word. A decoder
reverses the order of the symbols. The encoder therefore begins with the last symbol, from states
of 2^16, and writes its words backwards; the decoder must end in these states.

With f(0) = 3072 and f(1) = 1024, so P = 12, c(0) = 0 and c(1) = 3072, the encoder codes the
symbols 0, 1 as follows, from the last to the first:

    1: 65536 = 64·1024 + 0       becomes  64·4096 + 0 + 3072 = 265216
    0: 265216 = 86·3072 + 1024   becomes  86·4096 + 1024 + 0 = 353280

Values from 0 to 255. The string contains these parts, with little-endian integers:

    the largest value in 8 bits · the frequencies of 0 to that value · zeros to a whole byte
    for each block of 2^18 values: 32 states of 32 bits, for the first to the last lane · words

Value i of a block belongs to lane i mod 32. `gcodec.entropy.frequency_table` defines the table. A
string of no values has no bits. A value has no codeword of its own, and a decoder cannot skip
values.

The overhead is about 768 bits for each block of 2^18 values, and the cost of frequencies that
differ from the probabilities: with P = 12, a value of probability 2^-14 costs at least 12 bits.

>>> from gcodec.entropy import RANS
>>> values = [0, 0, 0, 1] * 5000
>>> bits = RANS().encode(values)
>>> bits.nbits  # 20000 values of 0.8113 bits, a block and the frequencies
17200
>>> RANS().decode(bits, 5)
Traceback (most recent call last):
    ...
gcodec.errors.Corrupt: a block of symbols does not end in the states that it must
>>> RANS().decode(bits, 20000)[0].tolist() == values
True

Sources: J. Duda, "Asymmetric numeral systems", arXiv 1311.2540, 2013; F. Giesen, "Interleaved
entropy coders", arXiv 1402.3392, 2014 (several states in turn).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

import numpy as np

from gcodec.entropy.bit_reader import BitReader
from gcodec.entropy.code import Code
from gcodec.entropy.coder import into
from gcodec.entropy.frequency_table import read_frequencies, table_nbits, write_frequencies
from gcodec.errors import Corrupt, ParameterError
from gcodec.kernels.numeric import byte_counts
from gcodec.kernels.rans import rans_string
from gcodec.kernels.rans.rans_table import (
    LEAST_LOG2,
    MOST_LOG2,
    fitted_frequencies,
    read_tables,
    write_tables,
)
from gcodec.limits import Limits
from gcodec.runtime.device import dispatched

_TABLE = "a table of frequencies"  # in error messages
_TOP_NBITS = 8  # of the largest value
STATIC_LOG2_TOTAL = 14
"""Log2 of the sum of the frequencies of static tables."""
POINT = 28
"""Number of fractional bits of logarithms."""
_WORTHWHILE_SHARE = 1024  # a larger total must save 1 / 1024 of all bits


def frequencies(counts: np.ndarray, log2_total: int) -> np.ndarray:
    """Return the frequencies with which a string of symbols is shortest.

    Parameters
    ----------
    counts : (A,) int64 array
        Number of occurrences of each of up to 256 symbols; their sum is below 2^46.
    log2_total : int
        Log2 of the sum of the frequencies, from 12 to 15.

    Returns
    -------
    (A,) int64 array
        Frequencies: 0 for symbols that do not occur, at least 1 for others.

    Raises
    ------
    ParameterError
        If no symbol occurs, or only one with `log2_total` 15: a frequency must be below 2^15.
    """
    used = np.flatnonzero(counts)
    if used.size < 1 + (log2_total == MOST_LOG2):
        raise ParameterError(f"counts: too few symbols occur for a total of 2**{log2_total}")
    out = np.zeros_like(counts)
    out[used] = fitted_frequencies(counts[used], log2_total, log2_table())
    return out


@dispatched("gcodec.entropy.device")
def best_frequencies(counts: np.ndarray) -> tuple[np.ndarray, int]:
    """Return frequencies and the log2 of their sum, for the shortest table and string.

    The length of the string is an estimate. The sum is the smallest with which the length is
    within 1 / 1024 of the shortest one, since smaller tables decode faster. For the parameters,
    see `frequencies`; on a device there are 256 counts.
    """
    sizes: list[int] = []
    models = []
    for log2_total in range(LEAST_LOG2, MOST_LOG2 + (np.count_nonzero(counts) > 1)):
        models.append((frequencies(counts, log2_total), log2_total))
        sizes.append(estimated_nbits(counts, *models[-1]) + table_nbits(models[-1][0]))
        if sizes[-1] > min(sizes):
            break
    largest = min(sizes) * (_WORTHWHILE_SHARE + 1) // _WORTHWHILE_SHARE
    return next(model for model, size in zip(models, sizes, strict=True) if size <= largest)


def estimated_nbits(counts: np.ndarray, frequencies: np.ndarray, log2_total: int) -> int:
    """Return the estimated length of a string of symbols in bits.

    The error is a few hundredths of a percent from 2^16 symbols on. The estimate uses integers
    only, so it is the same on every machine.

    Parameters
    ----------
    counts, frequencies : (A,) int64 array
        Number of occurrences of each symbol, and its frequency; at least 1 if the symbol occurs.
    log2_total : int
        Log2 of the sum of the frequencies.
    """
    return estimated_sizes(counts, frequencies[None], log2_total)[0]


def estimated_sizes(counts: np.ndarray, frequencies: np.ndarray, log2_total: int) -> list[int]:
    """Return the length of a string for each row of (k, A) frequencies; see `estimated_nbits`."""
    n, costs = int(counts.sum()), (log2_total << POINT) - log2_table()[frequencies]
    # The products of whole counts would exceed 64 bits.
    high, low = counts >> 16, counts & 0xFFFF
    products = zip((costs @ high).tolist(), (costs @ low).tolist(), strict=True)
    # States are integers, which costs bits: the more, the closer 2^P is to the least state. The
    # constant was measured.
    squares = (int(high @ high) << 32) + (int(high @ low) << 17) + int(low @ low)
    uneven = n * n - squares
    uneven_nbits = (uneven << 2 * log2_total) // (max(n, 1) * 768 << 2 * MOST_LOG2)
    # A block has 32 states of 32 bits: 16 of these bits are overhead, and 8 encode symbols as the
    # words do.
    heads = rans_string.heads_nbits(n)
    words = [(above << 16) + below >> POINT for above, below in products]
    return [heads + 16 * -(-max(nbits + uneven_nbits - heads // 4, 0) // 16) for nbits in words]


def least_overhead(n: int) -> int:
    """Return the least difference of `estimated_nbits` and the entropy of n symbols, in bits."""
    heads = rans_string.heads_nbits(n)
    return heads - heads // 4


def entropy_nbits(counts: np.ndarray) -> int:
    """Return the bits of symbols with (256,) or (models, 256) counts, coded by an ideal coder.

    The computation is exact in integers, so it is the same on every machine.
    """
    return int(byte_counts.ideal_nbits(counts.reshape(-1), counts.shape[-1], log2_table()))


@functools.cache
def log2_table() -> np.ndarray:
    """Return a 0 for 0, and the log2 of 1 to 2^15 in units of 2^-28, rounded down."""
    numbers = np.arange(1, (1 << MOST_LOG2) + 1, dtype=np.uint64)
    whole = np.zeros_like(numbers)
    for k in range(1, MOST_LOG2 + 1):
        whole += numbers >> np.uint64(k) > 0
    # x is from 2^31 to below 2^32; squaring it yields the next bit.
    x = numbers << np.uint64(31) - whole
    for _ in range(POINT):
        x = x * x >> np.uint64(31)
        bit = x >> np.uint64(32)
        x >>= bit
        whole = whole << np.uint64(1) | bit
    return np.append(np.zeros(1, np.int64), whole.astype(np.int64))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RANS(Code):
    """Static rANS for bytes: a value takes a fractional number of bits.

    Examples
    --------
    >>> from gcodec import entropy
    >>> code = entropy.parse("rans")
    >>> bits = code.encode([3, 3, 3, 3, 5, 3, 9, 3])
    >>> code.decode(bits, 8)[0]
    array([3, 3, 3, 3, 5, 3, 9, 3], dtype=uint64)
    """

    name = "rans"
    last: ClassVar[int] = 255

    def _write(self, numbers: np.ndarray) -> tuple[np.ndarray, int]:
        if numbers.size == 0:
            return np.empty(0, np.uint8), 0
        symbols = numbers.astype(np.uint8)
        counts = byte_counts.byte_counts(symbols)
        table, log2_total = best_frequencies(counts)
        max_nbits = 8 * Limits().max_bytes
        if estimated_nbits(counts, table, log2_total) > max_nbits:
            raise ParameterError(
                f"values: their string must take at most {max_nbits} bits "
                "(gcodec.Limits().max_bytes)"
            )
        top = int(np.flatnonzero(counts)[-1])
        table_bytes, _ = write_frequencies(table, log2_total, np.arange(top + 1))
        head = np.concatenate([np.array([top], np.uint8), table_bytes])
        tables = write_tables(table, log2_total)
        data, nbits, _ = rans_string.write(tables, symbols, symbols.size, head)
        return data, nbits

    def _read(
        self, data: np.ndarray, nbits: int, count: int, start: int
    ) -> tuple[np.ndarray, int]:
        if count == 0:
            return np.empty(0, np.uint64), start
        top = BitReader(data, start, nbits, _TOP_NBITS, _TABLE).take(_TOP_NBITS)
        first = start + _TOP_NBITS
        table, log2_total, end = read_frequencies(data, first, nbits, np.arange(top + 1))
        if table[top] == 0:
            raise Corrupt(f"the table says that {top} is the largest value, but never occurs")
        if BitReader(data, end, nbits, 8, _TABLE).take((start - end) % 8):
            raise Corrupt("a bit between table and string is not zero", end // 8)
        first = end + (start - end) % 8
        rans_string.refuse_short(count, nbits - first)
        # The string ignores bits after the longest possible string of `count` values.
        string = _bytes_from(data, first, min(nbits, first + rans_string.most_nbits(count)))
        values = np.empty(count, np.uint64)
        layout = rans_string.Layout(read_tables(table, log2_total), 0, 8 * string.size, count)
        end = rans_string.read(string, layout, into(values), bits_follow=True)
        return values, first + end

    def _lengths(self, numbers: np.ndarray) -> np.ndarray:
        raise ParameterError(f"lengths: a value has no word of its own in {self}")


def _bytes_from(data: np.ndarray, first: int, end: int) -> np.ndarray:
    """Return the bits from `first` up to `end` as bytes, without an incomplete last byte."""
    covering, shift = data[first // 8 : -(-end // 8)], first % 8
    if shift:
        following = np.append(covering[1:], np.uint8(0))
        covering = covering << np.uint8(shift) | following >> np.uint8(8 - shift)
    return covering[: (end - first) // 8]
