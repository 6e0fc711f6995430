"""Single Rice words, for kernels that write short lists; `codewords.RICE` reads them."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.words import put
from gcodec.runtime.jit import subroutine

LARGEST = 31  # largest parameter


@subroutine
def put_rice(out, at, acc, have, number, k):
    """Put the word of a number >= 0; see `words.put` for the other arguments."""
    zeros, low = number >> k, np.int64((1 << k) - 1)
    while zeros > 24:
        acc, have, at = put(out, at, acc, have, np.uint64(0), np.uint64(24))
        zeros -= 24
    word = np.uint64(number & low | 1 << k)
    return put(out, at, acc, have, word, np.uint64(zeros + k + 1))
