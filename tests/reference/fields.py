"""Fields of a fixed width, in the bit orders of the existing systems.

One stream of codes has many byte forms (``docs/wire-format.md``, fixed-width fields). They differ
in the order of bits, the size of the words that these fill, the layout and the padding.

==============================  ==========================================================
system                          arguments
==============================  ==========================================================
MXNet 2-bit, 1-bit              ``width=2`` or ``1``, ``align=4``
BytePS onebit                   ``width=1, word=4``
torch_cgx                       ``order="lsb", align=8``
TernGrad                        ``width=2, order="lsb", strided=True, pad="count"``
Caffe2 fused rows               ``order="lsb", strided=True``
DeepSpeed 1-bit, 4-bit          ``width=1`` or ``4``
==============================  ==========================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

Order = Literal["msb", "lsb"]
Pad = Literal["zero", "count"]


def _check(width: int, order: str, word: int, strided: bool, pad: str, align: int) -> None:
    """Refuse combinations that no format defines."""
    if not 1 <= width <= 8:
        raise ValueError(f"width {width}")
    if order not in ("msb", "lsb") or word not in (1, 4) or align not in (1, 4, 8):
        raise ValueError(f"order {order!r}, word {word}, align {align}")
    if pad not in ("zero", "count") or (pad == "count" and width != 2):
        raise ValueError(f"pad {pad!r} with width {width}")
    if strided and (8 % width != 0 or word != 1):
        raise ValueError(f"strided fields with width {width}, word {word}")


def _pack_msb(codes: Sequence[int], width: int, word: int) -> bytes:
    """Fill words from their top bit, first field first; words are stored little-endian."""
    digits = np.array(codes, np.uint8)[:, np.newaxis] >> np.arange(width)[::-1] & 1
    data = np.packbits(_filled(digits, 8 * word)).reshape(-1, word)
    return data[:, ::-1].tobytes()


def _pack_lsb(codes: Sequence[int], width: int, word: int) -> bytes:
    """Put field j at bits [j * width, (j + 1) * width) of one little-endian integer."""
    digits = np.array(codes, np.uint8)[:, np.newaxis] >> np.arange(width) & 1
    return np.packbits(_filled(digits, 8 * word), bitorder="little").tobytes()


def _pack_strided(codes: Sequence[int], width: int, order: Order) -> bytes:
    """Put fields i, i + Q, i + 2Q, ... into byte i of Q."""
    per_byte = 8 // width
    rows = _filled(np.array(codes, np.uint8), per_byte).reshape(per_byte, -1)
    places = np.arange(per_byte) if order == "lsb" else np.arange(per_byte)[::-1]
    return (rows << (places * width)[:, np.newaxis]).sum(axis=0).astype(np.uint8).tobytes()


def _filled(digits: Any, multiple: int) -> Any:
    """Return flat digits, followed by zeros up to a multiple."""
    return np.append(digits, np.zeros(-digits.size % multiple, np.uint8)).astype(np.uint8)


def pack(
    codes: Sequence[int],
    width: int,
    order: Order = "msb",
    word: int = 1,
    strided: bool = False,
    pad: Pad = "zero",
    align: int = 1,
) -> bytes:
    """Return the bytes of ``codes``, each of ``width`` bits (1 to 8).

    Parameters
    ----------
    codes
        Integers from 0 to ``2**width - 1``.
    order
        ``"msb"``: the first field takes the highest bits; ``"lsb"``: the lowest.
    word
        1 fills bytes; 4 fills 32-bit words, stored little-endian, and pads to whole words.
    strided
        Byte i of Q holds fields i, i + Q, i + 2Q, ...; ``width`` must divide 8.
    pad
        ``"zero"``: as many zeros as fill the last byte. ``"count"`` (width 2): always 4 - (n mod
        4) codes valued 0, 1, 2, 3 in this order follow the n codes.
    align
        Zero bytes follow up to a multiple of 1, 4 or 8 bytes.
    """
    _check(width, order, word, strided, pad, align)
    codes = [int(code) for code in codes]
    if codes and not 0 <= min(codes) <= max(codes) < 1 << width:
        raise ValueError(f"codes from {min(codes)} to {max(codes)} do not fit {width} bits")
    if pad == "count":
        codes = codes + [0, 1, 2, 3][: 4 - len(codes) % 4]
    if strided:
        out = _pack_strided(codes, width, order)
    elif order == "msb":
        out = _pack_msb(codes, width, word)
    else:
        out = _pack_lsb(codes, width, word)
    while len(out) % align != 0:
        out += b"\0"
    return out


def _read_fields(data: bytes, n: int, width: int, order: Order, word: int) -> list[int]:
    """Return contiguous fields, whose bits follow each other in the stream."""
    filled = np.frombuffer(data, np.uint8)
    if order == "msb":
        stream = np.unpackbits(filled.reshape(-1, word)[:, ::-1].reshape(-1))
        values = 1 << np.arange(width)[::-1]
    else:
        stream, values = np.unpackbits(filled, bitorder="little"), 1 << np.arange(width)
    codes: list[int] = (stream[: n * width].reshape(n, width) @ values).tolist()
    return codes


def _read_strided(data: bytes, count: int, j: int, width: int, order: Order) -> int:
    """Return field j of ``count`` strided bytes."""
    place = j // count
    shift = place * width if order == "lsb" else 8 - (place + 1) * width
    return data[j % count] >> shift & ((1 << width) - 1)


def unpack(
    data: bytes,
    n: int,
    width: int,
    order: Order = "msb",
    word: int = 1,
    strided: bool = False,
    pad: Pad = "zero",
    align: int = 1,
) -> list[int]:
    """Return the ``n`` codes of ``data``; the other arguments are those of `pack`.

    Raises
    ------
    ValueError
        If ``data`` is not exactly what `pack` makes: wrong length, or wrong padding.
    """
    expected = len(pack([0] * n, width, order, word, strided, pad, align))
    if len(data) != expected:
        raise ValueError(f"{len(data)} bytes where {n} codes take {expected}")
    if strided:
        fields = n + 4 - n % 4 if pad == "count" else n
        per_byte = 8 // width
        count = (fields + per_byte - 1) // per_byte
        codes = [_read_strided(data, count, j, width, order) for j in range(n)]
    else:
        codes = _read_fields(data, n, width, order, word)
    if pack(codes, width, order, word, strided, pad, align) != data:
        raise ValueError("wrong padding")
    return codes
