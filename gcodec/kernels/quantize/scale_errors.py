"""Squared errors of quantizing a distribution of magnitudes, for many scales Δ at once.

A quantizer with the levels c_0 = 0 < c_1 < … maps |x| to Δ·c_j, where c_j is nearest to |x|/Δ. Its
squared error is Σx² − 2Δ·Σ|x|c_j + Δ²·Σc_j². A distribution gives the number and the sum of the
elements above each threshold Δ·(c_j−1 + c_j)/2. Each such element adds c_j − c_j−1 to its level,
and c_j² − c_j−1² to the square of its level.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from gcodec.kernels.numeric.log_histogram import BINS, FINITE, SHIFT
from gcodec.kernels.numeric.reduce import LANES, add_lanes
from gcodec.runtime.jit import inline, kernel
from gcodec.runtime.memory import bits_float, float_bits

_MAGNITUDE = np.uint32(0x7FFFFFFF)


class Ladder(NamedTuple):
    """The levels of a format, and the steps between them.

    Attributes
    ----------
    levels : (L,) float64 array
        Increasing from 0.
    middles, rises, squares : (L - 1,) float64 arrays
        Mean, difference, and difference of the squares of neighboring levels.
    mantissa : int
        Bits of the mantissa.
    """

    levels: np.ndarray
    middles: np.ndarray
    rises: np.ndarray
    squares: np.ndarray
    mantissa: int

    @classmethod
    def of(cls, levels: np.ndarray, mantissa: int) -> Ladder:
        """Make the ladder of (L,) levels of a format."""
        wide = levels.astype(np.float64)
        middles = (wide[1:] + wide[:-1]) / 2
        return cls(wide, middles, np.diff(wide), np.diff(wide * wide), mantissa)


class Sums(NamedTuple):
    """Statistics of a distribution for K scales.

    Attributes
    ----------
    errors : (K,) float64 array
        Squared errors, summed over the elements.
    fitted : (K,) float64 array
        Best scale if each element kept its level; 0 if all levels are 0.
    """

    errors: np.ndarray
    fitted: np.ndarray


class Binned:
    """A log-histogram as a distribution: uniform within each bin, and 0 for bin 0.

    Parameters
    ----------
    counts : (BINS,) int64 array
        Counts of finite magnitudes; see `log_histogram`.
    sample : (m,) float32 array
        Sample of the elements. If all samples of a bin have one magnitude, and the bin has
        several samples or a single element, all of the bin has this magnitude.

    Attributes
    ----------
    total, squares : float
        Sum of all magnitudes; sum of their squares.
    """

    def __init__(self, counts: np.ndarray, sample: np.ndarray) -> None:
        self._lows, self._highs = bin_edges()[:-1].copy(), bin_edges()[1:].copy()
        seen = np.zeros(2 * BINS, np.uint32)
        _narrow(sample.view(np.uint32), counts, seen, self._lows, self._highs)
        self._counts, self._totals, self.squares = _tails(counts, self._lows, self._highs)
        self.total = float(self._totals[0])

    def sums(self, scales: np.ndarray, ladder: Ladder) -> Sums:
        """Quantize all magnitudes with each of the (K,) positive float64 scales."""
        products, norms = np.empty(scales.size), np.empty(scales.size)
        bins = self._lows, self._highs, self._counts, self._totals
        _binned_sums(*bins, scales, *ladder[1:4], products, norms)
        errors = self.squares - scales * (2 * products - scales * norms)
        return Sums(errors, products / np.maximum(norms, np.finfo(np.float64).tiny))


def moments(counts: np.ndarray) -> tuple[float, float]:
    """Return the sums of the finite magnitudes of a log-histogram, and of their squares."""
    _, totals, squares = _tails(counts, bin_edges()[:-1], bin_edges()[1:])
    return float(totals[0]), squares


def _tails(
    counts: np.ndarray, lows: np.ndarray, highs: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the number and the sum of the magnitudes from each bin on, and the sum of squares."""
    above, totals = np.empty(BINS + 1), np.empty(BINS + 1)
    squares = float(_add_bins(counts, lows, highs, above, totals))
    return above, totals, squares


def squared_errors(values: np.ndarray, scales: np.ndarray, ladder: Ladder) -> np.ndarray:
    """Return ‖x − x̂‖² of finite (n,) float32 values for each of the (K,) scales Δ > 0."""
    top, errors = np.float32(ladder.levels[-1]), np.empty(scales.size)
    single = scales.astype(np.float32)
    _squared_errors(values, single, top, ladder.mantissa, np.empty(LANES), errors)
    return errors


