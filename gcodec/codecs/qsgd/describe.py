"""Descriptions of the strings of levels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gcodec.codecs.qsgd.payload import TABLED, Plan, alphabet, dequantized
from gcodec.errors import Corrupt
from gcodec.fields import tabled
from gcodec.fields.contexts import context_string
from gcodec.fields.run_level import run_level_pairs
from gcodec.fields.walker import DescribeSymbols, FieldSpan, FieldValue, FieldWalker
from gcodec.fields.words import words
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.prefix import level_codes
from gcodec.kernels.prefix.level_fields import field_error, width_of
from gcodec.kernels.quantize.levels import Scale


def level_fields(
    walk: FieldWalker, plan: Plan, scale: Scale, coded: CodedMask
) -> Iterator[FieldSpan]:
    """Describe the string of a plan, and its table, up to the end of the payload.

    Parameters
    ----------
    walk : FieldWalker
    plan : Plan
        Form, code and Rice parameters; the payload contains the table.
    scale : Scale
    coded : CodedMask
        The elements whose bucket has a nonzero norm.
    """

    def values_at(positions: np.ndarray, symbols: np.ndarray) -> Iterator[FieldValue]:
        values = dequantized(symbols, positions, scale)
        for symbol, position, value in zip(
            symbols.tolist(), positions.tolist(), values.tolist(), strict=True
        ):
            yield FieldValue(_level(symbol), element=position, decoded=(value,))

    def sparse_levels(positions: np.ndarray, symbols: np.ndarray) -> Iterator[FieldValue]:
        for position, level in zip(positions, values_at(positions, symbols), strict=True):
            if coded.uncoded is not None and coded.uncoded[position // coded.bucket]:
                raise Corrupt("a value lies in a bucket whose norm is 0")
            yield level

    def dense_levels(at: int, symbols: np.ndarray) -> Iterator[FieldValue]:
        positions = np.arange(at, at + symbols.size)
        if coded_buckets is not None:
            row, offset = np.divmod(positions, coded.bucket)
            positions = coded_buckets[row] * coded.bucket + offset
        for level in values_at(positions, symbols):
            yield level._replace(number=level.element)

    s, code = scale.s, plan.code
    if plan.form == "sparse":
        pairs = level_codes.run_level_code(code, s, plan.scalars)
        yield from run_level_pairs(walk, pairs, coded.n, sparse_levels)
        return
    coded_buckets = None
    if coded.uncoded is not None and code != "context":
        coded_buckets = np.flatnonzero(~coded.uncoded)  # all are full, except for the last one
    if code in TABLED:
        mask = CodedMask.all(coded.words)
        table = yield from tabled.table(walk, code, alphabet(s), mask, _meaning)
        yield from tabled.string(walk, table, "level", "level", coded.words, dense_levels)
    elif code == "context":
        n = coded.n if coded.words else 0
        yield from context_string(walk, "level", n, dense_levels, largest=2 * s + 1)
    elif code == "packed":
        yield from _packed_levels(walk, s, coded.words, dense_levels)
    else:
        word_code = level_codes.word_code(code, s, plan.scalars)
        yield from words(walk, "level", "level", word_code, coded.words, dense_levels)
    walk.finish()


def _packed_levels(
    walk: FieldWalker, s: int, count: int, describe: DescribeSymbols
) -> Iterator[FieldSpan]:
    """Describe levels in fields of equal width, up to the first field without a level."""

    def described(at: int, fields: np.ndarray) -> Iterator[FieldValue]:
        above = np.append(fields > 2 * s, True)
        odd = fields & 1
        yield from describe(at, (fields + odd + odd)[: above.argmax()])
        if above[:-1].any():
            raise field_error(walk.at)

    yield from walk.fields("level", "level", width_of(s), count, described)


def _level(symbol: int) -> int:
    return -(symbol >> 1) if symbol & 1 else symbol >> 1


def _meaning(symbol: int) -> str:
    return f"level {_level(symbol):+d}"
