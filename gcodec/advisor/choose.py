"""Choose a codec for a tensor from its statistics, without trying every codec.

By measurement ``ecsq`` takes the fewest bits of all codecs at nearly every error, on nearly every
tensor of some thousand values (`bench.choice`). The exceptions are:

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
- Matrices of low rank, such as the gradient of a layer for few examples: ``powersgd``. A trial on
  some rows excludes most matrices; for the rest, one trial finds the errors of all ranks, and one
  encode the bits of ``ecsq``.

For an error, a choice reads the values, makes at most one trial of factors, whose work is bounded
beforehand (`estimate.MOST_WORK`), and at most one encode, of a quarter of the rows after a
costly trial. For bits, it makes an encode that searches for them, a second one where the frame of
the first is too long, and at most one trial (`_TRIAL_WORK`). Where a second encode may follow, a
trial is short, unless a sample of the rows shows that it will not be wasted. Where both frames are
too long, one or two encodes at larger steps follow, half as long each.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gcodec.advisor.estimate import (
    GAP_NBITS,
    MOST_RANGE_BITS,
    TOPK_NBITS,
    TRELLIS_SHARE,
    About,
    Factors,
    affordable_rank,
    best_rank,
    exact,
    least_rank,
    levels,
    may_project,
    range_error,
    ranges,
)
from gcodec.arrays.source import Tensor, inspect
from gcodec.codec import Codec
from gcodec.codecs import parse
from gcodec.codecs.ecsq.reconstruction import QuantizedLevels
from gcodec.errors import ParameterError
from gcodec.frame import Frame
from gcodec.kernels.numeric.philox import check_seed
from gcodec.kernels.numeric.reduce import sum_squares
from gcodec.payload import Payload
from gcodec.wire.kinds import check_number


class Aim(NamedTuple):
    """What a choice is to meet: one of these, the other is None.

    Attributes
    ----------
    max_err : float or None
        Most relative error ‖x − x̂‖²/‖x‖².
    max_bits : float or None
        Most bits per value.
    """

    max_err: float | None = None
    max_bits: float | None = None

    def __str__(self) -> str:
        """Return the spec: what `parse` reads."""
        return f"auto:bits={self.max_bits}" if self.max_err is None else f"auto:err={self.max_err}"

    @classmethod
    def of(cls, max_err: Any, max_bits: Any) -> Aim:
        """Check what is given.

        Raises
        ------
        ParameterError
            Unless it is one of both, and a number that can be met.
        """
        if (max_err is None) == (max_bits is None):
            given, allowed = (None, "given") if max_err is None else (max_err, "left out")
            raise ParameterError.of("max_err", given, f"{allowed}: one of max_err and max_bits is")
        if max_err is not None:
            return cls(max_err=_number("max_err", max_err, "a number from 0 on, finite"))
        return cls(max_bits=_number("max_bits", max_bits, "a number from 0 on, finite"))

    @classmethod
    def parse(cls, spec: str) -> Aim:
        """Read ``auto:err=…`` or ``auto:bits=…``.

        Raises
        ------
        ParameterError
        """
        key, equals, text = spec.removeprefix("auto:").partition("=")
        allowed = "auto:err=ERROR or auto:bits=BITS, such as auto:err=0.01"
        if not spec.startswith("auto:") or key not in ("err", "bits") or not equals:
            raise ParameterError.of("codec", spec, allowed)
        try:
            number = float(text)
        except ValueError:
            raise ParameterError.of("codec", spec, allowed) from None
        return cls.of(number, None) if key == "err" else cls.of(None, number)


def _number(name: str, value: object, allowed: str) -> float:
    number = check_number(name, value, allowed)
    if not 0 <= number < math.inf:
        raise ParameterError.of(name, value, allowed)
    return number


_FEW = 1024  # values, up to which ranges are tried
_LARGE = 1 << 16  # values, from which on a choice costs at most three encodes
_ECSQ_PAYLOAD_NBITS, _RANGE_NBITS = 8 * 20, 8 * 8  # lists of scales and tables; a range
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
# Bits per value that estimates leave out, at most `_SHORT_SHARE` of all. With half as many,
# 11 of 17 matrices of 4 Mi values need a second search at 0.1 bits.
_SHORT, _SHORT_SHARE = 0.003, 0.03
# Shares of a target: the excess of a string times the first, plus the second, is left out.
_PAST, _LESS = 2.5, 0.002
_GROWTHS = 3.0, 10.0  # octaves of the step for one of the bits, where no search was short enough
_MOST_OF_ONE = 24.0  # bits of a value that is not 0, more than levels of the least step take
_COSTLY = 60.0  # work of a trial, after which a quarter of the rows is encoded, not all
_SEARCHES = 2  # of a step, for a target of bits; more where they take no time
_TRIAL_WORK = 70.0  # most work of a trial where an encode searches for bits
_SHORT_TRIAL_WORK = 20.0  # and of one that may be wasted, where another search may follow
_BETTER = 1 - 1e-3  # times an error, from which on it counts as less
_EXACT = 1e-10  # error of levels that are as good as exact


def choose(
    x: Any, *, max_err: float | None = None, max_bits: float | None = None, seed: int = 0
) -> Codec:
    """Choose a codec for a tensor by its statistics.

    On tensors of 65,536 values or more, `choose` costs at most three encodes with ``ecsq`` at the
    same target, for errors and for 0.1 bits per value or more; one is typical. The limit is
    measured, not proved: a search for bits has no fixed number of steps. See docs/advise.md.

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
    tensor = inspect(x, "x").read()
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
        wide = inspect(x, "x").as_numpy().astype(np.float64).reshape(-1)
        least = float(((wide - tensor.values) ** 2).sum() / (wide**2).sum())
        if least > error:
            raise ParameterError.of("max_err", error, f"at least {least:.3g} for this tensor")
    if best.codec.name == "ecsq" and may_project(tensor, about):
        values = tensor.values.reshape(tensor.shape)
        factors = least_rank(values, about.aim(error), seed, about.norm, best.nbits)
        if factors and factors.nbits < _levels_nbits(best.codec, values, factors):
            return _powersgd(factors.rank)
    return best.codec


