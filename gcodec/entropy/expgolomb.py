"""expgolomb: all but the k lowest bits of the number in gamma, from 1 on, then these.

    word(n) = gamma(floor(n / 2^k) + 1), then the k lowest bits of n

The same bits are L − k zeros, then n + 2^k in L + 1 bits, with L = floor(log2(n + 2^k)).

Values from 0 to 2^64 − 1. Length: 2·L + 1 − k.

A word of b bits suits a value of probability 2^-b. Here this lies from 2^k/(2·(n + 2^k)²) to below
2·2^k/(n + 2^k)²: nearly even below 2^k, then a power law of exponent 2. With k = 0 it is the ue(v)
of H.264.

>>> from gcodec.entropy import ExpGolomb
>>> for n in (0, 1, 3, 4, 9, 17):
...     print(n, ExpGolomb(k=2).encode([n]).to01())
0 100
1 101
3 111
4 01000
9 01101
17 0010101

Source: J. Teuhola, "A compression method for clustered bit-vectors", Information Processing
Letters 7, 1978.
"""

from __future__ import annotations

import dataclasses

from gcodec.entropy.code import Universal
from gcodec.kernels.prefix import codewords
from gcodec.kernels.prefix.prefix_table import PrefixCode
from gcodec.wire.kinds import Integer
from gcodec.wire.params import param


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ExpGolomb(Universal):
    """Exponential Golomb: buckets that double.

    Parameters
    ----------
    k : int
        From 0 to 63.
    """

    name = "expgolomb"

    k: int = param(Integer(0, 63), 0, "how many of the lowest bits are sent as they are")

    def _prefix(self) -> PrefixCode:
        return PrefixCode(codewords.EXPGOLOMB, self.k, self.first)
