"""Descriptions of payloads of blocks: scales, and elements in any code."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple

import numpy as np

from gcodec.codecs.microscale.payload import (
    STORED,
    WORDS,
    check_elements,
    check_scales,
    codes_of,
    open_parts,
)
from gcodec.entropy.ranged import KINDS
from gcodec.errors import Corrupt
from gcodec.fields import byte_contexts, ranged
from gcodec.fields.walker import FieldSpan, FieldValue, FieldWalker, describe_each
from gcodec.kernels.quantize.block_format import BlockFormat
from gcodec.payload import Payload


def fields(
    walk: FieldWalker,
    payload: Payload,
    n: int,
    fmt: BlockFormat,
    code: str,
    tensor_scale: float,
) -> Iterator[FieldSpan]:
    """Describe the payload of n elements."""
    if not n:
        walk.finish()
        return
    factors = fmt.scales(tensor_scale)
    scales = yield from _scales(walk, payload, n, fmt, code, factors)
    elements = _Elements(n, fmt, fmt.values(), factors[scales])
    if code == "context":
        yield from byte_contexts.context_string(walk, "symbol", n, elements.describe_symbols)
        walk.finish()
        return
    is_paired = fmt.per_byte == 2
    name = "pair" if is_paired else "element"
    describe = describe_each(elements.describe_pair if is_paired else elements.describe_code)
    nbytes = fmt.data_nbytes(n)
    if code == "none":

        def check() -> None:
            first = walk.at // 8
            check_elements(walk.data[first : first + nbytes], n, fmt, first)

        yield from walk.checked("level", name, 8, nbytes, describe, check)
    else:
        yield from ranged.string(walk, KINDS[code], "level", name, nbytes, describe)
    walk.finish()


def _scales(
    walk: FieldWalker, payload: Payload, n: int, fmt: BlockFormat, code: str, factors: np.ndarray
) -> Generator[FieldSpan, None, np.ndarray]:
    """Describe the scales of all blocks, and return them; `factors` are their values."""
    count = fmt.blocks(n)

    def describe_scale(scale: int, number: int) -> FieldValue:
        if fmt.is_two_level and scale > fmt.nan_scale:
            raise Corrupt(f"the scale of block {number} is negative")
        return FieldValue(scale, f"block {number}: {factors[scale]:.9g}")

    describe = describe_each(describe_scale)
    if code == "none":

        def read() -> np.ndarray:
            scales = walk.data[:count]
            check_scales(scales, fmt, 0)
            return scales

        return (yield from walk.checked("scale", "scale", 8, count, describe, read))
    method = walk.field("table", "scales", 8)
    if method.value not in (STORED, WORDS):
        walk.at -= 8
        raise Corrupt(f"scales are written by method {method.value}", 0)
    if method.value == STORED:
        yield method._replace(meaning="as they are")
        yield from walk.fields("scale", "scale", 8, count, describe)
    else:
        yield method._replace(meaning="in words")
        yield from ranged.string(
            walk, "huffman", "scale", "scale", count, describe, bits_follow=True
        )
        yield from walk.pad(-walk.at % 8)
    scales, _ = open_parts(payload._replace(seek=None), n, fmt, code)
    return scales


class _Elements(NamedTuple):
    """Describes the codes of elements.

    Attributes
    ----------
    n : int
        Number of elements.
    fmt : BlockFormat
    values : float32 array
        Value of each code.
    scales : float array
        Scale of each block.
    """

    n: int
    fmt: BlockFormat
    values: np.ndarray
    scales: np.ndarray

    def decoded(self, element: int, code: int) -> float:
        """Return the decoded value of an element."""
        with np.errstate(all="ignore"):
            return float(self.values[code] * self.scales[element // self.fmt.block])

    def describe_code(self, code: int, element: int) -> FieldValue:
        """Describe the code of one element."""
        if code >> self.fmt.width:
            raise Corrupt(f"element {element} has the code {code:#x}")
        return FieldValue(code, f"{self.values[code]:g}", element, (self.decoded(element, code),))

    def describe_pair(self, pair: int, number: int) -> FieldValue:
        """Describe a byte of two codes."""
        codes = (pair & 15, pair >> 4)[: self.n - 2 * number]
        if len(codes) == 1 and pair >> 4:
            raise Corrupt("the half of a byte after the last element is not zero")
        numbers = tuple(self.decoded(2 * number + k, code) for k, code in enumerate(codes))
        meaning = ", ".join(f"{self.values[code]:g}" for code in codes)
        return FieldValue(pair, meaning, 2 * number, numbers)

    def describe_symbols(self, at: int, symbols: np.ndarray) -> Iterator[FieldValue]:
        """Describe the symbols of the elements from number `at` on."""
        described = describe_each(self.describe_code)(at, codes_of(symbols, self.fmt))
        for symbol, value in zip(symbols.tolist(), described, strict=True):
            yield value._replace(value=symbol)
