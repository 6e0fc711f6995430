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
- Large errors of tensors that are not large: ``ecsq:trellis=yes``, whose encoder takes its time.
- Matrices of low rank, such as the gradient of a layer for few examples: ``powersgd``. Some rows
  tell whether it may be so; then the bits of ``ecsq`` and one step of ``powersgd`` are found out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gcodec.aims import Aim
from gcodec.arrays import Tensor, intake
from gcodec.codec import Codec
from gcodec.codecs import parse
from gcodec.cost_estimates import (
    GAP_NBITS,
    MOST_RANGE_BITS,
    TOPK_NBITS,
    TRELLIS_SHARE,
    About,
    exact,
    levels,
    may_project,
    range_error,
    ranges,
)
from gcodec.errors import ParameterError
from gcodec.frame import Frame
from gcodec.kernels.philox import check_seed
from gcodec.kernels.reduce import sum_squares
from gcodec.rank_trials import best_rank, least_rank
from gcodec.views import as_numpy

_FEW = 1024  # values, up to which ranges are tried
_ECSQ_PAYLOAD_NBITS, _RANGE_NBITS = 8 * 20, 8 * 8  # lists of scales and tables; a range
_MOST_BITS = 32.0
# By bits of an element: formats without a payload besides, and what they are worse by, in bits.
_WIDTHS = {
    1: "sign",
    2: "mxnet-2bit:threshold=auto",
    **{3: "minifloat:format=e1m1", 4: "minifloat", 5: "minifloat:format=e2m2"},
    **{6: "minifloat:format=e3m2", 8: "minifloat:format=e4m3"},
}
_WIDTH_LOSS = 0.9
_LENGTH_NBITS = 8 * 4  # of the number of bits, a header's last field, beyond a byte
_SPARE = 0.995  # of bits: how near to a target of bits strings are
_TRIES = 2  # encodings for a target of bits; more where they take no time
_PAST = 1.5  # times what a string was too long: how much shorter the next is to be
_EXACT = 1e-10  # error of levels that are as good as exact


