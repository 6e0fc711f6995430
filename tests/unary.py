"""A simple codec with seek tables, for tests of the code around codecs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from gcodec import Corrupt, Truncated
from gcodec.codec import Codec, registry
from gcodec.payload import Payload
from gcodec.wire import seek
from gcodec.wire.kinds import Choice
from gcodec.wire.params import param
from gcodec.wire.seek import Blocks, SeekTable

ID, NAME = 201, "test-unary"
PREAMBLE = b"\xaa\x55"  # precedes the coded bits, as norms do
WORDS = {"dense": 1, "sparse": 2}


def zigzag(levels: np.ndarray) -> np.ndarray:
    return np.where(levels < 0, -2 * levels - 1, 2 * levels)


def unzigzag(words: np.ndarray) -> np.ndarray:
    return np.where(words & 1, -(words + 1) // 2, words // 2)


@registry.register(id=ID, name=NAME)
class Unary(Codec):
    """Integers from -4 to 4 in unary, all of them or only nonzero ones, after 16 bits."""

    form: str = param(Choice("dense", "sparse", unsent=("auto",)), "auto", "which")

    def max_payload_nbits(self, n: int) -> int:
        return 16 + 9 * n if self.form != "sparse" else 16 + 9 * n + n

    def _quantize(self, values: np.ndarray, seed: int, prior: Any) -> np.ndarray:
        return np.clip(np.rint(values), -4, 4).astype(np.int64)

    def _dequantize(self, symbols: np.ndarray, out: np.ndarray) -> None:
        self._require(symbols.size == out.size, out.size)
        out[:] = symbols

    def _words(self, levels: np.ndarray) -> np.ndarray:
        if self.form == "dense":
            return zigzag(levels)
        places = np.flatnonzero(levels)
        gaps = np.diff(places, prepend=-1) - 1
        return np.stack((gaps, zigzag(levels[places]) - 1), axis=1).reshape(-1)

    def _pack(self, symbols: np.ndarray) -> Payload:
        if self.form == "auto":
            result = (Unary(form=form)._pack(symbols) for form in WORDS)
            return min(result, key=lambda payload: payload.nbits)
        ends = np.cumsum(self._words(symbols) + 1)
        bits = np.zeros(ends[-1] if ends.size else 0, np.uint8)
        bits[ends - 1] = 1
        data = np.frombuffer(PREAMBLE + np.packbits(bits).tobytes(), np.uint8)
        payload = Payload(self, {}, data, 16 + bits.size)
        table = self._index(payload, symbols.size, seek.LOG2_BLOCK)
        if seek.worthwhile(table, symbols.size, payload.nbits):
            payload = payload._replace(seek=table)
        return payload

    def _unpack(self, payload: Payload, n: int) -> np.ndarray:
        bits = np.unpackbits(payload.data)
        if payload.nbits < 16:
            raise Truncated("no preamble")
        if payload.data[:2].tobytes() != PREAMBLE or bits[payload.nbits :].any():
            raise Corrupt("preamble or padding")
        bits = bits[16 : payload.nbits]
        if payload.seek is None:
            return self._block(bits, 0, n, None)
        payload.seek.must_cover(bits.size)
        offsets, positions = payload.seek.offsets, payload.seek.positions
        if positions is None:
            edges = np.minimum(np.arange(offsets.size) << payload.seek.log2_block, n)
        else:
            edges = positions.copy()
            edges[-1] = n
        # Decode each block separately, in reverse order.
        levels = np.zeros(n, np.int64)
        for i in reversed(range(payload.seek.count)):
            part = bits[offsets[i] : offsets[i + 1]]
            first, end = edges[i], edges[i + 1]
            levels[first:end] = self._block(part, first, end, payload.seek)
            if positions is not None:
                used = np.flatnonzero(levels[first:end])
                full = 1 << payload.seek.log2_block
                if used.size != full and (i < payload.seek.count - 1 or used.size > full):
                    raise Corrupt("a block of another number of values")
                if not used.size or used[-1] != positions[i + 1] - first - 1:
                    raise Corrupt("a block that ends elsewhere")
        return levels

    def _block(self, bits: np.ndarray, first: int, end: int, table: Any) -> np.ndarray:
        if bits.size and not bits[-1]:
            raise (Truncated if table is None else Corrupt)("a word has no end")
        words = np.diff(np.flatnonzero(bits), prepend=-1) - 1
        if words.max(initial=0) > 9 and self.form == "dense":
            raise Corrupt("a level above 4")
        if self.form == "dense":
            if words.size != end - first:
                raise Corrupt(f"{words.size} words for {end - first} elements")
            return unzigzag(words)
        if words.size % 2:
            raise (Truncated if table is None else Corrupt)("a gap without a value")
        places = np.cumsum(words[::2] + 1) - 1
        if places.size and places[-1] >= end - first:
            raise Corrupt("a gap past the end")
        levels = np.zeros(end - first, np.int64)
        levels[places] = unzigzag(words[1::2] + 1)
        return levels

    @property
    def seek_blocks(self) -> Blocks | None:
        return {"dense": "elements", "sparse": "values", "auto": None}[self.form]

    def _index(self, payload: Payload, n: int, log2_block: int) -> SeekTable:
        assert payload.seek is None
        levels = self._unpack(payload, n)
        per_value = WORDS[self.form]
        ends = np.cumsum(self._words(levels) + 1)[per_value - 1 :: per_value]
        size = 1 << min(log2_block, 40)
        last = np.append(np.arange(size, ends.size, size), ends.size)[: ends.size] - 1
        lengths = np.diff(ends[last], prepend=0).astype(np.uint64)
        if self.form == "dense":
            return SeekTable(log2_block, lengths)
        places = np.flatnonzero(levels)[last]
        return SeekTable(log2_block, lengths, np.diff(places, prepend=-1).astype(np.uint64))


del registry._registry[NAME]  # the laws test only gcodec's own codecs


@contextlib.contextmanager
def registered() -> Iterator[None]:
    """Register the codec for frames and specs within a context."""
    registry._registry[NAME] = Unary
    try:
        yield
    finally:
        del registry._registry[NAME]


def levels(n: int, seed: int = 0, density: float = 0.4) -> np.ndarray:
    """Draw integers from -4 to 4 as float32."""
    rng = np.random.default_rng(seed)
    return (rng.integers(-4, 5, n) * (rng.random(n) < density)).astype(np.float32)
