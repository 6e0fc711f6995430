"""Frame v1 (``docs/wire-format.md``).

::

    47 43 46 01  flags u8  codec u8  dtype u8  ndim u8  shape LEB128 ...
    [name: LEB128 length, UTF-8]  params: u8 length, bytes  scalars: u8 length, bytes
    payload bit count LEB128  [seek table]  header CRC-32C u32
    payload  payload CRC-32C u32  [tag: 16 bytes]

CRCs are little-endian. The tag is a keyed BLAKE2b over all bytes of the frame before it.

The seek table::

    log2 of the block u8  width u8  count LEB128
    per block: length, `width` bytes  [advance, `width` bytes]
    before blocks 4096, 8192 ...: sum of the lengths so far u64  [sum of the advances so far u64]
    [per block that does not begin where one of rANS does: 32 states u32]

Only tables of codecs whose blocks count sent values have advances, and only those of rANS states.
A topk message, one of sparseloco, and a sparse one of mxnet-2bit, has the blocks of the code of
its positions.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Sequence
from typing import Any

from . import leb128
from .crc32c import crc32c
from .positions import LEAST_LOG2_RICE
from .seek import STRIDE

MAGIC = bytes([0x47, 0x43, 0x46, 0x01])
FLAG_NAME = 1
FLAG_SEEK = 2
FLAG_TAG = 4
MAX_NDIM = 32
TAG_NBYTES = 16
RAW = 1  # takes all dtypes, and has no blocks
QSGD, MXNET_2BIT, TERNGRAD, MINIFLOAT, TOPK = 2, 3, 5, 8, 9  # public codecs with seek tables
ECSQ = 13  # has blocks where its string has 32 lanes
LOWRANK = 14  # has the blocks of its residual, or those of ecsq
LOSSLESS = 15  # takes all dtypes; its blocks are those of its first plane
PATCH = 16  # takes all dtypes, and has no blocks
LOSSLESS_MODES = ("elements", "states", None)
MICROSCALE = 17  # its blocks are of bytes, or of symbols with contexts
MICROSCALE_CODES = (None, "elements", "states", "states")
SPARSELOCO = 19  # has the blocks of its positions
NIBBLES = (4, 6)  # the formats of microscale with two elements in a byte
BLOCKWISE = 18  # its blocks are of bytes
BLOCKWISE_CODES = (None, "elements", "states")
BLOCKWISE_NARROW = (0, 1, 4)  # the kinds of blockwise with two codes in a byte
SPARSE = 1  # the form of qsgd and of mxnet-2bit whose blocks count sent values
QSGD_CODES = ("elements", "elements", None, "elements", "states")
MINIFLOAT_CODES = (None, "elements", "elements", "elements", "states")
OF_VALUES = ("values", "rice")
POSITIONS = ("rice", "values", None, "states", "values")  # rice: blocks of values, not too short
NARROW = (0, 1, 2, 3)  # the formats of minifloat of up to four bits
PAIRS, RANS = 2, 4  # the codes of minifloat whose blocks are of pairs, if the format is narrow
TERNGRAD_RANS = 3  # the pack of terngrad that has blocks: of bytes, each of five elements
LANES = 32
RANS_BLOCK = 18  # log2


def _tag(data: bytes, key: bytes) -> bytes:
    """Return the authentication tag of ``data``."""
    return hashlib.blake2b(data, digest_size=TAG_NBYTES, key=key).digest()


def _short(data: bytes) -> bytes:
    """Return ``data`` after its length in one byte."""
    if len(data) > 255:
        raise ValueError(f"{len(data)} bytes do not fit a one-byte length")
    return bytes([len(data)]) + data


def _check_payload(payload: bytes, nbits: int) -> None:
    """Check that ``payload`` contains ``nbits`` bits and zeros up to a whole byte."""
    if len(payload) != (nbits + 7) // 8:
        raise ValueError(f"{len(payload)} payload bytes for {nbits} bits")
    spare = 8 * len(payload) - nbits
    if spare and payload[-1] % (1 << spare) != 0:
        raise ValueError("the padding of the payload is not zero")


def build(
    codec_id: int,
    dtype_code: int,
    shape: Sequence[int],
    params: bytes,
    scalars: bytes,
    payload: bytes,
    nbits: int,
    name: str | None = None,
    key: bytes | None = None,
    seek: bytes | None = None,
) -> bytes:
    """Return the bytes of a frame; a ``key`` adds the tag, ``seek`` is the seek table."""
    if len(shape) > MAX_NDIM:
        raise ValueError(f"{len(shape)} dimensions")
    _check_payload(payload, nbits)
    flags = 0
    if name is not None:
        flags |= FLAG_NAME
    if seek is not None:
        flags |= FLAG_SEEK
    if key is not None:
        flags |= FLAG_TAG

    out = MAGIC + bytes([flags, codec_id, dtype_code, len(shape)])
    for size in shape:
        out += leb128.encode(size)
    if name is not None:
        text = name.encode("utf-8")
        out += leb128.encode(len(text)) + text
    out += _short(params)
    out += _short(scalars)
    out += leb128.encode(nbits)
    out += seek or b""
    out += crc32c(out).to_bytes(4, "little")
    out += payload
    out += crc32c(payload).to_bytes(4, "little")
    if key is not None:
        out += _tag(out, key)
    return out


class _Reader:
    """A position in bytes that refuses to pass the end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        piece = self.data[self.at : self.at + count]
        if len(piece) != count:
            raise ValueError("the frame is truncated")
        self.at += count
        return piece

    def byte(self) -> int:
        """Return the next byte."""
        return self.take(1)[0]

    def number(self) -> int:
        """Return the next LEB128 number."""
        value, self.at = leb128.decode(self.data, self.at)
        return value

    def crc(self) -> int:
        """Return the next CRC."""
        return int.from_bytes(self.take(4), "little")


