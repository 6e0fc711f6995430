"""Exceptions: `ParameterError` blames the caller, `FormatError` blames the bytes."""

from __future__ import annotations

from collections.abc import Iterable


def brief(text: str) -> str:
    """Shorten text from a caller or a file for use in a message."""
    return text if len(text) <= 80 else text[:77] + "..."


def suggestion(word: object, words: Iterable[str]) -> str:
    """Return ``; did you mean …?`` with the valid word that a word resembles, or nothing."""
    import difflib  # only errors need it

    if not isinstance(word, str) or len(word) > 80:
        return ""
    matches = difflib.get_close_matches(word, words, 1)
    return f"; did you mean {matches[0]}?" if matches else ""


class GcodecError(Exception):
    """Base class of all exceptions that gcodec defines."""


class ParameterError(GcodecError, ValueError):
    """An argument is invalid; the message states its name, its value and the allowed values."""

    @classmethod
    def of(cls, name: str, value: object, allowed: str) -> ParameterError:
        """Return an error with the standard message ``name=value: must be allowed``."""
        try:
            shown = brief(repr(value))
        except ValueError:  # Python refuses to print an integer with thousands of digits
            shown = "…"
        return cls(f"{brief(name)}={shown}: must be {allowed}")


class FormatError(GcodecError, ValueError):
    """The bytes are invalid: a frame, a payload or a tensor file cannot be read.

    Parameters
    ----------
    message : str
        Description of the damage.
    offset : int, optional
        Position of the damage, in bytes from the start of the input.
    """

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message if offset is None else f"{message} (at byte {offset})")
        self.offset = offset


class Truncated(FormatError):
    """The input ends too early."""


class Corrupt(FormatError):
    """The bytes contradict themselves: a checksum, a length or a reserved bit is wrong."""


class Unsupported(FormatError):
    """The bytes have a version or a kind that this release does not support."""


class Unsafe(Unsupported):
    """Reading the file would execute code that it contains."""


class LimitExceeded(FormatError):
    """Decoding would exceed the limits; the message states how to raise them."""


class CompilerDisabled(GcodecError, RuntimeError):
    """Numba's compiler is disabled in this process, so no kernel can run."""
