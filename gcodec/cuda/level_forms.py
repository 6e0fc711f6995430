"""Strings of levels in universal words on a device; see `gcodec.kernels.level_forms`."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from gcodec.cuda import dense_string, sparse_string
from gcodec.cuda.codewords import Words, rule_of
from gcodec.cuda.grid import THREADS, blocks, device_with
from gcodec.cuda.live import words_in
from gcodec.cuda.tally import rice_parameter
from gcodec.kernels.level_codes import longest_nbits, unit_code, word_code
from gcodec.kernels.level_forms import Form, Written
from gcodec.kernels.levels import symbol_dtype
from gcodec.kernels.live import Live
from gcodec.kernels.prefix_table import PrefixCode
from gcodec.kernels.table_code import SYMBOLS
from gcodec.kernels.unit_table import NEAR
from gcodec.scalars import Later

_ANY = {"rice": 0, "rice_gap": 0}  # parameters, in place of those to be found


def write(
    symbols: Any, s: int, live: Live, form: str, code: str, every: int, lead: int
) -> Written:
    """Write the shortest string; there is room for the longest, whatever the parameters."""
    device, n = device_with(symbols), symbols.size
    both = form == "auto" and code != "packed"
    names = ("dense", "sparse") if both else (form.replace("auto", "dense"),)
    strings: list[Any] = []
    scalars: list[dict[str, Later]] = []
    for name in names:
        if name == "dense":
            words, found = _dense_words(symbols, s, live, code)
            how = symbol_dtype(s), live, every, lead, 0
            strings.append(dense_string.Measured.of(words, symbols, *how))
        else:
            units, found = _sparse_words(symbols, s, code)
            strings.append(sparse_string.Measured.of(*units, symbols, every, lead))
        scalars.append(found)
    kept, which = device.empty(2, np.int64), cast(Any, 0)
    if both:
        which = Later(device, kept)
        ends = (string.end for string in strings)
        device.launch("level_forms", "keep_shorter", 1, 1, *ends, kept)
    most = 8 * lead + n * max(longest_nbits(name, code, s) for name in names)
    out, forms = device.zeros(-(-most // 32), np.uint32), []
    for name, found, string in zip(names, scalars, strings, strict=True):
        string.put(out)
        nbits, *sums = string.told()
        forms.append(Form(name, code, found, nbits, tuple(sums)))
    if both:
        nbits = Later(device, kept, lambda told: int(told[1]), (kept[1:], 1, 0))
    return Written(out.view(np.uint8), nbits, forms, which)


def _dense_words(
    symbols: Any, s: int, live: Live, code: str
) -> tuple[PrefixCode | Words, dict[str, Later]]:
    """Return words of a dense form, and their parameter."""
    words = word_code(code, s, _ANY)
    if code != "rice":
        return words, {}
    k = rice_parameter(symbols, "zigzag", words_in(device_with(symbols), live))
    return rice_words(k, words), {"rice": k}


def _sparse_words(
    symbols: Any, s: int, code: str
) -> tuple[tuple[PrefixCode | Words, PrefixCode | Words], dict[str, Later]]:
    """Return words of gaps and of levels of a sparse form, and their parameters."""
    gap, level = unit_code(code, s, _ANY)
    if code != "rice":
        return (gap, level), {}
    k, k_gap = rice_parameter(symbols, "levels"), rice_parameter(symbols, "gaps")
    return (rice_words(k_gap, gap, NEAR), rice_words(k, level)), {"rice": k, "rice_gap": k_gap}


def rice_words(k: Later, like: PrefixCode, size: int = SYMBOLS) -> Words:
    """Return the words of a Rice code with another parameter."""
    device, (rule, mapping, shift, _) = k.device, rule_of(like)
    table = device.empty(size + 1, np.uint64)
    made = k.words, mapping, shift, np.int64(size), table
    device.launch("level_forms", "rice_words", blocks(size), THREADS, *made)
    return Words(table, rule, mapping, shift, None)
