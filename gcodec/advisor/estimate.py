"""Estimate the bits that codecs take for a tensor at an error, from its statistics."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gcodec.arrays.nonfinite import nonfinite_error
from gcodec.arrays.source import Tensor, outlet
from gcodec.codec import Codec
from gcodec.codecs import parse
from gcodec.codecs.ecsq.filter_transform import FilterTransform
from gcodec.kernels.numeric.reduce import moments
from gcodec.runtime.deferred import resolved
from gcodec.wire.primitives import ITEMSIZE

_SPARSE = 64  # smallest ratio of values to nonzero values at which topk is considered
# Bits in addition to those of elements: fields of the header, lists of scales, tables, a range.
_ECSQ_NBITS, _MINMAX_NBITS, TOPK_NBITS, _QSGD_NBITS = 8 * 32, 8 * 9, 8 * 14, 8 * 20
MAX_RANGE_BITS = 8
_MARGIN = 1e-5  # relative uncertainty of `range_error`
GAP_NBITS = 2.5  # of a position, in addition to log2(n/k)
_RATE_OFFSET = 0.1  # bits of a level, in addition to log2(1/error)/2
_MIN_STEP = 2.0**-20  # relative to the peak: levels can have it, with room for the search
_NEGLIGIBLE = 1e-4  # rounding relative to the root of an error, within the 2 % margin of ecsq
_MIN_NORMAL = 2.0**-126  # of float32; smaller steps lose bits
# A trellis saves a tenth of the bits at large errors. Its encoder is ten times as slow, which does
# not matter for small tensors.
_TRELLIS_ERROR, _TRELLIS_VALUES = 0.05, range(1 << 11, (1 << 18) + 1)
TRELLIS_SHARE = 0.9
_MIN_NORM = 2.0**-80  # smallest norm at which no factor underflows float32
# Largest rounding error of a value, relative to the value, and absolute for subnormal numbers.
_ROUNDING = {
    "float32": (2.0**-24, 2.0**-150),
    "float64": (2.0**-24, 2.0**-150),
    "float16": (2.0**-11, 2.0**-25),
    "bfloat16": (2.0**-8, 2.0**-134),
}
_LARGEST = {
    "float16": float(np.finfo(np.float16).max),
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
}


class Statistics(NamedTuple):
    """Statistics of a tensor x.

    Attributes
    ----------
    norm : float
        ‖x‖.
    peak : float
        Largest magnitude.
    rounding : float
        Bound on ‖x̂ − y‖/‖x‖, where x̂ is y, a tensor close to x, rounded to the dtype.
    nonzero : int
        Number of nonzero values.
    """

    norm: float
    peak: float
    rounding: float
    nonzero: int

    @classmethod
    def of(cls, tensor: Tensor) -> Statistics:
        """Read all values; raise `ParameterError` if one is not finite."""
        values = tensor.values
        if not values.size:
            return cls(0.0, 0.0, 0.0, 0)
        sums = resolved(moments(values))
        peak = float(np.array([sums.largest], np.uint32).view(np.float32)[0])
        if not math.isfinite(peak):
            raise nonfinite_error(values)
        norm = math.sqrt(sums.squares)
        relative, absolute = _ROUNDING[tensor.dtype]
        rounding = relative + absolute * math.sqrt(values.size) / norm if norm else 0.0
        return cls(norm, peak, rounding, int(np.count_nonzero(values)))

    def unrounded(self, error: float) -> float:
        """Return the error before rounding to the dtype that guarantees `error` after it."""
        return max(math.sqrt(error) - self.rounding, 0.0) ** 2


class Candidate(NamedTuple):
    """A codec and the estimated bits of its frame, without the bits that all frames have."""

    nbits: float
    codec: Codec


def lossless(tensor: Tensor, stats: Statistics) -> list[Candidate]:
    """Return codecs that are lossless for float32, float16 and bfloat16."""
    dtype, n = "float32" if tensor.dtype == "float64" else tensor.dtype, tensor.values.size
    width = 8 * ITEMSIZE[dtype]
    candidates = [Candidate(width * n, parse({"name": "raw", "dtype": dtype}))]
    k = stats.nonzero
    if k * _SPARSE <= n:
        place = math.log2(n / k) + GAP_NBITS
        codec = parse({"name": "topk", "k": k, "value": dtype})
        candidates.append(Candidate((width + place) * k + TOPK_NBITS, codec))
    if math.isclose(stats.norm, math.sqrt(k) * stats.peak, rel_tol=1e-9):
        magnitudes = np.abs(tensor.values)
        if ((magnitudes == np.float32(stats.peak)) | (magnitudes == 0)).all():
            positive = int(np.count_nonzero(tensor.values > 0))
            counts = (positive, k - positive, n - k)
            entropy = sum(count * math.log2(n / count) for count in counts if count)
            codec = parse("qsgd:norm=max,s=1,code=auto")
            candidates.append(Candidate(entropy + _QSGD_NBITS, codec))
    return candidates


def levels(tensor: Tensor, stats: Statistics, error: float) -> list[Candidate]:
    """Return the candidate of ``ecsq``, or nothing if no step reaches the error."""
    n = tensor.values.size
    target = stats.unrounded(error)
    step = math.sqrt(12 * target / n) * stats.norm
    largest = _LARGEST.get(tensor.dtype, float(np.finfo(np.float32).max))
    transform = FilterTransform.of(tensor.shape)
    # The quantization errors of transform coefficients may add up.
    excess = 4 * step if transform is None else 4 * step * math.sqrt(transform.size)
    if step < max(_MIN_STEP * stats.peak, _MIN_NORMAL) or stats.peak + excess > largest:
        return []
    # The levels of nonzero values cost as in a dense tensor, their positions as in topk.
    k = stats.nonzero
    rate = max(math.log2(k / n / target) / 2, 0.0) + _RATE_OFFSET if k else 0.0
    place = math.log2(n / k) if k else 0.0
    is_exact = stats.rounding < _NEGLIGIBLE * math.sqrt(error)
    spec = {"name": "ecsq", "nmse": error if is_exact else target}
    if error >= _TRELLIS_ERROR and n in _TRELLIS_VALUES:
        spec["trellis"] = "yes"
    return [Candidate(k * (rate + place) + _ECSQ_NBITS, parse(spec))]


def may_project(tensor: Tensor, stats: Statistics) -> bool:
    """Tell whether all projections are within the dtype, and no factor is subnormal."""
    largest = _LARGEST.get(tensor.dtype, _LARGEST["bfloat16"])
    return stats.norm >= _MIN_NORM and stats.peak + stats.norm <= largest


def ranges(tensor: Tensor, stats: Statistics, error: float) -> list[Candidate]:
    """Return the candidate of ``minmax`` with the fewest bits, or nothing if none is enough."""
    for bits in range(1, MAX_RANGE_BITS + 1):
        if range_error(tensor, stats, bits) <= error * (1 - _MARGIN):
            codec = parse({"name": "minmax", "bits": bits})
            return [Candidate(bits * tensor.values.size + _MINMAX_NBITS, codec)]
    return []


def range_error(tensor: Tensor, stats: Statistics, bits: int) -> float:
    """Return the relative error of ``minmax``, except for its last digits."""
    values = tensor.values.astype(np.float64)
    low, high = float(values.min()), float(values.max())
    step = (high - low) / (2**bits - 1) or 1.0
    points = (low + np.rint((values - low) / step) * step).astype(np.float32)
    difference = values - outlet(points, tensor.dtype).astype(np.float64)
    return float((difference**2).sum()) / stats.norm**2
