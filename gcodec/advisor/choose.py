"""Choose a codec for a tensor from its statistics, without trying every codec.

Measurements (`bench.choice`) show that ``ecsq`` takes the fewest bits at nearly every error, on
nearly every tensor of some thousand values. The exceptions are:

- The tensor is zero, or all of it may be lost: nothing is sent.
- All nonzero values have one magnitude: ``qsgd`` with one level is lossless. If all values are
  equal, the frame of ``lossless`` is shorter.
- Few values are nonzero: ``topk`` has no lists of scales of rows and columns, which cost more than
  so few values.
- The error is below the resolution of float32 levels, or levels take more bits than the tensor's
  own dtype: ``raw`` keeps every bit, and so does ``lossless``, which is chosen where its frame is
  shorter. One encode shows that.
- No float32 values reach the error of a float64 tensor: ``lossless`` as well.
- Values are so near the end of the dtype that a level might exceed it: ``raw`` or ``lossless``.
- The tensor has a few hundred values: the lists, tables and fields of ``ecsq`` take 20 to 40 bytes
  more than a range. `choose` finds the bits of ``minmax`` that reach the error by rounding the
  values, which is fast for so few.
- The tensor has a few values: parameters in the header of a frame take more bytes than the codec
  saves, so ``raw`` has the shortest frame. `choose` encodes up to 1,024 values to compare.
- The error is large and the tensor is not: ``ecsq:trellis=yes``, whose encoder is slow.
- The matrix has a low rank, such as the gradient of a layer for few examples: ``powersgd``. A
  trial on some rows excludes most matrices; for the others, one trial determines the errors of all
  ranks, and one encode determines the bits of ``ecsq``.
- The matrix has dominant components, and the caller has error feedback: ``lowrank``. It is tried
  by one encode.

For an error (nmse, see docs/glossary.md), `choose` reads the values, makes at most one trial of
factors, whose work is bounded in advance (`rank_trial.MAX_WORK`), and at most one encode, of a
quarter of the rows after a costly trial. For bits, it makes an encode that searches for them, a
second one if the first frame is too long, and at most one trial (`_TRIAL_WORK`). If a second
encode may follow, the trial is short, unless a sample of the rows shows that it will not be
wasted. If both frames are too long, one or two encodes at larger steps follow, each half as
expensive.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import NamedTuple

import numpy as np

from gcodec.advisor.rank_trial import Factors, affordable_rank, largest_rank, smallest_rank
from gcodec.arrays.nonfinite import nonfinite_error
from gcodec.arrays.protocols import TensorLike
from gcodec.arrays.source import Tensor, as_dtype, inspect
from gcodec.codec import Codec
from gcodec.codecs import parse
from gcodec.codecs.ecsq import FilterTransform, QuantizedLevels
from gcodec.errors import ParameterError
from gcodec.frame import Frame
from gcodec.kernels.numeric.philox import check_seed
from gcodec.kernels.numeric.reduce import float_of_bits, moments, sum_squares
from gcodec.payload import Payload
from gcodec.runtime.arithmetic import exact
from gcodec.runtime.deferred import resolved
from gcodec.runtime.device import host
from gcodec.wire.kinds import check_between, check_flag
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
_LARGEST = {"float16": float(np.finfo(np.float16).max), "bfloat16": (2 - 2.0**-7) * 2.0**127}


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
        peak = float_of_bits(sums.largest)
        if not math.isfinite(peak):
            raise nonfinite_error(values)
        norm = math.sqrt(sums.squares)
        relative, absolute = _ROUNDING[tensor.dtype]
        rounding = relative + absolute * math.sqrt(values.size) / norm if norm else 0.0
        return cls(norm, peak, rounding, int(np.count_nonzero(values)))

    def unrounded(self, error: float) -> float:
        """Return the error before rounding to the dtype that guarantees `error` after it."""
        return max(math.sqrt(error) - self.rounding, 0.0) ** 2

    def target(self, error: float) -> float:
        """Return the target with which a search for a step guarantees `error` in the dtype."""
        is_exact = self.rounding < _NEGLIGIBLE * math.sqrt(error)
        return error if is_exact else self.unrounded(error)


class Candidate(NamedTuple):
    """A codec and the estimated bits of its frame, without the bits that all frames have."""

    nbits: float
    codec: Codec


def lossless(tensor: Tensor, stats: Statistics) -> list[Candidate]:
    """Return codecs that are lossless for float32, float16 and bfloat16."""
    dtype, n = _payload_dtype(tensor), tensor.values.size
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
            spec = "qsgd:norm=max,s=1,code=auto" if entropy else "lossless"  # of equal values
            candidates.append(Candidate(entropy + _QSGD_NBITS, parse(spec)))
    return candidates


def _payload_dtype(tensor: Tensor) -> str:
    """Return the widest dtype of a payload that is no wider than the tensor's."""
    return "float32" if tensor.dtype == "float64" else tensor.dtype


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
    spec = {"name": "ecsq", "nmse": stats.target(error)}
    if error >= _TRELLIS_ERROR and n in _TRELLIS_VALUES:
        spec["trellis"] = "yes"
    return [Candidate(k * (rate + place) + _ECSQ_NBITS, parse(spec))]


