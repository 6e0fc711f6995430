"""The values of sparse messages: their scales, and floats, bytes or signs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gcodec.entropy import values as value_coding
from gcodec.entropy.values import SparseValues
from gcodec.inspect.walker import FieldSpan, FieldValue, FieldWalker, Kind, numbers
from gcodec.kernels.bits import byte_blocks

Scaled = Callable[[np.ndarray], np.ndarray]


def values(
    walk: FieldWalker, k: int, value: str, scaled: Scaled = np.asarray
) -> Iterator[FieldSpan]:
    """Tell k values.

    Parameters
    ----------
    walk : FieldWalker
        At the first bit of the payload.
    k : int
    value : str
        One of `values.VALUES`.
    scaled : callable
        Turns float32 numbers into what they decode to.
    """
    name = {"int8": "step", "sign": "size"}.get(value, "")
    read = lambda: value_coding.read_scales(walk.data, k, value)  # noqa: E731
    count = value_coding.scales_of(k, value)
    scales = yield from walk.checked("scale", name, 32, count, _tell_scale, read)
    width, kind = value_coding.width_of(value), "sign" if value == "sign" else "value"

    def tell(at: int, codes: np.ndarray) -> Iterator[FieldValue]:
        found = scaled(_decoded(scales, at, codes, value))
        for code, number in zip(codes.tolist(), found.tolist(), strict=True):
            shown = {"int8": (code ^ 0x80) - 0x80, "sign": "-" if code else "+"}.get(value, number)
            yield FieldValue(shown, decoded=(number,))

    own: Kind = kind  # type: ignore[assignment]
    check = lambda: value_coding.read_codes(walk.data, k, value)  # noqa: E731
    yield from walk.checked(own, kind, width, k, tell, check)


def _tell_scale(at: int, bits: np.ndarray) -> Iterator[FieldValue]:
    for number in numbers(bits).tolist():
        yield FieldValue(number)


def _decoded(scales: np.ndarray, at: int, codes: np.ndarray, value: str) -> np.ndarray:
    """Return the float32 numbers that codes from number `at` on stand for."""
    if value == "sign":
        found = SparseValues(scales, np.packbits(codes.astype(np.uint8)))
    elif value == "int8":  # from the begin of a block on
        block, lead = divmod(at, byte_blocks.SIZE)
        some = np.concatenate([np.zeros(lead, np.uint8), codes.astype(np.uint8)])
        return byte_blocks.dequantize(scales[block:], some)[lead:]
    else:
        found = SparseValues(scales, codes.astype(value_coding.code_dtype(value)))
    return value_coding.dequantize(found, value, codes.size)
