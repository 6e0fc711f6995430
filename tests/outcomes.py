"""Outcomes of readers: what they return, or the type of the error that they raise."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np
from reference import universal

import gcodec

_P = ParamSpec("_P")
_T = TypeVar("_T")

_ERRORS = {universal.Truncated: gcodec.Truncated, universal.Corrupt: gcodec.Corrupt}


def outcome(read: Callable[_P, _T]) -> Callable[_P, _T | type[gcodec.FormatError]]:
    """Make a reader of gcodec or of an oracle return gcodec's type of an error."""

    @functools.wraps(read)
    def tried(*args: _P.args, **kwargs: _P.kwargs) -> _T | type[gcodec.FormatError]:
        try:
            return read(*args, **kwargs)
        except gcodec.FormatError as error:
            return type(error)
        except (universal.Truncated, universal.Corrupt) as error:
            return _ERRORS[type(error)]

    return tried


def agree(actual: Any, wanted: Any) -> bool:
    """Return whether both give the same result, or both refuse; the types of errors may differ."""
    return bool(actual == wanted) or (isinstance(actual, type) and isinstance(wanted, type))


def bits(x: Any) -> list[int]:
    """Return the bit patterns of float32 values, so that NaN and −0 compare."""
    return np.asarray(x, np.float32).reshape(-1).view(np.uint32).tolist()
