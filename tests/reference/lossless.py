"""Exact tensors: byte planes, of which the first is coded.

Source: ``docs/wire-format.md``, lossless. A `Message` contains the planes and all choices of an
encoder: `write` returns its bytes, and `read` recovers the bit patterns from them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from . import ans, contexts, leb128, tabled
from .universal import Bits, Corrupt, Truncated, fixed, payload_bits, to_bytes, to_text

STORED, CONSTANT, HUFFMAN, RANS, LOWERED_HUFFMAN, LOWERED_RANS, CLASSES, PACKED = range(8)
DIFFERENCES = 8
KINDS = {
    **{HUFFMAN: "huffman", RANS: "rans", LOWERED_HUFFMAN: "huffman", LOWERED_RANS: "rans"},
    DIFFERENCES: "huffman",
}
ALLOWED = {
    "fast": (STORED, CONSTANT, HUFFMAN, LOWERED_HUFFMAN),
    "small": (STORED, CONSTANT, RANS, LOWERED_RANS, CLASSES),
}
OTHERS = STORED, CONSTANT, HUFFMAN, PACKED, DIFFERENCES
BAND = 64
GROUP = 4096
FLOATS = {"float32": (4, 23), "float16": (2, 7), "bfloat16": (2, 7), "float64": (8, 52)}
SIGNS_LAST = ("float8_e4m3fn", "float8_e5m2")
UNITS = {"float16": 8, "float8_e4m3fn": 16, "float8_e5m2": 8}  # of an octave, if not 1


class Scales(NamedTuple):
    """The scales of rows and columns, in lists of the code rice."""

    width: int
    group: int
    rows: list[int]
    columns: list[int]


class Plane(NamedTuple):
    """A plane: its method, its bytes, and the table, the models or the bits of its code."""

    method: int
    values: list[int]
    model: Any = None
    scales: Scales | None = None
    lanes: int = 2
    row: int = 0


class Message(NamedTuple):
    """The planes of a tensor; if zeros are left out, all but the first lack them.

    The first plane may contain a bit of the mantissa.
    """

    planes: list[Plane]
    escape: int | None = None
    has_bit: bool = False


# --- planes -------------------------------------------------------------------------------------


def split(pattern: int, itemsize: int, shift: int, skipped: int = 0) -> list[int]:
    """Return the bytes of a bit pattern, the one from bit `shift` on first.

    No byte contains the `skipped` bits above that one.
    """
    rest = (pattern >> shift + 8 + skipped) << shift | pattern & (1 << shift) - 1
    others = [rest >> 8 * k & 255 for k in reversed(range(itemsize - 1))]
    return [pattern >> shift & 255, *others]


def join(parts: Sequence[int], shift: int, skipped: int = 0) -> int:
    """Return the bit pattern of bytes; see `split`."""
    rest = 0
    for part in parts[1:]:
        rest = rest << 8 | part
    rest %= 256 ** (len(parts) - 1) >> skipped
    upper = (rest >> shift) << shift + 8 + skipped
    return upper | parts[0] << shift | rest & (1 << shift) - 1


def shape_of(dtype: str, itemsize: int) -> tuple[int, int]:
    """Return the number of planes and the lowest bit of the first one."""
    return FLOATS.get(dtype, (itemsize, 8 * itemsize - 8))


def lowered(value: int, octaves: int) -> int:
    """Return a byte that is lowered, or raised by a negative number."""
    return 1 + (value - 1 - octaves) % 255 if value else 0


def octaves_of(n: int, scales: Scales, unit: int) -> list[int]:
    """Return by how much the byte of each element is lowered."""
    classes = contexts.classes_of(n, *scales)
    return [(unit * c + 2) // 4 for c in classes]


def difference(value: int, above: int) -> int:
    """Return the difference of a byte from another: by the highest bit, and by the others."""
    return (value ^ above) & 128 | (value - above) % 128


def sum_of(change: int, above: int) -> int:
    """Return the byte with a difference from the one above; see `difference`."""
    return (change ^ above) & 128 | (change + above) % 128


def is_first(at: int, row: int) -> bool:
    """Return whether a byte is in the first row of a band, which has no differences."""
    return at // row % BAND == 0


def alphabet(low: int, high: int) -> list[int]:
    """Return the bytes that a table contains."""
    return [0, *range(low, high + 1)]


def places_of(values: Sequence[int], low: int, high: int) -> list[int]:
    """Return the place of each byte in the alphabet."""
    place = {value: at for at, value in enumerate(alphabet(low, high))}
    return [place[value] for value in values]


# --- writing ------------------------------------------------------------------------------------


def tabled_plane(
    method: int, values: Sequence[int], unit: int = 1, scales: Scales | None = None
) -> Plane:
    """Return a plane with the table that gcodec makes."""
    coded = list(values)
    if scales is not None:
        octaves = octaves_of(len(values), scales, unit)
        coded = [lowered(v, k) for v, k in zip(values, octaves, strict=True)]
    low, high = byte_range(coded)
    places = places_of(coded, low, high)
    model = tabled.model_of(KINDS[method], places, 2 + high - low)
    return Plane(method, list(values), (unit, low, high, coded, model), scales)


def differing_plane(values: Sequence[int], row: int) -> Plane:
    """Return a plane of differences, with the table that gcodec makes."""
    changes = [
        value if is_first(at, row) else difference(value, values[at - row])
        for at, value in enumerate(values)
    ]
    return tabled_plane(HUFFMAN, changes)._replace(method=DIFFERENCES, row=row)


def byte_range(values: Sequence[int]) -> tuple[int, int]:
    """Return the least and the largest byte other than 0; 1 and 1 if there is none."""
    others = [v for v in values if v]
    return (min(others), max(others)) if others else (1, 1)


def _scales_text(scales: Scales) -> str:
    head = leb128.encode(scales.width) + leb128.encode(scales.group)
    text = to_text(head) + contexts.write_list(
        scales.rows, contexts.list_of(scales.rows, contexts.RICE)
    )
    if scales.group:
        setting = contexts.list_of(scales.columns, contexts.RICE)
        text += contexts.write_list(scales.columns, setting)
    return text


def string(plane: Plane) -> str:
    """Return the bits of a coded or packed plane."""
    if plane.method == PACKED:
        return "".join(fixed(value, plane.model) for value in plane.values)
    if plane.method == CLASSES:
        assert plane.scales is not None
        text = fixed(plane.lanes, 8) + _scales_text(plane.scales) + models_text(plane.model)
        text += "0" * (-len(text) % 8)
        each = contexts.classes_of(len(plane.values), *plane.scales)
        models = [plane.model[c] for c in each]
        return text + to_text(ans.encode_each(plane.values, models, plane.lanes))
    _, low, high, coded, model = plane.model
    text = ""
    if plane.scales is not None:
        text = _scales_text(plane.scales)
        text += "0" * (-len(text) % 8)
    places = places_of(coded, low, high)
    return text + fixed(low, 8) + fixed(high, 8) + tabled.write(KINDS[plane.method], places, model)


def models_text(models: Sequence[Sequence[int]]) -> str:
    """Return the models of all classes, each of which is stated."""
    text = fixed(0, 6) + fixed(len(models) - 1, 6)
    for model in models:
        used = [v for v, f in enumerate(model) if f and v]
        low, high = (used[0], used[-1]) if used else (1, 0)
        text += fixed(low, 8) + fixed(high, 8)
        text += "".join(ans.number(model[v]) for v in [0, *range(low, high + 1)])
    return text


def write(message: Message) -> tuple[bytes, int]:
    """Return the bytes of a message, and its number of bits."""
    planes, escape, has_bit = message
    head = bytes([(escape is not None) + 2 * has_bit])
    head += b"" if escape is None else bytes([escape])
    body = b""
    for k, plane in enumerate(planes):
        head += bytes([plane.method])
        if plane.method == CONSTANT:
            head += bytes(plane.values[:1] or [0])
        elif k:
            data = bytes(plane.values) if plane.method == STORED else to_bytes(string(plane))
            body += data
            if plane.method == PACKED:
                head += bytes([plane.model])
            elif plane.method != STORED:
                if plane.method == DIFFERENCES:
                    head += leb128.encode(plane.row)
                head += leb128.encode(len(data))
    if escape is not None:
        first = planes[0].values
        for at in range(0, len(first), GROUP):
            count = sum(v > 0 for v in first[at : at + GROUP])
            head += count.to_bytes(2, "little")
    last = ""
    if planes[0].method == STORED:
        last = to_text(bytes(planes[0].values))
    elif planes[0].method != CONSTANT:
        last = string(planes[0])
    return head + body + to_bytes(last), 8 * len(head + body) + len(last)


# --- reading ------------------------------------------------------------------------------------


def _models(bits: Bits) -> list[list[int]]:
    first, last = bits.number(6), bits.number(6)
    if first > last:
        raise Corrupt(f"classes from {first} to {last}")
    models: list[list[int]] = []
    for _ in range(first, last + 1):
        low, high = bits.number(8), bits.number(8)
        if not low or (low > high and (low, high) != (1, 0)):
            raise Corrupt(f"bytes from {low} to {high}")
        numbers = [ans.read_number(bits) for _ in range(2 + high - low)]
        if (low, high) == (1, 0) and not numbers[0]:
            if not models:
                raise Corrupt("the first class has no model")
            models.append(models[-1])
            continue
        if sum(numbers) != 4096:
            raise Corrupt("frequencies that do not add up")
        model = [0] * 256
        model[0], model[low : high + 1] = numbers[0], numbers[1:]
        models.append(model)
    return [models[min(max(c, first), last) - first] for c in range(64)]


def _read_scales(bits: Bits, n: int) -> Scales:
    width, group = contexts.read_leb128(bits), contexts.read_leb128(bits)
    if not min(8, n) <= width <= n or (group and (n < 8 * width or group > width)):
        raise Corrupt(f"rows of {width}, columns of {group}")
    rows, _ = contexts.read_list(bits, -(-n // width))
    columns = contexts.read_list(bits, -(-width // group))[0] if group else []
    return Scales(width, group, rows, columns)


def _read_string(bits: Bits, method: int, n: int, unit: int) -> list[int]:
    if method == CLASSES:
        lanes = bits.number(8)
        if lanes not in contexts.LANES:
            raise Corrupt(f"{lanes} lanes")
        scales = _read_scales(bits, n)
        models = _models(bits)
        bits.fill()
        each = contexts.classes_of(n, *scales)
        return ans.read_each(bits, [models[c] for c in each], lanes)
    lower = [0] * n
    if method in (LOWERED_HUFFMAN, LOWERED_RANS):
        lower = octaves_of(n, _read_scales(bits, n), unit)
        bits.fill()
    low, high = bits.number(8), bits.number(8)
    if not 1 <= low <= high:
        raise Corrupt(f"bytes from {low} to {high}")
    places, _ = tabled.read(KINDS[method], bits, n, 2 + high - low)
    each = alphabet(low, high)
    values = [each[place] for place in places]
    return [lowered(v, -k) for v, k in zip(values, lower, strict=True)]


class _Head(NamedTuple):
    """What precedes all planes about one of them.

    ``number`` is the constant, the bits of a packed field, or the bytes of a string.
    """

    method: int
    number: int
    row: int


def _read_head(
    bits: Bits, allowed: Collection[int], n: int, is_first_plane: bool, flag: int
) -> _Head:
    method = bits.number(8)
    if method not in allowed:
        raise Corrupt(f"the method {method}")
    number = bits.number(8) if method in (CONSTANT, PACKED) else 0
    if method == PACKED and not 1 <= number <= 7:
        raise Corrupt(f"fields of {number} bits")
    row = contexts.read_leb128(bits) if method == DIFFERENCES else 0
    if method == DIFFERENCES and (flag or not min(8, n) <= row <= n):
        raise Corrupt(f"differences in rows of {row}")
    if not is_first_plane and method in (HUFFMAN, DIFFERENCES):
        number = contexts.read_leb128(bits)
    return _Head(method, number, row)


def _read_other(bits: Bits, head: _Head, coded: int) -> list[int]:
    """Return the values of a plane after the first one."""
    method, number, row = head
    if method == CONSTANT:
        return [number] * coded
    if method == STORED:
        return list(to_bytes(bits.take(8 * coded)))
    if method == PACKED:
        part = Bits(bits.take(-(-coded * number // 8) * 8))
        values = [part.number(number) for _ in range(coded)]
        part.fill()
        return values
    part = Bits(bits.take(8 * number))
    values = _read_string(part, method, coded, 1) if coded else []
    if coded:
        part.fill()
    if part.at < len(part.text):
        raise Corrupt("a plane that is longer than its string")
    for at in range(row, coded if row else 0):
        if not is_first(at, row):
            values[at] = sum_of(values[at], values[at - row])
    return values


def _without_zeros(
    first: list[int],
    others: list[list[int]],
    counts: list[int],
    escape: int,
    layout: tuple[int, int],
) -> list[int]:
    """Return the bit patterns of a message that leaves zeros out of the other planes."""
    if [
        sum(v > 0 for v in first[at : at + GROUP]) for at in range(0, len(first), GROUP)
    ] != counts:
        raise Corrupt("other numbers of zeros")
    patterns, at = [], 0
    for value in first:
        if not value:
            patterns.append(0)
            continue
        rest = [plane[at] for plane in others]
        patterns.append(join([0 if value == escape else value, *rest], *layout))
        at += 1
    return patterns


def read(data: bytes, nbits: int, n: int, dtype: str, itemsize: int, mode: str) -> list[int]:
    """Return the bit patterns of n elements.

    Raises
    ------
    ValueError
        A `Truncated` or `Corrupt` of `universal`, if the message is not valid.
    """
    bits, (planes, shift) = payload_bits(data, nbits), shape_of(dtype, itemsize)
    if mode == "stored" or not n:
        if nbits != 8 * n * itemsize:
            raise (Truncated if nbits < 8 * n * itemsize else Corrupt)("another length")
        return [
            int.from_bytes(data[at : at + itemsize], "little")
            for at in range(0, len(data), itemsize)
        ]
    flags = bits.number(8)
    may_have_bit = mode == "small" and dtype in ("float32", "bfloat16")
    if flags > (3 if may_have_bit else 1):
        raise Corrupt(f"the flags {flags}")
    skipped, flag = divmod(flags, 2)
    shift -= skipped
    escape = bits.number(8) if flag else 0
    heads = [
        _read_head(bits, OTHERS if k else ALLOWED[mode], n, k == 0, flag) for k in range(planes)
    ]
    counts = None
    if flag:
        counts = [int.from_bytes(to_bytes(bits.take(16)), "little") for _ in range(-(-n // GROUP))]
        sizes = [min(GROUP, n - at) for at in range(0, n, GROUP)]
        if any(count > size for count, size in zip(counts, sizes, strict=True)):
            raise Corrupt("more elements than there are")
    coded = n if counts is None else sum(counts)
    others = [_read_other(bits, head, coded) for head in heads[1:]]
    method, number, _ = heads[0]
    if method == CONSTANT:
        first = [number] * n
    elif method == STORED:
        first = list(to_bytes(bits.take(8 * n)))
    else:
        unit = 2 if skipped else UNITS.get(dtype, 1)
        first = _read_string(bits, method, n, unit)
    if bits.at < nbits:
        raise Corrupt("bits after the last plane")
    if counts is not None:
        patterns = _without_zeros(first, others, counts, escape, (shift, skipped))
    else:
        patterns = [join(parts, shift, skipped) for parts in zip(*[first, *others], strict=True)]
    if dtype in SIGNS_LAST:
        return [pattern >> 1 | (pattern & 1) << 7 for pattern in patterns]
    return patterns
