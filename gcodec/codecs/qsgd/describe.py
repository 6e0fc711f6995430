"""Descriptions of the strings of dense and sparse forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gcodec.codecs.qsgd import coding_choice
from gcodec.errors import Corrupt
from gcodec.inspect import tabled
from gcodec.inspect.contexts import context_string
from gcodec.inspect.run_level import units
from gcodec.inspect.walker import FieldSpan, FieldValue, FieldWalker
from gcodec.inspect.words import words
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.prefix import level_codes
from gcodec.kernels.quantize import levels
from gcodec.kernels.quantize.levels import Scale


def dense(
    walk: FieldWalker,
    code: str,
    s: int,
    scalars: Mapping[str, Any],
    scale: Scale,
    coded: CodedMask,
) -> Iterator[FieldSpan]:
    """Describe the string of a dense form, and its table.

    Parameters
    ----------
    walk : FieldWalker
    code : str
        One of `coding_choice.CODES`.
    s : int
        The largest level.
    scalars : mapping
        The parameters of Rice codes.
    scale : Scale
    coded : CodedMask
        The elements whose bucket has a norm above 0.
    """
    buckets = None
    if coded.silent is not None and code != "context":
        buckets = np.flatnonzero(~coded.silent)  # all are full, but for the last one

    def tell(at: int, symbols: np.ndarray) -> Iterator[FieldValue]:
        places = np.arange(at, at + symbols.size)
        if buckets is not None:
            row, offset = np.divmod(places, coded.bucket)
            places = buckets[row] * coded.bucket + offset
        values = _values(symbols, places, scale)
        for symbol, place, value in zip(
            symbols.tolist(), places.tolist(), values.tolist(), strict=True
        ):
            yield FieldValue(_level(symbol), element=place, decoded=(value,), number=place)

    if code in coding_choice.TABLED:
        coder: Any = code
        all_coded = CodedMask.all(coded.words)
        alphabet = coding_choice.alphabet(s)
        table = yield from tabled.table(walk, coder, alphabet, all_coded, _meaning)
        yield from tabled.string(walk, table, "level", "level", coded.words, tell)
    elif code == "context":
        coded_too = coded.n if coded.words else 0
        yield from context_string(walk, "level", "level", coded_too, tell, largest=2 * s + 1)
    else:
        word = level_codes.word_code(code, s, scalars)
        yield from words(walk, "level", "level", word, coded.words, tell)
    walk.finish()


def sparse(
    walk: FieldWalker,
    code: str,
    s: int,
    scalars: Mapping[str, Any],
    scale: Scale,
    coded: CodedMask,
) -> Iterator[FieldSpan]:
    """Describe the string of a sparse form; see `dense`."""

    def tell(at: np.ndarray, symbols: np.ndarray) -> Iterator[FieldValue]:
        values = _values(symbols, at, scale)
        for symbol, place, value in zip(
            symbols.tolist(), at.tolist(), values.tolist(), strict=True
        ):
            if coded.silent is not None and coded.silent[place // coded.bucket]:
                raise Corrupt("a value lies in a bucket whose norm is 0")
            yield FieldValue(_level(symbol), element=place, decoded=(value,))

    unit = level_codes.run_level_code(code, s, scalars)
    yield from units(walk, unit, coded.n, tell)


def _values(symbols: np.ndarray, places: np.ndarray, scale: Scale) -> np.ndarray:
    """Return the float32 values of symbols, given their elements."""
    out = np.empty(places.size, np.float32)
    each = Scale(scale.norms[places // scale.bucket], 1, scale.s)
    levels.dequantize(symbols.astype(levels.symbol_dtype(scale.s)), each, 0, out)
    return out


def _level(symbol: int) -> int:
    return -(symbol >> 1) if symbol & 1 else symbol >> 1


def _meaning(symbol: int) -> str:
    return f"level {_level(symbol):+d}"
