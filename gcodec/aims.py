"""What a codec is to be chosen for: an error, or bits per value."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gcodec.errors import ParameterError
from gcodec.kinds import check_number


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
