"""About how many bits a tensor takes at an error, told by its statistics without trying codecs."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gcodec.arrays.intake import Tensor, nonfinite_error, outlet
from gcodec.codec import Codec
from gcodec.codecs import parse
from gcodec.codecs.ecsq.filter_transform import FilterTransform
from gcodec.codecs.powersgd import low_rank
from gcodec.kernels.numeric.reduce import moments, sum_squares
from gcodec.runtime.deferred import settled
from gcodec.wire.primitives import ITEMSIZE

MOST_WORK = 120.0
"""Multiply-adds per value in a trial; an encode with ``ecsq`` takes as long as 100 to 200."""

_MOST_RANK = 64
_NBITS = 32  # of a number of a factor
_LEAST_ERROR = 1e-4  # below it the rounding of sums matters
_RANK_MARGIN = 1e-3  # of an error
_PRODUCT_ROUNDING = 2e-6  # of an error: float32 sums against those of the encoder
_DEPENDENT = 2.0**-40  # as in `low_rank.orthonormal`
_DOUBLE = 2.0  # float32 multiply-adds that take as long as one in float64
_DRAWN = 600.0  # and as long as drawing one number of the random rows
_TILE, _WIDTH = 1 << 18, 64  # multiply-adds of a tile, and its columns
_ROWS, _LEAST_SAMPLE = 4, 1 / 8  # of a sample, for each rank and of all: so the rank is low there
_SAMPLE = 1 / 3  # of the rows: a larger sample would save too little
_HOPE = 1.5  # times the error: what a sample may have; and times what it has of the energy
_SURE = 0.5  # times the error: what a sample may have for a trial that must not be wasted
_MORE, _FEW = 1.5, 4  # rank of a sample times the first, plus the second: what the matrix may need


class Factors(NamedTuple):
    """What a trial found.

    Attributes
    ----------
    rank : int
    error : float
        ‖x − x̂‖²/‖x‖² of that rank.
    nbits : int
        Bits of the factors.
    work : float
        Multiply-adds per value that the trial took.
    """

    rank: int
    error: float
    nbits: int
    work: float


def least_rank(
    x: np.ndarray, error: float, seed: int, norm: float, estimate: float
) -> Factors | None:
    """Return the least rank that has the error; None where none that is affordable does.

    Parameters
    ----------
    x : float32 array
        Not 0.
    error : float
        ‖x − x̂‖²/‖x‖².
    seed : int
        Seed of the random rows from which the step begins.
    norm : float
        ‖x‖.
    estimate : float
        Bits that the factors may take.
    """
    errors = _errors(x, error, seed, norm, affordable_rank(x, estimate, MOST_WORK), least=True)
    if errors is None:
        return None
    (good,) = np.nonzero(errors <= error * (1 - _RANK_MARGIN) - _PRODUCT_ROUNDING)
    return _factors(x, int(good[0]) + 1, errors) if good.size else None


def best_rank(
    x: np.ndarray,
    error: float,
    seed: int,
    norm: float,
    room: float,
    most_work: float,
    most_wasted: float,
) -> Factors | None:
    """Return the largest rank that there is room for; None where some rows have a larger error.

    If the trial of that rank may not be wasted, and there are too few rows for a sample, the rank
    is the largest one whose trial may be.

    Parameters
    ----------
    x : float32 array
        Not 0.
    error : float
        Error that the factors are to have, roughly.
    seed : int
    norm : float
        ‖x‖.
    room : float
        Bits.
    most_work : float
        Multiply-adds per value, at most; see `trial_work`.
    most_wasted : float
        Most work of a trial that may find a larger error. A longer trial is made only if a sample
        of the rows has at most half the error.
    """
    rank, short = (affordable_rank(x, room, work) for work in (most_work, most_wasted))
    errors = _errors(x, error, seed, norm, rank, least=False, short=short)
    return None if errors is None else _factors(x, errors.size, errors)


def affordable_rank(x: np.ndarray, nbits: float, most_work: float) -> int:
    """Return the largest rank whose factors stay within the bits and the work; or 0.

    Parameters
    ----------
    x : float32 array
    nbits : float
    most_work : float
        Multiply-adds per value, at most; see `trial_work`.
    """
    if x.ndim < 2:
        return 0
    shape = _matrix(x).shape
    rank = min(int(nbits / _nbits(x, 1)), _MOST_RANK)
    while rank and trial_work(shape, rank) > most_work:
        rank -= 1
    return rank if rank and low_rank.matrix_shape(x.shape, rank) else 0


def trial_work(shape: tuple[int, int], rank: int) -> float:
    """Return the multiply-adds per value of a trial; other work is converted to these."""
    m, k = shape
    return 2 * rank + _DRAWN * rank / m + _DOUBLE * rank**2 * (3 * m + k) / (m * k)


def start(matrix: np.ndarray, rank: int, seed: int) -> np.ndarray:
    """Return the random rows from which a step begins: (rank, k) float32, shorter than 1.

    They are those of ``powersgd`` times a power of two, so that no sum passes float32.
    """
    rows = low_rank.start(seed, rank, matrix.shape[1])
    _, exponent = np.frexp(np.sqrt((rows**2).sum(axis=1).max(initial=1.0)))
    made: np.ndarray = np.ldexp(rows, -exponent).astype(np.float32)
    return made


def errors_of_ranks(matrix: np.ndarray, rows: np.ndarray, norm: float) -> np.ndarray:
    """Return ‖M − M̂‖²/‖M‖² of all ranks up to r, of one step from random rows.

    Parameters
    ----------
    matrix : (m, k) float32 array
        Not 0; its norm within float32.
    rows : (r, k) float32 array
        See `start`.
    norm : float
        ‖M‖.

    Returns
    -------
    (r,) float64 array
        Within 2e-6 of what ``powersgd`` of each rank has, so it may be below 0.
    """
    sketch = _product(rows, matrix.T).astype(np.float64) / norm
    p = low_rank.fixed(_orthonormal(sketch)).values
    # Numbers of p have 17 bits, so float32 holds them exactly.
    q = _product(p.astype(np.float32), matrix).astype(np.float64) / norm
    shared = _product(p, p.T) * _product(q, q.T)
    whole = shared.cumsum(axis=0).cumsum(axis=1).diagonal()
    errors: np.ndarray = 1 - (2 * (q * q).sum(axis=1).cumsum() - whole)
    return errors


def _orthonormal(rows: np.ndarray) -> np.ndarray:
    """Make (r, m) rows orthonormal by Cholesky's factor of their products.

    A row that is a sum of those before it, but for 2^-20 of itself, becomes 0.
    """
    rest, count = _product(rows, rows.T), len(rows)
    least = rest.diagonal() * _DEPENDENT
    lower = np.eye(count)
    kept = np.zeros(count, bool)
    for j in range(count):
        pivot = rest[j, j]
        kept[j] = pivot > least[j]
        if kept[j]:
            lower[j:, j] = rest[j:, j] / np.sqrt(pivot)
            rest[j + 1 :, j + 1 :] -= np.multiply.outer(lower[j + 1 :, j], lower[j + 1 :, j])
    made = _product(np.linalg.inv(lower), rows)
    made[~kept] = 0
    return made


def _product(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return the product of an (r, m) and an (m, k) array, by tiles of at most `_TILE`."""
    (r, m), k = rows.shape, matrix.shape[1]
    depth, whole = max(_TILE // (r * _WIDTH), 1), k // _WIDTH * _WIDTH
    tiles = np.zeros((whole // _WIDTH, r, _WIDTH), rows.dtype)
    last = np.zeros((r, k - whole), rows.dtype)
    room = np.empty_like(tiles)
    for at in range(0, m, depth):
        left, right = rows[:, at : at + depth], matrix[at : at + depth]
        parts = right[:, :whole].reshape(len(right), -1, _WIDTH).transpose(1, 0, 2)
        tiles += np.matmul(left, parts, out=room)
        last += left @ right[:, whole:]
    return np.concatenate([tiles.transpose(1, 0, 2).reshape(r, whole), last], axis=1)


def _factors(x: np.ndarray, rank: int, errors: np.ndarray) -> Factors:
    work = trial_work(_matrix(x).shape, errors.size)
    return Factors(rank, float(errors[rank - 1]), _nbits(x, rank), work)


def _matrix(x: np.ndarray) -> np.ndarray:
    return x.reshape(x.shape[0], -1)


def _nbits(x: np.ndarray, rank: int) -> int:
    """Return the bits of factors."""
    return _NBITS * rank * sum(map(int, _matrix(x).shape))


def _errors(
    x: np.ndarray,
    error: float,
    seed: int,
    norm: float,
    rank: int,
    *,
    least: bool,
    short: int | None = None,
) -> np.ndarray | None:
    """Return the errors of the ranks up to one; None where evenly spread rows have a larger one.

    Where the least rank is wanted, those rows also say up to which rank to try. A trial of more
    ranks than `short` needs rows with a far smaller error; without them, `short` ranks are tried.
    """
    if error < _LEAST_ERROR or not rank:
        return None
    matrix = _matrix(x)
    rows = start(matrix, rank, seed)
    count = max(_ROWS * rank, int(_LEAST_SAMPLE * len(matrix)))
    if count <= _SAMPLE * len(matrix):
        sample = np.ascontiguousarray(matrix[:: len(matrix) // count])
        length = math.sqrt(sum_squares(sample.reshape(-1)))
        some = errors_of_ranks(sample, rows, length) if length else np.zeros(1)
        hope = _HOPE if short in (None, rank) else _SURE
        if some[-1] > hope * error or _HOPE * (1 - some[-1]) < 1 - error:
            return None
        if least:
            (good,) = np.nonzero(some <= error)
            rank = min(rank, int(_MORE * (good[0] + 1)) + _FEW) if good.size else rank
    elif short is not None:
        rank = short
    return errors_of_ranks(matrix, rows[:rank], norm) if rank else None


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
    taps = FilterTransform.of(tensor.shape)
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
