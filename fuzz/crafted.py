"""Inputs made by hand, for guards of kernels that chance does not find: each with what it gives.

Small frames that must be refused are in ``golden-errors/``. Here is what is larger, what is read
otherwise than by `gcodec.decode`, and what is valid and rare.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from reference import frame as frames
from reference import leb128, positions, tabled, universal
from reference.universal import fixed, rice

import gcodec
from fuzz.crafted_lists import wrong_lists
from fuzz.targets import CODES
from gcodec import entropy
from gcodec.entropy.code import Code
from gcodec.entropy.coder import BitSpan
from gcodec.entropy.positions import IndexString
from gcodec.kernels.prefix import level_codes, prefix, prefix_read, run_level_read
from gcodec.kernels.prefix.run_level import RunLevelPairs
from gcodec.wire.seek import SeekTable

LARGEST = 2**64 - 1
RICE = 47  # the largest parameter of levels and of gaps
RANS_BLOCK = 1 << 18
VALUE = "0" * 32  # of a topk message, as float32
FAR = 2**62  # the most elements that positions are among


class Crafted(NamedTuple):
    """An input.

    Attributes
    ----------
    name : str
    error : str or None
        The error that it gives, if it gives one.
    data : bytes
    read : callable
        (data, key=None) -> array, or a tuple of such.
    """

    name: str
    error: str | None
    data: bytes
    read: Callable[..., Any] = gcodec.decode


def crafted() -> Iterator[Crafted]:
    """Yield all of them."""
    yield from _wide_rice()
    yield from _far()
    yield from _long_gaps()
    yield Crafted("packed levels", "Truncated", b"\0", _packed)
    yield Crafted("a one behind the end", "Truncated", b"\x0a", _cut_short)
    yield _uneven_blocks()
    yield from _blocks_of_units()
    yield _block_at_the_end()
    yield from _elsewhere()
    yield from _universal()
    for wrong_list in wrong_lists():
        yield Crafted(*wrong_list)


def _frame(codec: int, n: int, params: bytes, scalars: bytes, text: str) -> bytes:
    payload = universal.to_bytes(text)
    frame: bytes = frames.build(codec, 1, (n,), params, scalars, payload, len(text))
    return frame


def _qsgd(form: int, scalars: bytes, text: str) -> bytes:
    """Return a frame of Rice words of levels up to 2^24 − 1, of eight elements and the norm 1."""
    params = leb128.encode(2**24 - 1) + bytes([form, 0, 0, 1])
    norm = universal.to_text(struct.pack(">f", 1))
    return _frame(2, 8, params, scalars, norm + text)


def _wide_rice() -> Iterator[Crafted]:
    """Yield words of 2^64 and of the number below it, to which nothing can be added."""
    most, others = rice(LARGEST, RICE), 7 * rice(0, RICE)
    zeros = "0" + most[: most.index("1")]
    words = {"2^64 - 1": most, "2^64": zeros + "1" + RICE * "0", "more": zeros + "1" + RICE * "1"}
    for name, word in words.items():
        yield Crafted(f"a level of {name}", "Corrupt", _qsgd(0, bytes([RICE]), word + others))
        unit = word + "0" + rice(0, 0)
        yield Crafted(f"a gap of {name}", "Corrupt", _qsgd(1, bytes([0, RICE]), unit))


def _topk(index: str, n: int, k: int, text: str) -> bytes:
    params = bytes([0, positions.CODES.index(index)]) + leb128.encode(k + 1)
    return _frame(9, n, params, b"", k * VALUE + text)


def _sparse(data: bytes, key: bytes | None = None) -> Any:
    return gcodec.decode_sparse(data, limits=gcodec.Limits(2 * FAR, 8 * FAR), key=key)


def _far() -> Iterator[Crafted]:
    """Yield positions in tensors for which there is no memory: they are read sparsely."""
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
        error = "Corrupt" if sent > 1 else None  # together 2^62, if nobody minds the carry
        data = _topk(index, FAR, sent, text)
        yield Crafted(f"{sent} distances in {index}", error, data, _sparse)


def _long_gaps() -> Iterator[Crafted]:
    """Yield Rice words that are longer than 64 bits, though none need be."""
    for parameter, gap in ((0, 64), (0, 200), (3, 600), (6, 6000)):
        places = [0, gap, gap + 1, 3 * gap]
        text = positions.write("rice", places, 4 * gap, [parameter])
        data = _topk("rice", 4 * gap, 4, text)
        yield Crafted(f"gaps of {gap} with {parameter}", None, data)


def _packed(data: bytes, key: bytes | None = None) -> Any:
    """Read more words of three bits than there are, as dissection does."""
    code = level_codes.word_code("packed", 2, {})
    return prefix.read(code, np.frombuffer(data, np.uint8), 8 * len(data), 3)


def _cut_short(data: bytes, key: bytes | None = None) -> Any:
    """Read positions whose last one lies in the fill, which codecs look at before."""
    end = 8 * len(data) - 2
    return IndexString(BitSpan(np.frombuffer(data, np.uint8), 0, end), "eliasfano", 2, 8).read()


def _uneven_blocks() -> Crafted:
    """Return a frame of which some blocks have no words, and end before others that are read."""
    x = np.random.default_rng(1).standard_normal(1024).astype(np.float32)
    x.reshape(-1, 64)[::3] = 0
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, "qsgd:code=huffman,bucket=64"))
    return Crafted("silent blocks", None, frame.with_seek(6).to_bytes())


def _blocks_of_units() -> Iterator[Crafted]:
    """Yield values far apart in many blocks, and a last block said to end before it does."""
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
    """Return a rANS string whose table says that its second block begins in its last bytes."""
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
    """Read two words of a byte each, the second from its own place, the first from any."""
    code, out = level_codes.word_code("packed", 127, {}), np.empty(2, np.uint8)
    rows = np.array([first, 8, 16]), np.array([1, 2]), out, np.empty(0, np.uint64)
    prefix_read.read_blocks(code, np.frombuffer(data, np.uint8), *rows, 16, True)
    return out


def _sparse_from(first: int, data: bytes, key: bytes | None = None) -> np.ndarray:
    """Read two units of gap, sign and level as `_dense_from` reads words."""
    code, bytes_ = level_codes.run_level_code("omega", 1, {}), np.empty((2, 2), np.uint8)
    units = RunLevelPairs(*bytes_, np.empty(2, np.uint64), np.empty(0, np.uint64))
    rows = np.array([first, 3, 6]), np.array([1, 2])
    run_level_read.read_pair_blocks(code, np.frombuffer(data, np.uint8), *rows, units, 6, True)
    return units.symbols


def _elsewhere() -> Iterator[Crafted]:
    """Yield strings whose blocks are said to begin outside, which seek tables look at before."""
    for read, data in ((_dense_from, b"\5\7"), (_sparse_from, b"\0")):
        yield Crafted(f"blocks of {read.__name__}", None, data, functools.partial(read, 0))
        for first in (-(2**40), -8, 17, 2**40):
            name = f"a block of {read.__name__} at {first}"
            yield Crafted(name, "Corrupt", data, functools.partial(read, first))


def _words(code: Code, count: int, data: bytes, key: bytes | None = None) -> Any:
    return code.decode(data.decode(), count)


def _universal() -> Iterator[Crafted]:
    """Yield words of universal codes, whole and damaged, with what the reference says of them."""
    for code in (*CODES, entropy.parse("golomb")):  # words of no more bits than unary ones
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
