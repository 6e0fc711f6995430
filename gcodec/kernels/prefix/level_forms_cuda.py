"""Strings of levels in universal words on a device; see `gcodec.kernels.prefix.level_forms`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.coded_mask_cuda import words_in
from gcodec.kernels.context.string_choice_cuda import Kept
from gcodec.kernels.numeric.scan_cuda import sums_before
from gcodec.kernels.prefix import dense_string_cuda, sparse_string_cuda
from gcodec.kernels.prefix.codewords_cuda import Words, rule_of
from gcodec.kernels.prefix.level_codes import longest_nbits, pairs, unit_code, word_code
from gcodec.kernels.prefix.level_forms import Form, Written
from gcodec.kernels.prefix.prefix_table import PrefixCode
from gcodec.kernels.prefix.run_level import NEAR
from gcodec.kernels.prefix.table_code import SYMBOLS
from gcodec.kernels.prefix.tally_cuda import rice_parameter
from gcodec.kernels.quantize.levels import symbol_dtype
from gcodec.runtime.cuda_grid import THREADS, blocks, device_with
from gcodec.runtime.deferred import Deferred

_ANY = {"rice": 0, "rice_gap": 0}  # parameters, in place of those to be found


class Measured(NamedTuple):
    """Strings whose lengths a device knows, and of which one is to be written.

    Attributes
    ----------
    pairs : list of (str, str)
        Form and code of each.
    scalars : list of dict
        See `Form`.
    strings : list of Measured
        See `dense_string` and `sparse_string`.
    most : int
        Bits of the shortest that there may be, with lead.
    """

    pairs: list[tuple[str, str]]
    scalars: list[dict[str, Deferred]]
    strings: list[Any]
    most: int

    @classmethod
    def of(
        cls,
        symbols: Any,
        s: int,
        coded: CodedMask,
        pairs: list[tuple[str, str]],
        every: int,
        lead: int,
    ) -> Measured:
        """Measure them; see `gcodec.kernels.prefix.level_forms.write`."""
        strings: list[Any] = []
        scalars: list[dict[str, Deferred]] = []
        for form, code in pairs:
            if form == "dense":
                words, found = _dense_words(symbols, s, coded, code)
                how = symbol_dtype(s), coded, every, lead, 0
                strings.append(dense_string_cuda.Measured.of(words, symbols, *how))
            else:
                units, found = _sparse_words(symbols, s, code)
                strings.append(sparse_string_cuda.Measured.of(*units, symbols, every, lead))
            scalars.append(found)
        most = 8 * lead + symbols.size * min(longest_nbits(*pair, s) for pair in pairs)
        return cls(pairs, scalars, strings, most)

    @property
    def ends(self) -> list[Any]:
        """The words of all bits of each."""
        return [string.end for string in self.strings]

    def put(self, kept: Any = None) -> Written:
        """Write the one of which there are bits in an array that has those of each, or the one."""
        device = device_with(self.ends[0])
        out, forms = device.zeros(-(-self.most // 32), np.uint32), []
        for k, end in enumerate(self.ends if kept is not None else ()):
            end[:1] = kept[k : k + 1]
        for pair, found, string in zip(self.pairs, self.scalars, self.strings, strict=True):
            string.put(out)
            own, *sums = string.told()
            forms.append(Form(*pair, found, own, tuple(sums)))
        if kept is None:
            nbits = own
        else:
            sums = device.empty(len(forms) + 1, np.int64)
            sums_before(device, kept[: len(forms)], sums)
            nbits = Deferred(device, sums[-1:], None, (sums[-1:], 1, 0))
        return Written(out.view(np.uint8), nbits, forms, 0)


def write(
    symbols: Any, s: int, coded: CodedMask, form: str, code: str, every: int, lead: int
) -> Written:
    """Write the shortest string; there is room for the longest, whatever the parameters."""
    measured = Measured.of(symbols, s, coded, pairs(form, code), every, lead)
    if len(measured.strings) == 1:
        return measured.put()
    device, count = device_with(symbols), len(measured.strings)
    sizes = device.zeros(count + 1, np.int64)
    for k, end in enumerate(measured.ends):
        sizes[k : k + 1] = end
    kept = Kept.of(sizes[:count], [0] * count, sizes)
    which: Any = kept.which
    return measured.put(kept.counts)._replace(which=which)


def _dense_words(
    symbols: Any, s: int, coded: CodedMask, code: str
) -> tuple[PrefixCode | Words, dict[str, Deferred]]:
    """Return words of a dense form, and their parameter."""
    words = word_code(code, s, _ANY)
    if code != "rice":
        return words, {}
    k = rice_parameter(symbols, "zigzag", words_in(device_with(symbols), coded))
    return rice_words(k, words), {"rice": k}


def _sparse_words(
    symbols: Any, s: int, code: str
) -> tuple[tuple[PrefixCode | Words, PrefixCode | Words], dict[str, Deferred]]:
    """Return words of gaps and of levels of a sparse form, and their parameters."""
    gap, level = unit_code(code, s, _ANY)
    if code != "rice":
        return (gap, level), {}
    k, k_gap = rice_parameter(symbols, "levels"), rice_parameter(symbols, "gaps")
    return (rice_words(k_gap, gap, NEAR), rice_words(k, level)), {"rice": k, "rice_gap": k_gap}


def rice_words(k: Deferred, like: PrefixCode, size: int = SYMBOLS) -> Words:
    """Return the words of a Rice code with another parameter."""
    device, (rule, mapping, shift, _) = k.device, rule_of(like)
    table = device.empty(size + 1, np.uint64)
    made = k.words, mapping, shift, np.int64(size), table
    device.launch("level_forms", "rice_words", blocks(size), THREADS, *made)
    return Words(table, rule, mapping, shift, None)
