"""Lower bounds of the error and the size of a codec on a tensor, which need no kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.codec import Codec
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
    name = codec.name
    is_sparse = name in ("topk", "randomk") and not _has_threshold(codec)
    if not is_sparse and name not in (*_ONE_MAGNITUDE, *_ZERO_OR_ONE_MAGNITUDE):
        return 0.0
    magnitudes = np.sort(np.abs(values).astype(np.float64))[::-1]
    norm = float(magnitudes @ magnitudes)
    if not 0 < norm < np.inf:
        return 0.0
    n = values.size
    if is_sparse:
        k = _sent(codec, n)
        kept = float(magnitudes[:k] @ magnitudes[:k])
    else:
        counts = np.arange(1, n + 1) if name in _ZERO_OR_ONE_MAGNITUDE else np.array([n])
        kept = float((magnitudes.cumsum()[counts - 1] ** 2 / counts).max())
    return 1 - kept / norm - _ROUNDING


def least_bits(codec: Codec, n: int) -> float:
    """Return a lower bound of the bits per value for n values, or 0 where none is known."""
    if not n or codec.name not in ("topk", "randomk") or _has_threshold(codec):
        return 0.0
    return value_coding.nbits(_sent(codec, n), _parameter(codec, "value")) / n


def _sent(codec: Codec, n: int) -> int:
    """Return the number of values that ``topk`` or ``randomk`` sends of n."""
    return position_coding.sent(n, _parameter(codec, "k"), _parameter(codec, "ratio"))


def _has_threshold(codec: Codec) -> bool:
    return bool(_parameter(codec, "threshold"))


def _parameter(codec: Codec, name: str) -> Any:
    """Return a parameter of a codec, or None if the codec has no such parameter."""
    return getattr(codec, name, None)
