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
from gcodec.runtime.jit import inline, kernel, subroutine
from gcodec.runtime.memory import bits_float, float_bits

TOLERANCE = 1e-3
"""Excess over the least squared error. The largest scale within it is chosen: it takes fewer bits,
and for formats with many exponents it may lie some octaves above the best one."""
LOCAL = 8
"""Number of local minima that are refined."""
LARGE = 4
"""Number of largest scales within the tolerance that are refined, too."""
ROUNDS = 3
"""Number of refinements."""

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_TINY = float(np.finfo(np.float64).tiny)
# Types of a distribution and the steps of a ladder, one parameter of kernels.
_DISTRIBUTION = "(in float64[], int64, float64, in float64[], in float64[], in float64[])"


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


class Overview(NamedTuple):
    """What one pass over a log-histogram shows.

    Attributes
    ----------
    size : int
        Number of finite elements.
    first, last : int
        First bin above bin 0 that is not empty, and the last bin that is not empty; `last` is −1
        if all are empty.
    total, squares : float
        Sum of the finite magnitudes, and sum of their squares.
    """

    size: int
    first: int
    last: int
    total: float
    squares: float

    @classmethod
    def of(cls, counts: np.ndarray) -> Overview:
        """Look at a (BINS,) int64 log-histogram."""
        numbers, sums = np.empty(3, np.int64), np.empty(2)
        _look(counts, bin_edges(), numbers, sums)
        return cls(*numbers.tolist(), *sums.tolist())


