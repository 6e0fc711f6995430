"""Descriptions of payloads of `blockwise`: scales or a table, and codes."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple

import numpy as np

from gcodec.codecs.blockwise.layout import TABLE_SENT, Layout, Scales
from gcodec.codecs.blockwise.payload import check_codes, half_error
from gcodec.entropy.ranged import KINDS
from gcodec.errors import Corrupt
from gcodec.fields import ranged
from gcodec.fields.walker import DescribeSymbols, FieldSpan, FieldValue, FieldWalker, describe_each


def fields(walk: FieldWalker, layout: Layout, code: str) -> Iterator[FieldSpan]:
    """Describe the payload of a layout."""
    n = layout.n
    if not n:
        walk.finish()
        return
    codes = _Codes(layout, (yield from _front(walk, layout)))
    describers: dict[int, tuple[DescribeSymbols, str]] = {
        4: (describe_each(codes.describe_pair), "pair"),
        8: (describe_each(codes.describe_code), "code"),
        16: (describe_each(codes.describe_half, "float16"), "number"),
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


class _Codes(NamedTuple):
    """Describes the codes of a layout with these scales."""

    layout: Layout
    scales: Scales

    def decoded(self, element: int, code: int) -> float:
        """Return the decoded value of an element."""
        scale = self.scales.scales[element // self.layout.block]
        value = self.scales.values[code]
        with np.errstate(all="ignore"):
            return float(value / scale if self.layout.is_multiplier else value * scale)

    def describe_code(self, code: int, element: int) -> FieldValue:
        """Describe the code of one element."""
        meaning = f"{self.scales.values[code]:g}"
        return FieldValue(code, meaning, element, (self.decoded(element, code),))

    def describe_pair(self, pair: int, number: int) -> FieldValue:
        """Describe a byte of two codes."""
        codes = (pair >> 4, pair & 15)[: self.layout.n - 2 * number]
        if len(codes) == 1 and pair & 15 != self.layout.table().zero:
            raise half_error()
        numbers = tuple(self.decoded(2 * number + k, code) for k, code in enumerate(codes))
        meaning = ", ".join(f"{self.scales.values[code]:g}" for code in codes)
        return FieldValue(pair, meaning, 2 * number, numbers)

    def describe_half(self, half: float, element: int) -> FieldValue:
        """Describe a float16, a multiple of the deviation of its block."""
        assert self.scales.means is not None
        block = element // self.layout.block
        with np.errstate(all="ignore"):
            number = np.float32(half) * self.scales.scales[block] + self.scales.means[block]
        return FieldValue(half, element=element, decoded=(float(number),))


def _front(walk: FieldWalker, layout: Layout) -> Generator[FieldSpan, None, Scales]:
    """Describe what precedes the codes, and return it."""

    def read() -> Scales:
        return layout.scales(walk.data[: layout.front_nbytes])

    def describe_number(value: float, number: int) -> FieldValue:
        if layout.kind in TABLE_SENT:
            return FieldValue(value, f"code {number}")
        if layout.has_means:
            is_deviation, block = divmod(number, layout.blocks)
            name = "deviation" if is_deviation else "mean"
            return FieldValue(value, f"block {block}", name=name, number=block)
        if not layout.nested:
            return FieldValue(value, f"block {number}")
        if not number:
            return FieldValue(value, "added to all scales", name="offset")
        group = f"scales from {(number - 1) * layout.nested_block} on"
        return FieldValue(value, group, name="scale of scales", number=number - 1)

    describe = describe_each(describe_number, "float32")
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

    describe_codes = describe_each(lambda code, block: FieldValue(code, f"block {block}"))
    yield from walk.checked("scale", "scale", 32, count, describe, check, little=True)
    return (yield from walk.checked("scale", "scale", 8, layout.blocks, describe_codes, read))