def _levels_nbits(codec: Codec, values: np.ndarray, factors: Factors) -> float:
    """Return about how many bits levels take, by all rows or, after a costly trial, by a quarter.

    In a quarter of the rows a list of scales of columns counts four times, which is 18 bits too
    many for each column, but a trial is costly only for ranks with hundreds of bits for each.
    """
    quick = codec.replaced(trellis="no")
    share = 1.0 if quick == codec else TRELLIS_SHARE
    rows = values[::4] if factors.work > _COSTLY else values
    return share * quick.encode(np.ascontiguousarray(rows)).nbits * (len(values) / len(rows))


def _powersgd(rank: int) -> Codec:
    return parse({"name": "powersgd", "rank": rank})


class _Room(NamedTuple):
    """Bits that a frame may have.

    Attributes
    ----------
    nbits : float
        Bits of the frame; where the header takes half of these, of the payload.
    header : float
        Estimated bits of the header; 0 where it does not count.
    tensor : Tensor
    """

    nbits: float
    header: float
    tensor: Tensor

    @classmethod
    def of(cls, tensor: Tensor, bits: float) -> _Room:
        """Return the room of `bits` bits per value."""
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
        """Return the bits that a payload has too many; seek tables count as the header does."""
        if not self.header:
            return payload.nbits - self.nbits
        frame = Frame(payload.codec, self.tensor.dtype, self.tensor.shape, payload)
        return 8 * frame.nbytes - self.nbits

    def fits(self, codec: Codec) -> bool:
        """Tell whether the frame of a codec has no more bits."""
        return self.excess(codec.encode(self.tensor.values.reshape(self.tensor.shape))) <= 0


def _for_bits(x: Any, tensor: Tensor, about: About, bits: float, seed: int) -> Codec:
    """Choose the least error of what takes so many bits."""
    n = tensor.values.size
    if not about.norm:
        return parse("ecsq")  # whose payload is then empty
    room = _Room.of(tensor, bits)
    lossless = [each for each in exact(tensor, about) if each.nbits <= room.payload]
    for each in sorted(lossless, key=lambda each: each.nbits):
        if room.fits(each.codec):
            return each.codec
    if n <= _FEW and (few := _few_for_bits(tensor, about, room)):
        return few
    try:
        codec = _by_search(room, about, seed)
    except ParameterError:  # no step meets this number of bits
        # What has few levels of its own takes fewer bits than that, however small the step.
        codec = _for_error(x, tensor._replace(dtype="float32"), about, _EXACT, seed)
        codec = codec if room.fits(codec) else None
    if codec is not None:
        return codec
    # Too few bits for scales: the largest elements, as many as there is room for.
    place = 16 + math.log2(n) + GAP_NBITS
    k = int((room.payload - TOPK_NBITS) / place)
    return parse({"name": "topk", "k": k, "value": "bfloat16"}) if k > 0 else _silent(about)


