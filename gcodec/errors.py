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
    by_lower = {each.lower(): each for each in words}
    matches = difflib.get_close_matches(word.lower(), by_lower, 1)
    return f"; did you mean {by_lower[matches[0]]}?" if matches else ""


class GcodecError(Exception):
    """Base class of all exceptions that gcodec defines.

    Examples
    --------
    >>> import gcodec
    >>> try:
    ...     gcodec.parse("qsgd:s=0")
    ... except gcodec.GcodecError as error:
    ...     print(error)
    s=0: must be an integer from 1 to 16777216
    """


class ParameterError(GcodecError, ValueError):
    """An argument is invalid; the message states its name, its value and the allowed values.

    Examples
    --------
    >>> import gcodec
    >>> try:
    ...     gcodec.parse("minmax:bits=9")
    ... except gcodec.ParameterError as error:
    ...     print(error)
    bits=9: must be an integer from 1 to 8
    """

    @classmethod
    def of(cls, name: str, value: object, allowed: str) -> ParameterError:
        """Return an error with the standard message ``name=value: must be allowed``."""
        try:
            ndim = getattr(value, "ndim", 0)
            is_array = isinstance(ndim, int) and ndim > 0  # and has a long text
            shown = f"<{type(value).__name__}>" if is_array else brief(repr(value))
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
        Position of the damage, in bytes from the start of the input; within the payload of a frame
        that is decoded on its own, from the start of the payload.

    Examples
    --------
    >>> import gcodec
    >>> try:
    ...     gcodec.decode(b"no frame")
    ... except gcodec.FormatError as error:
    ...     print(type(error).__name__, error)
    Corrupt not a frame: the bytes do not begin with GCF (at byte 0)
    """

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message if offset is None else f"{message} (at byte {offset})")
        self.offset = offset


class Truncated(FormatError):
    """The input ends too early.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> frame = gcodec.encode(np.ones(9, np.float32), "sign")
    >>> try:
    ...     gcodec.decode(frame[:-1])
    ... except gcodec.Truncated as error:
    ...     print(error)
    the bytes end too early: 4 wanted, 3 left (at byte 22)
    """


class Corrupt(FormatError):
    """The bytes contradict themselves: a checksum, a length or a reserved bit is wrong.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> frame = bytearray(gcodec.encode(np.ones(9, np.float32), "sign"))
    >>> frame[-5] ^= 1  # the last byte of the payload
    >>> try:
    ...     gcodec.decode(frame)
    ... except gcodec.Corrupt as error:
    ...     print(error)
    the payload's checksum is wrong (at byte 22)
    """


class Unsupported(FormatError):
    """The bytes have a version or a kind that this release does not support.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> frame = bytearray(gcodec.encode(np.ones(9, np.float32), "sign"))
    >>> frame[3] = 9  # the version of the format
    >>> try:
    ...     gcodec.decode(frame)
    ... except gcodec.Unsupported as error:
    ...     print(error)
    frame version 9; this release reads 1 (at byte 3)
    """


class Unsafe(Unsupported):
    """Reading the file would execute code that it contains.

    Examples
    --------
    >>> import gcodec
    >>> issubclass(gcodec.Unsafe, gcodec.FormatError)
    True
    """


class LimitExceeded(FormatError):
    """Decoding would exceed the limits; the message states how to raise them.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> frame = gcodec.encode(np.ones(9, np.float32), "sign")
    >>> try:
    ...     gcodec.decode(frame, limits=gcodec.Limits(max_elements=8))
    ... except gcodec.LimitExceeded as error:
    ...     print(str(error).partition(";")[0])
    the frame has 9 elements, more than max_elements=8
    """


class CompilerDisabled(GcodecError, RuntimeError):
    """Numba's compiler is disabled in this process, so no kernel can run."""
