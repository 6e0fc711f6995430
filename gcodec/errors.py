"""Errors: who is at fault, the caller or the bytes."""

from __future__ import annotations


def brief(text: str) -> str:
    """Shorten text that a caller or a file brought along, for use in a message."""
    return text if len(text) <= 80 else text[:77] + "..."


class GcodecError(Exception):
    """Root of every error that gcodec raises on purpose."""


class ParameterError(GcodecError, ValueError):
    """The caller is wrong: the message names the parameter, its value and what is allowed."""

    @classmethod
    def of(cls, name: str, value: object, allowed: str) -> ParameterError:
        """Build the one form of message that a bad argument gets."""
        try:
            shown = brief(repr(value))
        except ValueError:  # Python writes no integer of thousands of digits
            shown = "…"
        return cls(f"{brief(name)}={shown}: must be {allowed}")


class FormatError(GcodecError, ValueError):
    """The bytes are wrong: a frame, a payload or a file of tensors cannot be read.

    Parameters
    ----------
    message : str
        What is wrong.
    offset : int, optional
        Where, in bytes from the start of what was read.
    """

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message if offset is None else f"{message} (at byte {offset})")
        self.offset = offset


class Truncated(FormatError):
    """The bytes end too early."""


class Corrupt(FormatError):
    """The bytes contradict themselves: a checksum, a length, a reserved bit."""


class Unsupported(FormatError):
    """Well-formed as far as can be told, but of a version or kind not known to this release."""


class Unsafe(Unsupported):
    """Reading this file would run code that it brings along."""


class LimitExceeded(FormatError):
    """The bytes ask for more memory than the limits allow; the message says how to raise them."""


class CompilerDisabled(GcodecError, RuntimeError):
    """Numba's compiler is switched off in this process, so no kernel can run."""
