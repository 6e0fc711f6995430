"""About how many bits a tensor takes at an error, told by its statistics without trying codecs."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gcodec.arrays import Tensor, nonfinite_error, outlet
from gcodec.codec import Codec
from gcodec.codecs import parse
from gcodec.kernels.reduce import moments
from gcodec.scalars import settled
from gcodec.taps import Taps
from gcodec.wire import ITEMSIZE

_SPARSE = 64  # at least so many values for each that is not zero
# Bits besides those of elements: fields of the header, and lists of scales, tables, a range.
_ECSQ_NBITS, _MINMAX_NBITS, TOPK_NBITS, _QSGD_NBITS = 8 * 32, 8 * 9, 8 * 14, 8 * 20
MOST_RANGE_BITS = 8
_MARGIN = 1e-5  # of an error that is not told to the last digit
GAP_NBITS = 2.5  # of a position, more than log2(n/k)
_RATE = 0.1  # bits of a level, more than log2(1/error)/2
_LEAST_STEP = 2.0**-20  # of the largest magnitude: levels can have it, with room to search
_NEGLIGIBLE = 1e-4  # rounding beside the root of an error, in the 2 % that ecsq stays below it
_LEAST_NORMAL = 2.0**-126  # of float32: steps below that have not all their bits
# Where a trellis takes a tenth off the bits, and its encoder, ten times as slow, is no burden.
_TRELLIS_ERROR, _TRELLIS_VALUES = 0.05, range(1 << 11, (1 << 18) + 1)
TRELLIS_SHARE = 0.9
_LEAST_NORM = 2.0**-80  # of a tensor whose factors lose nothing below what float32 has
# Of each dtype: the largest rounding of a value, as a share of it, and of what underflows.
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
_FLOAT32 = float(np.finfo(np.float32).max)


class About(NamedTuple):
    """Statistics.

    Attributes
    ----------
    norm : float
        ‖x‖.
    peak : float
        The largest magnitude.
    rounding : float
        At most ‖x̂ − y‖/‖x‖, where x̂ is y, about x, in the dtype.
    nonzero : int
        Number of values other than 0.
    """

    norm: float
    peak: float
    rounding: float
    nonzero: int

    @classmethod
    def of(cls, tensor: Tensor) -> About:
        """Read all values; raise `ParameterError` where one is not finite."""
        values = tensor.values
        if not values.size:
            return cls(0.0, 0.0, 0.0, 0)
        found = settled(moments(values))
        peak = float(np.array([found.largest], np.uint32).view(np.float32)[0])
        if not math.isfinite(peak):
            raise nonfinite_error(values)
        norm = math.sqrt(found.squares)
        share, least = _ROUNDING[tensor.dtype]
        rounding = share + least * math.sqrt(values.size) / norm if norm else 0.0
        return cls(norm, peak, rounding, int(np.count_nonzero(values)))

    def aim(self, error: float) -> float:
        """Return the error that leaves room for rounding to the dtype: both may add up."""
        return max(math.sqrt(error) - self.rounding, 0.0) ** 2


class Costed(NamedTuple):
    """A codec and about how many bits it takes, besides what all take."""

    nbits: float
    codec: Codec


def exact(tensor: Tensor, about: About) -> list[Costed]:
    """Return what loses nothing of float32, float16 and bfloat16."""
    own, n = _own_dtype(tensor), tensor.values.size
    width = 8 * ITEMSIZE[own]
    found = [Costed(width * n, parse({"name": "raw", "dtype": own}))]
    k = about.nonzero
    if k * _SPARSE <= n:
        place = math.log2(n / k) + GAP_NBITS
        codec = parse({"name": "topk", "k": k, "value": own})
        found.append(Costed((width + place) * k + TOPK_NBITS, codec))
    if math.isclose(about.norm, math.sqrt(k) * about.peak, rel_tol=1e-9):
        sizes = np.abs(tensor.values)
        if ((sizes == np.float32(about.peak)) | (sizes == 0)).all():
            positive = int(np.count_nonzero(tensor.values > 0))
            nbits = _entropy_nbits(positive, k - positive, n - k)
            codec = parse("qsgd:norm=max,s=1,code=auto")
            found.append(Costed(nbits + _QSGD_NBITS, codec))
    return found


def _entropy_nbits(*counts: int) -> float:
    """Return the bits of symbols that come so often."""
    n = sum(counts)
    return sum(count * math.log2(n / count) for count in counts if count)


def levels(tensor: Tensor, about: About, error: float) -> list[Costed]:
    """Return what ``ecsq`` takes; nothing where no step can have the error."""
    n = tensor.values.size
    aim = about.aim(error)
    step = math.sqrt(12 * aim / n) * about.norm
    most = _LARGEST.get(tensor.dtype, _FLOAT32)
    taps = Taps.of(tensor.shape)
    room = 4 * step if taps is None else 4 * step * math.sqrt(taps.size)  # rests may add up
    if step < max(_LEAST_STEP * about.peak, _LEAST_NORMAL) or about.peak + room > most:
        return []
    # In what is not zero there is all that levels tell; where that is, costs as in topk.
    k = about.nonzero
    rate = max(math.log2(k / n / aim) / 2, 0.0) + _RATE if k else 0.0
    place = math.log2(n / k) if k else 0.0
    plain = about.rounding < _NEGLIGIBLE * math.sqrt(error)
    trellis = error >= _TRELLIS_ERROR and n in _TRELLIS_VALUES
    wanted = {"name": "ecsq", "nmse": error if plain else aim}
    codec = parse(wanted | {"trellis": "yes"} if trellis else wanted)
    return [Costed(k * (rate + place) + _ECSQ_NBITS, codec)]


def may_project(tensor: Tensor, about: About) -> bool:
    """Tell whether all projections of the values are inside of the dtype, and factors normal."""
    most = _LARGEST.get(tensor.dtype, _LARGEST["bfloat16"])
    return about.norm >= _LEAST_NORM and about.peak + about.norm <= most


def ranges(tensor: Tensor, about: About, error: float) -> list[Costed]:
    """Return the fewest bits of levels between the least and the largest value."""
    for bits in range(1, MOST_RANGE_BITS + 1):
        if range_error(tensor, about, bits) <= error * (1 - _MARGIN):
            codec = parse({"name": "minmax", "bits": bits})
            return [Costed(bits * tensor.values.size + _MINMAX_NBITS, codec)]
    return []


def range_error(tensor: Tensor, about: About, bits: int) -> float:
    """Return the relative error of ``minmax``, but for the last digits."""
    values = tensor.values.astype(np.float64)
    low, high = float(values.min()), float(values.max())
    step = (high - low) / (2**bits - 1) or 1.0
    points = (low + np.rint((values - low) / step) * step).astype(np.float32)
    rest = values - outlet(points, tensor.dtype).astype(np.float64)
    return float((rest**2).sum()) / about.norm**2


def _own_dtype(tensor: Tensor) -> str:
    return "float32" if tensor.dtype == "float64" else tensor.dtype
