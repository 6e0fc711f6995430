"""delta: how many bits the number has, as a gamma word, then the number without its first bit.

    word(n) = gamma(L + 1), then the L lowest bits of n, with L = floor(log2 n)

Values from 1 to 2^64 − 1. Length: L + 2·floor(log2(L + 1)) + 1.

A word of b bits suits a value of probability 2^-b. Here this lies from 1/(2·n·(log2 n + 1)²) to
below 4/(n·(log2 n)²): numbers over many orders of magnitude, where gamma would be too long. Omega
is shorter for 2, 3, 8 to 15 and 2^15 to 2^16 − 1; as long for 1, 128 to 255 and from 2^63 on; and
else longer.

>>> from gcodec.entropy import Delta
>>> for n in (1, 2, 3, 4, 15, 16):
...     print(n, Delta().encode([n]).to01())
1 1
2 0100
3 0101
4 01100
15 00100111
16 001010000

Source: P. Elias, "Universal codeword sets and representations of the integers", IEEE Transactions
on Information Theory 21, 1975 (δ).
"""

from __future__ import annotations

import dataclasses

from gcodec.entropy.code import Universal
from gcodec.kernels.prefix import codewords
from gcodec.kernels.prefix.prefix_table import PrefixCode


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Delta(Universal):
    """Elias delta."""

    name = "delta"
    first = 1

    def _prefix(self) -> PrefixCode:
        return PrefixCode(codewords.DELTA, 0, self.first)