def choose(
    x: Any, *, max_err: float | None = None, max_bits: float | None = None, seed: int = 0
) -> Codec:
    """Choose a codec for a tensor by its statistics.

    It takes at most the time of a few encodings by ``ecsq``, and mostly far less: for an error,
    codecs are tried only where a matrix seems to be of low rank; for bits, one is.

    Parameters
    ----------
    x : array
        As for `gcodec.encode`; finite.
    max_err : float
        Most relative error ‖x − x̂‖²/‖x‖², from 0 on, with x̂ in the dtype of `x`.
    max_bits : float
        Most bits per value, from 0 on, in place of the error: of the whole frame, without a name.
        Where a tensor is so small that the header takes half of that, of the payload alone.
    seed : int
        What the codec will be given, 0 to 2**64 - 1: with another one, ``powersgd`` may miss the
        error.

    Returns
    -------
    Codec
        For this tensor: on others the error or bits may be missed.

    Raises
    ------
    ParameterError
        Both bounds or none, one out of range, a seed out of range, an error that no frame of
        float64 has, NaN or Inf.
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
    check_seed(seed)
    tensor = intake(x)
    about = About.of(tensor)
    if aim.max_err is not None:
        return _for_error(x, tensor, about, aim.max_err, seed)
    assert aim.max_bits is not None
    return _for_bits(x, tensor, about, aim.max_bits, seed)


def _for_error(x: Any, tensor: Tensor, about: About, error: float, seed: int) -> Codec:
    if not about.norm:
        return parse("ecsq")  # whose payload is then empty
    if error >= 1:
        return _silent(about)
    lossless = exact(tensor, about)
    found = [*lossless, *levels(tensor, about, error)]
    if tensor.values.size <= _FEW:
        found += ranges(tensor, about, error)
    best = min(found, key=lambda each: each.nbits)
    if best in lossless and tensor.dtype == "float64":
        wide = as_numpy(x, "x").astype(np.float64).reshape(-1)
        least = float(((wide - tensor.values) ** 2).sum() / (wide**2).sum())
        if least > error:
            raise ParameterError.of("max_err", error, f"at least {least:.3g} for this tensor")
    if best.codec.name == "ecsq" and may_project(tensor, about):
        aim, values = about.aim(error), tensor.values.reshape(tensor.shape)
        quick = best.codec.replaced(trellis="no")
        share = 1.0 if quick == best.codec else TRELLIS_SHARE
        count = lambda: share * quick.encode(values).nbits  # noqa: E731
        if rank := least_rank(values, aim, seed, best.nbits, count):
            return parse({"name": "powersgd", "rank": rank})
    return best.codec


def _for_bits(x: Any, tensor: Tensor, about: About, bits: float, seed: int) -> Codec:
    """Choose the least error of what takes so many bits."""
    n = tensor.values.size
    if not about.norm:
        return parse("ecsq")  # whose payload is then empty
    room = _room(tensor, bits)
    lossless = [each for each in exact(tensor, about) if each.nbits <= room]
    for each in sorted(lossless, key=lambda each: each.nbits):
        if _fits(each.codec, tensor, room):
            return each.codec
    if n <= _FEW and (few := _few_for_bits(tensor, about, room)):
        return few
    if codec := _levels_for_bits(tensor, room):
        values = tensor.values.reshape(tensor.shape)
        find = lambda: _error(codec, values, about)  # noqa: E731
        if may_project(tensor, about) and (
            rank := best_rank(values, 4.0 ** -(room / n), seed, room, find)
        ):
            return parse({"name": "powersgd", "rank": rank})
        return codec
    # What has few levels of its own takes fewer bits than that, however small the step.
    finest = _for_error(x, tensor._replace(dtype="float32"), about, _EXACT, seed)
    if finest.encode(tensor.values.reshape(tensor.shape)).nbits <= room:
        return finest
    # Too few bits for scales: the largest elements, as many as there is room for.
    place = 16 + math.log2(n) + GAP_NBITS
    k = int((room - TOPK_NBITS) / place)
    return parse({"name": "topk", "k": k, "value": "bfloat16"}) if k > 0 else _silent(about)


def _silent(about: About) -> Codec:
    """Return a codec that sends nothing of a tensor: a threshold above its largest magnitude."""
    above = np.nextafter(np.float32(about.peak), np.float32(np.inf))
    found: Codec = parse(
        {"name": "topk", "threshold": float(above)} if np.isfinite(above) else "topk:k=1"
    )
    return found


def _few_for_bits(tensor: Tensor, about: About, room: float) -> Codec | None:
    """Return what is better for few values than ``ecsq``; None where nothing is."""
    n = tensor.values.size
    found = [(4.0 ** -max((room - _ECSQ_PAYLOAD_NBITS) / n, 0), "")]
    width = min(int(room / n), max(_WIDTHS))
    if width in _WIDTHS:
        found.append((4.0 ** (_WIDTH_LOSS - width), _WIDTHS[width]))
    bits = min(int((room - _RANGE_NBITS) / n), MOST_RANGE_BITS)
    if bits > 0:
        found.append((range_error(tensor, about, bits), f"minmax:bits={bits}"))
    for _, spec in sorted(found):
        if not spec or _fits(parse(spec), tensor, room):  # words may be far from full
            return parse(spec) if spec else None
    return None


def _fits(codec: Codec, tensor: Tensor, room: float) -> bool:
    """Tell if a message takes no more bits than there is room for."""
    return codec.encode(tensor.values.reshape(tensor.shape)).nbits <= room


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


def _error(codec: Codec, values: np.ndarray, about: About) -> float:
    """Return the relative error of a codec, in float32."""
    rest = values - codec.decode(codec.encode(values), values.shape)
    return float(sum_squares(rest.reshape(-1))) / about.norm**2


def _room(tensor: Tensor, bits: float) -> float:
    """Return how many bits a payload may have."""
    some = bits * tensor.values.size
    empty = parse("ecsq").encode(np.zeros(tensor.shape, np.float32))
    header = 8 * Frame(empty.codec, tensor.dtype, tensor.shape, empty).nbytes + _LENGTH_NBITS
    return some if 2 * header > some else some - header