def _read_seek(read: _Reader, kind: str) -> dict[str, Any]:
    """Read a seek table, which must be in its shortest form and not contradict itself."""
    log2_block = read.byte()
    limits = {"states": (5, RANS_BLOCK), "rice": (LEAST_LOG2_RICE, 62)}
    least, most = limits.get(kind, (0, 62))
    if not least <= log2_block <= most:
        raise ValueError(f"a seek table of blocks of 2^{log2_block}")
    width = read.byte()
    if width not in (1, 2, 4, 8):
        raise ValueError(f"a seek table with entries of {width} bytes")
    lengths: list[int] = []
    advances: list[int] = []
    columns = [lengths, advances] if kind in OF_VALUES else [lengths]
    for block in range(read.number()):
        if block and block % STRIDE == 0:
            for column in columns:
                if int.from_bytes(read.take(8), "little") != sum(column):
                    raise ValueError("the sums of the seek table are wrong")
        for column in columns:
            column.append(int.from_bytes(read.take(width), "little"))
    if width > 1 and max(lengths + advances, default=0) < 256 ** (width // 2):
        raise ValueError("the seek table has wider entries than it needs")
    if kind == "states":
        within = [i for i in range(len(lengths)) if (i << log2_block) % (1 << RANS_BLOCK)]
        read.take(4 * LANES * len(within))
    return {
        "log2_block": log2_block,
        "lengths": lengths,
        "advances": advances if kind in OF_VALUES else None,
    }


def _check_seek(table: dict[str, Any], kind: str, n: int, nbits: int) -> None:
    """Check a seek table against the payload bits of its frame, and the unit of its blocks."""
    lengths, advances, block = table["lengths"], table["advances"], 2 ** table["log2_block"]
    if not lengths or sum(lengths) > nbits:
        raise ValueError("the seek table is not one of so many bits")
    if kind in OF_VALUES:
        if sum(advances) > n or advances[-1] < 1 or min(advances[:-1], default=block) < block:
            raise ValueError("the seek table is not one of so many elements")
    elif kind == "states":  # of n symbols at most: silent elements have none
        if (len(lengths) - 1) * block >= n:
            raise ValueError("the seek table has too many blocks")
    elif len(lengths) != (n + block - 1) // block:
        raise ValueError("the seek table has another number of blocks")


def _blocks(codec_id: int, params: bytes, n: int) -> tuple[str, int]:
    """Return the unit of the blocks of a public codec, and the largest number of units."""
    kind = None
    if codec_id == QSGD:
        s_end = leb128.decode(params, 0)[1]  # the number of levels is in front
        code_at = 1 + leb128.decode(params + b"\0", s_end + 1)[1]  # form, bucket and norm
        code = params[code_at] if code_at < len(params) else 0
        kind = QSGD_CODES[code] if code < len(QSGD_CODES) else None
        if params[s_end : s_end + 1] == bytes([SPARSE]):
            kind = "values"
    elif codec_id == TERNGRAD and params[4:] == bytes([TERNGRAD_RANS]):
        kind, n = "states", (n + 4) // 5
    elif codec_id == MINIFLOAT and len(params) > 2 and params[2] < len(MINIFLOAT_CODES):
        kind = MINIFLOAT_CODES[params[2]]
        paired = params[2] == PAIRS or (params[2] == RANS and params[0] in NARROW)
        n = (n + 1) // 2 if paired else n
    elif codec_id == LOSSLESS and params and params[0] < len(LOSSLESS_MODES):
        kind = LOSSLESS_MODES[params[0]]
    elif codec_id in (ECSQ, LOWRANK):
        kind = "states"
    elif codec_id == MICROSCALE and len(params) > 2 and params[2] < len(MICROSCALE_CODES):
        kind = MICROSCALE_CODES[params[2]]
        paired = params[0] in NIBBLES and params[2] < 3
        n = (n + 1) // 2 if paired else n
    elif codec_id == BLOCKWISE and params:
        code_at = leb128.decode(params + b"\0", 1)[1] + 1  # kind, size of a block, nested
        code = params[code_at] if code_at < len(params) else 0
        kind = BLOCKWISE_CODES[code] if code < len(BLOCKWISE_CODES) else None
        n = (n + 1) // 2 if params[0] in BLOCKWISE_NARROW else n
    elif codec_id == SPARSELOCO and len(params) > 1:
        kind = POSITIONS[params[-2]] if params[-2] < len(POSITIONS) else None
    elif codec_id == TOPK or (codec_id == MXNET_2BIT and params[1:2] == bytes([SPARSE])):
        index = params[1:2] if codec_id == TOPK else params[2:3] or b"\0"
        kind = POSITIONS[index[0]] if index and index[0] < len(POSITIONS) else None
    if kind is None:
        raise ValueError("a seek table, but the codec has no blocks")
    return kind, n


def parse(
    data: bytes, key: bytes | None = None, has_advances: bool | None = None
) -> dict[str, Any]:
    """Read the frame at the start of ``data``; what follows it is left alone.

    Parameters
    ----------
    data
        One frame, or several end to end: the next one is at ``data[result["end"]:]``.
    key
        If given, the frame must carry a tag made with it; without it a tag is not checked.
    has_advances
        Whether blocks of a seek table count sent values; asked for private codecs alone.

    Returns
    -------
    dict
        ``flags``, ``codec_id``, ``dtype``, ``shape``, ``name`` (or None), ``params``,
        ``scalars``, ``nbits``, ``seek`` (the bytes of the table, or None), ``payload``, ``tag``
        (or None) and ``end``.

    Raises
    ------
    ValueError
        For anything that is not a correct frame, as far as can be told without its payload.
    """
    read = _Reader(data)
    if read.take(4) != MAGIC:
        raise ValueError("not a frame of version 1")
    flags = read.byte()
    if flags & ~(FLAG_NAME | FLAG_SEEK | FLAG_TAG):
        raise ValueError(f"unknown flags {flags:#04x}")
    codec_id = read.byte()
    if not (1 <= codec_id <= SPARSELOCO or 192 <= codec_id <= 255):
        raise ValueError(f"unknown codec id {codec_id}")
    dtype = read.byte()
    takes_integers = codec_id in (RAW, LOSSLESS, PATCH) or codec_id >= 192
    if not 1 <= dtype <= 4 and not (5 <= dtype <= 15 and takes_integers):
        raise ValueError(f"unknown dtype code {dtype}")
    ndim = read.byte()
    if ndim > MAX_NDIM:
        raise ValueError(f"{ndim} dimensions")
    shape = tuple(read.number() for _ in range(ndim))
    name = None
    if flags & FLAG_NAME:
        name = read.take(read.number()).decode("utf-8")  # UnicodeDecodeError is a ValueError
    params = read.take(read.byte())
    scalars = read.take(read.byte())
    nbits = read.number()
    seek = None
    if flags & FLAG_SEEK:
        kind, count = "values" if has_advances else "elements", math.prod(shape)
        if has_advances is None:
            kind, count = _blocks(codec_id, params, count)
        section = read.at
        table = _read_seek(read, kind)
        seek = data[section : read.at]
    header_crc = crc32c(data[: read.at])
    if read.crc() != header_crc:
        raise ValueError("wrong CRC of the header")
    if seek is not None:
        _check_seek(table, kind, count, nbits)

    payload = read.take((nbits + 7) // 8)
    if read.crc() != crc32c(payload):
        raise ValueError("wrong CRC of the payload")
    _check_payload(payload, nbits)

    tag = None
    if flags & FLAG_TAG:
        tagged = data[: read.at]
        tag = read.take(TAG_NBYTES)
        if key is not None and not hmac.compare_digest(tag, _tag(tagged, key)):
            raise ValueError("wrong tag")
    elif key is not None:
        raise ValueError("the frame has no tag")
    return {
        "flags": flags,
        "codec_id": codec_id,
        "dtype": dtype,
        "shape": shape,
        "name": name,
        "params": params,
        "scalars": scalars,
        "nbits": nbits,
        "seek": seek,
        "payload": payload,
        "tag": tag,
        "end": read.at,
    }
