"""What a codec makes of a tensor, measured: its frame, and the error of what comes back."""

from __future__ import annotations

import math
from typing import NamedTuple

from gcodec.analysis import stats
from gcodec.api import decode, encode
from gcodec.codec import Codec
from gcodec.errors import ParameterError
from gcodec.limits import Limits
from gcodec.tensorfiles.entries import Array

_OWN = Limits(1 << 62, 1 << 62)  # a frame that was made here needs no protection from itself


class Trial(NamedTuple):
    """What a codec made of a tensor.

    Attributes
    ----------
    codec : Codec
        As it was asked for.
    nbytes : int
        Of the frame.
    bits : float
        Of the frame per value; NaN where there are no values.
    rms, rms_error : float
        Of the values x that were encoded, and of x − x̂.
    """

    codec: Codec
    nbytes: int
    bits: float
    rms: float
    rms_error: float

    @property
    def error(self) -> float:
        """‖x − x̂‖² / ‖x‖²; for x = 0 that is 0 if x̂ = 0, and else inf."""
        return squared_ratio(self.rms_error, self.rms)


def squared_ratio(error: float, signal: float) -> float:
    """Return (error / signal)², where nothing is a perfect copy of nothing."""
    if not signal:
        return math.inf if error else 0.0
    return (error / signal) * (error / signal)


def attempt(values: Array, codec: Codec, seed: int, name: str) -> Trial | str:
    """Encode and decode a tensor of finite values.

    Parameters
    ----------
    values : array
    codec : Codec
    seed : int
        From 0 to 2**64 - 1.
    name : str
        Of the tensor, which its frame carries.

    Returns
    -------
    Trial or str
        Text says why the codec refuses the tensor.
    """
    try:
        frame = encode(values, codec, seed=seed, name=name)
    except ParameterError as error:
        return str(error)
    decoded = decode(frame, limits=_OWN)
    bits = 8 * len(frame) / values.size if values.size else math.nan
    rms, rms_error = stats.rms_error(values), stats.rms_error(values, decoded)
    return Trial(codec, len(frame), bits, rms, rms_error)
