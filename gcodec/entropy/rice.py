"""rice: all but the k lowest bits of the number in unary, then these.

    word(n) = q zeros, then 1, then the k lowest bits of n, with q = floor(n / 2^k)

Values from 0 to 2^64 − 1. Length: q + 1 + k.

A word of b bits suits a value of probability 2^-b. Here this halves every 2^k values: a geometric
distribution P(n) ~ θ^n with θ = 2^(-2^-k), whose mean is about 2^k / ln 2 = 1.44·2^k. It is Golomb
with b = 2^k. Signed numbers are numbered first, as in 0, −1, 1, −2, 2, …

>>> from gcodec.entropy import Rice
>>> for n in (0, 1, 3, 4, 9, 17):
...     print(n, Rice(k=2).encode([n]).to01())
0 100
1 101
3 111
4 0100
9 00101
17 0000101

Sources: R. F. Rice and J. R. Plaunt, "Adaptive variable-length coding for efficient compression of
spacecraft television data", IEEE Transactions on Communication Technology 19, 1971; R. F. Rice,
"Some practical universal noiseless coding techniques", JPL Publication 79-22, 1979.
"""

from __future__ import annotations

import dataclasses
import functools

from gcodec.entropy.code import Universal
from gcodec.kernels.prefix import codewords
from gcodec.kernels.prefix.prefix_table import PrefixCode
from gcodec.wire.kinds import Integer
from gcodec.wire.params import param


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Rice(Universal):
    """Rice: a power of two as divisor.

    Parameters
    ----------
    k : int
        From 0 to 63.
    """

    name = "rice"

    k: int = param(Integer(0, 63), 0, "how many of the lowest bits are sent as they are")

    def _prefix(self) -> PrefixCode:
        return PrefixCode(codewords.RICE, self.k, self.first)


@functools.cache
def rice(k: int) -> Rice:
    """Return the code of a parameter, made once."""
    return Rice(k)
