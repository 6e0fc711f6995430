"""Codecs that cannot be judged on the values at hand, because these lack what the codec relies on.

A codec that uses rows and columns shows nothing of that on a vector of values that stand for a
matrix; factors of some rows have other bits than those of all; and the neighbors of drawn values
are independent, so that a transform of neighbors gains nothing on them.
"""

from __future__ import annotations

import enum

from gcodec.codec import Codec
from gcodec.wire.kinds import Choice


class Origin(enum.Enum):
    """Where measured values come from."""

    WHOLE = "a tensor of a dump"
    ROWS = "some rows of a tensor"
    FLAT = "flat samples of tensors"
    INDEPENDENT = "independent values"
    MATRIX = "a drawn matrix"

    @classmethod
    def of_sample(cls, shape: tuple[int, ...], size: int, ndim: int) -> Origin:
        """Return the origin of a sample with a size and axes, of a tensor of this shape."""
        total = 1
        for length in shape:
            total *= length
        if size == total or len(shape) < 2:
            return cls.WHOLE
        return cls.ROWS if ndim > 1 else cls.FLAT


def doubt(codec: Codec, origin: Origin) -> str | None:
    """Say why a codec cannot be judged on such values; None if it can be."""
    if origin in (Origin.FLAT, Origin.INDEPENDENT) and _uses_rows(codec):
        return f"{origin.value} have no rows and columns to make use of"
    if origin is Origin.ROWS and hasattr(codec, "rank"):
        return "its bits depend on how many rows there are, and only some were measured"
    drawn = origin in (Origin.INDEPENDENT, Origin.MATRIX)
    if drawn and (codec.name == "dct8" or getattr(codec, "transform", None) == "dct"):
        return "neighbors of drawn values are independent, so a transform gains nothing"
    return None


def _uses_rows(codec: Codec) -> bool:
    """Tell whether bits depend on rows and columns; of a choice of codes, by ``context`` alone."""
    choices = [
        getattr(codec, declared.name)
        for declared in codec.declared()
        if isinstance(declared.kind, Choice) and "context" in declared.kind.words
    ]
    return codec.uses_shape and (not choices or bool({"context", "auto"}.intersection(choices)))
