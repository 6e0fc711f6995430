"""The words that begin a low-rank message: two numbers, then exponents that never rise.

All words are Elias gamma. They are both numbers, the first exponent plus 1, and for each further
exponent the exponent of its predecessor minus its own, plus 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.kernels.prefix.codewords import GAMMA
from gcodec.kernels.prefix.prefix_read import check
from gcodec.runtime.jit import kernel

_MANY = np.uint64(1 << 32)  # the number as which all larger ones are read

_read_word = GAMMA.value


class HeadWords(NamedTuple):
    """The words of a message.

    Attributes
    ----------
    first, second : int
        The two numbers.
    largest : int
        The largest of the other words.
    after : int
        Position of the next bit.
    exponents : (r,) int64 array
    """

    first: int
    second: int
    largest: int
    after: int
    exponents: np.ndarray


def read_words(data: np.ndarray, end: int, rank: int) -> HeadWords:
    """Read two numbers and `rank` exponents from a string that ends at bit `end`.

    Raises
    ------
    FormatError
        If the string ends within the words, or has an invalid one.
    """
    fields, exponents = np.zeros(5, np.int64), np.empty(rank, np.int64)
    _read_words(data, end, fields, exponents)
    check(fields, chained=False)
    _, after, first, second, largest = fields.tolist()
    return HeadWords(first, second, largest, after, exponents)


@kernel("in uint8[], int64, out int64[], out int64[]", vectorized=False)
def _read_words(data, end, fields, exponents):
    # fields.size == 5; end <= 8 * data.size. The first two fields report an error and a bit.
    at, exponent = np.int64(0), np.int64(0)
    for i in range(-2, exponents.size):
        word, after = _read_word(data, at, end, np.uint64(0))
        if after < 0:
            fields[0], fields[1] = after, at
            return
        number, at = np.int64(min(word, _MANY)), after
        if i < 0:
            fields[i + 4] = number
        else:
            exponent = exponent - number + 1 if i else number - 1
            exponents[i], fields[4] = exponent, max(fields[4], number)
    fields[1] = at
