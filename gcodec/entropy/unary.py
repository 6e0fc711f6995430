"""unary: as many zeros as the number says, then a one.

    word(n) = n zeros, then 1

Values from 0 to 2^64 − 1; but what `encode` writes is limited, so in practice to 2^34 − 1.
Length: n + 1.

A word of b bits suits a value of probability 2^-b. Here this is 2^-(n + 1): the number of heads
before the first tail. It is Rice with k = 0 and Golomb with b = 1.

>>> from gcodec.entropy import Unary
>>> for n in (0, 1, 2, 7):
...     print(n, Unary().encode([n]).to01())
0 1
1 01
2 001
7 00000001

Source: P. Elias, "Universal codeword sets and representations of the integers", IEEE Transactions
on Information Theory 21, 1975 (α, from 1).
"""

from __future__ import annotations

import dataclasses

from gcodec.entropy.code import Universal
from gcodec.kernels.prefix import codewords
from gcodec.kernels.prefix.prefix_table import PrefixCode


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Unary(Universal):
    """Zeros and a one."""

    name = "unary"

    def _prefix(self) -> PrefixCode:
        return PrefixCode(codewords.RICE, 0, self.first)
