"""Codecs tried on a tensor: the size of the frame, and the error of the decoded values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from gcodec.analysis import stats
from gcodec.analysis.samples import Sample
from gcodec.api import decode, encode
from gcodec.codec import Codec
from gcodec.errors import ParameterError
from gcodec.limits import Limits

NO_LIMITS = Limits(1 << 62, 1 << 62)
"""Limits for frames that this process has encoded itself."""


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


def attempt(sample: Sample, codec: Codec) -> Trial | str:
    """Encode and decode a sample of a tensor.

    Returns
    -------
    Trial or str
        The result, or the reason why the codec refuses the values.
    """
    values = sample.values
    try:
        frame = encode(values, codec, seed=sample.seed, name=sample.name)
    except ParameterError as error:
        return str(error)
    decoded = decode(frame, limits=NO_LIMITS)
    bits = 8 * len(frame) / values.size if values.size else math.nan
    rms, rms_error = stats.rms_error(values), stats.rms_error(values, decoded)
    return Trial(codec, len(frame), bits, rms, rms_error)


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
    values = sum(size for size, _ in filled)
    if not values:
        return None
    specs = {str(trial.codec) for _, trial in filled}
    bits = sum(size * trial.bits for size, trial in filled) / values
    error = joint_rms((size, trial.rms_error) for size, trial in filled)
    rms = joint_rms((size, trial.rms) for size, trial in filled)
    return Cost(specs.pop() if len(specs) == 1 else "", bits, squared_ratio(error, rms))


def joint_rms(parts: Iterable[tuple[int, float]]) -> float:
    """Return the root mean square over several tensors, from the size and rms of each."""
    sized = list(parts)
    # hypot scales, so that it does not overflow where squares would.
    root = math.hypot(*(math.sqrt(size) * rms for size, rms in sized))
    return root / math.sqrt(sum(size for size, _ in sized) or 1)


def squared_ratio(error: float, signal: float) -> float:
    """Return (error / signal)², where an error of 0 is perfect for a signal of 0."""
    if not signal:
        return math.inf if error else 0.0
    return (error / signal) * (error / signal)
