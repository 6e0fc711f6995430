"""Malformed lists of scales and of exceptions, each with a single defect.

The lists are in payloads of ecsq with rows of eight elements; only rANS states follow them.
"""

from __future__ import annotations

from collections.abc import Iterator

from reference import frame as frames
from reference import leb128, universal
from reference.universal import fixed, rice

TABLE, LANES, WIDTH = 11, 2, 8
SCALARS = bytes.fromhex("0000803f 8001 8001 8001")  # a step of 1, and centroids in the middle
STATES = 2 * fixed(1 << 15, 32)
HEAD, K = 11, 3  # bits of the head of a list, and of the parameter of its Rice words
ROW = "00" + "11" + fixed(56, 7) + fixed(1, 7) + fixed(0, K) + rice(0, 0)  # a list of one scale


def wrong_lists() -> Iterator[tuple[str, str, bytes]]:
    """Yield the name of each defect, the expected error, and a frame."""
    for name, error, rows, text in _scale_lists():
        yield f"scales: {name}", error, _frame(rows, 0, text)
    for name, error, count, text in _exception_lists():
        yield f"exceptions: {name}", error, _frame(1, count, ROW + text)


def frame_of_text(codec: int, n: int, params: bytes, scalars: bytes, text: str) -> bytes:
    """Return a frame of n float32 elements, whose payload consists of the bits in a text."""
    payload = universal.to_bytes(text)
    frame: bytes = frames.build(codec, 1, (n,), params, scalars, payload, len(text))
    return frame


def ecsq_frame(n: int, payload: bytes) -> bytes:
    """Return a frame of ecsq with n elements."""
    return frame_of_text(13, n, b"", SCALARS, universal.to_text(payload))


def _frame(rows: int, exceptions: int, text: str) -> bytes:
    head = bytes([TABLE, LANES, WIDTH, 0]) + leb128.encode(exceptions)
    return ecsq_frame(WIDTH * rows, head + universal.to_bytes(text))


def _list_head(code: int, shift: int = 0, least: int = 1) -> str:
    return fixed(code, 2) + fixed(shift, 2) + fixed(least, 7)


def _rice(center: int, k: int, *words: str, least: int = 1) -> str:
    return _list_head(0, least=least) + fixed(center, 7) + fixed(k, K) + "".join(words)


def _words(*lengths: int, least: int = 1) -> str:
    """Return the bits of a list up to the start of its Huffman codewords."""
    table = "".join(fixed(length, 4) for length in lengths)
    return _list_head(1, least=least) + fixed(len(lengths) - 1, 8) + table


def _scale_lists() -> Iterator[tuple[str, str, int, str]]:
    """Yield name, error, number of rows, and the bits of a list of scales."""
    yield "no head", "Truncated", 1, "0" * 8
    yield "an unknown code", "Corrupt", 1, _list_head(3) + STATES
    yield "more than there are bits", "Truncated", 1000, _rice(0, 0) + STATES
    yield "no parameter", "Truncated", 1, _list_head(0)
    yield "no word", "Truncated", 8, _rice(0, 0) + 19 * "0"
    yield "zeros to the end", "Truncated", 64, _rice(0, 0) + 131 * "0"
    yield "an incomplete word", "Truncated", 8, _rice(0, 7) + 10 * "0" + "1"
    yield "a scale below 0", "Corrupt", 1, _rice(0, 0, rice(1, 0)) + STATES
    yield "a scale above 127", "Corrupt", 1, _rice(2, 0, rice(2, 0), least=126) + STATES
    yield "no largest symbol", "Truncated", 1, _list_head(1)
    yield "no table", "Truncated", 1, _list_head(1) + fixed(255, 8) + STATES
    yield "a largest symbol without a word", "Corrupt", 1, _words(1, 1, 0) + STATES
    yield "a word that is too long", "Corrupt", 1, _words(1, 13) + STATES
    yield "too many words", "Corrupt", 1, _words(1, 1, 1) + STATES
    yield "too few words", "Corrupt", 1, _words(1, 2) + STATES
    yield "one word, of two bits", "Corrupt", 1, _words(0, 2) + STATES
    yield "bits that are no word", "Corrupt", 1, _words(0, 1) + "1" + STATES
    full = _words(1, 1)
    filled = full + "0" * (-len(full) % 8)
    yield "words up to the end, and one more", "Truncated", len(filled) - len(full) + 1, filled
    half = _words(12, *range(1, 13))
    cut = half + "0" * (-len(half) % 8)
    yield "half of a word", "Truncated", len(cut) - len(half) + 1, cut[:-1] + "1"
    yield "a symbol above 127", "Corrupt", 1, _words(0, 1, 1, least=127) + "1" + STATES


def _exception_lists() -> Iterator[tuple[str, str, int, str]]:
    """Yield name, error, number of exceptions, and the bits of both lists."""
    gap, symbol = fixed(0, 5) + rice(3, 0), fixed(10, 5) + rice(1800, 10)
    large = fixed(31, 5) + rice(1 << 40, 31)  # a value above the largest permitted one
    yield "more than there are bits", "Truncated", 1000, gap + symbol + STATES
    yield "no end of a gap", "Truncated", 1, fixed(0, 5) + 29 * "0"
    yield "no parameter of symbols", "Truncated", 1, fixed(0, 5) + rice(12, 0)
    yield "no end of a symbol", "Truncated", 1, gap + fixed(0, 5) + 16 * "0"
    yield "a gap of 2^40", "Corrupt", 1, large + symbol + STATES
    yield "a symbol of 2^40", "Corrupt", 1, gap + large + STATES
    yield "a negative 0", "Corrupt", 1, gap + fixed(0, 5) + rice(1, 0) + STATES
    yield "behind the end", "Corrupt", 1, fixed(0, 5) + rice(8, 0) + symbol + STATES
