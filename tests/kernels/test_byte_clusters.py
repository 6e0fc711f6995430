"""Clusters of strings of bytes with similar histograms."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.entropy.rans import entropy_nbits, log2_table
from gcodec.kernels.numeric.byte_clusters import clusters


def labels(strings: list[bytes], least: int, times: int = 1) -> list[int]:
    ends = np.cumsum([len(string) for string in strings])
    sizes = times * np.array([len(string) for string in strings])
    symbols = np.frombuffer(b"".join(strings), np.uint8)
    result: list[int] = clusters(symbols, ends, sizes, least, log2_table()).tolist()
    return result


def same_partition(one: list[int], two: list[int]) -> bool:
    return len({*zip(one, two, strict=True)}) == len({*one}) == len({*two})


def ideal_nbits(strings: list[bytes]) -> int:
    symbols = np.frombuffer(b"".join(strings), np.uint8)
    return entropy_nbits(np.bincount(symbols, minlength=256))


def exponents(mean: float, n: int, seed: int) -> bytes:
    rounded = np.random.default_rng(seed).normal(mean, 1.5, n).round()
    return rounded.astype(np.uint8).tobytes()


def test_strings_far_apart_have_clusters_of_their_own() -> None:
    means = [120, 90, 120.1, 90.1, 119.9]
    strings = [exponents(mean, 3000, seed) for seed, mean in enumerate(means)]
    assert same_partition(labels(strings, 1000), [0, 1, 0, 1, 0])
    assert same_partition(labels(strings, 10**6), [0] * 5)


def test_zeros_do_not_move_the_mean() -> None:
    own = exponents(120, 3000, 1)
    # Two tables would save thousands of bits, but strings with one mean are never divided.
    assert same_partition(labels([own, bytes(9000) + own], 1), [0, 0])
    assert same_partition(labels([own, bytes(9000)], 1000), [0, 1])


@pytest.mark.parametrize("times", [1, 16])
def test_samples_stand_for_whole_strings(times: int) -> None:
    strings = [exponents(120, 2000, 1), exponents(121, 2000, 2)]
    saving = times * (ideal_nbits(strings) - sum(ideal_nbits([each]) for each in strings))
    assert same_partition(labels(strings, saving - times, times), [0, 1])
    assert same_partition(labels(strings, saving + times, times), [0, 0])


@pytest.mark.parametrize("sizes", [[3000, 3000], [20000, 300], [500] * 12])
def test_tables_save_no_more_than_it_takes_to_tell_strings_apart(sizes: list[int]) -> None:
    strings = [exponents(15 * (k + 1), size, k) for k, size in enumerate(sizes)]
    most = entropy_nbits(np.array(sizes))
    assert len({*labels(strings, most + len(sizes))}) == 1
    assert len({*labels(strings, most // 40)}) == len(sizes)


@pytest.mark.parametrize("seed", range(20))
def test_merging_is_greedy(seed: int) -> None:
    """The clusters are those of plain code that merges the same pairs."""
    rng = np.random.default_rng(seed)
    strings = [
        exponents(100 + 0.37 * rng.integers(40), int(rng.integers(1, 400)), seed + k)
        for k in range(rng.integers(1, 24))
    ]
    least = int(rng.integers(1, 3000))

    def middle(string: bytes) -> int:
        others = [byte for byte in string if byte]
        return 4 * sum(others) // len(others) if others else 0

    bins = sorted({middle(string) for string in strings})
    groups = [[k for k, string in enumerate(strings) if middle(string) == b] for b in bins]

    def saving(k: int) -> int:
        one, two = ([strings[i] for i in group] for group in groups[k : k + 2])
        return ideal_nbits(one + two) - ideal_nbits(one) - ideal_nbits(two)

    while len(groups) > 1:
        best = min(range(len(groups) - 1), key=saving)
        if saving(best) >= least:
            break
        groups[best : best + 2] = [groups[best] + groups[best + 1]]
    expected = [0] * len(strings)
    for number, group in enumerate(groups):
        for k in group:
            expected[k] = number
    assert same_partition(labels(strings, least), expected)


def test_all_means_occur() -> None:
    strings = [bytes([value]) for value in range(256)]
    assert len({*labels(strings, 1)}) == 256
    assert {*labels(strings, 10**6)} == {0}
