"""Levels of a norm and their signs: dense strings, packed or behind a table, and sparse ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gcodec.codecs.qsgd import coding_choice
from gcodec.errors import Corrupt
from gcodec.inspect import tabled
from gcodec.inspect.contexts import context_string
from gcodec.inspect.units import units
from gcodec.inspect.walker import Piece, Told, Walk
from gcodec.inspect.words import words
from gcodec.kernels.bits.live import Live
from gcodec.kernels.prefix import level_codes
from gcodec.kernels.quantize import levels
from gcodec.kernels.quantize.levels import Scale


def dense(
    walk: Walk, code: str, s: int, scalars: Mapping[str, Any], scale: Scale, live: Live
) -> Iterator[Piece]:
    """Tell the string of a dense form, and its table.

    Parameters
    ----------
    walk : Walk
    code : str
        One of `coding_choice.CODES`.
    s : int
        The largest level.
    scalars : mapping
        The parameters of Rice codes.
    scale : Scale
    live : Live
        Which elements have a word.
    """
    elements = _Elements(live if code != "context" else Live.all(live.n))

    def tell(at: int, symbols: np.ndarray) -> Iterator[Told]:
        places = elements.of(at, symbols.size)
        values = _values(symbols, places, scale)
        for symbol, place, value in zip(
            symbols.tolist(), places.tolist(), values.tolist(), strict=True
        ):
            yield Told(_level(symbol), element=place, decoded=(value,), number=place)

    if code in coding_choice.TABLED:
        coder: Any = code
        coded = Live.all(live.words)
        alphabet = coding_choice.alphabet(s)
        found = yield from tabled.table(walk, coder, alphabet, coded, _meaning)
        yield from tabled.string(walk, found, "level", "level", live.words, tell)
    elif code == "context":
        coded_too = live.n if live.words else 0
        yield from context_string(walk, "level", "level", coded_too, tell, largest=2 * s + 1)
    else:
        word = level_codes.word_code(code, s, scalars)
        yield from words(walk, "level", "level", word, live.words, tell)
    walk.finish()


def sparse(
    walk: Walk, code: str, s: int, scalars: Mapping[str, Any], scale: Scale, live: Live
) -> Iterator[Piece]:
    """Tell the string of a sparse form; see `dense`."""

    def tell(at: np.ndarray, symbols: np.ndarray) -> Iterator[Told]:
        values = _values(symbols, at, scale)
        for symbol, place, value in zip(
            symbols.tolist(), at.tolist(), values.tolist(), strict=True
        ):
            if live.silent is not None and live.silent[place // live.bucket]:
                raise Corrupt("a value lies in a bucket whose norm is 0")
            yield Told(_level(symbol), element=place, decoded=(value,))

    unit = level_codes.unit_code(code, s, scalars)
    yield from units(walk, unit, live.n, tell)


class _Elements:
    """Which elements have words."""

    def __init__(self, live: Live) -> None:
        self._bucket, self._first = live.bucket, np.zeros(1, np.int64)
        self._buckets = np.zeros(1, np.int64)
        if live.silent is not None:
            self._buckets = np.flatnonzero(~live.silent)
            self._first = np.arange(self._buckets.size) * live.bucket

    def of(self, at: int, count: int) -> np.ndarray:
        """Return the elements of `count` words from number `at` on."""
        word = np.arange(at, at + count)
        row = np.searchsorted(self._first, word, "right") - 1
        return np.asarray(self._buckets[row] * self._bucket + word - self._first[row])


def _values(symbols: np.ndarray, places: np.ndarray, scale: Scale) -> np.ndarray:
    """Return the float32 numbers that symbols of these elements decode to."""
    out = np.empty(places.size, np.float32)
    each = Scale(scale.norms[places // scale.bucket], 1, scale.s)
    levels.dequantize(symbols.astype(levels.symbol_dtype(scale.s)), each, 0, out)
    return out


def _level(symbol: int) -> int:
    return -(symbol >> 1) if symbol & 1 else symbol >> 1


def _meaning(symbol: int) -> str:
    return f"level {_level(symbol):+d}"
