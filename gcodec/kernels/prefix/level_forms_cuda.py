"""Strings of levels in universal codes, measured on a device before one of them is written."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.coded_mask_cuda import words_in
from gcodec.kernels.prefix import dense_string_cuda, sparse_string_cuda
from gcodec.kernels.prefix.codewords_cuda import Words, rule_of
from gcodec.kernels.prefix.level_codes import run_level_code, word_code
from gcodec.kernels.prefix.prefix_table import PrefixCode
from gcodec.kernels.prefix.run_level import NEAR
from gcodec.kernels.prefix.table_code import SYMBOLS
from gcodec.kernels.prefix.tally_cuda import rice_parameter
from gcodec.kernels.quantize.levels import symbol_dtype
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, blocks, device_with
from gcodec.runtime.deferred import Deferred

_UNKNOWN = {"rice": 0, "rice_gap": 0}  # parameters, in place of those that a device finds


def measure_form(
    symbols: Array, s: int, coded: CodedMask, form: str, code: str, every: int, lead: int
) -> tuple[dense_string_cuda.Measured | sparse_string_cuda.Measured, dict[str, Deferred]]:
    """Measure the string of levels in a form and code; return it with its Rice parameters.

    See `level_codes.plan` and `dense_string.write` for the parameters.
    """
    if form == "sparse":
        gap, level, scalars = _sparse_words(symbols, s, code)
        return sparse_string_cuda.Measured.of(gap, level, symbols, every, lead), scalars
    words, scalars = _dense_words(symbols, s, coded, code)
    layout = symbol_dtype(s), coded, every, lead, 0
    return dense_string_cuda.Measured.of(words, symbols, *layout), scalars


def _dense_words(
    symbols: Array, s: int, coded: CodedMask, code: str
) -> tuple[PrefixCode | Words, dict[str, Deferred]]:
    """Return the words of a dense form, and their parameter."""
    words = word_code(code, s, _UNKNOWN)
    if code != "rice":
        return words, {}
    k = rice_parameter(symbols, "zigzag", words_in(device_with(symbols), coded))
    return rice_words(k, words), {"rice": k}


def _sparse_words(
    symbols: Array, s: int, code: str
) -> tuple[PrefixCode | Words, PrefixCode | Words, dict[str, Deferred]]:
    """Return the words of gaps and of levels of a sparse form, and their parameters."""
    gap, level = run_level_code(code, s, _UNKNOWN)
    if code != "rice":
        return gap, level, {}
    k, k_gap = rice_parameter(symbols, "levels"), rice_parameter(symbols, "gaps")
    scalars = {"rice": k, "rice_gap": k_gap}
    return rice_words(k_gap, gap, NEAR), rice_words(k, level), scalars


def rice_words(k: Deferred, like: PrefixCode, size: int = SYMBOLS) -> Words:
    """Return the words of a Rice code with parameter k, and otherwise the rules of another."""
    device, (rule, mapping, shift, _) = k.device, rule_of(like)
    table = device.empty(size + 1, np.uint64)
    device.launch(
        *("level_forms", "rice_words", blocks(size), THREADS),
        *(k.words, mapping, shift, np.int64(size), table),
    )
    return Words(table, rule, mapping, shift, None)
