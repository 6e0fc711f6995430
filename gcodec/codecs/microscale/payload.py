"""Payloads of blocks with shared scales: the bytes of scales and elements, or strings of them.

With ``code=none``, the payload contains the bytes of all scales, then those of all elements. Any
other payload contains

    1 · a `ranged` string of the scales' bytes, in Huffman words · zeros to a byte
    or 0 · the bytes of the scales; whichever is shorter

and then the string of the elements:

- ``huffman``, ``rans``: a `ranged` string of the elements' bytes, so of pairs of 4-bit elements.
- ``context``: the string of `byte_coder` of one symbol for each element: twice its code without
  the sign, plus 1 if it is negative; for ``mxint8`` 2q, or −2q − 1 for negative q.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from gcodec.entropy import ranged
from gcodec.entropy.coder import BitSpan, CodedString, EmptyString, Written, into
from gcodec.entropy.context import byte_coder
from gcodec.entropy.context.byte_scales import Sample
from gcodec.entropy.context.scale_model import row_layouts, sampled_rows
from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.code_parts import changed
from gcodec.kernels.bits.computed_symbols import Symbols, symbols_in
from gcodec.kernels.bits.pack import FieldLayout, pack_fields, unpacker
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.quantize.block_format import BlockFormat
from gcodec.kernels.quantize.microscale import check_at_most
from gcodec.payload import EstimatedCandidate, Payload, Selection, write_shortest
from gcodec.runtime.memory import Drainable, limited, release, restored

CODES = ("none", *ranged.KINDS, "context")
STORED, WORDS = 0, 1  # methods for scales

_SAMPLE = 1 << 16  # elements from which the layout of contexts is selected
_CHUNK = 1 << 18  # elements whose symbols fit into a cache
_LINEAR_UNIT = 16  # what symbols of integers differ by where their classes differ by 4

NIBBLES = FieldLayout(4, "lsb")


def plain_nbits(n: int, fmt: BlockFormat) -> int:
    """Return the bits of a payload with ``code=none``."""
    return 8 * (fmt.blocks(n) + fmt.data_nbytes(n))


def longest_nbits(n: int, fmt: BlockFormat, code: str) -> int:
    """Return an upper bound on the bits of a payload; "auto" has that of "none"."""
    if code in ("none", "auto") or not n:
        return plain_nbits(n, fmt)
    before = 8 + 8 * fmt.blocks(n)
    if code == "context":
        return before + byte_coder.longest_nbits(n)
    return before + ranged.longest_nbits(ranged.KINDS[code], fmt.data_nbytes(n))


def write(
    data: np.ndarray,
    n: int,
    fmt: BlockFormat,
    code: str,
    shape: tuple[int, ...],
    held: Drainable | None = None,
    *,
    sized: bool = False,
) -> Selection[ranged.CodedBytes]:
    """Write the payload of n elements, with a code or the shortest one.

    Parameters
    ----------
    data : uint8 array
        The payload with ``code=none``.
    n : int
    fmt : BlockFormat
    code : str
        One of `CODES`, or "auto".
    shape : tuple of int
        Shape of the tensor.
    held : Drainable, optional
        The bytes of the elements in `data`; they are released where another payload is written,
        and written again for another one if that is not the shortest.
    sized : bool
        See `gcodec.payload.write_shortest`.
    """
    plain = Written(data, plain_nbits(n, fmt))
    if code == "none" or not n:
        return Selection([("none" if code == "auto" else code, plain)])
    scales, elements = data[: fmt.blocks(n)], data[fmt.blocks(n) :]
    front = _front(scales)

    def write_context_below(nbits: float) -> ranged.CodedBytes | None:
        # Released bytes make room for the string.
        part = held if nbits == math.inf else limited(held, int(nbits) // 8)
        symbols = symbols_of(part or elements, n, fmt)
        sample = sampled_rows(symbols, row_layouts(shape)[0].width, _SAMPLE)
        unit = _LINEAR_UNIT if fmt.is_integer else 2 << fmt.mantissa
        plan = byte_coder.plan(symbols, shape, Sample(sample, n / sample.size, unit))
        if 8 * front.size + plan.nbits >= nbits:
            return None

        def symbols_in(start: int, stop: int, room: np.ndarray) -> np.ndarray:
            symbols_in_range = symbols[start:stop]
            release(symbols, start, stop)
            return symbols_in_range

        written = byte_coder.write(plan, symbols_in, n, BitString.of(front))
        if written.nbits < nbits:
            return "context", written
        restored(part)
        return None

    if code == "context":
        string = write_context_below(math.inf)
        assert string is not None
        return Selection([string])

    candidates = ranged.candidates(code, plain, front, held or elements, n)
    if code != "auto":
        return write_shortest(candidates, sized=sized)
    context = EstimatedCandidate(write_context_below)
    return write_shortest(candidates, context, sized=sized)


def _front(scales: np.ndarray) -> np.ndarray:
    """Return the bytes before the string of the elements."""
    plan = ranged.Plan.of("huffman", byte_counts(scales))
    if plan.nbits >= 8 * scales.size:
        return np.append(np.uint8(STORED), scales)
    return plan.write(scales, scales.size, BitString.of(np.array([WORDS], np.uint8)), 0).data


# --- symbols of the context code -----------------------------------------------------------------


def symbols_of(elements: np.ndarray | Drainable, n: int, fmt: BlockFormat) -> Symbols:
    """Return the (n,) symbols of the bytes of elements: the sign of a code is its lowest bit."""
    return symbols_in(elements, fmt.per_byte, partial(_read_symbols, fmt), n)


def _read_symbols(fmt: BlockFormat, elements: np.ndarray) -> np.ndarray:
    if fmt.per_byte == 2:
        codes = np.empty(2 * elements.size, np.uint8)
        unpacker(NIBBLES.width, NIBBLES.order == "msb")(elements, codes)
    else:
        codes = elements.copy()
    if not fmt.is_integer:
        return changed(codes, fmt, "signs last")
    signs = -(codes >= 128).view(np.uint8)
    codes += codes
    codes ^= signs
    return codes


def codes_of(symbols: np.ndarray, fmt: BlockFormat) -> np.ndarray:
    """Return the codes of symbols, a byte each; raise `Corrupt` for a symbol without a code."""
    if fmt.width < 8 and int(symbols.max(initial=0)) >> fmt.width:
        raise Corrupt(f"a symbol is above {(1 << fmt.width) - 1}")
    if fmt.is_integer:
        return symbols >> np.uint8(1) ^ -(symbols & np.uint8(1))
    return changed(symbols.copy(), fmt, "signs first")


# --- reading -------------------------------------------------------------------------------------


def open_parts(
    payload: Payload, n: int, fmt: BlockFormat, code: str
) -> tuple[np.ndarray, CodedString]:
    """Read the scales, and open the string of n elements; no elements have no bits.

    Raises
    ------
    FormatError
    """
    span = BitSpan.of(payload)
    if not n:
        return np.empty(0, np.uint8), EmptyString(span, has_blocks=code == "huffman")
    if span.nbits < 8:
        raise Truncated("the payload has no byte for the method of its scales")
    method, span = int(span.data[0]), span.after(8)
    count = fmt.blocks(n)
    if method == STORED:
        if span.nbits < 8 * count:
            raise Truncated(f"the payload has {payload.nbits} bits, but {count} scales")
        scales = span.data[1 : 1 + count]
        span = span.after(8 + 8 * count)
    elif method == WORDS:
        scales = np.empty(count, np.uint8)
        plain = span._replace(seek=None)
        end = ranged.open_string("huffman", plain, count).read(into(scales), bits_follow=True)
        span = span.aligned("scales and elements", end)
    else:
        raise Corrupt(f"scales are written by method {method}", 0)
    check_scales(scales, fmt, 1 if method == STORED else None)
    if code == "context":
        return scales, byte_coder.open(span, n)
    return scales, ranged.open_string(ranged.KINDS[code], span, fmt.data_nbytes(n))


def read(payload: Payload, n: int, fmt: BlockFormat, code: str) -> np.ndarray:
    """Return a payload with ``code=none``, given one with another code.

    Raises
    ------
    FormatError
    """
    scales, string = open_parts(payload, n, fmt, code)
    data = np.empty(scales.size + fmt.data_nbytes(n), np.uint8)
    data[: scales.size], elements = scales, data[scales.size :]
    if code != "context":
        string.read(into(elements))
    else:
        codes = elements if fmt.per_byte == 1 else np.empty(n, np.uint8)

        def take(at: int, symbols: np.ndarray) -> None:
            codes[at : at + symbols.size] = codes_of(symbols, fmt)

        string.read(take)
        if fmt.per_byte == 2:
            elements[:] = pack_fields(codes, NIBBLES)
    check_elements(elements, n, fmt, None)
    return data


def check_scales(scales: np.ndarray, fmt: BlockFormat, first: int | None) -> None:
    """Raise `Corrupt` if a scale is negative; `first` is their offset, None for coded scales."""

    def error(at: int, scale: int) -> Corrupt:
        offset = None if first is None else first + at
        return Corrupt(f"the scale of block {at} is negative", offset)

    if fmt.is_two_level:
        check_at_most(scales, fmt.nan_scale, error)


def check_elements(elements: np.ndarray, n: int, fmt: BlockFormat, first: int | None) -> None:
    """Raise `Corrupt` unless the bytes are those of n elements.

    Their offset in the payload is `first`, or None if an entropy code contains them.
    """

    def code_error(at: int, code: int) -> Corrupt:
        offset = None if first is None else first + at
        return Corrupt(f"element {at} has the code {code:#x}", offset)

    def half_error(at: int, byte: int) -> Corrupt:
        offset = None if first is None else first + elements.size - 1
        return Corrupt("the half of a byte after the last element is not zero", offset)

    if fmt.width == 6:
        check_at_most(elements, 0x3F, code_error)
    if n % fmt.per_byte:
        check_at_most(elements[-1:], 0xF, half_error)