class Binned:
    """A log-histogram as a distribution: uniform within each bin, and 0 for bin 0.

    Parameters
    ----------
    counts : (BINS,) int64 array
        Counts of finite magnitudes; see `log_histogram`.
    sample : (m,) float32 array
        Sample of the elements. If all samples of a bin have one magnitude, and the bin has
        several samples or a single element, all of the bin has this magnitude.
    overview : Overview, optional
        Overview of the histogram, if it is known.
    stop : int, optional
        Bin from which on the histogram is ignored.

    Attributes
    ----------
    total, squares : float
        Sum of all magnitudes; sum of their squares.
    """

    def __init__(
        self,
        counts: np.ndarray,
        sample: np.ndarray,
        overview: Overview | None = None,
        stop: int = FINITE,
    ) -> None:
        overview = Overview.of(counts) if overview is None else overview
        first, stop = overview.first, min(overview.last + 1, stop)
        size = max(stop - first, 0)
        bins, seen = np.empty(4 * (size + 1)), np.zeros(2 * size, np.uint32)
        edges = bin_edges()[first : first + size + 1]
        parts = counts[first : first + size], edges, sample.view(np.uint32), first, seen
        self.squares = float(_fill_bins(*parts, bins))
        self.total = float(bins[3 * (size + 1)])
        self._bins = bins, first, self.squares

    def sums(self, scales: np.ndarray, ladder: Ladder) -> Sums:
        """Quantize all magnitudes with each of the (K,) positive float64 scales."""
        errors, fitted = np.empty(scales.size), np.empty(scales.size)
        _measure(*self._bins, *ladder[1:4], scales, errors, fitted)
        return Sums(errors, fitted)

    def improved(self, scale: float, ladder: Ladder) -> float:
        """Return the least-squares scale for the levels that a scale gives, if it is better."""
        before = self.sums(np.array([scale]), ladder)
        after = self.sums(before.fitted, ladder)
        is_better = before.fitted[0] > 0 and after.errors[0] < before.errors[0]
        return float(before.fitted[0]) if is_better else scale

    def candidates(
        self, grid: Grid, ladder: Ladder, rounding: Rounding, scale: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return scales that may be the best ones, and their squared errors.

        The candidates are the local minima of the error on a grid, and the largest scales within
        the tolerance, each of them also after least squares for its levels, repeatedly.

        Parameters
        ----------
        grid : Grid
        ladder : Ladder
        rounding : Rounding
            Rounding of all candidates.
        scale : float
            The first candidate.

        Returns
        -------
        scales, errors : (K,) float64 arrays
        """
        count, most = grid.octaves * grid.fractions.size, LOCAL + LARGE
        tried, tried_errors = np.empty((2, 1 + (1 + ROUNDS) * most))
        number = _find_candidates(
            *(*self._bins, *ladder[1:4], grid.start, grid.fractions, *rounding, scale),
            *(np.empty(count), np.empty(count), np.empty(most, np.int64), tried, tried_errors),
        )
        return tried[:number], tried_errors[:number]


class Grid(NamedTuple):
    """Scales at which local minima of the error are looked for.

    Attributes
    ----------
    start : float
        The first scale, a power of two.
    octaves : int
        Number of octaves.
    fractions : (k,) float64 array
        The scales of the octave that begins at 1.
    """

    start: float
    octaves: int
    fractions: np.ndarray


class Rounding(NamedTuple):
    """How scales are rounded to binary32 numbers that a message may contain.

    Attributes
    ----------
    unit : float
        Power of two in whose multiples scales are expressed.
    least, most : float
        Limits of the rounded scales, in multiples of 1.
    """

    unit: float
    least: float
    most: float

    def rounded(self, scales: np.ndarray) -> np.ndarray:
        """Round (K,) float64 scales."""
        inside = np.clip(scales * self.unit, self.least, self.most)
        with np.errstate(under="ignore"):
            return inside.astype(np.float32).astype(np.float64) / self.unit


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


@kernel("in int64[], in float64[], out int64[], out float64[]", vectorized=False)
def _look(counts, edges, numbers, sums):
    # counts.size == BINS == edges.size - 1; numbers.size == 3; sums.size == 2
    last = counts.size - 1
    while last >= 0 and counts[last] == 0:
        last -= 1
    size, first, total, squares = np.int64(0), np.int64(1), 0.0, 0.0
    for k in range(min(last, FINITE - 1), -1, -1):
        size += counts[k]
        if counts[k] > 0 and k > 0:
            count, low, high = np.float64(counts[k]), edges[k], edges[k + 1]
            total += count * ((low + high) / 2.0)
            squares += count * _mean_square(low, high)
            first = k
    numbers[0], numbers[1], numbers[2] = size, first, last
    sums[0], sums[1] = total, squares


@inline
def _mean_square(low, high):
    """Return the mean square of a uniform distribution."""
    return (low * low + low * high + high * high) / 3.0


@kernel(
    "in int64[], in float64[], in uint32[], int64, out uint32[], out float64[]", vectorized=False
)
def _fill_bins(counts, edges, bits, first, seen, bins):
    # The bins are those from `first` on. edges.size == counts.size + 1, bins.size == 4 *
    # edges.size, and `seen` has 2 * counts.size zeros.
    size = counts.size
    several = seen[size:]
    for i in range(bits.size):
        magnitude = np.uint32(bits[i] & _MAGNITUDE)
        place = np.int64(magnitude >> np.uint32(SHIFT)) - first
        if not 0 <= place < size:
            continue
        if seen[place] == 0:
            seen[place] = magnitude
        elif seen[place] == magnitude:
            several[place] |= np.uint32(1)
        else:
            several[place] |= np.uint32(2)
    lows, highs, above, totals = _bin_arrays(bins)
    number, total, squares = 0.0, 0.0, 0.0
    lows[size] = highs[size] = above[size] = totals[size] = 0.0
    for k in range(size - 1, -1, -1):
        low, high = edges[k], edges[k + 1]
        if several[k] == 1 or (counts[k] == 1 and seen[k] > 0):
            low = high = np.float64(bits_float(seen[k]))
        if counts[k] > 0:
            count = np.float64(counts[k])
            number += count
            total += count * ((low + high) / 2.0)
            squares += count * _mean_square(low, high)
        lows[k], highs[k], above[k], totals[k] = low, high, number, total
    return squares


@inline
def _bin_arrays(bins):
    """Return lower and upper bounds of bins, and number and sum of the elements from each one on.

    Each array has one more element, after all bins.
    """
    size = bins.size // 4
    return bins[:size], bins[size : 2 * size], bins[2 * size : 3 * size], bins[3 * size :]


@subroutine
def _measured(distribution, scale):
    """Return the squared error of a scale, and the best scale for the levels that it gives.

    middles.size == rises.size == squares.size. The scale is not negative. All elements are above
    a threshold that is below the first bin.
    """
    bins, first, squares_of_all, middles, rises, squares = distribution
    lows, highs, above, totals = _bin_arrays(bins)
    product, norm = 0.0, 0.0
    for j in range(middles.size):
        threshold = scale * middles[j]
        place = np.int64(float_bits(np.float32(threshold)) >> np.uint32(SHIFT)) - first
        if place >= above.size - 1:
            break
        number, total = above[max(place, 0)], totals[max(place, 0)]
        if number == 0.0:
            break
        if place >= 0:
            low, high = lows[place], highs[place]
            count = number - above[place + 1]
            if threshold >= high:
                count = 0.0
            elif threshold > low:
                count *= (high - threshold) / (high - low)
                low = threshold
            number = above[place + 1] + count
            total = totals[place + 1] + count * ((high + low) / 2.0)
        product += rises[j] * total
        norm += squares[j] * number
    error = squares_of_all - scale * (2.0 * product - scale * norm)
    return error, product / max(norm, _TINY)


@kernel(f"{_DISTRIBUTION}, in float64[], out float64[], out float64[]", vectorized=False)
def _measure(distribution, scales, errors, fitted):
    # scales.size == errors.size == fitted.size; see _measured.
    for k in range(scales.size):
        error, best = _measured(distribution, scales[k])
        errors[k], fitted[k] = error, best


@subroutine
def _list_minima(errors, chosen):
    """List the LOCAL local minima with the least errors, in this order; return their number.

    Of equal ones, the first precedes. chosen.size >= LOCAL.
    """
    number, last = 0, errors.size - 1
    for k in range(errors.size):
        falls = k == 0 or errors[k] <= errors[k - 1]
        if not falls or (k < last and errors[k] >= errors[k + 1]):
            continue
        place = number
        while place > 0 and errors[k] < errors[chosen[place - 1]]:
            place -= 1
        if place < LOCAL:
            number = min(number + 1, LOCAL)
            for j in range(number - 1, place, -1):
                chosen[j] = chosen[j - 1]
            chosen[place] = k
    return number


@subroutine
def _list_largest(errors, limit, chosen):
    """List the last LARGE errors up to a limit, in increasing order; return their number.

    chosen.size >= LARGE.
    """
    number = 0
    for k in range(errors.size - 1, -1, -1):
        if number < LARGE and errors[k] <= limit:
            for j in range(number, 0, -1):
                chosen[j] = chosen[j - 1]
            chosen[0] = k
            number += 1
    return number


@kernel(
    f"{_DISTRIBUTION}, float64, in float64[], (float64, float64, float64), float64, "
    "out float64[], out float64[], out int64[], out float64[], out float64[]",
    vectorized=False,
)
def _find_candidates(
    distribution, start, fractions, rounding, wanted, scales, errors, chosen, tried, tried_errors
):
    # scales.size == errors.size, a multiple of fractions.size; chosen.size == LOCAL + LARGE;
    # tried.size == tried_errors.size == 1 + (1 + ROUNDS) * chosen.size; see _measured. `wanted` is
    # the first candidate. Returns the number of candidates.
    unit, least, most = rounding
    octave, lowest = start, np.inf
    for k in range(scales.size):
        if k > 0 and k % fractions.size == 0:
            octave *= 2.0
        scales[k] = octave * fractions[k % fractions.size]
        error, _ = _measured(distribution, scales[k])
        errors[k], lowest = error, min(lowest, error)
    number = _list_minima(errors, chosen)
    number += _list_largest(errors, (1.0 + TOLERANCE) * lowest, chosen[number:])
    tried[0] = wanted
    for j in range(number):
        tried[1 + j] = scales[chosen[j]]
    # Each round of least squares starts from the scales of the preceding round.
    for j in range(1, 1 + ROUNDS * number):
        _, best = _measured(distribution, tried[j])
        tried[j + number] = best
    number = 1 + (1 + ROUNDS) * number
    for j in range(number):
        inside = min(max(tried[j] * unit, least), most)
        tried[j] = np.float64(np.float32(inside)) / unit
        error, _ = _measured(distribution, tried[j])
        tried_errors[j] = error
    return number


@kernel("in float32[], in float32[], float32, int64, out float64[], out float64[]")
def _squared_errors(x, scales, top, mantissa, lanes, errors):
    # lanes.size == LANES; errors.size == scales.size
    for k in range(scales.size):
        equal = 0  # the first equal scale, whose error is known
        while equal < k and scales[equal] != scales[k]:
            equal += 1
        if equal < k:
            errors[k] = errors[equal]
            continue
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