def may_project(tensor: Tensor, stats: Statistics) -> bool:
    """Return whether all projections are within the dtype, and no factor is subnormal."""
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
    """Return the nmse of ``minmax``, except for its last digits."""
    values = tensor.values.astype(np.float64)
    low, high = float(values.min()), float(values.max())
    step = (high - low) / (2**bits - 1) or 1.0
    with np.errstate(under="ignore"):
        points = (low + np.rint((values - low) / step) * step).astype(np.float32)
        difference = values - as_dtype(points, tensor.dtype).astype(np.float64)
        return float((difference**2).sum()) / stats.norm**2


_ALIASES = {"max_err": "max_nmse"}  # earlier names of bounds


class Target(NamedTuple):
    """Target of a choice: an nmse or a number of bits; the other one is None.

    Attributes
    ----------
    max_nmse : float or None
        Largest nmse.
    max_bits : float or None
        Largest number of bits per value.
    """

    max_nmse: float | None = None
    max_bits: float | None = None

    def __str__(self) -> str:
        """Return the spec that `parse` reads."""
        if self.max_nmse is None:
            return f"auto:bits={self.max_bits}"
        return f"auto:nmse={self.max_nmse}"

    @classmethod
    def of(cls, **bounds: object) -> Target:
        """Check the bounds that `choose` received.

        Parameters
        ----------
        **bounds
            ``max_nmse`` or its alias ``max_err``, and ``max_bits``; None for no bound.

        Raises
        ------
        ParameterError
            Unless exactly one bound is passed, and it is a finite number, at least 0.
        """
        passed = {key: bound for key, bound in bounds.items() if bound is not None}
        if len(passed) != 1:
            listed = ", ".join(f"{key}={bound!r}" for key, bound in passed.items()) or "no bound"
            raise ParameterError(f"{listed}: pass exactly one of max_nmse, max_bits")
        ((key, bound),) = passed.items()
        number = check_between(key, bound, 0, sys.float_info.max, "a finite number, at least 0")
        return cls(**{_ALIASES.get(key, key): number})

    @classmethod
    def parse(cls, spec: str) -> Target:
        """Read ``auto:nmse=…``, its alias ``auto:err=…``, or ``auto:bits=…``.

        Raises
        ------
        ParameterError
            If `spec` has another form, or the number is out of range.
        """
        key, equals, text = spec.removeprefix("auto:").partition("=")
        allowed = "auto:nmse=NMSE or auto:bits=BITS, such as auto:nmse=0.01"
        names = {*cls._fields, *_ALIASES}
        if not spec.startswith("auto:") or f"max_{key}" not in names or not equals:
            raise ParameterError.of("codec", spec, allowed)
        try:
            number = float(text)
        except ValueError:
            raise ParameterError.of("codec", spec, allowed) from None
        return cls.of(**{f"max_{key}": number})


