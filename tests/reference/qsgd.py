"""QSGD: norms, levels, and all forms of their payload.

Source: ``docs/wire-format.md``, qsgd and seek tables. A level is a Python integer with the sign of
its element; strings are of 0 and 1.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import canonical as huffman
from . import contexts, leb128, philox, sums, tabled, universal
from .seek import Table as Table
from .seek import lengths_of
from .seek import section as section
from .universal import Bits, Corrupt, Truncated, fixed, omega, rice, to_bytes, to_text

Floats = NDArray[np.float32]

LARGEST_RICE = 47
TINY = 2.0**-100
LARGEST_TABLED = 127  # the last s of codes with a table
FORMS, NORMS = ("dense", "sparse"), ("l2", "max")
CODES = ("omega", "rice", "packed", "huffman", "rans")
ALL = [("omega", "dense"), ("omega", "sparse"), ("rice", "dense"), ("rice", "sparse")]
ALL += [("packed", "dense")]  # in the order in which the first of the shortest is taken
TABLED = [("huffman", "dense"), ("rans", "dense")]


class Setting(NamedTuple):
    """The parameters of a codec."""

    s: int = 15
    form: str = "auto"
    bucket: int = 0
    norm: str = "l2"
    code: str = "omega"


class Message(NamedTuple):
    """The result of an encoder, and the input of a decoder."""

    setting: Setting  # form and code as sent
    norms: list[np.float32]
    levels: list[int]
    rices: tuple[int, ...]  # the scalars: of levels, and of gaps
    data: bytes
    nbits: int
    model: Sequence[int] = ()  # lengths or frequencies of symbols, where there is a table


# --- quantize -----------------------------------------------------------------------------------


def bucket_of(n: int, bucket: int) -> int:
    """Return the number of elements that share a norm."""
    return bucket if 0 < bucket < n else max(n, 1)


def norms_of(x: Floats, bucket: int, norm: str, s: int = 1) -> list[np.float32]:
    """Return the norm of each bucket.

    Raises
    ------
    ValueError
        If a norm is no finite float32, or its level s has no finite value.
    """
    size = bucket_of(len(x), bucket)
    results = []
    for start in range(0, len(x), size):
        part = x[start : start + size]
        if not np.isfinite(part).all():
            raise ValueError("NaN or Inf")
        with np.errstate(over="ignore"):
            if norm == "max":
                results.append(np.float32(np.abs(part).max()))
            else:
                results.append(np.float32(math.sqrt(sums.sum_squares(part))))
            if not np.isfinite(np.float32(s) * np.float32(float(results[-1]) / s)):
                raise ValueError("the norm passes float32")
    return results


def _norm_each(norms: Sequence[np.float32], n: int, bucket: int) -> NDArray[np.float64]:
    """Return the norm of the bucket of each element."""
    return np.repeat(np.array(norms, np.float64), bucket_of(n, bucket))[:n]


def levels_of(
    x: Floats, norms: Sequence[np.float32], s: int, bucket: int, seed: int = 0
) -> list[int]:
    """Return the level of each element, with its sign."""
    x = np.asarray(x, np.float32)
    norm = _norm_each(norms, len(x), bucket)
    sent = norm > 0
    scale = s / np.where(sent, norm, 1)
    with np.errstate(all="ignore"):  # of the rule that does not apply
        r = np.where(
            norm < TINY,
            (np.abs(x.astype(np.float64)) * scale).astype(np.float32),
            np.abs(x) * scale.astype(np.float32),
        ).astype(np.float64)
    low = np.floor(r)
    words = np.array(philox.words(seed, len(x)), np.int64)
    up = (words >> 1) < ((r - low) * 2.0**31).astype(np.int64)
    k = np.where(sent, np.minimum(s, low + up), 0).astype(np.int64)
    levels: list[int] = np.where(x < 0, -k, k).tolist()
    return levels


def dequantize(levels: Sequence[int], norms: Sequence[np.float32], s: int, bucket: int) -> Floats:
    """Return the values of levels."""
    k = np.array(levels, np.int64)
    norm = _norm_each(norms, len(k), bucket)
    with np.errstate(under="ignore", over="ignore"):
        values = np.where(
            norm < TINY,
            (np.abs(k) * (norm / s)).astype(np.float32),
            np.abs(k).astype(np.float32) * (norm / s).astype(np.float32),
        )
    return np.where(k < 0, -values, values)


# --- write --------------------------------------------------------------------------------------


def in_zero_norm_bucket(norms: Sequence[np.float32], n: int, bucket: int) -> list[bool]:
    """Return for each element whether its bucket has norm zero and so sends nothing."""
    size = bucket_of(n, bucket)
    return [norms[i // size] == 0 for i in range(n)]


def sign(k: int) -> str:
    """Return the sign bit of a level."""
    return "1" if k < 0 else "0"


def gaps_of(levels: Sequence[int]) -> list[int]:
    """Return the distance of each nonzero level to its predecessor, counted from 1."""
    places = [0, *(i + 1 for i, k in enumerate(levels) if k)]
    return [after - before for before, after in itertools.pairwise(places)]


def best_rice(values: Sequence[int]) -> int:
    """Return the least parameter that minimizes the total length of the words of ``values``."""
    numbers = np.array(values, np.int64)
    ks = np.arange(LARGEST_RICE + 1)
    nbits = (numbers >> ks[:, np.newaxis]).sum(axis=1) + (1 + ks) * len(values)
    return int(nbits.argmin())  # the first of equals


def rices_of(levels: Sequence[int], quiet: Sequence[bool], s: Setting) -> tuple[int, ...]:
    """Return the Rice parameters that an encoder selects."""
    if s.code != "rice":
        return ()
    if s.form == "dense":
        pairs = zip(levels, quiet, strict=True)
        return (best_rice([universal.zigzag(k) for k, is_quiet in pairs if not is_quiet]),)
    sent = [abs(k) - 1 for k in levels if k]
    return best_rice(sent), best_rice([gap - 1 for gap in gaps_of(levels)])


def place(k: int) -> int:
    """Return the index of 2k for k, and of 2k + 1 for −k, in the list 0, 2, 3, 4, ..."""
    return max(0, 2 * abs(k) + (k < 0) - 1)


def level_at(at: int) -> int:
    """Return the level at an index from `place`."""
    y = at + 1 if at else 0
    return -(y // 2) if y % 2 else y // 2


def coded_symbols(levels: Sequence[int], quiet: Sequence[bool]) -> list[int]:
    """Return the symbol of each element outside zero-norm buckets, for codes with a table."""
    return [place(k) for k, q in zip(levels, quiet, strict=True) if not q]


def units(
    levels: Sequence[int],
    quiet: Sequence[bool],
    setting: Setting,
    rices: tuple[int, ...],
    model: Sequence[int] = (),
) -> list[str]:
    """Return the bits of each element or, in the sparse form, of each nonzero level."""
    s, form, _, _, code = setting
    if form == "sparse":
        sent = zip(gaps_of(levels), (k for k in levels if k), strict=True)
        if code == "omega":
            return [omega(gap) + sign(k) + omega(abs(k)) for gap, k in sent]
        k_level, k_gap = rices
        return [rice(g - 1, k_gap) + sign(k) + rice(abs(k) - 1, k_level) for g, k in sent]
    if code == "omega":
        words = [sign(k) + omega(abs(k) + 1) for k in levels]
    elif code == "rice":
        words = [rice(universal.zigzag(k), rices[0]) for k in levels]
    elif code == "huffman":
        table = huffman.words(model) if model else []
        return ["" if q else table[place(k)] for k, q in zip(levels, quiet, strict=True)]
    else:
        words = [fixed(universal.zigzag(k), (2 * s).bit_length()) for k in levels]
    return ["" if q else word for word, q in zip(words, quiet, strict=True)]


def write(
    setting: Setting,
    norms: Sequence[np.float32],
    levels: Sequence[int],
    rices: tuple[int, ...] | None = None,
    model: Sequence[int] | None = None,
) -> Message:
    """Return the message of levels in the form and code of the setting."""
    quiet = in_zero_norm_bucket(norms, len(levels), setting.bucket)
    if rices is None:
        rices = rices_of(levels, quiet, setting)
    sent = coded_symbols(levels, quiet)
    if setting.code in tabled.KINDS:
        assert setting.form == "dense" and setting.s <= LARGEST_TABLED
        model = model or tabled.model_of(setting.code, sent, 2 * setting.s + 1)
        string = tabled.write(setting.code, sent, model)  # the norms before it are whole bytes
    else:
        model, string = [], "".join(units(levels, quiet, setting, rices))
    head = b"".join(struct.pack(">f", norm) for norm in norms)
    data = head + to_bytes(string)
    nbits = 8 * len(head) + len(string)
    return Message(setting, list(norms), list(levels), rices, data, nbits, model)


def pack(setting: Setting, norms: Sequence[np.float32], levels: Sequence[int]) -> Message:
    """Return the message with ``auto`` resolved."""
    if setting.code == "auto":
        # Codes with a table come last. A writer may estimate the bits of rANS.
        tabled_too = ALL + TABLED if setting.s <= LARGEST_TABLED else ALL
        pairs = [pair for pair in tabled_too if setting.form in ("auto", pair[1])]
    elif setting.form == "auto":
        pairs = [pair for pair in ALL + TABLED if pair[0] == setting.code]
    else:
        assert (setting.code, setting.form) in ALL + TABLED
        pairs = [(setting.code, setting.form)]
    written = [write(setting._replace(code=c, form=f), norms, levels) for c, f in pairs]
    return min(written, key=lambda message: message.nbits)  # the first of equals


def encode(x: Floats, setting: Setting, seed: int = 0) -> Message:
    """Return the message of a gradient."""
    x = np.asarray(x, np.float32).reshape(-1)
    norms = norms_of(x, setting.bucket, setting.norm, setting.s)
    levels = levels_of(x, norms, setting.s, setting.bucket, seed)
    return pack(setting, norms, levels)


# --- read ---------------------------------------------------------------------------------------


def _read_sign(bits: Bits) -> int:
    return -1 if bits.take(1) == "1" else 1


def _number(bits: Bits, read: Callable[[Bits], int], most: int) -> int:
    """Read a word, and reject numbers above ``most``."""
    value = universal.whole(read, bits)
    if value > most:
        raise Corrupt(f"{value} is above {most}")
    return value


def _read_dense(
    bits: Bits, setting: Setting, rices: tuple[int, ...], quiet: Sequence[bool]
) -> list[int]:
    s, code = setting.s, setting.code
    if code == "context":
        return _read_classed(bits, s, quiet)
    width = (2 * s).bit_length()
    count = quiet.count(False)
    least = {"omega": 2, "rice": 1 + sum(rices), "packed": width}.get(code, 0)
    if len(bits.text) - bits.at < least * count:
        raise Truncated("fewer bits than the elements take")
    sent: list[int] = []
    if code in tabled.KINDS:
        sent, _ = tabled.read(code, bits, count, 2 * s + 1)
    levels = []
    for q in quiet:
        if q:
            levels.append(0)
        elif code == "omega":
            side = _read_sign(bits)
            k = _number(bits, universal.read_omega, s + 1) - 1
            if k == 0 and side < 0:
                raise Corrupt("the sign of a level 0")
            levels.append(side * k)
        elif code == "rice":
            z = _number(bits, lambda b: universal.read_rice(b, rices[0]), 2 * s)
            levels.append(universal.unzigzag(z))
        elif code in tabled.KINDS:
            levels.append(level_at(sent.pop(0)))
        else:
            levels.append(universal.unzigzag(_number(bits, lambda b: b.number(width), 2 * s)))
    if bits.at != len(bits.text):
        raise Corrupt("bits after the last element")
    return levels


def _read_classed(bits: Bits, s: int, quiet: Sequence[bool]) -> list[int]:
    symbols = contexts.read_symbols(bits, 0 if all(quiet) else len(quiet), 2 * s + 1)
    if bits.at != len(bits.text):
        raise Corrupt("bits after the last element")
    levels = [contexts.level_of(symbol) for symbol in symbols] or [0] * len(quiet)
    if any(k and q for k, q in zip(levels, quiet, strict=True)):
        raise Corrupt("a level in a bucket without norm")
    return levels


def _read_sparse(
    bits: Bits, setting: Setting, rices: tuple[int, ...], quiet: Sequence[bool]
) -> list[int]:
    results = []
    while bits.at < len(bits.text):
        if setting.code == "omega":
            gap = universal.whole(universal.read_omega, bits)
        else:
            gap = universal.whole(lambda b: universal.read_rice(b, rices[1]), bits) + 1
        side = _read_sign(bits)
        if setting.code == "omega":
            k = _number(bits, universal.read_omega, setting.s)
        else:
            k = _number(bits, lambda b: universal.read_rice(b, rices[0]), setting.s - 1) + 1
        results.append((gap, side * k))
    levels = [0] * len(quiet)
    place = 0
    for gap, k in results:
        place += gap
        if place > len(quiet):
            raise Corrupt(f"a gap leads to element {place} of {len(quiet)}")
        if quiet[place - 1]:
            raise Corrupt("a level in a bucket without norm")
        levels[place - 1] = k
    return levels


def read(
    setting: Setting, data: bytes, nbits: int, n: int, rices: tuple[int, ...] = ()
) -> tuple[list[np.float32], list[int]]:
    """Return norms and levels of a payload, or raise `Truncated` or `Corrupt`.

    If a payload has several defects, the error refers to one of them, and other readers may report
    another, because the specification does not define which. Here the reader reads all words of
    the sparse form before all positions.
    """
    text = to_text(data)
    assert len(data) == (nbits + 7) // 8
    count = (n + bucket_of(n, setting.bucket) - 1) // bucket_of(n, setting.bucket)
    if nbits < 32 * count:
        raise Truncated("norms are missing")
    norms = [np.frombuffer(data[4 * b : 4 * b + 4], ">f4")[0] for b in range(count)]
    for norm in norms:
        if not np.isfinite(norm) or np.signbit(norm):
            raise Corrupt(f"the norm {norm}")
    if "1" in text[nbits:]:
        raise Corrupt("fill that is not zero")
    quiet = in_zero_norm_bucket(norms, n, setting.bucket)
    bits = Bits(text[:nbits], 32 * count)
    parse = _read_dense if setting.form == "dense" else _read_sparse
    return [np.float32(norm) for norm in norms], parse(bits, setting, rices, quiet)


def decode(
    setting: Setting, data: bytes, nbits: int, n: int, rices: tuple[int, ...] = ()
) -> Floats:
    """Return the n values of a payload."""
    norms, levels = read(setting, data, nbits, n, rices)
    return dequantize(levels, norms, setting.s, setting.bucket)


# --- headers ------------------------------------------------------------------------------------


def parameters(setting: Setting) -> bytes:
    """Return the parameters of a frame without trailing defaults."""
    norm, code = NORMS.index(setting.norm), CODES.index(setting.code)
    fields = [
        (leb128.encode(setting.s), False),  # the form behind it has no default
        (bytes([FORMS.index(setting.form)]), False),
        (leb128.encode(setting.bucket), setting.bucket == 0),
        (bytes([norm]), norm == 0),
        (bytes([code]), code == 0),
    ]
    while fields[-1][1]:
        fields.pop()
    return b"".join(data for data, _ in fields)


def scalars(message: Message) -> bytes:
    """Return the scalars of a frame."""
    return b"".join(leb128.encode(k) for k in message.rices)


def seek_table(message: Message, log2_block: int) -> Table:
    """Return the seek table of a message whose words have no fixed width."""
    setting = message.setting
    assert setting.code != "packed"
    quiet = in_zero_norm_bucket(message.norms, len(message.levels), setting.bucket)
    if setting.code == "rans":
        sent = coded_symbols(message.levels, quiet)
        return tabled.seek_table("rans", sent, message.model, log2_block)
    words = units(message.levels, quiet, setting, message.rices, message.model)
    lengths = lengths_of(words, log2_block)
    if setting.form == "dense":
        return Table(log2_block, lengths, None)
    gaps, size = gaps_of(message.levels), 1 << log2_block
    advances = [sum(gaps[at : at + size]) for at in range(0, len(words), size)]
    return Table(log2_block, lengths, advances)
