"""Lower bounds of the error and the size of a codec on a tensor, which need no kernels."""

from __future__ import annotations

import numpy as np

from gcodec.codec import Codec
from gcodec.codecs.randomk import RandomK
from gcodec.codecs.topk import TopK
from gcodec.entropy import positions as position_coding
from gcodec.entropy import values as value_coding

_ROUNDING = 1e-5  # relative to ‖x‖², for the rounding of sums and of decoded values
_ONE_MAGNITUDE = ("sign", "mxnet-1bit")
_ZERO_OR_ONE_MAGNITUDE = ("mxnet-2bit", "terngrad")


def least_error(codec: Codec, values: np.ndarray) -> float:
    """Return a lower bound of the nmse ‖x − x̂‖²/‖x‖² for every seed, or 0 where none is known.

    If k decoded values have the magnitude s and all others are 0, the best s is the mean of the k
    largest magnitudes, and the error is ‖x‖² − S²/k for their sum S. If k decoded values are
    arbitrary and all others are 0, the error is at least the sum of the other squares.

    Parameters
    ----------
    codec : Codec
        The codec, bound to the shape of the tensor.
    values : (n,) float32 array
        The finite values x.
    """
    name, n = codec.name, values.size
    sent = _sent(codec, n)
    if sent is None and name not in (*_ONE_MAGNITUDE, *_ZERO_OR_ONE_MAGNITUDE):
        return 0.0
    magnitudes = np.sort(np.abs(values).astype(np.float64))[::-1]
    norm = float(magnitudes @ magnitudes)
    if not 0 < norm < np.inf:
        return 0.0
    if sent is not None:
        k, _ = sent
        kept = float(magnitudes[:k] @ magnitudes[:k])
    else:
        counts = np.arange(1, n + 1) if name in _ZERO_OR_ONE_MAGNITUDE else np.array([n])
        kept = float((magnitudes.cumsum()[counts - 1] ** 2 / counts).max())
    return 1 - kept / norm - _ROUNDING


def least_bits(codec: Codec, n: int) -> float:
    """Return a lower bound of the bits per value for n values, or 0 where none is known."""
    sent = _sent(codec, n)
    return value_coding.nbits(*sent) / n if n and sent is not None else 0.0


def _sent(codec: Codec, n: int) -> tuple[int, str] | None:
    """Return how many of n values ``topk`` or ``randomk`` sends, and their format.

    None for other codecs, and with a threshold, which determines the number for each tensor.
    """
    if not isinstance(codec, (TopK, RandomK)) or (isinstance(codec, TopK) and codec.threshold):
        return None
    return position_coding.sent(n, codec.k, codec.ratio), codec.value
