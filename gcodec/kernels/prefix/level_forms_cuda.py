"""Strings of levels in universal codes on a device, in several forms of which one is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.coded_mask_cuda import words_in
from gcodec.kernels.numeric.scan_cuda import sums_before
from gcodec.kernels.prefix import dense_string_cuda, sparse_string_cuda
from gcodec.kernels.prefix.codewords_cuda import Words, rule_of
from gcodec.kernels.prefix.level_codes import longest_nbits, unit_code, word_code
from gcodec.kernels.prefix.prefix_table import PrefixCode
from gcodec.kernels.prefix.run_level_table import NEAR
from gcodec.kernels.prefix.table_choice_cuda import Gate
from gcodec.kernels.prefix.table_code import SYMBOLS
from gcodec.kernels.prefix.tally_cuda import rice_parameter
from gcodec.kernels.quantize.levels import symbol_dtype
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, blocks, device_with
from gcodec.runtime.deferred import Deferred

_UNKNOWN = {"rice": 0, "rice_gap": 0}  # parameters, in place of those that a device finds


class WrittenForm(NamedTuple):
    """A string of levels, or nothing where its gate is closed.

    Attributes
    ----------
    scalars : dict of str to Deferred
        Parameters of Rice codes; see `level_codes.Plan`.
    data : uint8 array on the device
        The bytes, which all forms share.
    nbits : Deferred
        Bits of `data`, whichever form is written.
    form_nbits : Deferred
        Bits of this form, with the lead; 0 where it is not written.
    sums : tuple of Deferred
        Positions of blocks; see `dense_string.write` and `sparse_string.write`.
    """

    scalars: dict[str, Deferred]
    data: Array
    nbits: Any
    form_nbits: Any
    sums: tuple[Any, ...]


class MeasuredForms:
    """Strings of levels whose lengths a device knows, and of which one is written.

    Parameters
    ----------
    symbols, s, coded
        See `level_codes.plan`.
    pairs : sequence of (str, str)
        Form and code of each string.
    every, lead : int
        See `dense_string.write`.

    Attributes
    ----------
    ends : list of Deferred
        Bits of each string, with the lead.
    """

    def __init__(
        self,
        symbols: Array,
        s: int,
        coded: CodedMask,
        pairs: Sequence[tuple[str, str]],
        every: int,
        lead: int,
    ) -> None:
        self._device = device_with(symbols)
        self._strings: list[Any] = []
        self._scalars: list[dict[str, Deferred]] = []
        for form, code in pairs:
            if form == "dense":
                words, scalars = _dense_words(symbols, s, coded, code)
                string: Any = dense_string_cuda.Measured.of(
                    words, symbols, symbol_dtype(s), coded, every, lead, 0
                )
            else:
                gaps, levels, scalars = _sparse_words(symbols, s, code)
                string = sparse_string_cuda.Measured.of(gaps, levels, symbols, every, lead)
            self._strings.append(string)
            self._scalars.append(scalars)
        self.ends = [Deferred(self._device, string.end) for string in self._strings]
        # No string is longer that is selected, whatever its parameters are.
        longest = 8 * lead + symbols.size * min(longest_nbits(*pair, s) for pair in pairs)
        self._words = self._device.zeros(-(-longest // 32), np.uint32)
        self._data = self._words.view(np.uint8)
        self._nbits: Deferred | None = None

    def write(self, index: int, gate: Gate | None) -> WrittenForm:
        """Write one of the strings; of several gates, at most one may be open."""
        string = self._strings[index]
        if gate is not None:
            string.end[:1] = gate.count.words
        string.put(self._words)
        nbits, *sums = string.told()
        if gate is not None and self._nbits is None:
            count = len(self._strings)
            totals = self._device.empty(count + 1, np.int64)
            sums_before(self._device, gate.counts[:count], totals)
            self._nbits = Deferred(self._device, totals[-1:], None, (totals[-1:], 1, 0))
        total = nbits if self._nbits is None else self._nbits
        return WrittenForm(self._scalars[index], self._data, total, nbits, tuple(sums))


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
    gap, level = unit_code(code, s, _UNKNOWN)
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
