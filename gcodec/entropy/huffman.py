"""Huffman coding of bytes: a table of codeword lengths, then the codeword of each value.

    bits(values) = [8 bits] the largest value m, [4 bits] length(0), …, [4 bits] length(m),
                   then codeword(n) of each value n
    bits of no values: none

Values from 0 to 255. A length is from 1 to 12 bits, or 0 if the value does not occur. The encoder
uses the lengths with the shortest string. Codewords are canonical: the values, sorted by length
and then by value, receive consecutive numbers from 0 on, with a zero appended to the number for
each additional bit of length. A lone value has the codeword 0.

The mean length is less than 1 bit above the entropy, apart from the cost of the limit of 12 bits.
A codeword takes at least one bit, so the mean is far above the entropy if one value has nearly all
of the probability.

Package-merge computes the lengths. Each of the n values that occur has coins worth 2^-1, 2^-2, …
2^-12, each of which costs the number of occurrences. The length of a value is the number of its
coins in the cheapest set of coins worth n − 1.

>>> from gcodec.entropy import Huffman
>>> bits = Huffman().encode([2, 0, 2, 1, 2, 4])
>>> text = bits.to01()
>>> int(text[:8], 2), [int(text[at : at + 4], 2) for at in range(8, 28, 4)], text[28:]
(4, [3, 3, 1, 0, 2], '01100111010')
>>> Huffman().decode(bits, 6)
(array([2, 0, 2, 1, 2, 4], dtype=uint64), 39)
>>> Huffman().lengths([2, 0, 2, 1, 2, 4])
array([1, 3, 1, 3, 1, 2], dtype=uint64)

Sources: D. A. Huffman, "A method for the construction of minimum-redundancy codes", Proceedings of
the IRE 40, 1952; L. L. Larmore and D. S. Hirschberg, "A fast algorithm for optimal length-limited
Huffman codes", Journal of the ACM 37, 1990 (package-merge); E. S. Schwartz and B. Kallick,
"Generating a canonical prefix encoding", Communications of the ACM 7, 1964.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from gcodec.entropy.bit_reader import BitReader
from gcodec.entropy.code import Code
from gcodec.errors import Corrupt, ParameterError, Truncated
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.prefix import prefix, table_code
from gcodec.kernels.prefix.package_merge import package_merge
from gcodec.kernels.prefix.table_code import LONGEST, SYMBOLS, TableCode, room_left
from gcodec.runtime.device import dispatched, host

LENGTH_NBITS = 4
"""Width of a length in a table, in bits."""
_TOP_NBITS = 8  # of the largest value


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Huffman(Code):
    """Huffman codewords for bytes, after a table of their lengths.

    Examples
    --------
    >>> from gcodec import entropy
    >>> code = entropy.parse("huffman")
    >>> bits = code.encode([3, 3, 3, 3, 5, 3, 9, 3])
    >>> code.decode(bits, 8)
    (array([3, 3, 3, 3, 5, 3, 9, 3], dtype=uint64), 58)
    """

    name = "huffman"
    last = SYMBOLS - 1

    def _write(self, numbers: np.ndarray) -> tuple[np.ndarray, int]:
        if numbers.size == 0:
            return np.empty(0, np.uint8), 0
        symbols = numbers.astype(np.uint8)
        lengths = code_lengths(byte_counts(symbols))
        top = int(np.flatnonzero(lengths)[-1])
        head = BitString()
        head.extend(np.array([top], np.uint8), _TOP_NBITS)
        table_code.put_lengths(lengths, np.arange(top + 1, dtype=np.uint8), head)
        nbits = head.nbits
        return prefix.write(TableCode.of(lengths), symbols, (head.trimmed(), nbits))

    def _read(
        self, data: np.ndarray, nbits: int, count: int, start: int
    ) -> tuple[np.ndarray, int]:
        if count == 0:
            return np.empty(0, np.uint64), start
        if start + _TOP_NBITS > nbits:
            raise _truncated(start, nbits)
        top = BitReader(data, start, nbits, _TOP_NBITS, "a table").take(_TOP_NBITS)
        lengths, first = read_lengths(data, start + _TOP_NBITS, nbits, np.arange(top + 1))
        if lengths[top] == 0:
            raise Corrupt(
                f"the table says that {top} is the largest value, but has no word for it"
            )
        if count > (nbits - first) // int(lengths[lengths > 0].min()):
            raise Truncated(f"{nbits - first} bits cannot hold {count} words of {self}")
        return prefix.read(TableCode.of(lengths), data, nbits, count, first)

    def _lengths(self, numbers: np.ndarray) -> np.ndarray:
        symbols = numbers.astype(np.uint8)
        return code_lengths(byte_counts(symbols)).astype(np.uint64)[symbols]


@dispatched("gcodec.entropy.device")
def code_lengths(counts: np.ndarray, limit: int = LONGEST) -> np.ndarray:
    """Return the codeword lengths with which a string is shortest.

    Parameters
    ----------
    counts : (n,) array of integers
        Number of occurrences of each symbol, up to 2**62. On a device n is 256, and the sum is up
        to 2**60.
    limit : int
        Length of the longest codeword in bits, from 1 to 12.

    Returns
    -------
    (n,) uint8 array
        Lengths, by package-merge. Among equal weights, coins come before packages, and lower
        symbols and earlier packages come first. A lone symbol has the length 1, a symbol that does
        not occur 0.

    Raises
    ------
    ParameterError
        If a count is out of range, or more than 2**limit symbols occur.

    Examples
    --------
    >>> import numpy as np
    >>> from gcodec.entropy.huffman import code_lengths
    >>> code_lengths(np.array([5, 1, 0, 1, 2]))
    array([1, 3, 0, 3, 2], dtype=uint8)
    >>> code_lengths(np.array([5, 1, 0, 1, 2]), limit=2)
    array([2, 2, 0, 2, 2], dtype=uint8)
    """
    lengths, used = package_merge(np.ascontiguousarray(counts, np.int64), limit)
    if used < 0:
        raise ParameterError(
            f"counts are from {counts.min()} to {counts.max()}: must be 0 to 2**62"
        )
    if used > 1 << limit:
        raise ParameterError(f"{used} symbols have no words of up to {limit} bits")
    return lengths


def check_lengths(lengths: np.ndarray) -> None:
    """Raise `Corrupt` unless lengths belong to a complete prefix code.

    Parameters
    ----------
    lengths : (n,) uint8 array
        Lengths in bits; 0 for symbols without a codeword. The sum of 2^-length over all codewords
        must be 1, or there must be a single codeword, of 1 bit.
    """
    longest = int(lengths.max(initial=0))
    if longest > LONGEST:
        raise Corrupt(f"a word of {longest} bits in the table: at most {LONGEST} are allowed")
    room = room_left(lengths)
    if not room:
        return
    used = lengths[lengths > 0]
    if used.tolist() != [1]:
        kind = "few" if room > 0 else "many"
        raise Corrupt(
            f"the table has too {kind} words: {used.size}, of {used.sum()} bits together"
        )


def read_lengths(
    data: np.ndarray, start: int, end: int, alphabet: np.ndarray
) -> tuple[np.ndarray, int]:
    """Read a table of lengths.

    Parameters
    ----------
    data : uint8 array
        The bytes.
    start, end : int
        First bit of the table, and the bit after the last valid one.
    alphabet : (k,) array of integers
        The symbols in the table, up to 255, in increasing order.

    Returns
    -------
    lengths : (256,) uint8 array
        Codeword lengths; 0 for symbols that are not in the table.
    next : int
        The bit after the table.

    Raises
    ------
    Truncated
        If the bits end within the table.
    Corrupt
        See `check_lengths`.
    """
    after = start + LENGTH_NBITS * len(alphabet)
    if after > end:
        raise _truncated(start, end)
    fields = np.ascontiguousarray(host(data[start // 8 : -(-after // 8)]))
    symbols = np.ascontiguousarray(alphabet, np.uint8)
    lengths, is_complete = table_code.read_lengths(fields, start % 8, symbols)
    if not is_complete:
        check_lengths(lengths)
    return lengths, after


def _truncated(start: int, end: int) -> Truncated:
    return Truncated(f"the payload ends at bit {end}, within the table from bit {start} on")
