"""omega: the number, before it how long it is, before that how long this is, and so on.

    word(n) = groups 0
    groups(1) is empty; groups(n) = groups(L) then n in L + 1 bits, with L = floor(log2 n)

A reader starts with m = 1. A 0 ends the word, which is m; a 1 is the first of m + 1 bits, which
are the next m. A group of more than 64 bits cannot lead to a value below 2^64.

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

A word of b bits suits a value of probability 2^-b. These fall as slowly as those of any code can:
p(1) = 1/2 and p(n) = p(L)·2^-(L + 1), so about 1/(n · log2 n · log2 log2 n · …), times 1/2 for
each group.

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

Source: P. Elias, "Universal codeword sets and representations of the integers", IEEE Transactions
on Information Theory 21, 1975 (ω).
"""

from __future__ import annotations

import dataclasses

from gcodec.entropy.code import Universal
from gcodec.kernels.prefix import codewords
from gcodec.kernels.prefix.prefix_table import PrefixCode


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Omega(Universal):
    """Elias omega."""

    name = "omega"
    first = 1

    def _prefix(self) -> PrefixCode:
        return PrefixCode(codewords.OMEGA, 0, self.first)
