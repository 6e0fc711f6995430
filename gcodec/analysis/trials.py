"""Codecs tried on a tensor: the size of the frame, and the error of the decoded values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from gcodec.analysis import stats
from gcodec.analysis.bounds import least_bits, least_error
from gcodec.analysis.samples import Sample
from gcodec.arrays.nonfinite import with_policy
from gcodec.arrays.source import as_dtype, inspect
from gcodec.codec import Codec, Payload
from gcodec.codecs.raw import Raw
from gcodec.errors import ParameterError
from gcodec.frame import Frame

_NOTHING = Payload(Raw(), {}, np.empty(0, np.uint8), 0)  # no codec has a smaller frame
_UNWANTED = "other codecs have a smaller error or fewer bits"


class Trial(NamedTuple):
    """The result of encoding a tensor with a codec and decoding it.

    Attributes
    ----------
    codec : Codec
        Codec as requested.
    nbytes : int
        Size of the frame.
    bits : float
        Bits of the frame per value; NaN if there are no values.
    rms, rms_error : float
        Root mean square of the values x, and of x − x̂.
    """

    codec: Codec
    nbytes: int
    bits: float
    rms: float
    rms_error: float

    @property
    def error(self) -> float:
        """The nmse ‖x − x̂‖² / ‖x‖²; for x = 0 that is 0 if x̂ = 0, and else inf."""
        return squared_ratio(self.rms_error, self.rms)


class Cost(NamedTuple):
    """The cost of several tensors together.

    Attributes
    ----------
    codec : str
        Spec of the codec; empty if the tensors have several codecs.
    bits : float
        Mean number of bits per value.
    error : float
        The nmse over all tensors.
    """

    codec: str
    bits: float
    error: float


def attempt(
    sample: Sample,
    codec: Codec,
    is_wanted: Callable[[float, float], bool] = lambda error, bits: True,
) -> Trial | str:
    """Encode and decode a sample of a tensor, with as few kernels as possible.

    The error is that of the symbols, which are dequantized without being read from a payload. The
    size is that of a payload whose bytes need not be written. Both equal those of `gcodec.encode`
    and `gcodec.decode`.

    Parameters
    ----------
    sample : Sample
        The sample.
    codec : Codec
        The codec.
    is_wanted : callable
        Decides whether the codec is of interest, given lower bounds of its nmse and its bits per
        value. It is called before the trial, and again when the error is known.

    Returns
    -------
    Trial or str
        The result, or the reason why there is none: the codec refuses the values, or is not
        wanted.
    """
    values = sample.values
    source = inspect(values, "x")
    try:
        with source.context():
            # Other codecs read a float64 as float32, which it may exceed.
            tensor = source.read(segments=codec.keeps_every_bit)
            if not (codec.refuses_nonfinite or codec.keeps_every_bit):
                tensor = with_policy(tensor, "raise")
            bound = codec._bound_to(tensor)
            bits = least_bits(bound, values.size)
            if values.size:
                empty = Frame(_NOTHING.codec, tensor.dtype, tensor.shape, _NOTHING, sample.name)
                bits += 8 * empty.nbytes / values.size
            if not is_wanted(least_error(bound, tensor.values), bits):
                return _UNWANTED
            flat, symbols = bound._try(tensor.values, sample.seed)
            decoded = as_dtype(flat, tensor.dtype).reshape(tensor.shape)
            rms, rms_error = stats.rms_error(values), stats.rms_error(values, decoded)
            if not is_wanted(squared_ratio(rms_error, rms), bits):
                return _UNWANTED
            payload = bound._sized(symbols).resolved()
    except ParameterError as error:
        return str(error)
    nbytes = Frame(payload.codec, tensor.dtype, tensor.shape, payload, sample.name).nbytes
    bits = 8 * nbytes / values.size if values.size else math.nan
    return Trial(codec, nbytes, bits, rms, rms_error)


def total_cost(trials: Iterable[tuple[int, Trial]]) -> Cost | None:
    """Combine trials of several tensors.

    Parameters
    ----------
    trials : iterable of (int, Trial)
        Size of each tensor, and the trial on it or on a sample of it.

    Returns
    -------
    Cost or None
        None if the tensors have no values.
    """
    filled = [(size, trial) for size, trial in trials if size]
    if not filled:
        return None
    specs = {str(trial.codec) for _, trial in filled}
    bits = weighted_mean((size, trial.bits) for size, trial in filled)
    error = joint_rms((size, trial.rms_error) for size, trial in filled)
    rms = joint_rms((size, trial.rms) for size, trial in filled)
    return Cost(specs.pop() if len(specs) == 1 else "", bits, squared_ratio(error, rms))


def weighted_mean(parts: Iterable[tuple[int, float]]) -> float:
    """Return the mean over all values of several tensors, from the size and mean of each.

    NaN if there are no values.
    """
    sized = [(size, mean) for size, mean in parts if size]
    values = sum(size for size, _ in sized)
    return sum(size * mean for size, mean in sized) / values if values else math.nan


def joint_rms(parts: Iterable[tuple[int, float]]) -> float:
    """Return the root mean square over several tensors, from the size and rms of each."""
    sized = list(parts)
    total = sum(size for size, _ in sized) or 1
    # hypot scales, so that it does not overflow where squares would.
    return math.hypot(*(math.sqrt(size / total) * rms for size, rms in sized))


def squared_ratio(error: float, signal: float) -> float:
    """Return (error / signal)², where an error of 0 is perfect for a signal of 0."""
    if not signal:
        return math.inf if error else 0.0
    return (error / signal) * (error / signal)
