"""Handmade inputs for guards of kernels that random mutation does not reach.

Each input has its expected outcome. Small frames that a decoder must reject are in
``golden-errors/``. This module contains larger frames, frames for readers other than
`gcodec.decode`, and rare valid frames.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from reference import leb128, positions, tabled, universal
from reference.universal import fixed, rice

import gcodec
from fuzz.crafted_lists import frame_of_text, wrong_lists
from fuzz.crafted_tables import wrong_tables
from fuzz.targets import CODES
from gcodec import entropy
from gcodec.entropy.code import Code
from gcodec.entropy.coder import BitSpan
from gcodec.entropy.positions import IndexString
from gcodec.kernels.prefix import level_codes, prefix, prefix_read, run_level_read
from gcodec.kernels.prefix.run_level import RunLevelPairs
from gcodec.wire.seek import SeekTable

LARGEST = 2**64 - 1
RICE = 47  # largest Rice parameter of levels and of gaps
RANS_BLOCK = 1 << 18
VALUE = "0" * 32  # one float32 value of a topk message
FAR = 2**62  # largest number of elements that positions may index


class Crafted(NamedTuple):
    """A handmade input and its expected outcome.

    Attributes
    ----------
    name : str
        What the input checks.
    error : str or None
        Name of the expected error without its suffix, or None for a valid input.
    data : bytes
        The bytes to read.
    read : callable
        Reader ``(data, key=None) -> array``, or to a tuple of arrays.
    """

    name: str
    error: str | None
    data: bytes
    read: Callable[..., Any] = gcodec.decode


def crafted() -> Iterator[Crafted]:
    """Yield all handmade inputs."""
    yield from _wide_rice()
    yield from _distant_positions()
    yield from _long_gaps()
    yield Crafted("levels", "Truncated", b"\x88", _levels)
    yield Crafted("a one behind the end", "Truncated", b"\x0a", _cut_short)
    yield _uneven_blocks()
    yield from _blocks_of_units()
    yield _block_at_the_end()
    yield from _elsewhere()
    yield from _universal()
    for wrong_list in wrong_lists():
        yield Crafted(*wrong_list)
    for wrong_table in wrong_tables():
        yield Crafted(*wrong_table)


def _qsgd(form: int, scalars: bytes, text: str) -> bytes:
    """Return a frame of Rice codewords for eight levels up to 2^24 − 1 and the norm 1."""
    params = leb128.encode(2**24 - 1) + bytes([form, 0, 0, 1])
    norm = universal.to_text(struct.pack(">f", 1))
    return frame_of_text(2, 8, params, scalars, norm + text)


def _wide_rice() -> Iterator[Crafted]:
    """Yield codewords of 2^64, and of 2^64 − 1, to which a decoder cannot add anything."""
    most, others = rice(LARGEST, RICE), 7 * rice(0, RICE)
    zeros = "0" + most[: most.index("1")]
    words = {"2^64 - 1": most, "2^64": zeros + "1" + RICE * "0", "more": zeros + "1" + RICE * "1"}
    for name, word in words.items():
        yield Crafted(f"a level of {name}", "Corrupt", _qsgd(0, bytes([RICE]), word + others))
        unit = word + "0" + rice(0, 0)
        yield Crafted(f"a gap of {name}", "Corrupt", _qsgd(1, bytes([0, RICE]), unit))
    above = rice(2 * 2**24 - 1, 20) + 7 * rice(0, 20)
    yield Crafted("a level of s + 1", "Corrupt", _qsgd(0, bytes([20]), above))


def _topk(index: str, n: int, k: int, text: str) -> bytes:
    params = bytes([0, positions.CODES.index(index)]) + leb128.encode(k + 1)
    return frame_of_text(9, n, params, b"", k * VALUE + text)


def _sparse(data: bytes, key: bytes | None = None) -> Any:
    return gcodec.decode_sparse(data, limits=gcodec.Limits(2 * FAR, 8 * FAR), key=key)


def _distant_positions() -> Iterator[Crafted]:
    """Yield positions in tensors too large for memory, which sparse decoding reads."""
    low = fixed(5, 62)
    text = low + "0001"  # 3·2^62 + 5, and then 2^64 + 5
    yield Crafted("above 2^63", "Corrupt", _topk("eliasfano", FAR, 1, text), _sparse)
    text = low + "00001"
    yield Crafted("above 2^64", "Corrupt", _topk("eliasfano", FAR, 1, text), _sparse)
    text = fixed(0, 6) + 100 * "0"
    yield Crafted("zeros", "Truncated", _topk("rice", FAR // 2, 1, text), _sparse)
    size = positions.class_count(FAR)
    for index, sent in itertools.product(("huffman", "rans"), (1, 5)):
        classes = sent * [positions.class_of(FAR)[0]]
        model = tabled.model_of(index, [*classes, 0], size)
        head = ""
        if index == "rans":
            head = tabled.rans.table(model)
            head += -len(head) % 8 * "0"
        text = head + tabled.write(index, classes, model, sent=index == "huffman")
        text += sent * fixed(0, positions.nbits_of(classes[0]))
        error = "Corrupt" if sent > 1 else None  # together 2^62 if a reader ignores the carry
        data = _topk(index, FAR, sent, text)
        yield Crafted(f"{sent} distances in {index}", error, data, _sparse)


def _long_gaps() -> Iterator[Crafted]:
    """Yield Rice codewords longer than 64 bits, although no value needs such a codeword."""
    for parameter, gap in ((0, 64), (0, 200), (3, 600), (6, 6000)):
        places = [0, gap, gap + 1, 3 * gap]
        text = positions.write("rice", places, 4 * gap, [parameter])
        data = _topk("rice", 4 * gap, 4, text)
        yield Crafted(f"gaps of {gap} with {parameter}", None, data)


def _levels(data: bytes, key: bytes | None = None) -> Any:
    """Read more words than the data contain, as dissection does."""
    code = level_codes.word_code("rice", 2, {"rice": 2})
    return prefix.read(code, np.frombuffer(data, np.uint8), 8 * len(data), 3)


def _cut_short(data: bytes, key: bytes | None = None) -> Any:
    """Read positions whose last codeword lies in the fill bits, which codecs check first."""
    end = 8 * len(data) - 2
    return IndexString(BitSpan(np.frombuffer(data, np.uint8), 0, end), "eliasfano", 2, 8).read()


def _uneven_blocks() -> Crafted:
    """Return a frame with empty blocks that end before other blocks read at the same time."""
    x = np.random.default_rng(1).standard_normal(1024).astype(np.float32)
    x.reshape(-1, 64)[::3] = 0
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, "qsgd:code=huffman,bucket=64"))
    return Crafted("silent blocks", None, frame.with_seek(6).to_bytes())


def _blocks_of_units() -> Iterator[Crafted]:
    """Yield distant values in many blocks, and a last block whose stated end is too early."""
    for distance, error in ((300, None), (2, "Corrupt")):
        x = np.zeros(distance * 300, np.float32)
        x[::distance] = 1
        frame = gcodec.Frame.from_bytes(gcodec.encode(x, "qsgd:s=20,form=sparse")).with_seek(5)
        seek = frame.payload.seek
        assert seek is not None and seek.advances is not None
        advances = seek.advances.copy()
        advances[-1] -= np.uint64(error is not None)
        payload = frame.payload._replace(seek=SeekTable(seek.log2_block, seek.lengths, advances))
        data = gcodec.Frame(frame.codec, frame.dtype, frame.shape, payload).to_bytes()
        yield Crafted(f"units every {distance} elements", error, data)


def _range(start: int, stop: int, data: bytes, key: bytes | None = None) -> np.ndarray:
    return gcodec.decode_range(data, start, stop, key=key)


def _block_at_the_end() -> Crafted:
    """Return a rANS string whose second block begins in its last bytes, by the seek table."""
    x = np.random.default_rng(1).standard_normal(RANS_BLOCK + 32).astype(np.float32)
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, "ecsq:step=1")).with_seek(18)
    table = frame.payload.seek
    assert table is not None
    offsets = table.offsets.copy()
    offsets[1] = offsets[2] - 32
    payload = frame.payload._replace(seek=SeekTable.of(18, offsets, None, table.states))
    data = gcodec.Frame(frame.codec, frame.dtype, frame.shape, payload).to_bytes()
    return Crafted("a late block", "Corrupt", data, functools.partial(_range, RANS_BLOCK, x.size))


def _dense_from(first: int, data: bytes, key: bytes | None = None) -> np.ndarray:
    """Read two one-byte words, the second from its own position, the first from `first`."""
    code, out = level_codes.word_code("rice", 127, {"rice": 7}), np.empty(2, np.uint8)
    rows = np.array([first, 8, 16]), np.array([1, 2]), out, np.empty(0, np.uint64)
    prefix_read.read_blocks(code, np.frombuffer(data, np.uint8), *rows, 16, True)
    return out


def _sparse_from(first: int, data: bytes, key: bytes | None = None) -> np.ndarray:
    """Read two units of gap, sign and level in the way `_dense_from` reads words."""
    code, bytes_ = level_codes.run_level_code("omega", 1, {}), np.empty((2, 2), np.uint8)
    units = RunLevelPairs(*bytes_, np.empty(2, np.uint64), np.empty(0, np.uint64))
    rows = np.array([first, 3, 6]), np.array([1, 2])
    run_level_read.read_pair_blocks(code, np.frombuffer(data, np.uint8), *rows, units, 6, True)
    return units.symbols


def _no_words(first: int, data: bytes, key: bytes | None = None) -> np.ndarray:
    """Read two empty blocks of words from bit `first` of 16."""
    code, out = level_codes.word_code("rice", 127, {"rice": 7}), np.empty(0, np.uint8)
    rows = np.full(3, first), np.zeros(2, np.int64), out, np.empty(0, np.uint64)
    prefix_read.read_blocks(code, np.frombuffer(data, np.uint8), *rows, 16, True)
    return out


def _no_pairs(first: int, data: bytes, key: bytes | None = None) -> np.ndarray:
    """Read two empty blocks of units from bit `first` of 6."""
    code, bytes_ = level_codes.run_level_code("omega", 1, {}), np.empty((2, 0), np.uint8)
    units = RunLevelPairs(*bytes_, np.empty(0, np.uint64), np.empty(0, np.uint64))
    rows = np.full(3, first), np.zeros(2, np.int64)
    run_level_read.read_pair_blocks(code, np.frombuffer(data, np.uint8), *rows, units, 6, True)
    return units.symbols


def _elsewhere() -> Iterator[Crafted]:
    """Yield strings with block starts out of bounds, which seek tables check first."""
    for read, data in ((_dense_from, b"\x85\x87"), (_sparse_from, b"\0")):
        yield Crafted(f"blocks of {read.__name__}", None, data, functools.partial(read, 0))
        for first in (-(2**40), -8, 17, 2**40):
            name = f"a block of {read.__name__} at {first}"
            yield Crafted(name, "Corrupt", data, functools.partial(read, first))
    for read, first in ((_no_words, 17), (_no_pairs, 7)):  # the bit after the end
        yield Crafted(
            f"blocks of {read.__name__}", "Corrupt", b"\0\0", functools.partial(read, first)
        )


def _words(code: Code, count: int, data: bytes, key: bytes | None = None) -> Any:
    return code.decode(data.decode(), count)


def _universal() -> Iterator[Crafted]:
    """Yield intact and damaged words of universal codes, with the reference's verdict."""
    for code in (*CODES, entropy.parse("golomb")):  # words no longer than unary
        write, _, first = universal.parse(str(code))
        numbers = (first, first + 1, 9, 300, 2**40, 2**63, LARGEST)
        lengths = code.lengths(np.array(numbers, np.uint64))
        written = [write(n) for n, nbits in zip(numbers, lengths, strict=True) if nbits < 400]
        texts = ["0" * 200, "1" * 200, "0" * 5 + "1" * 200]
        texts += [zeros * "0" + "1" + 64 * bit for zeros in (8, 63, 64, 65) for bit in "01"]
        for word in written:
            texts += [word, word + written[0], word[:-1], word[: len(word) // 2 + 1], "1" + word]
            texts += ["0" + word, word.replace("0", "1"), word + "0" * 200]
        asked = [(text, 1) for text in texts]
        asked += [(word + more, 2) for word in written for more in ("", written[0])]
        for text, count in dict.fromkeys(asked):
            try:
                universal.decode(str(code), text, count)
                error = None
            except ValueError as refused:
                error = type(refused).__name__
            read = functools.partial(_words, code, count)
            yield Crafted(f"{count} of {code} in {text}", error, text.encode(), read)
