"""Descriptions of payloads of `dct8`."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

import numpy as np

from gcodec.codecs.dct8 import levels, payload
from gcodec.codecs.dct8.levels import Levels
from gcodec.errors import Corrupt, FormatError, Truncated
from gcodec.fields.positions import positions
from gcodec.fields.walker import DescribeSymbols, FieldSpan, FieldValue, FieldWalker, describe_each
from gcodec.fields.words import lengths, readable
from gcodec.kernels.bits.fields import read_fields
from gcodec.kernels.prefix import dct_words
from gcodec.kernels.prefix.codewords import RICE
from gcodec.kernels.prefix.prefix_table import PrefixCode
from gcodec.kernels.quantize.sign_magnitude import SIGN

_HALF = 15  # low bits of a binary32 that a scale of sign7 lacks
_EQUAL = 7  # the code number of codewords of equal width


def payload_fields(
    walk: FieldWalker, count: int, size: int, k: int, values: str, index: str
) -> Iterator[FieldSpan]:
    """Describe the payload of `count` chunks of `size` elements, with k coefficients each."""
    if values == "float32":  # every chunk has levels
        yield from _coefficients(walk, count * k)
        yield from _places(walk, count, size, k, index)
        return
    scales = yield from _scales(walk, count, values)
    scales = scales[levels.coded_chunks(scales)]
    total = len(scales) * k
    if values == "affine8":

        def level(code: int, number: int) -> FieldValue:
            code = code * 255 if k <= 2 else code
            return FieldValue(code, _coefficient(scales[number // k], code, values))

        width = payload.level_nbits(k)
        yield from walk.fields("level", "level", width, total, describe_each(level))
    else:
        yield from _sign7(walk, scales, k)
    yield from _places(walk, len(scales), size, k, index)


def _places(walk: FieldWalker, coded: int, size: int, k: int, index: str) -> Iterator[FieldSpan]:
    """Describe the positions of the levels of coded chunks, which end the payload."""
    if k == size or not coded:
        walk.finish()
    elif index == "rice":
        for piece in positions(walk, "rice", coded * k, coded * size):
            yield _in_chunk(piece, k, size)
    else:
        yield from _positions(walk, coded * k, k, size)
        walk.finish()


def _scales(walk: FieldWalker, count: int, values: str) -> Generator[FieldSpan, None, np.ndarray]:
    describe_sizes = describe_each(
        lambda size, chunk: FieldValue(size, f"largest magnitude of chunk {chunk}"), "float32"
    )

    def describe_end(value: float, number: int) -> FieldValue:
        chunk, is_least = divmod(number, 2)
        name = "least" if is_least else "step"
        return FieldValue(value, f"chunk {chunk}", name=name, number=chunk)

    def read() -> np.ndarray:
        return levels.read_scales(walk.data, count, values)

    def sizes(at: int, halves: np.ndarray) -> Iterable[FieldValue]:
        return describe_sizes(at, halves << _HALF)

    if values == "affine8":
        ends = describe_each(describe_end, "float32")
        return (yield from walk.checked("scale", "step, least", 32, 2 * count, ends, read))
    return (yield from walk.checked("scale", "scale", 16, count, sizes, read))


def _coefficients(walk: FieldWalker, total: int) -> Iterator[FieldSpan]:
    def check() -> None:
        payload.check_finite(walk.data[: 4 * total].view(">u4").astype(np.uint32))

    describe = describe_each(lambda value, number: FieldValue(value), "float32")
    yield from walk.checked("level", "coefficient", 32, total, describe, check)


def _sign7(walk: FieldWalker, scales: np.ndarray, k: int) -> Iterator[FieldSpan]:
    first, total = walk.at, len(scales) * k

    def sign(bit: int, number: int) -> FieldValue:
        code = dct_words.MOST | SIGN * bit
        meaning = _coefficient(scales[number // k], code, "sign7") if k == 1 else ""
        return FieldValue("-" if bit else "+", meaning)

    def magnitude(at: int, sizes: np.ndarray) -> Iterator[FieldValue]:
        bits = read_fields(walk.data, first + at, 1, sizes.size)
        pairs = zip(sizes.tolist(), bits.tolist(), strict=True)
        for number, (size, negative) in enumerate(pairs, at):
            if negative and not size:
                raise Corrupt("a value of 0 is negative")
            code = size | SIGN * negative
            yield FieldValue(size, _coefficient(scales[number // k], code, "sign7"))

    yield from walk.fields("sign", "sign", 1, total, describe_each(sign))
    if 1 < k < payload.FEW:
        yield from walk.fields("level", "magnitude", dct_words.NBITS, total, magnitude)
    elif k > 1:
        yield from _words(walk, len(scales), k, magnitude)


def _words(walk: FieldWalker, m: int, k: int, magnitude: DescribeSymbols) -> Iterator[FieldSpan]:
    """Describe the codewords of the magnitudes of m chunks."""
    window = walk.window()
    for chunk in range(m):
        first = walk.at
        if window.closed:
            _, end = dct_words.read(walk.data, first, walk.end, m - chunk, k)
            yield from walk.summary("magnitude", (m - chunk) * k, {"level": end - first})
            return
        head = walk.field("level", "least and code", dct_words.HEAD_NBITS, (dct_words.NBITS, 3))
        least, code = divmod(head.value, 8)
        above, nbits, error = _above(walk, least, code, k)
        try:
            dct_words.read(walk.data, first, walk.end, 1, k)
        except FormatError as wrong:
            error = wrong
        low, high = window.cut(nbits)
        if low == k:
            walk.at = first
            yield from walk.summary("magnitude", k, {"level": head.nbits + int(nbits.sum())})
            continue
        name = "in equal widths" if code == _EQUAL else f"in Rice codewords of {code}"
        text = f"chunk {chunk}: least {least}, the others {name}"
        yield head._replace(meaning=text)
        yield from walk.summary("magnitude", low, {"level": int(nbits[:low].sum())})
        sizes = np.minimum(above[low:high], np.uint64(dct_words.MOST)).astype(np.int64) + least
        first = chunk * k
        for i, size in zip(range(low, high), magnitude(first + low, sizes), strict=True):
            parts = (int(nbits[i]) - code, code) if 0 < code < _EQUAL else ()
            value = size._replace(groups=parts)
            yield walk.span("level", "magnitude", int(nbits[i]), value, first + i)
        if error is not None:
            raise error
        if high < k:
            yield from walk.summary("magnitude", k - high, {"level": int(nbits[high:].sum())})


def _above(
    walk: FieldWalker, least: int, code: int, k: int
) -> tuple[np.ndarray, np.ndarray, FormatError | None]:
    """Return the magnitudes above the least one, their bits, and the error after them."""
    if code < _EQUAL:
        rice = PrefixCode(RICE, code, 0)
        above, error = readable(walk, rice, k)
        return above, lengths(rice, above), error
    width = (dct_words.MOST - least).bit_length()
    fit = min(k, (walk.end - walk.at) // width) if width else k
    above = read_fields(walk.data, walk.at, width, fit).astype(np.uint64)
    error = None if fit == k else Truncated("the payload ends within its magnitudes")
    return above, np.full(fit, width), error


def _positions(walk: FieldWalker, total: int, k: int, size: int) -> Iterator[FieldSpan]:
    width, first = payload.position_nbits(size), walk.at

    def in_chunk(at: int, positions: np.ndarray) -> Iterator[FieldValue]:
        last = -1
        if at % k:
            last = int(read_fields(walk.data, first + (at - 1) * width, width, 1)[0])
        for number, position in enumerate(positions.tolist(), at):
            last = last if number % k else -1
            if not last < position < size:
                raise payload.position_error(size)
            last = position
            yield FieldValue(position)

    yield from walk.fields("index", "position", width, total, in_chunk)


def _in_chunk(piece: FieldSpan, k: int, size: int) -> FieldSpan:
    """Convert a description from a position among all chunks to the position in one chunk."""
    if piece.element is None or piece.number is None:
        return piece
    chunk, position = divmod(piece.element, size)
    if chunk != piece.number // k:
        raise payload.count_error(k)
    return piece._replace(element=None, meaning=f"position {position}")


def _coefficient(scale: np.ndarray, code: int, values: str) -> str:
    """Return the text of the coefficient of a level."""
    decoded = levels.dequantize(Levels(scale[None], np.array([[code]], np.uint8)), values)
    return f"coefficient {float(decoded[0, 0])!r}"
