"""Descriptions of the values of sparse messages: the scales, then floats, bytes or signs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from gcodec.entropy import values as value_coding
from gcodec.entropy.values import SparseValues
from gcodec.fields.walker import FieldSpan, FieldValue, FieldWalker, Kind, describe_each
from gcodec.kernels.bits import byte_blocks


def values(
    walk: FieldWalker, k: int, value: str, scaled: Callable[[np.ndarray], np.ndarray] = np.asarray
) -> Iterator[FieldSpan]:
    """Describe k values.

    Parameters
    ----------
    walk : FieldWalker
        Walker at the first bit of the payload.
    k : int
        Number of values.
    value : str
        One of `values.VALUES`.
    scaled : callable
        Returns the decoded numbers, given the (m,) float32 numbers of m values.

    Raises
    ------
    FormatError
    """
    scale_names = {
        "int8": ("step", f"distance of the levels of {byte_blocks.SIZE} values"),
        "sign": ("size", "magnitude of all values"),
    }
    name, meaning = scale_names.get(value, ("", ""))
    count, width = value_coding.scales_of(k, value), value_coding.width_of(value)
    read_scales = partial(value_coding.read_scales, walk.data, k, value)
    describe_scales = describe_each(lambda scale, index: FieldValue(scale, meaning), "float32")
    scales = yield from walk.checked("scale", name, 32, count, describe_scales, read_scales)

    def describe(at: int, codes: np.ndarray) -> Iterator[FieldValue]:
        decoded = scaled(_dequantized(scales, at, codes, value))
        for code, number in zip(codes.tolist(), decoded.tolist(), strict=True):
            text = {"int8": (code ^ 0x80) - 0x80, "sign": "-" if code else "+"}.get(value, number)
            yield FieldValue(text, decoded=(number,))

    kind: Kind = "sign" if value == "sign" else "value"
    read_codes = partial(value_coding.read_codes, walk.data, k, value)
    yield from walk.checked(kind, kind, width, k, describe, read_codes)


def _dequantized(scales: np.ndarray, at: int, codes: np.ndarray, value: str) -> np.ndarray:
    """Return the float32 numbers of the codes of values from index `at` on."""
    if value == "int8":  # `byte_blocks` starts at the first code of a block
        block, lead = divmod(at, byte_blocks.SIZE)
        from_block = np.concatenate([np.zeros(lead, np.uint8), codes.astype(np.uint8)])
        return byte_blocks.dequantize(scales[block:], from_block)[lead:]
    if value == "sign":
        packed = np.packbits(codes.astype(np.uint8))
    else:
        packed = codes.astype(value_coding.CODE_DTYPES[value])
    return value_coding.dequantize(SparseValues(scales, packed), value, codes.size)