def _silent(about: About) -> Codec:
    """Return a codec that sends nothing of a tensor: a threshold above its largest magnitude."""
    above = np.nextafter(np.float32(about.peak), np.float32(np.inf))
    found: Codec = parse(
        {"name": "topk", "threshold": float(above)} if np.isfinite(above) else "topk:k=1"
    )
    return found


def _by_search(room: _Room, about: About, seed: int) -> Codec | None:
    """Return levels of nearly as many bits as there is room for, or factors with less error.

    None where levels need more bits, whatever the step.

    Raises
    ------
    ParameterError
        If no step meets this number of bits.
    """
    if not room.payload:
        return None
    tensor = room.tensor
    values, n = tensor.values.reshape(tensor.shape), tensor.values.size
    k = about.nonzero
    if room.payload > k * (_MOST_OF_ONE + math.log2(n / k)):
        raise ParameterError.of("max_bits", room.nbits / n, "fewer, as most values are 0")
    aim = _SPARE * room.payload / n
    aim -= min(_SHORT, _SHORT_SHARE * aim)
    for search in range(_SEARCHES if n > _FEW else 4 * _SEARCHES):
        codec = parse({"name": "ecsq", "bits": aim})
        levels = codec.replaced(strict="yes").quantize(values)
        payload = codec.pack(levels)
        excess = room.excess(payload) / payload.nbits
        if search == 0 and values.ndim > 1 and may_project(tensor, about):
            most_wasted = _TRIAL_WORK if excess <= 0 else _SHORT_TRIAL_WORK
            error = _error(codec, levels, values, about)
            works = _TRIAL_WORK, most_wasted
            factors = best_rank(values, error, seed, about.norm, room.payload, *works)
            if factors and factors.error < _BETTER * error:
                # The trial may have had fewer ranks than there is room for; more have less error.
                return _powersgd(affordable_rank(values, room.payload, _TRIAL_WORK))
        if excess <= 0:
            return codec
        aim *= 1 - _PAST * excess - _LESS
    growths = _GROWTHS if n < _LARGE else _GROWTHS[-1:]
    return _at_larger_steps(room, values, payload, growths)


def _at_larger_steps(
    room: _Room, values: np.ndarray, payload: Payload, growths: tuple[float, ...]
) -> Codec | None:
    """Return levels at a larger step than those of a payload that is too long; None where long."""
    for growth in growths:
        # Where most levels are 0, bits fall by the same share as the step grows, or faster.
        octaves = growth * room.excess(payload) / min(payload.nbits, values.size)
        step = float(np.float32(payload.codec.step * 2.0**octaves))
        codec: Codec = payload.codec.replaced(step=step)
        payload = codec.encode(values)
        if room.excess(payload) <= 0:
            return codec
    return None


def _few_for_bits(tensor: Tensor, about: About, space: _Room) -> Codec | None:
    """Return what is better for few values than ``ecsq``; None where nothing is."""
    n, room = tensor.values.size, space.payload
    found = [(4.0 ** -max((room - _ECSQ_PAYLOAD_NBITS) / n, 0), "")]
    width = min(int(room / n), max(_WIDTHS))
    if width in _WIDTHS:
        found.append((4.0 ** (_WIDTH_LOSS - width), _WIDTHS[width]))
    bits = min(int((room - _RANGE_NBITS) / n), MOST_RANGE_BITS)
    if bits > 0:
        found.append((range_error(tensor, about, bits), f"minmax:bits={bits}"))
    for _, spec in sorted(found):
        if not spec or space.fits(parse(spec)):  # words may be far from full
            return parse(spec) if spec else None
    return None


def _error(codec: Codec, levels: QuantizedLevels, values: np.ndarray, about: About) -> float:
    """Return the relative error of levels, in float32."""
    rest = codec.dequantize(levels, values.shape)
    np.subtract(values, rest, out=rest)
    return float(sum_squares(rest.reshape(-1))) / about.norm**2