_FEW = 1024  # values, up to which ranges are tried, and frames are compared with raw's
_LARGE = 1 << 16  # values, from which on a choice costs at most three encodes
_ECSQ_PAYLOAD_NBITS, _RANGE_NBITS = 8 * 20, 8 * 8  # lists of scales and tables; a range
# Codecs with fixed-size payloads, by bits of an element, and their disadvantage in bits.
_FIXED_WIDTH = {
    1: "sign",
    2: "mxnet-2bit:threshold=auto",
    3: "minifloat:format=e1m1",
    4: "minifloat",
    5: "minifloat:format=e2m2",
    6: "minifloat:format=e3m2",
    8: "minifloat:format=e4m3",
}
_FIXED_WIDTH_LOSS = 0.9
_LENGTH_NBITS = 8 * 4  # of the last field of a header, the number of bits, without one byte
_SPARE = 0.995  # ratio of the bits that a search reaches to its target
# Bits per value by which estimates are too low, at most `_SHORTFALL_SHARE` of all. With half as
# many, 11 of 17 matrices of 4 Mi values need a second search at 0.1 bits.
_SHORTFALL, _SHORTFALL_SHARE = 0.003, 0.03
# The next target is smaller by the excess of the frame times the first, plus the second.
_EXCESS_FACTOR, _EXCESS_OFFSET = 2.5, 0.002
_STEP_GROWTHS = 3.0, 10.0  # octaves of the step per bit of excess, after the last search
_MAX_LEVEL_NBITS = 24.0  # of a nonzero value, more than levels of the smallest step take
_COSTLY = 60.0  # work of a trial after which only a quarter of the rows is encoded
_SEARCHES = 2  # of a step, for a target of bits; four times as many for few values
_TRIAL_WORK = 70.0  # most work of a trial if an encode searches for bits
_SHORT_TRIAL_WORK = 20.0  # most work of a trial that may be wasted, if another search may follow
_BETTER = 1 - 1e-3  # ratio of errors below which factors are better than levels
_NEARLY_LOSSLESS = 1e-10  # error


@exact
def choose(
    x: TensorLike,
    *,
    max_nmse: float | None = None,
    max_bits: float | None = None,
    seed: int = 0,
    feedback: bool = False,
    max_err: float | None = None,
) -> Codec:
    """Choose a codec for a tensor from the tensor's statistics.

    The frame of a chosen codec is never longer than that of ``raw`` in the dtype of `x`, or in
    float32 for float64; but if no float32 values are within `max_nmse` of a float64 tensor, the
    choice is ``lossless``. For a few values the header outweighs the payload, and the choice is
    often ``raw``.

    On tensors of 65,536 values or more, `choose` costs at most three encodes with ``ecsq`` at the
    same target, for errors and for 0.1 bits per value or more; one is typical. This limit is
    measured and not proved, because a search for bits has no fixed number of steps. See
    docs/advise.md.

    Parameters
    ----------
    x : array
        Tensor with finite values; see `gcodec.encode`.
    max_nmse : float
        Largest normalized error (nmse) ‖x − x̂‖²/‖x‖², at least 0, with x̂ in the dtype of `x`.
    max_bits : float
        Largest number of bits per value, at least 0, instead of the error. The limit applies to
        the whole frame without a name. If a tensor is so small that the header takes half of the
        bits, the limit applies to the payload alone, unless the whole frame of ``raw`` is shorter.
    seed : int
        Seed with which the caller will encode, 0 to 2**64 - 1. With another seed, ``powersgd``
        may exceed the error.
    feedback : bool
        Whether the caller encodes with error feedback. Codecs that need it are then considered,
        too: for matrices, ``lowrank``, at the cost of one encode with it.
    max_err : float
        Alias of `max_nmse`.

    Returns
    -------
    Codec
        Codec for this tensor. For other tensors it may miss the error or the bits.

    Raises
    ------
    ParameterError
        If both targets or none are passed; if an argument is out of range; if `x` contains NaN or
        Inf.
    TypeError
        If `x` is not an array, or has an unsupported dtype.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> x = np.random.default_rng(1).laplace(size=(64, 128)).astype(np.float32)
    >>> codec = gcodec.choose(x, max_nmse=0.01)
    >>> codec
    ECSQ(nmse=0.01)
    """
    target = Target.of(max_nmse=max_nmse, max_bits=max_bits, max_err=max_err)
    check_seed(seed)
    check_flag("feedback", feedback)
    tensor = inspect(x, "x").read()
    stats = Statistics.of(tensor)
    if target.max_nmse is not None:
        # All other codecs decode to float32 values. None of them has a smaller error than the
        # tensor rounded to float32.
        if _rounding_error(x, tensor) > target.max_nmse:
            return parse("lossless")
        codec = _for_error(tensor, stats, target.max_nmse, seed)
        if codec.name == "raw" and tensor.dtype != "float64":
            return min(codec, parse("lossless"), key=partial(_frame_nbytes, tensor, x))
    else:
        assert target.max_bits is not None
        codec = _for_bits(tensor, stats, target.max_bits, seed)
    if feedback and tensor.values.size > _FEW:
        codec = _with_feedback(tensor, stats, codec, target)
    if tensor.values.size > _FEW or codec.name == "raw":
        return codec
    raw = parse({"name": "raw", "dtype": _payload_dtype(tensor)})
    return min(codec, raw, key=partial(_frame_nbytes, tensor, x))


