"""golomb: the quotient by b in unary, then the remainder in as few bits as b numbers need.

    word(n) = q zeros, then 1, then the remainder r, with q = floor(n / b) and r = n − q·b
    r in c − 1 bits if r < m, else r + m in c bits, with c = ceil(log2 b) and m = 2^c − b

Values from 0 to 2^64 − 1. Length: q + c if r < m, else q + 1 + c.

A word of b bits suits a value of probability 2^-b, and this code is the best of all for numbers of
a geometric distribution P(n) = (1 − θ)·θ^n, such as gaps between what happens with probability
1 − θ: with the b for which θ^b + θ^(b + 1) ≤ 1 < θ^b + θ^(b − 1), so about where θ^b = 1/2.

>>> from gcodec.entropy import Golomb
>>> for n in (0, 5, 6, 9, 10, 42):
...     print(n, Golomb(b=10).encode([n]).to01())
0 1000
5 1101
6 11100
9 11111
10 01000
42 00001010

Sources: S. W. Golomb, "Run-length encodings", IEEE Transactions on Information Theory 12, 1966;
R. G. Gallager and D. C. van Voorhis, "Optimal source codes for geometrically distributed integer
alphabets", IEEE Transactions on Information Theory 21, 1975 (which b).
"""

from __future__ import annotations

import dataclasses

from gcodec.entropy.code import Universal
from gcodec.kernels.prefix import codewords
from gcodec.kernels.prefix.prefix_table import PrefixCode
from gcodec.wire.kinds import Integer
from gcodec.wire.params import param


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Golomb(Universal):
    """Golomb: any divisor.

    Parameters
    ----------
    b : int
        The divisor, from 1 to 2**64 - 1.
    """

    name = "golomb"

    b: int = param(Integer(1, 2**64 - 1), 1, "the divisor")

    def _prefix(self) -> PrefixCode:
        return PrefixCode(codewords.GOLOMB, self.b, self.first)
