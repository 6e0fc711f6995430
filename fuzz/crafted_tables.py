"""Malformed tables, heads and lists, each of which one guard alone refuses.

Without this guard, a reader returns values or raises another kind of error. Some inputs are valid,
and reach branches that other inputs do not reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from reference import ans, contexts, dct8, frame, leb128, lowrank, sparseloco, universal
from reference.universal import fixed

import gcodec
from fuzz.crafted_lists import ecsq_frame, frame_of_text
from gcodec.entropy.huffman import code_lengths

WIDTH, LANES = 8, 2
MODEL = (500, 700)  # frequencies of the escape, and of the symbols of magnitude 1
READ = Callable[..., Any]


def wrong_tables() -> Iterator[tuple[str, str | None, bytes, READ]]:
    """Yield the name of each defect, the expected error or None, the data, and their reader."""
    for name, error, data in (*_lists(), *_class_tables(), *_frames()):
        yield name, error, data, gcodec.decode
    for name, counts in (("below 0", (0, -1)), ("above 2^62", (1, 127)), ("of 17", 17 * (1,))):
        yield f"counts {name}", "ParameterError", np.int8(counts).tobytes(), _lengths_of
    yield "block means that are added", None, _block_means(), _added


def _string(rows: list[int]) -> contexts.String:
    """Return a string of zeros, whose rows have these scales."""
    symbols, lists = len(rows) * WIDTH * [0], (contexts.HUFFMAN, 0)
    return contexts.write_string(symbols, WIDTH, 0, (rows, []), 0, LANES, lists)


def _lists() -> Iterator[tuple[str, str, bytes]]:
    """Yield lists of scales whose table is the only defect, and lists that end too early."""
    for name, rows, lengths, words in (
        ("many words", [50, 51], (0, 1, 1, 1), "01"),
        ("few words", [50, 51], (0, 1, 2), "010"),
        ("long a word", [50, 50], (0, 2), "0000"),
        ("large a largest number", [50, 51], (0, 1, 1, 0), "01"),
    ):
        text = fixed(contexts.HUFFMAN, 2) + fixed(0, 2) + fixed(50, 7) + fixed(len(lengths) - 1, 8)
        text += "".join(map(_nibble, lengths)) + words
        payload = _replaced(_string(rows), text)
        yield f"scales of zeros: too {name}", "Corrupt", ecsq_frame(2 * WIDTH, payload)
    string = _string([0])._replace(table=contexts.Table(40, [MODEL]))
    text = fixed(contexts.HUFFMAN, 2) + fixed(0, 2) + fixed(50, 7) + fixed(1, 8) + "00000001"
    payload = _replaced(string, text + contexts.table_text(string.table))
    yield (
        "scales of zeros: bits of a class table for a word",
        "Corrupt",
        ecsq_frame(WIDTH, payload),
    )
    head = bytes([0, LANES, WIDTH, 0, 0])
    yield "scales: half a head of an unknown code", "Truncated", ecsq_frame(WIDTH, head + b"\xc0")
    text = contexts.write_list([50], contexts.list_of([50], contexts.RICE)) + fixed(0, 5)
    payload = bytes([0, LANES, WIDTH, 0, 2]) + universal.to_bytes(text + 40 * "0")
    yield "exceptions: no end of the first of two gaps", "Truncated", ecsq_frame(WIDTH, payload)
    text = contexts.write_list([50], contexts.list_of([50], contexts.RICE)) + fixed(0, 5) + "1"
    text += (14 - len(text) % 8) * "0" + "1"  # the second gap, and a bit in place of a parameter
    payload = bytes([0, LANES, WIDTH, 0, 2]) + universal.to_bytes(text + "1")
    yield "exceptions: a bit of a parameter of symbols", "Truncated", ecsq_frame(WIDTH, payload)


def _replaced(string: contexts.String, text: str) -> bytes:
    """Return the bytes of a string with another list of scales of rows, and its own table."""
    sent = contexts.table_text(string.table) if isinstance(string.table, contexts.Table) else ""
    right = contexts.lead(string, sent, {})
    data = universal.to_bytes(contexts.write(string))
    front = universal.to_text(data[:5]) + text
    front += -len(front) % 8 * "0"
    return universal.to_bytes(front) + data[len(right) // 8 :]


def _class_tables() -> Iterator[tuple[str, str, bytes]]:
    """Yield transmitted tables of one class."""
    string = _string([50])._replace(table=contexts.Table(0, [MODEL]))
    right = contexts.write(string)
    symbols = right[len(contexts.lead(string, contexts.table_text(string.table), {})) :]
    head = fixed(0, 6) + fixed(0, 6)
    wrong = {
        "no escape": fixed(1, 7) + ans.number(0) + ans.number(700),
        "no symbol 2": fixed(1, 7) + ans.number(500) + ans.number(0),
        "no symbol 0": fixed(1, 7) + ans.number(1) + ans.number(2048),
        "127 magnitudes": fixed(127, 7) + 128 * ans.number(1),
    }
    for name, line in wrong.items():
        text = contexts.lead(string, head + line, {}) + symbols
        yield f"classes: {name}", "Corrupt", ecsq_frame(WIDTH, universal.to_bytes(text))
    large = fixed(12, 4) + fixed(0, 11)  # the frequency 2048
    for name, line, left in (
        ("no largest magnitude", "", 6),
        ("no length", fixed(0, 7), 3),
        ("no rest", fixed(1, 7) + large + fixed(12, 4), 10),
    ):
        for rows in range(1, 9):  # words of scales, until only `left` bits follow the line
            own = contexts.write_list(rows * [50], contexts.list_of(rows * [50], contexts.RICE))
            text = (
                universal.to_text(bytes([contexts.SENT, LANES, WIDTH, 0, 0])) + own + head + line
            )
            if -len(text) % 8 == left % 8:
                payload = universal.to_bytes(text + left * "0")
                yield f"classes: {name}", "Truncated", ecsq_frame(WIDTH * rows, payload)


def _frames() -> Iterator[tuple[str, str | None, bytes]]:
    """Yield frames of other codecs than ecsq."""
    params, step = lowrank.parameters(1, False), lowrank.scalars(np.float32(1))
    data = frame.build(14, 1, (8, 8), params, step, bytes(3), 24)
    yield "factors: no end of the first word", "Truncated", data

    chunks = dct8.Setting((64,), 32)
    levels = [(j % 2, 127 - 4 * j) for j in range(32)]
    text = dct8.text_of(chunks, [dct8.Chunk((0x3F800000,), [*range(32)], levels)], 64)
    yield (
        "magnitudes of fixed width",
        None,
        frame_of_text(11, 64, dct8.parameters(chunks), b"", text),
    )

    tiles = sparseloco.Setting(1, 4)
    numbers = [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    payload, nbits = sparseloco.write(sparseloco.Message(tiles, [0, 1], [0, 0], numbers), 8)
    text, params = universal.to_text(payload)[:nbits], sparseloco.parameters(tiles)
    yield "two positions in a tile", "Corrupt", frame_of_text(19, 8, params, b"", text)

    norm = universal.to_text(bytes.fromhex("3f800000"))
    for name, error, code, text in (
        ("a word of 13 bits", "Corrupt", 3, "".join(map(_nibble, (1, 13, 1))) + 8 * "0"),
        ("no end of a frequency", "Truncated", 4, _nibble(12) + _nibble(12) + "00"),
    ):
        params = leb128.encode(1) + bytes([0, 0, 0, code])
        yield name, error, frame_of_text(2, 8, params, b"", norm + text)


def _nibble(number: int) -> str:
    return fixed(number, 4)


def _lengths_of(data: bytes, key: bytes | None = None) -> np.ndarray:
    """Return lengths of up to four bits for counts that are multiples of 2^56, or below 0."""
    return code_lengths(np.frombuffer(data, np.int8).astype(np.int64) << 56, 4)


def _block_means() -> bytes:
    x = np.arange(40, dtype=np.float32)
    return bytes(gcodec.encode(x, "blockwise:kind=meanstd16,block=16"))


def _added(data: bytes, key: bytes | None = None) -> np.ndarray:
    total = np.ones(40, np.float32)
    gcodec.decode_add(data, total, key=key)
    return total