def _with_feedback(tensor: Tensor, stats: Statistics, codec: Codec, target: Target) -> Codec:
    """Return ``lowrank`` if its frame is shorter than that of a codec, or has a smaller error."""
    is_matrix = len(tensor.shape) > 1 and may_project(tensor, stats)
    if not is_matrix or codec.name not in ("ecsq", "powersgd"):
        return codec
    if target.max_nmse is not None:
        error = stats.target(target.max_nmse)
        trellis = getattr(codec, "trellis", "no")
        factors = parse({"name": "lowrank", "nmse": error, "trellis": trellis})
        values = tensor.values.reshape(tensor.shape)
        return min(codec, factors, key=partial(_frame_nbytes, tensor, values))
    if codec.name == "powersgd":  # few ranks have a smaller error than levels
        return codec
    assert target.max_bits is not None
    budget = _Budget.of(tensor, target.max_bits)
    factors = parse({"name": "lowrank", "bits": _SPARE * budget.payload / tensor.values.size})
    values = tensor.values.reshape(tensor.shape)
    payload = factors.encode(values)
    has_factors = payload.codec.rank > 0 and budget.excess(payload) <= 0
    return factors if has_factors else codec


def _frame_nbytes(tensor: Tensor, x: TensorLike, codec: Codec) -> int:
    """Return the bytes of the frame, without a name; `x` are the values, in any dtype."""
    payload = codec.encode(x)
    return Frame(payload.codec, tensor.dtype, tensor.shape, payload).nbytes


def _rounding_error(x: TensorLike, tensor: Tensor) -> float:
    """Return the nmse of the values of a tensor, which are float32 where its dtype is float64."""
    if tensor.dtype != "float64":
        return 0.0
    wide = inspect(x, "x").on_host().astype(np.float64).reshape(-1)
    largest = float(np.abs(wide).max(initial=0))
    if not largest:
        return 0.0
    # The unit keeps the squares within the range of float64.
    differences = (wide - host(tensor.values)) / largest
    wide /= largest
    return float(differences @ differences) / float(wide @ wide)


def _for_error(tensor: Tensor, stats: Statistics, error: float, seed: int) -> Codec:
    if not stats.norm:
        return parse("ecsq")  # with an empty payload
    if error >= 1:
        return _send_nothing(stats)
    exact = lossless(tensor, stats)
    candidates = [*exact, *levels(tensor, stats, error)]
    if tensor.values.size <= _FEW:
        is_wide = tensor.dtype == "float64"
        candidates += ranges(tensor, stats, stats.unrounded(error) if is_wide else error)
    best = min(candidates, key=lambda candidate: candidate.nbits)
    if best.codec.name == "ecsq" and may_project(tensor, stats):
        values = tensor.values.reshape(tensor.shape)
        factors = smallest_rank(values, stats.unrounded(error), seed, stats.norm, best.nbits)
        if factors and factors.nbits < _levels_nbits(best.codec, values, factors):
            return parse(f"powersgd:rank={factors.rank}")
    return best.codec


