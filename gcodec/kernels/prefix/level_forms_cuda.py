"""Strings of levels in universal codes, measured on a device before one of them is written."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.coded_mask_cuda import words_in
from gcodec.kernels.prefix import dense_string_cuda, level_fields_cuda, sparse_string_cuda
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

Measured = dense_string_cuda.Measured | level_fields_cuda.Measured | sparse_string_cuda.Measured
_UNKNOWN = {"rice": 0, "rice_gap": 0}  # parameters, in place of those that a device finds


def measure_form(
    symbols: Array, s: int, coded: CodedMask, form: str, code: str, block_size: int, lead: int
) -> tuple[Measured, dict[str, Deferred]]:
    """Measure the string of levels in a form and code; return it with its Rice parameters.

    See `level_codes.plan` and `dense_string.write` for the parameters.
    """
    if form == "sparse":
        gap, level = run_level_code(code, s, _UNKNOWN)
        if code != "rice":
            return sparse_string_cuda.Measured.of(gap, level, symbols, block_size, lead), {}
        k, k_gap = rice_parameter(symbols, "levels"), rice_parameter(symbols, "gaps")
        words = rice_words(k_gap, gap, NEAR), rice_words(k, level)
        string = sparse_string_cuda.Measured.of(*words, symbols, block_size, lead)
        return string, {"rice": k, "rice_gap": k_gap}
    if code == "packed":
        return level_fields_cuda.Measured.of(symbols, s, coded, lead), {}
    word, layout = word_code(code, s, _UNKNOWN), (symbol_dtype(s), coded, block_size, lead, 0)
    if code != "rice":
        return dense_string_cuda.Measured.of(word, symbols, *layout), {}
    k = rice_parameter(symbols, "zigzag", words_in(device_with(symbols), coded))
    return dense_string_cuda.Measured.of(rice_words(k, word), symbols, *layout), {"rice": k}


def rice_words(k: Deferred, like: PrefixCode, size: int = SYMBOLS) -> Words:
    """Return the words of a Rice code with parameter k, and otherwise the rules of another."""
    device, (rule, mapping, shift, _) = k.device, rule_of(like)
    table = device.empty(size + 1, np.uint64)
    arguments = k, mapping, shift, size, table
    device.launch("level_forms", "rice_words", blocks(size), THREADS, *arguments)
    return Words(table, rule, mapping, shift, None)