@functools.lru_cache(maxsize=1)
def bin_edges() -> np.ndarray:
    """Return the lower bounds of the bins of a log-histogram, and an upper bound, as float64."""
    edges = np.empty(BINS + 1)
    edges[:FINITE] = (np.arange(FINITE, dtype=np.uint32) << np.uint32(SHIFT)).view(np.float32)
    edges[FINITE:] = np.arange(1, BINS + 2 - FINITE) * 2.0**128  # above all finite numbers
    edges.flags.writeable = False
    return edges


@kernel("in uint32[], in int64[], out uint32[], out float64[], out float64[]")
def _narrow(bits, counts, seen, lows, highs):
    # counts.size == lows.size == highs.size == BINS; seen: 2 * BINS zeros. A magnitude has 31
    # bits, so without its lowest SHIFT bits it is below BINS.
    several = seen[BINS:]
    for i in range(bits.size):
        magnitude = np.uint32(bits[i] & _MAGNITUDE)
        place = np.int64(magnitude >> np.uint32(SHIFT))
        if seen[place] == 0:
            seen[place] = magnitude
        elif seen[place] == magnitude:
            several[place] |= np.uint32(1)
        else:
            several[place] |= np.uint32(2)
    for k in range(BINS):
        if several[k] == 1 or (counts[k] == 1 and seen[k] > 0):
            lows[k] = highs[k] = np.float64(bits_float(seen[k]))


@kernel("in int64[], in float64[], in float64[], out float64[], out float64[]")
def _add_bins(counts, lows, highs, above, totals):
    # counts.size == lows.size == highs.size == BINS; above.size == totals.size == BINS + 1.
    number, total, squares = 0.0, 0.0, 0.0
    above[BINS] = totals[BINS] = 0.0
    for k in range(BINS - 1, -1, -1):
        if counts[k] > 0 and 0 < k < FINITE:
            count, low, high = np.float64(counts[k]), lows[k], highs[k]
            number += count
            total += count * ((low + high) / 2.0)
            squares += count * ((low * low + low * high + high * high) / 3.0)
        above[k], totals[k] = number, total
    return squares


@kernel(
    "in float64[], in float64[], in float64[], in float64[], in float64[], in float64[], "
    "in float64[], in float64[], out float64[], out float64[]"
)
def _binned_sums(lows, highs, counts, totals, scales, middles, rises, squares, products, norms):
    # lows, highs: BINS; counts, totals: BINS + 1. scales.size == products.size == norms.size;
    # middles.size == rises.size == squares.size. Thresholds are not negative, so their bits are at
    # most those of infinity, whose bin is below BINS.
    for k in range(scales.size):
        product, norm = 0.0, 0.0
        for j in range(middles.size):
            threshold = scales[k] * middles[j]
            place = np.int64(float_bits(np.float32(threshold)) >> np.uint32(SHIFT))
            if counts[place] == 0.0:
                break
            low, high = lows[place], highs[place]
            above = counts[place] - counts[place + 1]
            if threshold >= high:
                above = 0.0
            elif threshold > low:
                above *= (high - threshold) / (high - low)
                low = threshold
            product += rises[j] * (totals[place + 1] + above * ((high + low) / 2.0))
            norm += squares[j] * (counts[place + 1] + above)
        products[k], norms[k] = product, norm


@kernel("in float32[], in float32[], float32, int64, out float64[], out float64[]")
def _squared_errors(x, scales, top, mantissa, lanes, errors):
    # lanes.size == LANES; errors.size == scales.size
    for k in range(scales.size):
        lanes[:] = 0.0
        for start in range(0, x.size, LANES):
            part = x[start : start + LANES]
            for i in range(part.size):  # part.size <= LANES
                lanes[i] += square_of_error(part[i], scales[k], top, mantissa)
        errors[k] = add_lanes(lanes)


@inline
def square_of_error(value, scale, top, mantissa):
    """Return the squared error of a float32 element, in float64; `top` is the last level."""
    magnitude = bits_float(np.uint32(float_bits(value) & _MAGNITUDE))
    level = _rounded_to_level(min(magnitude / scale, top), mantissa)
    error = np.float64(magnitude) - np.float64(np.float32(level * scale))
    return error * error


@inline
def _rounded_to_level(ratio, mantissa):
    """Return the level nearest to a float32 that does not exceed the last one, ties to even."""
    # Adding and subtracting 1.5·2^23 units rounds to a unit, ties to even. The unit is the last
    # bit of the mantissa, which is the same for all levels below 2.
    least, exponent = np.uint32(128 << 23), np.uint32(0xFF << 23)
    unit = max(np.uint32(float_bits(ratio) & exponent), least)
    raised = np.uint32(unit + np.uint32(23 - mantissa << 23))
    large = bits_float(np.uint32(raised | np.uint32(1 << 22)))
    return np.float32(ratio + large) - large