def _levels_nbits(codec: Codec, values: np.ndarray, factors: Factors) -> float:
    """Estimate the bits of levels from all rows or, after a costly trial, from a quarter.

    In a quarter of the rows, a list of scales of columns counts four times. That is 18 bits too
    many for each column, but a trial is costly only for ranks with hundreds of bits per column.
    """
    quick = codec.replaced(trellis="no")
    share = 1.0 if quick == codec else TRELLIS_SHARE
    rows = values[::4] if factors.work > _COSTLY else values
    return share * quick.encode(np.ascontiguousarray(rows)).nbits * (len(values) / len(rows))


class _Budget(NamedTuple):
    """Bits that a frame may have.

    Attributes
    ----------
    nbits : float
        Bits of the frame; of the payload alone if the header takes half of them.
    header : float
        Estimated bits of the header; 0 if it does not count.
    tensor : Tensor
    """

    nbits: float
    header: float
    tensor: Tensor

    @classmethod
    def of(cls, tensor: Tensor, bits: float) -> _Budget:
        """Return the budget of `bits` bits per value."""
        nbits = bits * tensor.values.size
        empty = parse("ecsq").encode(np.zeros(1, np.float32))
        frame = Frame(empty.codec, tensor.dtype, tensor.shape, empty)
        header = 8 * frame.nbytes + _LENGTH_NBITS
        return cls(nbits, 0.0 if 2 * header > nbits else header, tensor)

    @property
    def payload(self) -> float:
        """Estimated bits that a payload may have."""
        return self.nbits - self.header

    def excess(self, payload: Payload) -> float:
        """Return the bits that a payload has too many; a seek table counts if the header does."""
        if not self.header:
            return payload.nbits - self.nbits
        frame = Frame(payload.codec, self.tensor.dtype, self.tensor.shape, payload)
        return 8 * frame.nbytes - self.nbits

    def allows(self, codec: Codec) -> bool:
        """Encode the tensor, and tell whether the frame stays within the budget."""
        return self.excess(codec.encode(self.tensor.values.reshape(self.tensor.shape))) <= 0


def _for_bits(tensor: Tensor, stats: Statistics, bits: float, seed: int) -> Codec:
    """Choose the codec of the smallest error within a number of bits per value."""
    n = tensor.values.size
    if not stats.norm:
        return parse("ecsq")  # with an empty payload
    budget = _Budget.of(tensor, bits)
    for candidate in sorted(lossless(tensor, stats), key=lambda candidate: candidate.nbits):
        if candidate.nbits <= budget.payload and budget.allows(candidate.codec):
            return candidate.codec
    if n <= _FEW and (small := _small_for_bits(tensor, stats, budget)):
        return small
    try:
        codec = _by_search(budget, stats, seed)
    except ParameterError:  # no step takes this number of bits
        # Values on a few levels of their own take fewer bits than that at any step.
        codec = _for_error(tensor._replace(dtype="float32"), stats, _NEARLY_LOSSLESS, seed)
        codec = codec if budget.allows(codec) else None
    if codec is not None:
        return codec
    # The budget has no room for scales: send as many of the largest elements as fit.
    place = 16 + math.log2(n) + GAP_NBITS
    k = int((budget.payload - TOPK_NBITS) / place)
    return parse({"name": "topk", "k": k, "value": "bfloat16"}) if k > 0 else _send_nothing(stats)


def _send_nothing(stats: Statistics) -> Codec:
    """Return a codec that sends no element: its threshold is above the largest magnitude."""
    peak = np.float32(stats.peak)
    if peak == np.finfo(np.float32).max:
        return parse("mxnet-2bit:threshold=inf,form=sparse")  # topk has finite thresholds only
    return parse({"name": "topk", "threshold": float(np.nextafter(peak, np.float32(np.inf)))})


