"""Lists of outliers: their Rice parameters are those of the fewest bits, the first of equals."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.context.outlier_lists import RICE_NBITS, put_lists, read_lists
from gcodec.kernels.prefix.rice_words import LARGEST


def nbits_of(numbers: np.ndarray, k: int) -> int:
    return sum((int(number) >> k) + 1 + k for number in numbers)


def best_parameter(numbers: np.ndarray) -> int:
    return min(range(LARGEST + 1), key=lambda k: nbits_of(numbers, k))


def numbers(kind: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 40))
    if kind == "ties":  # two parameters have equal sizes where half of the numbers are odd
        return np.tile([0, 1, 2, 3], count)[:count]
    if kind == "zeros":
        return np.zeros(count, np.int64)
    if kind == "one of many":
        return np.append(np.zeros(count, np.int64), 1 << 38)
    return np.exp2(rng.random(count) * rng.integers(1, 40)).astype(np.int64)


@pytest.mark.parametrize("kind", ["ties", "zeros", "one of many", "spread"])
def test_parameters_are_the_first_with_the_fewest_bits(kind: str) -> None:
    for seed in range(200):
        gaps = numbers(kind, seed)
        symbols = np.resize(numbers(kind, seed + 1000), gaps.size)
        symbols = np.where(symbols == 1, 2, symbols)  # 1 would be −0
        places, string = np.cumsum(gaps + 1) - 1, BitString()
        put_lists(places, symbols, string)
        parameters = best_parameter(gaps), best_parameter(symbols)
        expected = sum(map(nbits_of, (gaps, symbols), parameters)) + 2 * RICE_NBITS
        assert string.nbits == expected
        data = string.trimmed()
        assert int(data[0]) >> 8 - RICE_NBITS == parameters[0]
        bits = np.unpackbits(data)
        at = RICE_NBITS + nbits_of(gaps, parameters[0])
        assert int("".join(map(str, bits[at : at + RICE_NBITS])), 2) == parameters[1]
        read = read_lists(data, 0, string.nbits, gaps.size, 1 << 45)
        assert np.array_equal(read[0], places) and np.array_equal(read[1], symbols)
        assert read[2] == string.nbits
