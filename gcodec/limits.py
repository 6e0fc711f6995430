"""Bounds on the memory and the work that untrusted bytes may cost a reader."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from numbers import Integral, Real

from gcodec.errors import LimitExceeded, ParameterError

MAX_TENSORS = 65_536
"""Largest number of tensors in a file or a message, and of members of an archive."""

MOST = 1 << 62
"""Largest number of elements of a tensor, and of bytes of an array."""


@dataclass(frozen=True)
class Limits:
    """Bounds that decoders and file readers check before they allocate memory and start to work.

    Parameters
    ----------
    max_elements : int
        Largest number of elements of a tensor.
    max_bytes : int
        Largest size of a decoded tensor in bytes.
    max_ratio : float, optional
        Largest ratio of decoded to encoded bytes. Default: no such bound.
    max_products : int
        Largest number of multiplications of a decoder that multiplies factors: the rank times the
        number of elements. The default takes one core some ten seconds.

    Raises
    ------
    ParameterError
        If a bound is not a positive number.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> limits = gcodec.Limits(max_elements=1000, max_ratio=100)
    >>> frame = gcodec.encode(np.ones(9, np.float32), "raw")
    >>> gcodec.decode(frame, limits=limits).size
    9
    """

    max_elements: int = 2**28
    max_bytes: int = 2**31
    max_ratio: float | None = None
    max_products: int = 2**36

    def __post_init__(self) -> None:
        """Refuse bounds that are not positive numbers."""
        for name in ("max_elements", "max_bytes", "max_products"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                raise ParameterError.of(name, value, "an integer of at least 1")
            object.__setattr__(self, name, int(value))  # which may be NumPy's
        ratio: object = self.max_ratio
        if not isinstance(ratio, (int, float)) and isinstance(ratio, Real):
            ratio = float(ratio)  # of NumPy's
            object.__setattr__(self, "max_ratio", ratio)
        if ratio is not None and (
            not isinstance(ratio, (int, float))
            or isinstance(ratio, bool)
            or not 0 < ratio <= sys.float_info.max
        ):
            raise ParameterError.of("max_ratio", ratio, "a positive finite number or None")

    @classmethod
    def or_default(cls, limits: Limits | None) -> Limits:
        """Return the caller's limits, or the default limits for None.

        Raises
        ------
        ParameterError
            If `limits` is another object, which would bound nothing.
        """
        if limits is None:
            return DEFAULT_LIMITS
        if not isinstance(limits, Limits):
            raise ParameterError.of("limits", limits, "a gcodec.Limits or None")
        return limits

    def check(
        self, subject: str, elements: int, nbytes: int, source_nbytes: int | None = None
    ) -> None:
        """Raise unless a tensor stays within the bounds.

        Parameters
        ----------
        subject : str
            Subject of the error message, such as "the frame".
        elements : int
            Number of elements of the tensor.
        nbytes : int
            Size of the decoded tensor in bytes.
        source_nbytes : int, optional
            Size of the encoded tensor in bytes, to check `max_ratio`.

        Raises
        ------
        LimitExceeded
            If the tensor exceeds a bound. The message states the bound, both numbers and the
            limits that would allow the tensor.
        """
        if elements > self.max_elements:
            raise self._exceeded(f"{subject} has", elements, "elements")
        if nbytes > self.max_bytes:
            raise self._exceeded(f"{subject} needs", nbytes, "bytes")
        if elements > MOST:
            raise LimitExceeded(f"{subject} has {elements} elements, more than 2^62")
        if self.max_ratio is None or source_nbytes is None:
            return
        source = max(source_nbytes, 1)
        if nbytes > self.max_ratio * source:
            raise LimitExceeded(
                f"{subject} decodes {source_nbytes} bytes to {nbytes}, more than "
                f"max_ratio={self.max_ratio} times as many; to allow it, "
                f"pass limits=gcodec.Limits(max_ratio={math.ceil(nbytes / source)})"
            )

    def check_products(self, subject: str, products: int) -> None:
        """Raise `LimitExceeded` if a decoder would make more multiplications than `max_products`.

        `subject` is the subject of the error message.
        """
        if products > self.max_products:
            raise self._exceeded(f"{subject} needs", products, "products")

    def _exceeded(self, start: str, number: int, unit: str) -> LimitExceeded:
        """Return the error of a number that exceeds the bound on its unit."""
        name = f"max_{unit}"
        return LimitExceeded(
            f"{start} {number} {unit}, more than {name}={getattr(self, name)}; "
            f"to allow it, pass limits=gcodec.Limits({name}={number})"
        )


DEFAULT_LIMITS = Limits()
"""Limits where the caller passes none, and only the bytes state the size."""

WORK_LIMITS = Limits(MOST, MOST)
"""Limits where the caller's own arrays bound the memory, so that only the work needs a bound."""

NO_LIMITS = Limits(MOST, MOST, max_products=1 << 62)
"""Limits for frames of this process and of its group of workers."""