def _by_search(budget: _Budget, stats: Statistics, seed: int) -> Codec | None:
    """Return levels of nearly as many bits as the budget, or factors with a smaller error.

    The result is None if levels need more bits at any step.

    Raises
    ------
    ParameterError
        If no step takes this number of bits.
    """
    if not budget.payload:
        return None
    tensor = budget.tensor
    values, n = tensor.values.reshape(tensor.shape), tensor.values.size
    k = stats.nonzero
    if budget.payload > k * (_MAX_LEVEL_NBITS + math.log2(n / k)):
        raise ParameterError.of("max_bits", budget.nbits / n, "fewer, as most values are 0")
    bits = _SPARE * budget.payload / n
    bits -= min(_SHORTFALL, _SHORTFALL_SHARE * bits)
    for search in range(_SEARCHES if n > _FEW else 4 * _SEARCHES):
        codec = parse({"name": "ecsq", "bits": bits})
        levels = codec.replaced(strict="yes").quantize(values)
        payload = codec.pack(levels)
        excess = budget.excess(payload) / payload.nbits
        if search == 0 and values.ndim > 1 and may_project(tensor, stats):
            error = _error(codec, levels, values, stats)
            max_wasted = _TRIAL_WORK if excess <= 0 else _SHORT_TRIAL_WORK
            factors = largest_rank(
                values, error, seed, stats.norm, budget.payload, _TRIAL_WORK, max_wasted
            )
            if factors and factors.error < _BETTER * error:
                # The trial may have had fewer ranks than fit; more ranks have a smaller error.
                rank = affordable_rank(values, budget.payload, _TRIAL_WORK)
                return parse(f"powersgd:rank={rank}")
        if excess <= 0:
            return codec
        bits *= 1 - _EXCESS_FACTOR * excess - _EXCESS_OFFSET
    for growth in _STEP_GROWTHS if n < _LARGE else _STEP_GROWTHS[-1:]:
        # If most levels are 0, the bits fall by the same factor as the step grows, or faster.
        octaves = growth * budget.excess(payload) / min(payload.nbits, values.size)
        step = float(np.float32(payload.codec.step * 2.0**octaves))
        larger: Codec = payload.codec.replaced(step=step)
        levels = larger.quantize(values)
        payload = larger.pack(levels)
        if budget.excess(payload) <= 0:
            # A few of the largest elements are better than levels that are all 0.
            return larger if _error(larger, levels, values, stats) < 1 else None
    return None


def _small_for_bits(tensor: Tensor, stats: Statistics, budget: _Budget) -> Codec | None:
    """Return a better codec than ``ecsq`` for few values, or None if there is none."""
    n, nbits = tensor.values.size, budget.payload
    errors = {"ecsq": 4.0 ** -max((nbits - _ECSQ_PAYLOAD_NBITS) / n, 0)}  # by spec
    width = min(int(nbits / n), max(_FIXED_WIDTH))
    if width in _FIXED_WIDTH:
        errors[_FIXED_WIDTH[width]] = 4.0 ** (_FIXED_WIDTH_LOSS - width)
    bits = min(int((nbits - _RANGE_NBITS) / n), MAX_RANGE_BITS)
    if bits > 0:
        errors[f"minmax:bits={bits}"] = range_error(tensor, stats, bits)
    order = sorted(errors, key=errors.__getitem__)
    # The last word of a payload may be nearly empty.
    best = next(spec for spec in order if spec == "ecsq" or budget.allows(parse(spec)))
    return None if best == "ecsq" else parse(best)


def _error(codec: Codec, levels: QuantizedLevels, values: np.ndarray, stats: Statistics) -> float:
    """Return the nmse of levels in float32."""
    difference = codec.dequantize(levels, values.shape)
    np.subtract(values, difference, out=difference)
    return float(sum_squares(difference.reshape(-1))) / stats.norm**2
