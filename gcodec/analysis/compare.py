"""Differences between tensors, in float64 sums of one fixed order, and pairs of tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gcodec.analysis.stats import Values, unit_of, widened
from gcodec.tensorfiles.entries import Entry
from gcodec.wire import primitives

_CHUNK = 1 << 17
_LANES = 256


class Difference(NamedTuple):
    """The difference between tensors a and b, or between the tensors of several pairs.

    Equal infinities, and NaN in both tensors, count as equal and do not enter any sum.

    Attributes
    ----------
    values : int
        Number of values.
    norm_a, norm_b, norm_error : float
        Norms of the values that are finite in both tensors, and of b − a; infinite if they exceed
        float64. `norm_error` is infinite, too, if NaN or an infinity differs from the other value.
    cosine : float
        Cosine of the angle between a and b; NaN if one of them is 0, or if NaN or an infinity
        differs from the other value.
    max_difference : float
        Largest |b − a|.
    signed, agreeing : int
        Number of nonzero values of a, and of those with the same sign in b.
    """

    values: int
    norm_a: float
    norm_b: float
    norm_error: float
    cosine: float
    max_difference: float
    signed: int
    agreeing: int

    @property
    def nmse(self) -> float:
        """Normalized error ‖b − a‖² / ‖a‖². If a is 0, it is 0 if b is 0, else infinite.

        It is also infinite if ‖a‖ exceeds float64, and a and b differ.
        """
        if not self.norm_a or math.isinf(self.norm_a):
            return math.inf if self.norm_error else 0.0
        ratio = self.norm_error / self.norm_a
        return ratio * ratio

    @property
    def sign_agreement(self) -> float:
        """Share of the nonzero values of a with the same sign in b; NaN if a has none."""
        return self.agreeing / self.signed if self.signed else math.nan


class TensorPair(NamedTuple):
    """Tensors of the same name in two files.

    Attributes
    ----------
    name : str
        Name of the tensors.
    a, b : Entry or None
        Entry of each file; None if the file lacks the tensor.
    difference : Difference or None
        Difference of floating-point tensors; None before `compared`, and for other tensors.
    unequal : int or None
        Number of elements in which integers or booleans differ; None before `compared`, and for
        other tensors.
    """

    name: str
    a: Entry | None
    b: Entry | None
    difference: Difference | None = None
    unequal: int | None = None

    @property
    def problem(self) -> str:
        """Reason why the tensors cannot be compared; empty if they can be."""
        if self.a is None or self.b is None:
            return "only in B" if self.a is None else "only in A"
        if (self.a.dtype in primitives.INTEGERS) != (self.b.dtype in primitives.INTEGERS):
            return "another dtype"
        return "" if self.a.shape == self.b.shape else "another shape"

    @property
    def is_compared(self) -> bool:
        """Whether both tensors were read and compared."""
        return self.difference is not None or self.unequal is not None

    @property
    def size(self) -> int:
        """Number of elements of the tensor, by preference of A."""
        entry = self.a or self.b
        assert entry is not None
        return entry.size

    @property
    def error(self) -> float:
        """The nmse; infinite for tensors that cannot be compared, and unequal integers."""
        if self.unequal is not None:
            return math.inf if self.unequal else 0.0
        return math.inf if self.difference is None else self.difference.nmse

    def compared(self, a: Values, b: Values) -> TensorPair:
        """Return the pair with the difference of these values."""
        if self.a is not None and self.a.dtype in primitives.INTEGERS:
            return self._replace(unequal=unequal(a, b))
        return self._replace(difference=difference(a, b))


def match(a: Sequence[Entry], b: Sequence[Entry]) -> list[TensorPair]:
    """Pair the tensors of two files by name, or lone tensors whatever their names."""
    if len(a) == len(b) == 1:
        return [TensorPair(a[0].name, a[0], b[0])]
    unmatched = {entry.name: entry for entry in b}
    pairs = [TensorPair(entry.name, entry, unmatched.pop(entry.name, None)) for entry in a]
    return pairs + [TensorPair(name, None, entry) for name, entry in unmatched.items()]


def unequal(a: Values, b: Values) -> int:
    """Count the elements in which two tensors of one shape, of integers or booleans, differ.

    Their dtypes may differ: numbers are compared, not bytes.
    """
    count = 0
    for at in range(0, a.size, _CHUNK):
        x, y = (each.reshape(-1)[at : at + _CHUNK] for each in (a, b))
        # No type of NumPy holds both int64 and uint64: their low 64 bits and signs do.
        same = (x.astype(np.int64) == y.astype(np.int64)) & ((x < 0) == (y < 0))
        count += x.size - int(np.count_nonzero(same))
    return count


def difference(a: Values, b: Values) -> Difference:
    """Compare two tensors of one shape, of any float dtypes."""
    largest_a = largest_b = max_difference = 0.0
    signed = agreeing = 0
    is_nonfinite = False
    for x, y, unlike in _pairs(a, b):
        largest_a, largest_b = max(largest_a, _max(np.abs(x))), max(largest_b, _max(np.abs(y)))
        with np.errstate(over="ignore"):
            max_difference = max(max_difference, _max(np.abs(y - x)))
        is_nonfinite |= bool(unlike)
        for own, other in [(x, y), *unlike]:
            is_positive, is_negative = own > 0, own < 0
            signed += int(np.count_nonzero(is_positive | is_negative))
            same = (is_positive & (other > 0)) | (is_negative & (other < 0))
            agreeing += int(np.count_nonzero(same))
    is_infinite = is_nonfinite or math.isinf(max_difference)
    # One tensor, or the error, may be far smaller than the other.
    unit_a, unit_b, error_unit = map(unit_of, (largest_a, largest_b, max_difference))
    sums = [[0.0] * 4]
    for x, y, _ in _pairs(a, b):
        is_finite = math.isfinite(max_difference)
        errors = (y - x) / error_unit if is_finite else x[:0]
        x, y = x / unit_a, y / unit_b
        sums.append(_sums(np.square(x), np.square(y), x * y, np.square(errors)))
    squares_a, squares_b, products, squares = map(math.fsum, zip(*sums, strict=True))
    norms = math.sqrt(squares_a), math.sqrt(squares_b)
    cosine = math.nan
    if all(norms) and not is_nonfinite:
        cosine = min(max(products / norms[0] / norms[1], -1.0), 1.0)
    return Difference(
        values=a.size,
        norm_a=unit_a * norms[0],
        norm_b=unit_b * norms[1],
        norm_error=math.inf if is_infinite else error_unit * math.sqrt(squares),
        cosine=cosine,
        max_difference=math.inf if is_infinite else max_difference,
        signed=signed,
        agreeing=agreeing,
    )


def together(parts: Sequence[Difference]) -> Difference:
    """Return the difference of all tensors as if they were one."""
    # hypot scales, so that it does not overflow where squares would.
    norm_a = math.hypot(*(p.norm_a for p in parts))
    norm_b = math.hypot(*(p.norm_b for p in parts))
    cosine = math.nan
    # Nonzero finite values have a cosine even where their difference overflows.
    is_nonfinite = any(math.isnan(p.cosine) and math.isinf(p.max_difference) for p in parts)
    if norm_a and norm_b and not is_nonfinite:
        shares = (
            p.cosine * (p.norm_a / norm_a) * (p.norm_b / norm_b)
            for p in parts
            if p.norm_a and p.norm_b
        )
        cosine = min(max(math.fsum(shares), -1.0), 1.0)
    return Difference(
        values=sum(p.values for p in parts),
        norm_a=norm_a,
        norm_b=norm_b,
        norm_error=math.hypot(*(p.norm_error for p in parts)),
        cosine=cosine,
        max_difference=max((p.max_difference for p in parts), default=0.0),
        signed=sum(p.signed for p in parts),
        agreeing=sum(p.agreeing for p in parts),
    )


def _max(values: Values) -> float:
    return float(np.max(values, initial=0.0))


def _pairs(a: Values, b: Values) -> Iterator[tuple[Values, Values, list[tuple[Values, Values]]]]:
    """Yield the values that are finite in both tensors, and those of the others that differ.

    The latter are in a list, which is empty if all others are equal.
    """
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    for at in range(0, flat_a.size, _CHUNK):
        part = slice(at, at + _CHUNK)
        x, y = widened(flat_a[part]), widened(flat_b[part])
        is_finite = np.isfinite(x) & np.isfinite(y)
        if is_finite.all():
            yield x, y, []
        else:
            is_unlike = ~(is_finite | (x == y) | (np.isnan(x) & np.isnan(y)))
            unlike = [(x[is_unlike], y[is_unlike])] if is_unlike.any() else []
            yield x[is_finite], y[is_finite], unlike


def _sums(*terms: Values) -> list[float]:
    """Add up arrays in lanes, and these by a binary tree: NumPy's own order is the machine's."""
    lanes = np.zeros((len(terms), _LANES))
    for own, values in zip(lanes, terms, strict=True):
        whole = values.size - values.size % _LANES
        for row in values[:whole].reshape(-1, _LANES):
            own += row
        own[: values.size - whole] += values[whole:]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    sums: list[float] = lanes[:, 0].tolist()
    return sums
