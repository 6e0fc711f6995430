"""The words that begin a low-rank message."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gcodec.errors import Truncated
from gcodec.kernels.prefix import codewords, prefix
from gcodec.kernels.prefix.low_rank_head import read_words
from gcodec.kernels.prefix.prefix_table import PrefixCode

GAMMA = PrefixCode(codewords.GAMMA, 0, 1)


def written(numbers: list[int]) -> tuple[np.ndarray, int]:
    return prefix.write(GAMMA, np.array(numbers, np.uint64))


@pytest.mark.parametrize("exponents", [[0], [7], [2047, 2047, 5, 5, 0]])
def test_words_are_two_numbers_and_falls(exponents: list[int]) -> None:
    falls = [high - low + 1 for high, low in itertools.pairwise(exponents)]
    data, nbits = written([3, 2, exponents[0] + 1, *falls])
    head = read_words(data, nbits, len(exponents))
    assert (head.first, head.second, head.after) == (3, 2, nbits)
    assert head.largest == max(exponents[0] + 1, *falls, 0)
    assert head.exponents.tolist() == exponents
    for end in range(nbits):
        with pytest.raises(Truncated):
            read_words(data, end, len(exponents))


def test_numbers_of_64_bits_are_read_as_large_ones() -> None:
    largest = 2**64 - 1
    head = read_words(*written([largest, 1, largest, largest, 5]), 3)
    assert (head.first, head.second, head.largest) == (1 << 32, 1, 1 << 32)
    assert head.exponents.tolist() == [(1 << 32) - 1, 0, -4]
