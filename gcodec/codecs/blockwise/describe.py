"""Descriptions of payloads of `blockwise`: scales or a table, and codes."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np

from gcodec.codecs.blockwise.layout import TABLE_SENT, Layout, Scales
from gcodec.codecs.blockwise.payload import check_codes, half_error
from gcodec.entropy.ranged import KINDS
from gcodec.errors import Corrupt
from gcodec.fields import ranged
from gcodec.fields.walker import DescribeSymbols, FieldSpan, FieldValue, FieldWalker, numbers


def fields(walk: FieldWalker, layout: Layout, code: str) -> Iterator[FieldSpan]:
    """Describe the payload of a layout."""
    n = layout.n
    if not n:
        walk.finish()
        return
    scales = yield from _front(walk, layout)

    def decoded(element: int, one: int) -> float:
        scale = scales.scales[element // layout.block]
        value = scales.values[one]
        with np.errstate(all="ignore"):
            return float(value / scale if layout.is_multiplier else value * scale)

    def describe_codes(at: int, codes: np.ndarray) -> Iterator[FieldValue]:
        for element, one in enumerate(codes.tolist(), at):
            number = decoded(element, one)
            yield FieldValue(one, f"{scales.values[one]:g}", element=element, decoded=(number,))

    def describe_pairs(at: int, pairs: np.ndarray) -> Iterator[FieldValue]:
        for number, pair in enumerate(pairs.tolist(), at):
            codes = (pair >> 4, pair & 15)[: n - 2 * number]
            if len(codes) == 1 and pair & 15 != layout.table().zero:
                raise half_error(layout.nbytes - 1)
            values = tuple(decoded(2 * number + k, one) for k, one in enumerate(codes))
            meaning = ", ".join(f"{scales.values[one]:g}" for one in codes)
            yield FieldValue(pair, meaning, element=2 * number, decoded=values)

    def describe_halves(at: int, halves: np.ndarray) -> Iterator[FieldValue]:
        assert scales.means is not None
        for element, half in enumerate(numbers(halves, "float16"), at):
            block = element // layout.block
            with np.errstate(all="ignore"):
                number = np.float32(half) * scales.scales[block] + scales.means[block]
            yield FieldValue(float(half), element=element, decoded=(float(number),))

    describers: dict[int, tuple[DescribeSymbols, str]] = {
        4: (describe_pairs, "pair"),
        8: (describe_codes, "code"),
        16: (describe_halves, "number"),
    }
    describe, name = describers[layout.width]
    if code == "none":

        def check() -> None:
            check_codes(walk.data[layout.front_nbytes :][: layout.codes_nbytes], layout)

        width = max(layout.width, 8)
        count = 8 * layout.codes_nbytes // width
        yield from walk.checked("level", name, width, count, describe, check, little=True)
    else:
        yield from ranged.string(walk, KINDS[code], "level", name, layout.codes_nbytes, describe)
    walk.finish()


def _front(walk: FieldWalker, layout: Layout) -> Generator[FieldSpan, None, Scales]:
    """Describe what precedes the codes, and return it."""

    def read() -> Scales:
        return layout.scales(walk.data[: layout.front_nbytes])

    def describe(at: int, bits: np.ndarray) -> Iterator[FieldValue]:
        for number, value in enumerate(numbers(bits).tolist(), at):
            if layout.kind in TABLE_SENT:
                yield FieldValue(value, f"of code {number}")
            elif layout.has_means:
                is_deviation, block = divmod(number, layout.blocks)
                name = "deviation" if is_deviation else "mean"
                yield FieldValue(value, f"of block {block}", name=name, number=block)
            elif not layout.nested:
                yield FieldValue(value, f"of block {number}")
            elif not number:
                yield FieldValue(value, "added to all scales", name="offset")
            else:
                group = f"of scales from {(number - 1) * layout.nested_block} on"
                yield FieldValue(value, group, name="scale of scales", number=number - 1)

    if layout.kind in TABLE_SENT:
        return (yield from walk.checked("table", "number", 32, 256, describe, read, little=True))
    if not layout.nested:
        count, name = layout.blocks, "scale"
        if layout.has_means:
            count, name = 2 * count, "mean, deviation"
        return (yield from walk.checked("scale", name, 32, count, describe, read, little=True))
    count = 1 + layout.outer_blocks

    def check() -> None:
        try:
            read()
        except Corrupt as error:
            if error.offset is None or error.offset < 4 * count:
                raise

    def describe_codes(at: int, codes: np.ndarray) -> Iterator[FieldValue]:
        for number, code in enumerate(codes.tolist(), at):
            yield FieldValue(code, f"of block {number}")

    yield from walk.checked("scale", "scale", 32, count, describe, check, little=True)
    return (yield from walk.checked("scale", "scale", 8, layout.blocks, describe_codes, read))
