"""gamma: the number, behind as many zeros as it has bits but one.

    word(n) = L zeros, then n in L + 1 bits, with L = floor(log2 n)

Values from 1 to 2^64 − 1. Length: 2·L + 1.

A word of b bits suits a value of probability 2^-b. Here this is 2^-(2·L + 1), which lies from
1/(2·n²) to below 2/n²: numbers of a power law of exponent 2.

>>> from gcodec.entropy import Gamma
>>> for n in (1, 2, 3, 4, 15, 16):
...     print(n, Gamma().encode([n]).to01())
1 1
2 010
3 011
4 00100
15 0001111
16 000010000

Source: P. Elias, "Universal codeword sets and representations of the integers", IEEE Transactions
on Information Theory 21, 1975. What everyone calls gamma is his γ′; his γ has the same bits, those
of the length between those of the number.
"""

from __future__ import annotations

import dataclasses

from gcodec.entropy.code import Universal
from gcodec.kernels.prefix import codewords
from gcodec.kernels.prefix.prefix_table import PrefixCode


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Gamma(Universal):
    """Elias gamma."""

    name = "gamma"
    first = 1

    def _prefix(self) -> PrefixCode:
        return PrefixCode(codewords.GAMMA, 0, self.first)
