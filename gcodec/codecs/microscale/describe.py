"""Descriptions of payloads of blocks: scales, and elements in any code."""

from __future__ import annotations

from collections.abc import Iterator

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
    factors, values = fmt.scales(tensor_scale), fmt.values()
    count = fmt.blocks(n)
    if not n:
        walk.finish()
        return

    def describe_scale(scale: int, number: int) -> FieldValue:
        if fmt.is_two_level and scale > fmt.nan_scale:
            raise Corrupt(f"the scale of block {number} is negative")
        return FieldValue(scale, f"block {number}: {factors[scale]:.9g}")

    describe_scales = describe_each(describe_scale)
    if code == "none":

        def read() -> np.ndarray:
            scales = walk.data[:count]
            check_scales(scales, fmt, 0)
            return scales

        scales = yield from walk.checked("scale", "scale", 8, count, describe_scales, read)
    else:
        method = walk.field("table", "scales", 8)
        if method.value not in (STORED, WORDS):
            walk.at -= 8
            raise Corrupt(f"scales are written by method {method.value}", 0)
        note = "in words" if method.value == WORDS else "as they are"
        yield method._replace(meaning=note)
        if method.value == STORED:
            yield from walk.fields("scale", "scale", 8, count, describe_scales)
        else:
            yield from ranged.string(
                walk, "huffman", "scale", "scale", count, describe_scales, bits_follow=True
            )
            yield from walk.pad(-walk.at % 8)
        scales, _ = open_parts(payload._replace(seek=None), n, fmt, code)

    def decoded(element: int, code: int) -> float:
        with np.errstate(all="ignore"):
            return float(values[code] * factors[scales[element // fmt.block]])

    def describe_code(code: int, element: int) -> FieldValue:
        if code >> fmt.width:
            raise Corrupt(f"element {element} has the code {code:#x}")
        return FieldValue(code, f"{values[code]:g}", element, (decoded(element, code),))

    def describe_pair(pair: int, number: int) -> FieldValue:
        codes = (pair & 15, pair >> 4)[: n - 2 * number]
        if len(codes) == 1 and pair >> 4:
            raise Corrupt("the half of a byte after the last element is not zero")
        numbers = tuple(decoded(2 * number + k, code) for k, code in enumerate(codes))
        meaning = ", ".join(f"{values[code]:g}" for code in codes)
        return FieldValue(pair, meaning, 2 * number, numbers)

    def describe_symbols(at: int, symbols: np.ndarray) -> Iterator[FieldValue]:
        described = describe_each(describe_code)(at, codes_of(symbols, fmt))
        for symbol, value in zip(symbols.tolist(), described, strict=True):
            yield value._replace(value=symbol)

    describe, name = describe_each(describe_code), "element"
    if fmt.per_byte == 2:
        describe, name = describe_each(describe_pair), "pair"
    elements = fmt.data_nbytes(n)
    if code == "none":

        def check() -> None:
            first = walk.at // 8
            check_elements(walk.data[first : first + elements], n, fmt, first)

        yield from walk.checked("level", name, 8, elements, describe, check)
    elif code == "context":
        yield from byte_contexts.context_string(walk, "symbol", n, describe_symbols)
    else:
        yield from ranged.string(walk, KINDS[code], "level", name, elements, describe)
    walk.finish()
