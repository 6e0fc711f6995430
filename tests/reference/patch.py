"""Exact patches: the difference of two tensors, by classes of the old elements.

Source: ``docs/wire-format.md``, patch. `read` applies a message to the old bit patterns; `write`
makes one, with all choices of an encoder as arguments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from . import contexts, leb128, positions, tabled
from .universal import Bits, Corrupt, Truncated, fixed, to_bytes, to_text

UNCHANGED, STORED, CHANGES = range(3)
NOTHING, ALL = 0, 6
CONSTANT, KINDS = 0, ("", "huffman", "rans")
MOST_CLASSES = 6
SHIFTS = {"float32": 23, "float16": 7, "bfloat16": 7, "float64": 52}
SHIFTS |= {"float8_e4m3fn": 0, "float8_e5m2": 0}
LEAF = 1 << 20


class Class(NamedTuple):
    """How a class is written: its method, and the kind of its values."""

    method: int
    kind: int


# --- digest -------------------------------------------------------------------------------------


def digest(data: bytes) -> bytes:
    """Return the digest of the elements of a base."""

    def node(part: bytes, number: int, depth: int, last: bool) -> bytes:
        return hashlib.blake2b(
            part,
            digest_size=16,
            fanout=0,
            depth=2,
            leaf_size=LEAF,
            node_offset=number,
            node_depth=depth,
            inner_size=16,
            last_node=last,
        ).digest()

    leaves = [data[at : at + LEAF] for at in range(0, len(data), LEAF)] or [b""]
    whole = b"".join(node(part, k, 0, k == len(leaves) - 1) for k, part in enumerate(leaves))
    return node(whole, 0, 1, True)


# --- differences --------------------------------------------------------------------------------


def rank(pattern: int, nbits: int, dtype: str) -> int:
    """Return the rank of a bit pattern."""
    if dtype not in SHIFTS:
        return pattern
    top = 1 << nbits - 1
    return 2 * top - 1 - pattern if pattern >= top else top + pattern


def pattern_of(place: int, nbits: int, dtype: str) -> int:
    """Return the bit pattern of a rank."""
    if dtype not in SHIFTS:
        return place
    top = 1 << nbits - 1
    return place - top if place >= top else 2 * top - 1 - place


def value_of(old: int, new: int, nbits: int, dtype: str) -> int:
    """Return the difference of two bit patterns as a number that is not negative."""
    d = (rank(new, nbits, dtype) - rank(old, nbits, dtype)) % (1 << nbits)
    if d >= 1 << nbits - 1:
        d -= 1 << nbits
    return 2 * d if d >= 0 else -2 * d - 1


def moved(old: int, value: int, nbits: int, dtype: str) -> int:
    """Return the new bit pattern; see `value_of`."""
    d = value // 2 if value % 2 == 0 else -(value + 1) // 2
    return pattern_of((rank(old, nbits, dtype) + d) % (1 << nbits), nbits, dtype)


def symbol_of(value: int) -> int:
    """Return the symbol of a value."""
    return positions.class_of(value)[0] + 1 if value else 0


def class_of(old: int, bounds: Sequence[int], dtype: str) -> int:
    """Return the class of an old element."""
    context = old >> SHIFTS.get(dtype, 0) & 255
    return sum(context >= bound for bound in bounds)


# --- writing ------------------------------------------------------------------------------------


def _values(kind: int, symbols: Sequence[int], values: Sequence[int]) -> tuple[bytes, str]:
    low, high = min(symbols), max(symbols)
    text = ""
    if kind != CONSTANT:
        places = [symbol - low for symbol in symbols]
        text = tabled.write(
            KINDS[kind], places, tabled.model_of(KINDS[kind], places, high - low + 1)
        )
    for value in values:
        nbits = positions.nbits_of(symbol_of(value) - 1)
        text += fixed(value % 2**nbits, nbits)
    return bytes([low] if kind == CONSTANT else [low, high]), text


def write(
    new: Sequence[int],
    old: Sequence[int],
    itemsize: int,
    dtype: str,
    bounds: Sequence[int] = (),
    classes: Sequence[Class] | None = None,
) -> bytes:
    """Return the message of these choices; without classes, the new elements are stored."""
    base = b"".join(v.to_bytes(itemsize, "little") for v in old)
    if list(new) == list(old):
        return digest(base) + bytes([UNCHANGED])
    if classes is None:
        return (
            digest(base) + bytes([STORED]) + b"".join(v.to_bytes(itemsize, "little") for v in new)
        )
    head, body = bytes([len(classes), *bounds]), b""
    for number, (method, kind) in enumerate(classes):
        pairs = [
            value_of(a, b, 8 * itemsize, dtype)
            for a, b in zip(old, new, strict=True)
            if class_of(a, bounds, dtype) == number
        ]
        head += leb128.encode(len(pairs)) + bytes([method])
        if method == NOTHING:
            continue
        places = [k for k, value in enumerate(pairs) if value]
        values = [value for value in pairs if value]
        symbols = [symbol_of(value) for value in (pairs if method == ALL else values)]
        ends, text = _values(kind, symbols, values)
        head += bytes([kind]) + ends + leb128.encode(len(text))
        if method != ALL:
            index = positions.write(positions.CODES[method - 1], places, len(pairs))
            head += leb128.encode(len(places)) + leb128.encode(len(index))
            body += to_bytes(index)
        body += to_bytes(text)
    return digest(base) + bytes([CHANGES]) + head + body


# --- reading ------------------------------------------------------------------------------------


def _take(bits: Bits, nbits: int) -> Bits:
    """Return bits of a string, and skip the zeros up to a whole byte."""
    part = Bits(bits.take(nbits))
    bits.fill()
    return part


def read(data: bytes, nbits: int, old: Sequence[int], itemsize: int, dtype: str) -> list[int]:
    """Return the new bit patterns.

    Raises
    ------
    ValueError
        A `Truncated` or `Corrupt` of `universal`, if the message is not valid for these elements.
    """
    base = b"".join(v.to_bytes(itemsize, "little") for v in old)
    bits, n, width = Bits(to_text(data)[:nbits]), len(old), 8 * itemsize
    if to_bytes(bits.take(128)) != digest(base):
        raise Corrupt("another base")
    form = bits.number(8)
    if form == UNCHANGED:
        new = list(old)
    elif form == STORED:
        new = [int.from_bytes(to_bytes(bits.take(width)), "little") for _ in range(n)]
    elif form == CHANGES and n:
        new = _changed(bits, old, width, dtype)
    else:
        raise Corrupt(f"the form {form}")
    if bits.at < nbits:
        raise Corrupt("bits after the message")
    if dtype == "bool" and max(new, default=0) > 1:
        raise Corrupt("neither true nor false")
    return new


def _changed(bits: Bits, old: Sequence[int], width: int, dtype: str) -> list[int]:
    count = bits.number(8)
    if not 1 <= count <= (MOST_CLASSES if dtype in SHIFTS else 1):
        raise Corrupt(f"{count} classes")
    bounds = [bits.number(8) for _ in range(count - 1)]
    if any(b <= a for a, b in zip([0, *bounds], bounds, strict=False)):
        raise Corrupt("bounds that do not rise")
    heads = []
    for _ in range(count):
        size, method = contexts.read_leb128(bits), bits.number(8)
        kind = low = high = nbits = k = index_nbits = 0
        if method > ALL:
            raise Corrupt(f"the method {method}")
        if method != NOTHING:
            kind = bits.number(8)
            if kind >= len(KINDS):
                raise Corrupt(f"the kind {kind}")
            low = high = bits.number(8)
            if kind != CONSTANT:
                high = bits.number(8)
            least = 0 if method == ALL and kind != CONSTANT else 1
            if not least <= low <= high <= symbol_of(2**width - 1):
                raise Corrupt(f"symbols from {low} to {high}")
            nbits = contexts.read_leb128(bits)
        if method not in (NOTHING, ALL):
            k, index_nbits = contexts.read_leb128(bits), contexts.read_leb128(bits)
            if not 1 <= k <= size:
                raise Corrupt(f"{k} of {size} elements")
        if method != NOTHING and not size:
            raise Corrupt("no element that could change")
        heads.append((size, method, kind, low, high, nbits, k, index_nbits))
    new = list(old)
    for number, (size, method, kind, low, high, nbits, k, index_nbits) in enumerate(heads):
        own = [i for i, a in enumerate(old) if class_of(a, bounds, dtype) == number]
        if len(own) != size:
            raise Corrupt(f"{size} elements of class {number}, not {len(own)}")
        index, values = _take(bits, index_nbits), _take(bits, nbits)
        if method == NOTHING:
            continue
        places = list(range(size))
        if method != ALL:
            places = positions.read(positions.CODES[method - 1], index, k, size)
        symbols = [low] * len(places)
        if kind != CONSTANT:
            coded, _ = tabled.read(KINDS[kind], values, len(places), high - low + 1)
            symbols = [low + place for place in coded]
        for place, symbol in zip(places, symbols, strict=True):
            if symbol:
                tail = values.take(positions.nbits_of(symbol - 1))
                value = positions.distance_of(symbol - 1, tail)
                new[own[place]] = moved(old[own[place]], value, width, dtype)
        if values.at != len(values.text):
            raise Corrupt("bits after the last value")
    return new


__all__ = ["Class", "Truncated", "digest", "read", "write"]
