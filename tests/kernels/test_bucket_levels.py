"""Fused norms and levels of buckets: the same bits as those of `norms` and `levels`."""

from __future__ import annotations

import math

import numpy as np
import pytest
import strategies as gs

import gcodec
from gcodec import ParameterError
from gcodec.kernels.numeric.norms import norms
from gcodec.kernels.quantize import bucket_levels, levels
from gcodec.kernels.quantize.levels import Scale

SIZES = (1e-44, 1e-31, 2.0**-100, 1e-12, 1.0, 1e30, 0.0)  # the first two are tiny


def values_of(n: int, bucket: int) -> np.ndarray:
    """Make buckets of all magnitudes, 0 included; the last bucket is shorter."""
    rng = np.random.default_rng([n, bucket])
    size = rng.permutation(np.resize(SIZES, -(-n // bucket))).repeat(bucket)[:n]
    return (rng.standard_normal(n) * size).astype(np.float32)


@pytest.mark.parametrize("bucket", bucket_levels.BUCKETS)
@pytest.mark.parametrize("first", [0, 3])
def test_fused_kernel_equals_two_passes(bucket: int, first: int) -> None:
    n = 9 * bucket + 37
    x = values_of(n, bucket)
    expected_norms = norms(x, bucket, "l2")
    for s in (1, 15, 127):
        scale = Scale(expected_norms, bucket, s)
        fused_scale = Scale(np.empty_like(expected_norms), bucket, s)
        start = first * bucket
        expected, out = np.empty(n - start, np.uint8), np.empty(n - start, np.uint8)
        levels.quantize(x[start:], scale, 9, start, expected)
        bucket_levels.quantize(x[start:], fused_scale, 9, start, out)
        assert gs.same_bits(fused_scale.norms[first:], expected_norms[first:])
        assert np.array_equal(out, expected)


@pytest.mark.parametrize("bucket", [48, 96, 100, 160, 4128, 20_000])
def test_paired_blocks_equal_single_blocks(bucket: int) -> None:
    """Cover ranges that begin at odd blocks, and buckets that end anywhere in a block."""
    n = 20_000
    x = values_of(n, bucket)
    scale = Scale(norms(x, bucket, "l2"), bucket, 15)
    whole = np.empty(n, np.uint8)
    levels.quantize(x, scale, 9, 0, whole)
    for start, stop in ((32, n), (96, 32 * 7), (32 * 31, 32 * 33 + 5), (64, 96), (32 * 600, n)):
        part = np.empty(stop - start, np.uint8)
        levels.quantize(x[start:stop], scale, 9, start, part)
        assert np.array_equal(part, whole[start:stop])


def test_errors_describe_the_whole_tensor() -> None:
    x = np.ones(3 * (1 << 20), np.float32)
    x[-5:] = math.nan
    with pytest.raises(
        ParameterError, match=f"5 NaN or Inf, the first at flat index {x.size - 5}"
    ):
        gcodec.encode(x, "qsgd:bucket=512,form=dense")
    x[-5:] = 3e38
    with pytest.raises(ParameterError, match="its norm must not exceed float32"):
        gcodec.encode(x, "qsgd:bucket=512,form=dense")
