"""Universal codes: each has a codeword for every integer from 0 or 1 to 2^64 − 1.

A codeword of b bits suits a value of probability 2^-b; the docstring of each class states the
distribution that its codeword lengths imply. `L` stands for floor(log2 n) unless stated otherwise.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from gcodec.entropy.code import Code
from gcodec.errors import ParameterError, Truncated
from gcodec.kernels.prefix import codewords, prefix
from gcodec.kernels.prefix.prefix_table import PrefixCode
from gcodec.limits import Limits
from gcodec.wire.kinds import Integer
from gcodec.wire.params import param


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Universal(Code):
    """Base of the universal codes; the codeword of the least value is the shortest."""

    rule: ClassVar[codewords.Rule]

    def _prefix(self) -> PrefixCode:
        """Return the form in which kernels receive this code."""
        parameter = next((getattr(self, field.attribute) for field in self.declared()), 0)
        return PrefixCode(self.rule, parameter, self.first)

    def _write(self, numbers: np.ndarray) -> tuple[np.ndarray, int]:
        lengths = self._lengths(numbers)
        max_nbits = 8 * Limits().max_bytes
        # A float64 sum does not wrap around, and is exact up to `max_nbits` and beyond.
        if lengths.sum(dtype=np.float64) > max_nbits:
            longest = int(lengths.argmax())
            raise ParameterError(
                f"values: their words of {self} must take at most {max_nbits} bits "
                f"(gcodec.Limits().max_bytes); that of {numbers[longest]} takes {lengths[longest]}"
            )
        return prefix.write(self._prefix(), numbers)

    def _read(
        self, data: np.ndarray, nbits: int, count: int, start: int
    ) -> tuple[np.ndarray, int]:
        if count > (nbits - start) // int(self._lengths(np.array([self.first], np.uint64))[0]):
            raise Truncated(f"{nbits - start} bits cannot hold {count} words of {self}")
        return prefix.read(self._prefix(), data, nbits, count, start)

    def _lengths(self, numbers: np.ndarray) -> np.ndarray:
        return prefix.lengths(self._prefix(), numbers)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Unary(Universal):
    """Unary code: as many zeros as the value, then a one.

        codeword(n) = n zeros, then 1

    Values from 0 to 2^64 − 1. `encode` limits the length of its result, so in practice values end
    at 2^34 − 1. Length: n + 1.

    The implied probability is 2^-(n + 1): the number of heads before the first tail. The code
    equals Rice with k = 0 and Golomb with b = 1.

    Source: P. Elias, "Universal codeword sets and representations of the integers", IEEE
    Transactions on Information Theory 21, 1975 (α, from 1).

    Examples
    --------
    >>> from gcodec.entropy import Unary
    >>> for n in (0, 1, 2, 7):
    ...     print(n, Unary().encode([n]).to01())
    0 1
    1 01
    2 001
    7 00000001
    """

    name = "unary"
    rule = codewords.RICE


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Gamma(Universal):
    """Elias gamma: the value, after as many zeros as it has bits but one.

        codeword(n) = L zeros, then n in L + 1 bits

    Values from 1 to 2^64 − 1. Length: 2·L + 1.

    The implied probability is 2^-(2·L + 1), from 1/(2·n²) to below 2/n²: a power law with the
    exponent 2.

    Source: P. Elias, 1975 (see `Unary`). The code that the literature calls gamma is Elias's γ′;
    his γ has the same bits, but interleaves the bits of the length with those of the value.

    Examples
    --------
    >>> from gcodec.entropy import Gamma
    >>> for n in (1, 2, 3, 4, 15, 16):
    ...     print(n, Gamma().encode([n]).to01())
    1 1
    2 010
    3 011
    4 00100
    15 0001111
    16 000010000
    """

    name = "gamma"
    first = 1
    rule = codewords.GAMMA


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Delta(Universal):
    """Elias delta: the number of bits of the value in gamma, then the value without its first bit.

        codeword(n) = gamma(L + 1), then the L lowest bits of n

    Values from 1 to 2^64 − 1. Length: L + 2·floor(log2(L + 1)) + 1.

    The implied probability lies from 1/(2·n·(log2 n + 1)²) to below 4/(n·(log2 n)²). Delta suits
    values over many orders of magnitude, for which gamma would be too long. Omega is shorter for
    2, 3, 8 to 15 and 2^15 to 2^16 − 1, as long for 1, 128 to 255 and from 2^63 on, and longer for
    all other values.

    Source: P. Elias, 1975 (see `Unary`; δ).

    Examples
    --------
    >>> from gcodec.entropy import Delta
    >>> for n in (1, 2, 3, 4, 15, 16):
    ...     print(n, Delta().encode([n]).to01())
    1 1
    2 0100
    3 0101
    4 01100
    15 00100111
    16 001010000
    """

    name = "delta"
    first = 1
    rule = codewords.DELTA


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Omega(Universal):
    """Elias omega: the value, preceded by its length, preceded by the length of this, and so on.

        codeword(n) = groups(n), then 0
        groups(1) is empty; groups(n) = groups(L), then n in L + 1 bits

    A decoder starts with m = 1. A 0 ends the codeword, whose value is m; a 1 is the first of m + 1
    bits, which are the next m. A group of more than 64 bits cannot lead to a value below 2^64.

    Values from 1 to 2^64 − 1. Length: 1 + the sum of the lengths of the groups; 76 bits at most.

    | n | L | bits |
    |---|---|---|
    | 1 | 0 | 1 |
    | 2–3 | 1 | 3 |
    | 4–7 | 2 | 6 |
    | 8–15 | 3 | 7 |
    | 16–31 | 4 | 11 |
    | 32–63 | 5 | 12 |
    | 64–127 | 6 | 13 |

    The implied probabilities fall as slowly as those of any code can: p(1) = 1/2 and
    p(n) = p(L)·2^-(L + 1), so about 1/(n · log2 n · log2 log2 n · …), times 1/2 for each group.

    Source: P. Elias, 1975 (see `Unary`; ω).

    Examples
    --------
    >>> from gcodec.entropy import Omega
    >>> for n in (1, 2, 3, 4, 15, 16, 100):
    ...     print(n, Omega().encode([n]).to01())
    1 0
    2 100
    3 110
    4 101000
    15 1111110
    16 10100100000
    100 1011011001000
    """

    name = "omega"
    first = 1
    rule = codewords.OMEGA


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Rice(Universal):
    """Rice code: the value without its k lowest bits in unary, then these k bits.

        codeword(n) = q zeros, then 1, then the k lowest bits of n, with q = floor(n / 2^k)

    Values from 0 to 2^64 − 1. Length: q + 1 + k.

    The implied probability halves every 2^k values: a geometric distribution P(n) ~ θ^n with
    θ = 2^(-2^-k), whose mean is about 2^k / ln 2 = 1.44·2^k. The code equals Golomb with b = 2^k.
    To code signed integers, number them first, as in 0, −1, 1, −2, 2, …

    Sources: R. F. Rice and J. R. Plaunt, "Adaptive variable-length coding for efficient
    compression of spacecraft television data", IEEE Transactions on Communication Technology 19,
    1971; R. F. Rice, "Some practical universal noiseless coding techniques", JPL Publication
    79-22, 1979.

    Parameters
    ----------
    k : int
        Number of low bits that are stored as they are, from 0 to 63.

    Examples
    --------
    >>> from gcodec.entropy import Rice
    >>> for n in (0, 1, 3, 4, 9, 17):
    ...     print(n, Rice(k=2).encode([n]).to01())
    0 100
    1 101
    3 111
    4 0100
    9 00101
    17 0000101
    """

    name = "rice"
    rule = codewords.RICE

    k: int = param(Integer(0, 63), 0, "number of low bits that are stored as they are")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Golomb(Universal):
    """Golomb code: the quotient by b in unary, then the remainder in as few bits as possible.

        codeword(n) = q zeros, then 1, then the remainder r, with q = floor(n / b) and r = n − q·b
        r in c − 1 bits if r < m, else r + m in c bits, with c = ceil(log2 b) and m = 2^c − b

    Values from 0 to 2^64 − 1. Length: q + c if r < m, else q + 1 + c.

    No code is shorter for values of a geometric distribution P(n) = (1 − θ)·θ^n, such as gaps
    between events of probability 1 − θ, if θ^b + θ^(b + 1) ≤ 1 < θ^b + θ^(b − 1): b is about where
    θ^b = 1/2.

    Sources: S. W. Golomb, "Run-length encodings", IEEE Transactions on Information Theory 12,
    1966; R. G. Gallager and D. C. van Voorhis, "Optimal source codes for geometrically distributed
    integer alphabets", IEEE Transactions on Information Theory 21, 1975 (the best b).

    Parameters
    ----------
    b : int
        The divisor, from 1 to 2**64 - 1.

    Examples
    --------
    >>> from gcodec.entropy import Golomb
    >>> for n in (0, 5, 6, 9, 10, 42):
    ...     print(n, Golomb(b=10).encode([n]).to01())
    0 1000
    5 1101
    6 11100
    9 11111
    10 01000
    42 00001010
    """

    name = "golomb"
    rule = codewords.GOLOMB

    b: int = param(Integer(1, 2**64 - 1), 1, "the divisor")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ExpGolomb(Universal):
    """Exponential Golomb code: the value without its k lowest bits in gamma, then these k bits.

        codeword(n) = gamma(floor(n / 2^k) + 1), then the k lowest bits of n

    The same bits are L − k zeros, then n + 2^k in L + 1 bits, with L = floor(log2(n + 2^k)).

    Values from 0 to 2^64 − 1. Length: 2·L + 1 − k.

    The implied probability lies from 2^k/(2·(n + 2^k)²) to below 2·2^k/(n + 2^k)²: nearly even
    below 2^k, then a power law of exponent 2. With k = 0 the code is the ue(v) of H.264.

    Source: J. Teuhola, "A compression method for clustered bit-vectors", Information Processing
    Letters 7, 1978.

    Parameters
    ----------
    k : int
        Number of low bits that are stored as they are, from 0 to 63.

    Examples
    --------
    >>> from gcodec.entropy import ExpGolomb
    >>> for n in (0, 1, 3, 4, 9, 17):
    ...     print(n, ExpGolomb(k=2).encode([n]).to01())
    0 100
    1 101
    3 111
    4 01000
    9 01101
    17 0010101
    """

    name = "expgolomb"
    rule = codewords.EXPGOLOMB

    k: int = param(Integer(0, 63), 0, "number of low bits that are stored as they are")
