"""Which codec for a tensor, told by its statistics, without trying codecs.

By measurement ``ecsq`` takes the fewest bits of all codecs at nearly every error, on nearly every
tensor of some thousand values (`bench.choice`). So what is told here is where it does not:

- All is zero, or all may be lost: nothing is sent.
- All values that are not zero have one magnitude: ``qsgd`` of one level has them as they are.
- Few values are not zero: ``topk`` has no lists of scales of rows and columns, which cost more
  than so few values.
- Errors below what levels of float32 can have, and errors at which levels take more bits than the
  tensor's own dtype does: ``raw``, which has none.
- Values near the end of the dtype, which a level might pass: ``raw`` as well.
- A few hundred values: lists, tables and fields of ``ecsq`` take 20 to 40 bytes more than a range
  does. How many bits of ``minmax`` reach the error is found by rounding, quick for so few.

``powersgd`` is never told: of a matrix of low rank, such as the gradient of a layer for few
examples, it takes fewer bits, but only its own steps find that out.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gcodec.aims import Aim
from gcodec.arrays import Tensor, intake, nonfinite_error, outlet
from gcodec.codec import Codec
from gcodec.codecs import parse
from gcodec.errors import ParameterError
from gcodec.frame import Frame
from gcodec.kernels.reduce import moments
from gcodec.views import as_numpy
from gcodec.wire import ITEMSIZE

_FEW = 1024  # values, up to which ranges are tried
_SPARSE = 64  # at least so many values for each that is not zero
# Bits besides those of elements: fields of the header, and lists of scales, tables, a range.
_ECSQ_NBITS, _MINMAX_NBITS, _TOPK_NBITS, _QSGD_NBITS = 8 * 32, 8 * 9, 8 * 14, 8 * 20
_ECSQ_PAYLOAD_NBITS, _RANGE_NBITS = 8 * 20, 8 * 8  # of these, what is in the payload
_MOST_RANGE_BITS = 8
_MARGIN = 1e-5  # of an error that is not told to the last digit
_MOST_BITS = 32.0
# By bits of an element: formats without a payload besides, and what they are worse by, in bits.
_WIDTHS = {
    1: "sign",
    2: "mxnet-2bit:threshold=auto",
    **{3: "minifloat:format=e1m1", 4: "minifloat", 5: "minifloat:format=e2m2"},
    **{6: "minifloat:format=e3m2", 8: "minifloat:format=e4m3"},
}
_WIDTH_LOSS = 0.9
_GAP_NBITS = 2.5  # of a position, more than log2(n/k)
_RATE = 0.1  # bits of a level, more than log2(1/error)/2
_LEAST_STEP = 2.0**-20  # of the largest magnitude: levels can have it, with room to search
_NEGLIGIBLE = 1e-4  # rounding beside the root of an error, in the 2 % that ecsq stays below it
_LENGTH_NBITS = 8 * 4  # of the number of bits, a header's last field, beyond a byte
_SPARE = 0.995  # of bits: how near to a target of bits strings are
_LEAST_NORMAL = 2.0**-126  # of float32: steps below that have not all their bits
_TRIES = 2  # encodings for a target of bits; more where they take no time
_PAST = 1.5  # times what a string was too long: how much shorter the next is to be
_EXACT = 1e-10  # error of levels that are as good as exact
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


def choose(x: Any, *, max_err: float | None = None, max_bits: float | None = None) -> Codec:
    """Choose a codec for a tensor by its statistics.

    It takes at most the time of a few encodings, and mostly far less: no codec is tried for an
    error, and one for bits.

    Parameters
    ----------
    x : array
        As for `gcodec.encode`; finite.
    max_err : float
        Most relative error ‖x − x̂‖²/‖x‖², from 0 on, with x̂ in the dtype of `x`.
    max_bits : float
        Most bits per value, from 0 on, in place of the error: of the whole frame, without a name.
        Where a tensor is so small that the header takes half of that, of the payload alone.

    Returns
    -------
    Codec
        For this tensor: on others the error or bits may be missed.

    Raises
    ------
    ParameterError
        Both bounds or none, one out of range, an error that no frame of float64 has, NaN or Inf.
    TypeError
        No array, or a dtype that is not taken.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> x = np.random.default_rng(1).laplace(size=(64, 128)).astype(np.float32)
    >>> codec = gcodec.choose(x, max_err=0.01)
    >>> codec
    ECSQ(nmse=0.01)
    """
    aim = Aim.of(max_err, max_bits)
    tensor = intake(x)
    about = _About.of(tensor)
    if aim.max_err is not None:
        return _for_error(x, tensor, about, aim.max_err)
    assert aim.max_bits is not None
    return _for_bits(x, tensor, about, aim.max_bits)


class _About(NamedTuple):
    """Statistics.

    Attributes
    ----------
    norm : float
        ‖x‖.
    peak : float
        The largest magnitude.
    rounding : float
        At most ‖x̂ − y‖/‖x‖, where x̂ is y, about x, in the dtype.
    """

    norm: float
    peak: float
    rounding: float

    @classmethod
    def of(cls, tensor: Tensor) -> _About:
        values = tensor.values
        if not values.size:
            return cls(0.0, 0.0, 0.0)
        found = moments(values)
        peak = float(np.array([found.largest], np.uint32).view(np.float32)[0])
        if not math.isfinite(peak):
            raise nonfinite_error(values)
        norm = math.sqrt(found.squares)
        share, least = _ROUNDING[tensor.dtype]
        rounding = share + least * math.sqrt(values.size) / norm if norm else 0.0
        return cls(norm, peak, rounding)


def _for_error(x: Any, tensor: Tensor, about: _About, error: float) -> Codec:
    if not about.norm:
        return parse("ecsq")  # whose payload is then empty
    if error >= 1:
        return parse("topk:k=0")
    exact = _exact(tensor, about)
    found = [*exact, *_levels(tensor, about, error)]
    if tensor.values.size <= _FEW:
        found += _ranges(tensor, about, error)
    best = min(found, key=lambda each: each.nbits)
    if best in exact and tensor.dtype == "float64":
        wide = as_numpy(x, "x").astype(np.float64).reshape(-1)
        least = float(((wide - tensor.values) ** 2).sum() / (wide**2).sum())
        if least > error:
            raise ParameterError.of("max_err", error, f"at least {least:.3g} for this tensor")
    return best.codec


class _Costed(NamedTuple):
    """A codec and about how many bits it takes, besides what all take."""

    nbits: float
    codec: Codec


def _exact(tensor: Tensor, about: _About) -> list[_Costed]:
    """Return what loses nothing of float32, float16 and bfloat16."""
    own, n = _own_dtype(tensor), tensor.values.size
    width = 8 * ITEMSIZE[own]
    found = [_Costed(width * n, parse({"name": "raw", "dtype": own}))]
    k = int(np.count_nonzero(tensor.values))
    if k * _SPARSE <= n:
        place = math.log2(n / k) + _GAP_NBITS
        codec = parse({"name": "topk", "k": k, "value": own})
        found.append(_Costed((width + place) * k + _TOPK_NBITS, codec))
    if math.isclose(about.norm, math.sqrt(k) * about.peak, rel_tol=1e-9):
        sizes = np.abs(tensor.values)
        if ((sizes == np.float32(about.peak)) | (sizes == 0)).all():
            positive = int(np.count_nonzero(tensor.values > 0))
            nbits = _entropy_nbits(positive, k - positive, n - k)
            codec = parse("qsgd:norm=max,s=1,code=auto")
            found.append(_Costed(nbits + _QSGD_NBITS, codec))
    return found


def _entropy_nbits(*counts: int) -> float:
    """Return the bits of symbols that come so often."""
    n = sum(counts)
    return sum(count * math.log2(n / count) for count in counts if count)


def _levels(tensor: Tensor, about: _About, error: float) -> list[_Costed]:
    """Return what ``ecsq`` takes; nothing where no step can have the error."""
    n = tensor.values.size
    # Both roundings may add up: that to levels, and that of levels to the dtype.
    aim = max(math.sqrt(error) - about.rounding, 0.0) ** 2
    step = math.sqrt(12 * aim / n) * about.norm
    most = _LARGEST.get(tensor.dtype, _FLOAT32)
    if step < max(_LEAST_STEP * about.peak, _LEAST_NORMAL) or about.peak + 4 * step > most:
        return []
    # In what is not zero there is all that levels tell; where that is, costs as in topk.
    k = int(np.count_nonzero(tensor.values))
    rate = max(math.log2(k / n / aim) / 2, 0.0) + _RATE if k else 0.0
    place = math.log2(n / k) if k else 0.0
    plain = about.rounding < _NEGLIGIBLE * math.sqrt(error)
    codec = parse({"name": "ecsq", "nmse": error if plain else aim})
    return [_Costed(k * (rate + place) + _ECSQ_NBITS, codec)]


def _ranges(tensor: Tensor, about: _About, error: float) -> list[_Costed]:
    """Return the fewest bits of levels between the least and the largest value."""
    for bits in range(1, _MOST_RANGE_BITS + 1):
        if _range_error(tensor, about, bits) <= error * (1 - _MARGIN):
            codec = parse({"name": "minmax", "bits": bits})
            return [_Costed(bits * tensor.values.size + _MINMAX_NBITS, codec)]
    return []


def _range_error(tensor: Tensor, about: _About, bits: int) -> float:
    """Return the relative error of ``minmax``, but for the last digits."""
    values = tensor.values.astype(np.float64)
    low, high = float(values.min()), float(values.max())
    step = (high - low) / (2**bits - 1) or 1.0
    points = (low + np.rint((values - low) / step) * step).astype(np.float32)
    rest = values - outlet(points, tensor.dtype).astype(np.float64)
    return float((rest**2).sum()) / about.norm**2


def _for_bits(x: Any, tensor: Tensor, about: _About, bits: float) -> Codec:
    """Choose the least error of what takes so many bits."""
    n = tensor.values.size
    if not about.norm:
        return parse("ecsq")  # whose payload is then empty
    room = _room(tensor, bits)
    if exact := [each for each in _exact(tensor, about) if each.nbits <= room]:
        return min(exact, key=lambda each: each.nbits).codec
    if n <= _FEW and (few := _few_for_bits(tensor, about, room)):
        return few
    if codec := _levels_for_bits(tensor, room):
        return codec
    # What has few levels of its own takes fewer bits than that, however small the step.
    finest = _for_error(x, tensor._replace(dtype="float32"), about, _EXACT)
    if finest.encode(tensor.values.reshape(tensor.shape)).nbits <= room:
        return finest
    # Too few bits for scales: the largest elements, as many as there is room for.
    place = 16 + math.log2(n) + _GAP_NBITS
    k = max(int((room - _TOPK_NBITS) / place), 0)
    return parse({"name": "topk", "k": k, "value": "bfloat16"})


def _few_for_bits(tensor: Tensor, about: _About, room: float) -> Codec | None:
    """Return what is better for few values than ``ecsq``; None where nothing is."""
    n = tensor.values.size
    found = [(4.0 ** -max((room - _ECSQ_PAYLOAD_NBITS) / n, 0), "")]
    width = min(int(room / n), max(_WIDTHS))
    if width in _WIDTHS:
        found.append((4.0 ** (_WIDTH_LOSS - width), _WIDTHS[width]))
    bits = min(int((room - _RANGE_NBITS) / n), _MOST_RANGE_BITS)
    if bits > 0:
        found.append((_range_error(tensor, about, bits), f"minmax:bits={bits}"))
    _, spec = min(found)
    return parse(spec) if spec else None


def _levels_for_bits(tensor: Tensor, room: float) -> Codec | None:
    """Return levels that take nearly as many bits as there is room for; None where none do."""
    values = tensor.values.reshape(tensor.shape)
    aim = _SPARE * room / values.size
    for _ in range(_TRIES if values.size > _FEW else 4 * _TRIES):
        if not 0 < aim <= _MOST_BITS:
            return None
        codec = parse({"name": "ecsq", "bits": aim})
        try:
            taken = codec.encode(values).nbits
        except ParameterError:  # no step takes so many bits, or so few
            return None
        if taken <= room:
            return codec
        aim -= _PAST * (taken - room) / values.size
    return None


def _room(tensor: Tensor, bits: float) -> float:
    """Return how many bits a payload may have."""
    some = bits * tensor.values.size
    empty = parse("ecsq").encode(np.zeros(tensor.shape, np.float32))
    header = 8 * Frame(empty.codec, tensor.dtype, tensor.shape, empty).nbytes + _LENGTH_NBITS
    return some if 2 * header > some else some - header


def _own_dtype(tensor: Tensor) -> str:
    return "float32" if tensor.dtype == "float64" else tensor.dtype
