"""rans: all values as states of 32 numbers, that grow by what each value costs.

Each value s has a frequency f(s), a whole number, and c(s) is the sum of those of the values below
it; all add up to 2^P, P from 12 to 15. Coding s takes a state x to

    x' = floor(x / f)·2^P + (x mod f) + c

which is about x·2^P/f: so s costs log2(2^P / f(s)) bits, and not a whole number of them. What it
was is told by x' mod 2^P, from c(s) to below c(s) + f(s); and x = f·floor(x' / 2^P) + x' mod 2^P −
c. States stay from 2^16 to below 2^32: before coding, a state of at least f·2^(32 − P) gives off
its 16 lower bits as a word; and behind decoding, one below 2^16 takes up the next. A decoder gets
the values in the opposite order; so an encoder begins with the last, from states of 2^16, and
writes its words backwards. A decoder must end in those states.

With f(0) = 3072 and f(1) = 1024, and so P = 12, c(0) = 0 and c(1) = 3072, the values 0, 1 are,
from the last to the first,

    1: 65536 = 64·1024 + 0       becomes  64·4096 + 0 + 3072 = 265216
    0: 265216 = 86·3072 + 1024   becomes  86·4096 + 1024 + 0 = 353280

Values from 0 to 255. The bits are, whole bytes little-endian:

    the largest value in 8 bits · the frequencies of 0 to that value · zeros to a whole byte
    for each block of 2^18 values: 32 states of 32 bits, for the first to the last lane · words

Value i of a block is of lane i mod 32. Frequencies are P in 4 bits, then for each value the bit
length of its f in 4 bits, and f without its highest bit. No values have no bits. A value has no
word of its own, and none can be decoded without those before it.

The cost is that of a block of 2^18 values, about 768 bits, and of frequencies that are not the
probabilities: with 12 bits, a value of probability 2^-14 costs at least 12.

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
from gcodec.entropy.frequency_table import read_frequencies, table_nbits, write_frequencies
from gcodec.errors import Corrupt, ParameterError
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.rans import rans_string
from gcodec.kernels.rans.rans_table import LEAST_LOG2, MOST_LOG2, read_tables, write_tables
from gcodec.limits import Limits
from gcodec.runtime.device import dispatched

_TOP = 8  # bits of the largest value
STATIC_LOG2_TOTAL = 14  # of frequencies that both sides know
POINT = 28  # bits of logarithms behind the binary point
_COUNT = 34  # bits of counts that are compared, so that no product passes 63
_WORTH = 1024  # a share of this of all bits is worth a larger total


def frequencies(counts: np.ndarray, log2_total: int) -> np.ndarray:
    """Return the frequencies with which symbols cost least.

    Parameters
    ----------
    counts : (A,) int64 array
        How often each symbol occurs; A up to 256, the sum below 2^46.
    log2_total : int
        From 12 to 15.

    Returns
    -------
    (A,) int64 array
        0 for symbols that do not occur, at least 1 for others; the sum is 2^log2_total.

    Raises
    ------
    ParameterError
        If nothing occurs; or only one symbol, as its frequency must be below 2^15.
    """
    used = np.flatnonzero(counts)
    if used.size < 1 + (log2_total == MOST_LOG2):
        raise ParameterError(f"counts: too few symbols occur for a total of 2**{log2_total}")
    each, logs = counts[used], log2_table()
    found = _shares(each, 1 << log2_total)
    each >>= max(int(each.sum()).bit_length() - _COUNT, 0)
    none = np.iinfo(np.int64).max

    def worth(i: int | slice) -> None:
        """Tell what one more and one less of frequencies would change."""
        f = found[i]
        gains[i] = each[i] * (logs[f + 1] - logs[f])
        losses[i] = np.where(f > 1, each[i] * (logs[f] - logs[f - 1]), none)

    gains, losses = np.empty_like(each), np.empty_like(each)
    worth(slice(None))
    spare = (1 << log2_total) - int(found.sum())
    # A gain falls with each step, and a loss rises: what is best for each step is best for all.
    while True:
        more = int(gains.argmax())
        kept, losses[more] = losses[more], none  # logarithms are rounded: it may gain both ways
        less = int(losses.argmin())
        losses[more] = kept
        if spare == 0 and gains[more] <= losses[less]:
            break
        steps = [(more, 1)] * (spare >= 0) + [(less, -1)] * (spare <= 0)
        for i, step in steps:
            found[i] += step
            worth(i)
        spare -= sum(step for _, step in steps)
    out = np.zeros_like(counts)
    out[used] = found
    return out


def _shares(each: np.ndarray, total: int) -> np.ndarray:
    """Return about the shares of counts in a total, none of them below 1."""
    found, free, count = np.ones_like(each), np.ones(each.size, bool), int(each.sum())
    while True:
        low = free & (each * total < count)
        if not low.any():
            break
        total, count, free = total - int(low.sum()), count - int(each[low].sum()), free & ~low
    found[free] = (2 * each[free] * total + count) // (2 * count)
    return found


@dispatched("gcodec.entropy.device")
def best_frequencies(counts: np.ndarray) -> tuple[np.ndarray, int]:
    """Return frequencies and the log2 of their sum, by the estimated size of table and string.

    The sum is the least of which no other would save more than a thousandth: a decoder is quicker
    with smaller tables. For the parameters, see `frequencies`; on a device, 256 counts.
    """
    sizes: list[int] = []
    models = []
    for log2_total in range(LEAST_LOG2, MOST_LOG2 + (np.count_nonzero(counts) > 1)):
        models.append((frequencies(counts, log2_total), log2_total))
        sizes.append(estimated_nbits(counts, *models[-1]) + table_nbits(models[-1][0]))
        if sizes[-1] > min(sizes):
            break
    worth = min(sizes) * (_WORTH + 1) // _WORTH
    return next(model for model, size in zip(models, sizes, strict=True) if size <= worth)


def estimated_nbits(counts: np.ndarray, found: np.ndarray, log2_total: int) -> int:
    """Return about how many bits the string of symbols has.

    It is some hundredths of a percent off from 2^16 symbols on, and no floating-point number
    decides it.

    Parameters
    ----------
    counts, found : (A,) int64 array
        How often each symbol occurs, and its frequency, at least 1 if it does.
    log2_total : int
    """
    n, costs = int(counts.sum()), (log2_total << POINT) - log2_table()[found]
    # In halves, as the products would pass 64 bits.
    high, low = counts >> 16, counts & 0xFFFF
    nbits = (int(high @ costs) << 16) + int(low @ costs) >> POINT
    # States are no real numbers: measured, it costs the more, the nearer 2^P is to their least.
    squares = (int(high @ high) << 32) + (int(high @ low) << 17) + int(low @ low)
    uneven = n * n - squares
    nbits += (uneven << 2 * log2_total) // (max(n, 1) * 768 << 2 * MOST_LOG2)
    # A block has 32 states of 32 bits; of these, 16 say nothing, and 8 are symbols as words are.
    heads = rans_string.heads_nbits(n)
    return heads + 16 * -(-max(nbits - heads // 4, 0) // 16)


@functools.cache
def log2_table() -> np.ndarray:
    """Return log2 of 1 to 2^15 in units of 2^-28, rounded down; first, for 0, a 0."""
    numbers = np.arange(1, (1 << MOST_LOG2) + 1, dtype=np.uint64)
    whole = np.zeros_like(numbers)
    for k in range(1, MOST_LOG2 + 1):
        whole += numbers >> np.uint64(k) > 0
    # From 2^31 to below 2^32; its square tells the next bit.
    x = numbers << np.uint64(31) - whole
    for _ in range(POINT):
        x = x * x >> np.uint64(31)
        bit = x >> np.uint64(32)
        x >>= bit
        whole = whole << np.uint64(1) | bit
    return np.append(np.zeros(1, np.int64), whole.astype(np.int64))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RANS(Code):
    """Static rANS: no whole number of bits for a value."""

    name = "rans"
    last: ClassVar[int] = 255

    def _write(self, numbers: np.ndarray) -> tuple[np.ndarray, int]:
        if numbers.size == 0:
            return np.empty(0, np.uint8), 0
        symbols = numbers.astype(np.uint8)
        counts = byte_counts(symbols)
        found, log2_total = best_frequencies(counts)
        most = 8 * Limits().max_bytes
        if estimated_nbits(counts, found, log2_total) > most:
            raise ParameterError(
                f"values: their string must take at most {most} bits (gcodec.Limits().max_bytes)"
            )
        top = int(np.flatnonzero(counts)[-1])
        table, _ = write_frequencies(found, log2_total, np.arange(top + 1))
        head = np.concatenate([np.array([top], np.uint8), table])
        tables = write_tables(found, log2_total)
        data, nbits, _ = rans_string.write(
            tables, lambda start, stop, room: symbols[start:stop], symbols.size, head
        )
        return data, nbits

    def _read(
        self, data: np.ndarray, nbits: int, count: int, start: int
    ) -> tuple[np.ndarray, int]:
        if count == 0:
            return np.empty(0, np.uint64), start
        top = BitReader(data, start, nbits, _TOP, "a table of frequencies").take(_TOP)
        found, log2_total, end = read_frequencies(data, start + _TOP, nbits, np.arange(top + 1))
        if found[top] == 0:
            raise Corrupt(f"the table says that {top} is the largest value, but never occurs")
        if BitReader(data, end, nbits, _TOP, "a table of frequencies").take((start - end) % 8):
            raise Corrupt("a bit between table and string is not zero", end // 8)
        first = end + (start - end) % 8
        rans_string.refuse_short(count, nbits - first)
        # More bits than the longest string has are of no use.
        string = _bytes_from(data, first, min(nbits, first + rans_string.most_nbits(count)))
        values = np.empty(count, np.uint64)

        def take(at: int, symbols: np.ndarray) -> None:
            values[at : at + symbols.size] = symbols

        tables, end = read_tables(found, log2_total), 8 * string.size
        end = rans_string.read(tables, string, 0, end, count, take, bits_follow=True)
        return values, first + end

    def _lengths(self, numbers: np.ndarray) -> np.ndarray:
        raise ParameterError(f"lengths: a value has no word of its own in {self}")


def _bytes_from(data: np.ndarray, first: int, end: int) -> np.ndarray:
    """Return the whole bytes of the bits from `first` on and before `end`."""
    some, shift = data[first // 8 : -(-end // 8)], first % 8
    if shift:
        later = np.append(some[1:], np.uint8(0))
        some = some << np.uint8(shift) | later >> np.uint8(8 - shift)
    return some[: (end - first) // 8]
