"""NaN and Inf in tensors: the policies, and the checks that fuse with other reductions.

Values on a device are checked before the call ends.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from gcodec.arrays.source import NUMPY_DTYPES, Tensor
from gcodec.errors import ParameterError
from gcodec.kernels.numeric import convert
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.numeric.convert import ConvertedArray, is_converted
from gcodec.kernels.numeric.reduce import (
    INFINITY_BITS,
    all_finite,
    max_abs_bits,
    max_abs_bits_corrected,
)
from gcodec.runtime import Array
from gcodec.runtime.deferred import Deferred, when_known
from gcodec.runtime.device import beside, device_of, host
from gcodec.runtime.pool import SEGMENT
from gcodec.wire.kinds import check_choice
from gcodec.wire.primitives import FLOATS8, INTEGERS

NonFinite = Literal["raise", "zero", "propagate"]
_POLICIES = get_args(NonFinite)


def check_nonfinite(nonfinite: object) -> None:
    """Raise `ParameterError` unless `nonfinite` names a policy."""
    check_choice("nonfinite", nonfinite, _POLICIES)


def with_policy(tensor: Tensor, nonfinite: NonFinite, *, segments: bool = False) -> Tensor:
    """Apply a policy to a tensor; return the same tensor if nothing changes.

    Parameters
    ----------
    tensor : Tensor
        Integers and booleans contain neither NaN nor Inf. Values on a device may be bit patterns.
    nonfinite : {"raise", "zero", "propagate"}
    segments : bool
        Whether the caller reads the values by segments only; see `Source.read`.
    """
    values: Array = tensor.values
    if tensor.dtype in INTEGERS or nonfinite == "propagate":
        return tensor
    if tensor.dtype in FLOATS8:
        return _float8_with_policy(tensor, nonfinite)
    if nonfinite == "raise":
        check_finite(values)
        return tensor
    if device_of(values) is None and all_finite(values):
        return tensor
    if segments and type(values) is np.ndarray:
        values = ConvertedArray(values, "float32")
    if is_converted(values):
        return tensor._replace(values=values.finite_or_zero())
    if values.dtype.kind == "u":
        return tensor._replace(values=convert.finite_patterns(values, tensor.dtype))
    return tensor._replace(values=convert.finite_or_zero(values))


def _float8_with_policy(tensor: Tensor, nonfinite: NonFinite) -> Tensor:
    """Do what `with_policy` does for floats of 8 bits, or their bit patterns."""
    bits, kind = tensor.values.view(np.uint8), NUMPY_DTYPES[tensor.dtype]
    is_finite = np.isfinite(np.arange(256, dtype=np.uint8).view(kind))  # of each bit pattern
    if not host(byte_counts(bits))[~is_finite].any():
        return tensor
    patterns = host(bits)
    if nonfinite == "raise":
        raise nonfinite_error(patterns.view(kind))
    zeroed = beside(patterns * is_finite[patterns], bits)
    return tensor._replace(values=zeroed.view(tensor.values.dtype))


def check_finite(values: Array) -> int | Deferred:
    """Raise `ParameterError` for NaN or Inf; return the bits of the largest magnitude."""
    top_bits = max_abs_bits(values)
    check_top(top_bits, values)
    return top_bits


def check_corrected(values: Array, residual: Array, decay: np.float32, name: str = "x") -> None:
    """Raise `ParameterError` if an element of values + decay·residual is NaN or Inf."""
    check_top(max_abs_bits_corrected(values, residual, decay), values, name)


def check_top(top_bits: int | Deferred, values: Array, name: str = "x") -> None:
    """Raise `ParameterError` if the values, or their sum with a residual, contain NaN or Inf.

    Parameters
    ----------
    top_bits : int or Deferred
        Bit pattern of the largest magnitude of the values or of the sum.
    values : (n,) float32 array
    name : str
        Name of the parameter, for the message.
    """

    def check(top: int) -> None:
        if top < INFINITY_BITS:
            return
        if all_finite(values):
            raise ParameterError(f"{name}: must not exceed float32 when its residual is added")
        raise nonfinite_error(values, name)

    when_known(top_bits, check)


def has_nonfinite(values: np.ndarray) -> bool:
    """Return whether an array on the host, of any dtype, contains NaN or Inf."""
    try:
        return find_nonfinite(values, most=0)[0] > 0
    except TypeError:  # it contains no numbers
        return False


def find_nonfinite(values: Any, most: int = 3) -> tuple[int, tuple[int, ...]]:
    """Count NaN and Inf, and locate the first ones.

    Parameters
    ----------
    values : array or ConvertedArray
        Values of any shape and any float dtype, on the host.
    most : int
        Largest number of values to locate.

    Returns
    -------
    count : int
        Number of NaN and Inf.
    places : tuple of int
        Flat indices of the first ones, in C order.
    """
    flat = values if is_converted(values) else values.reshape(-1)
    count, places = 0, list[int]()
    for start in range(0, flat.size, SEGMENT):
        with np.errstate(invalid="ignore"):  # NumPy warns of a signaling NaN in bfloat16
            indices = np.flatnonzero(~np.isfinite(flat[start : start + SEGMENT]))
        places += (start + indices[: most - len(places)]).tolist()
        count += indices.size
    return count, tuple(places)


def nonfinite_error(values: Array | ConvertedArray, name: str = "x") -> ParameterError:
    """Return an error that states the number of NaN and Inf, and the index of the first.

    Parameters
    ----------
    values : array or ConvertedArray
    name : str
        Name of the parameter, for the message.
    """
    on_host = values if is_converted(values) else host(values)
    count, places = find_nonfinite(on_host, most=1)
    first = places[0] if places else 0
    place = f"the first at flat index {first}"
    kind = "" if str(values.dtype) in FLOATS8 else " as float32"
    return ParameterError(
        f"{name} holds {count} NaN or Inf, {place}: must be finite{kind}; "
        "with nonfinite='zero', gcodec.encode and Feedback take them as 0"
    )
