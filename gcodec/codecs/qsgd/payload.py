"""Strings of levels and their signs, written and opened by a plan of `coding_choice`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gcodec.codecs.qsgd.coding_choice import MOST_OF_BYTES, TABLED, Plan, alphabet, plan
from gcodec.entropy import tabled
from gcodec.entropy.coder import (
    BitSpan,
    CodedString,
    RunLevelString,
    Take,
    WordString,
    Written,
    into,
    seek_of_blocks,
    unpacked,
)
from gcodec.entropy.context import symbol_coder
from gcodec.entropy.context.coder import ContextString
from gcodec.errors import Corrupt
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask, gathered, refuse_silent, silent_error, spread
from gcodec.kernels.prefix import (
    dense_string,
    level_codes,
    level_forms,
    scaled_read,
    sparse_string,
)
from gcodec.kernels.prefix.dense_string import SymbolsOf
from gcodec.kernels.prefix.run_level import RunLevelPairs
from gcodec.kernels.prefix.table_code import TableCode
from gcodec.kernels.quantize.levels import TINY, Scale, symbol_dtype
from gcodec.payload import Candidates
from gcodec.runtime.device import device_of, dispatched
from gcodec.runtime.memory import Drainable, contents, empty_beside, limited, restored
from gcodec.wire.seek import LOG2_BLOCK, SeekTable

CLASSED = Plan("dense", "context", {})

PlannedString = tuple[Plan, Written]
"""A string that was written, and its plan."""


def write_dense(
    plan: Plan, s: int, symbols: SymbolsOf | np.ndarray | Drainable, coded: CodedMask, lead: int
) -> Written:
    """Write the string of a dense form.

    Parameters
    ----------
    plan : Plan
    s : int
    symbols : callable or array
        See `dense_string.write`. With "rans" every element must be in `coded`.
    coded : CodedMask
    lead : int
        Bytes that stay free before the string and its table.
    """
    if plan.code in TABLED:
        return tabled.write(plan.table, symbols, coded, BitString(lead), coded.n)
    code = level_codes.word_code(plan.code, s, plan.scalars)
    data, nbits, offsets = dense_string.write(
        code, symbols, symbol_dtype(s), coded, 1 << LOG2_BLOCK, lead
    )
    packed = plan.code == "packed"
    return Written(data, nbits, None if packed else seek_of_blocks(coded.n, nbits, offsets))


def write_universal(
    symbols: np.ndarray | Drainable, s: int, coded: CodedMask, form: str, code: str, lead: int
) -> Candidates:
    """Write the shortest string in words of a universal code; see `plan`.

    All candidates share their data. There are several where the device selects the form.
    """
    forms = level_forms.write(symbols, s, coded, form, code, 1 << LOG2_BLOCK, lead)
    return Candidates(of_forms(forms, coded.n), forms.which)


def of_forms(written: level_forms.Written, n: int) -> list[PlannedString]:
    """Return the strings of n elements in universal codes that may have been written."""
    strings = []
    for form in written.forms:
        plan = Plan(form.name, form.code, form.scalars)
        packed = form.code == "packed"
        seek = None if packed else seek_of_blocks(n, form.nbits, *form.sums)
        strings.append((plan, Written(written.data, written.nbits, seek)))
    return strings


@dispatched("gcodec.codecs.qsgd.device")
def choose(
    symbols: np.ndarray | Drainable,
    s: int,
    coded: CodedMask,
    form: str,
    shape: tuple[int, ...],
    lead: int,
) -> Candidates:
    """Write the shortest string in any code; on a device, several candidates. See `plan`."""
    best = plan(contents(symbols), s, coded, form, "auto")
    if form != "sparse" and s <= MOST_OF_BYTES:
        # The context string may turn out not to be shorter, and the symbols released until then
        # are then quantized again: they make room for the parts of the string, which take up to
        # half as much memory again as they have bytes.
        held = limited(symbols, 3 * best.nbits // 16)
        written = symbol_coder.write_shorter(held, shape, BitString(lead), best.nbits)
        if written is not None:
            return Candidates([(CLASSED, written)])
        symbols = restored(held)
    return Candidates([(best, write(best, s, symbols, coded, shape, lead))])


def write(
    plan: Plan,
    s: int,
    symbols: np.ndarray | Drainable,
    coded: CodedMask,
    shape: tuple[int, ...],
    lead: int,
) -> Written:
    """Write the string of a plan; see `write_dense`."""
    if plan.code == "context":
        return symbol_coder.write(symbols, shape, BitString(lead), coded)
    if plan.form == "sparse":
        code = level_codes.unit_code(plan.code, s, plan.scalars)
        data, nbits, *sums = sparse_string.write(code, symbols, 1 << LOG2_BLOCK, lead)
        return Written(data, nbits, seek_of_blocks(coded.n, nbits, *sums))
    if plan.code == "rans":  # which knows nothing of elements that have no symbol
        symbols, coded = gathered(symbols, coded)
    return write_dense(plan, s, symbols, coded, lead)


class DenseString(NamedTuple):
    """The string of a dense form that was opened; see `CodedString` for its methods.

    Attributes
    ----------
    string : CodedString
        Its symbols are those of all elements, or with rANS of the elements in `coded`.
    coded : CodedMask
        The elements whose bucket has a norm above 0. All other symbols are 0.
    """

    string: CodedString
    coded: CodedMask

    @classmethod
    def open(cls, plan: Plan, s: int, span: BitSpan, coded: CodedMask) -> DenseString:
        """Open the string of a plan, whose table the payload contains.

        Raises
        ------
        FormatError
        """
        if plan.code == "context":
            n = coded.n if coded.words else 0
            return cls(symbol_coder.open(span, n, 2 * s + 1), coded)
        if plan.code in TABLED:
            coded_words = CodedMask.all(coded.words) if plan.code == "rans" else coded
            kind: Any = plan.code
            return cls(tabled.open(kind, span, alphabet(s), coded_words), coded)
        code = level_codes.word_code(plan.code, s, plan.scalars)
        string = WordString(span, code, coded, symbol_dtype(s))
        string.refuse_short()
        return cls(string, coded)

    def read(
        self, take: Take, *, room: np.ndarray | None = None, bits_follow: bool = False
    ) -> int:
        """Decode the symbols of all elements; see `CodedString.read`.

        `room` is an optional (n,) uint8 array for symbols. `take` may write there, from the last
        element on, what it makes of the symbols that it receives.
        """
        string, coded = self.string, self.coded
        if isinstance(string, WordString):
            return string.read(take, bits_follow=bits_follow)
        if isinstance(string, ContextString):
            return string.read(self._checked(take), bits_follow=bits_follow)
        if coded.silent is None:
            return string.read(take, bits_follow=bits_follow)
        if room is None:
            room = empty_beside(coded.words, np.uint8, string.span.data)
        symbols = room[: coded.words]
        end = string.read(into(symbols), bits_follow=bits_follow)
        spread(symbols, coded, take)
        return end

    def _checked(self, take: Take) -> Take:
        """Return a `Take` that refuses symbols other than 0 in buckets whose norm is 0."""

        def checked(at: int, symbols: np.ndarray) -> None:
            if device_of(symbols) is not None:  # which has room for all
                refuse_silent(symbols, self.coded)
            else:
                _, mask = self.coded.part(at, at + symbols.size, symbols.size)
                if mask is not None and symbols[~mask].any():
                    raise silent_error()
            take(at, symbols)

        return checked

    def read_scaled(self, scale: Scale, out: np.ndarray) -> bool:
        """Decode all symbols and dequantize them into (n,) float32 `out`, if one loop does both.

        Returns
        -------
        bool
            False if no loop does; `out` is then unchanged.

        Raises
        ------
        FormatError
            The content of `out` is then undefined.
        """
        string = self.string
        if not isinstance(string, WordString) or isinstance(string.code, TableCode):
            return False
        data, first, end, seek = string.span
        if seek is None or not scaled_read.reads(string.code, scale, self.coded, out):
            return False
        string.span.must_cover()
        every = 1 << seek.log2_block
        scaled_read.read(string.code, data, first, end, every, seek.offsets, scale, out)
        return True

    def blocks(self, log2_block: int) -> SeekTable:
        """Return a seek table of the string; see `CodedString.blocks`."""
        return self.string.blocks(log2_block)


def sparse_elements(string: RunLevelString, n: int, scale: Scale) -> tuple[np.ndarray, np.ndarray]:
    """Decode the elements that a sparse form sends of n; memory does not depend on n.

    Returns
    -------
    positions : (k,) int64 array
        Rising.
    values : (k,) float32 array

    Raises
    ------
    FormatError
    """
    parts: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # by the position before them

    def place(pairs: RunLevelPairs, bounds: np.ndarray, positions: np.ndarray, before: int) -> int:
        ends, symbols = _ends(pairs, bounds, positions, before, n)
        places = ends[1:] - 1
        parts[before] = places, _values(symbols, scale.norms[places // scale.bucket], scale.s)
        return int(ends[-1])

    string.read(place)
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    positions, values = zip(*(parts[before] for before in sorted(parts)), strict=True)
    return np.concatenate(positions), np.concatenate(values)


def _ends(
    pairs: RunLevelPairs, bounds: np.ndarray, positions: np.ndarray, before: int, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return `before` and the position, from 1 on, of each pair, and the symbols of the pairs.

    See `run_level_place.place_values` for the parameters.
    """
    gaps, symbols = unpacked(pairs, int(bounds[-1]))
    # No gap passes n < 2^63, so that the first sum that does has not wrapped.
    ends = np.concatenate([[np.uint64(before)], gaps]).cumsum(dtype=np.uint64)
    if (gaps > np.uint64(n)).any() or (ends > np.uint64(n)).any():
        raise Corrupt(f"a gap passes the {n} elements of the tensor")
    ends = ends.astype(np.int64)
    if positions.size and not np.array_equal(ends[bounds], positions):
        raise Corrupt("the seek table or the payload is wrong: a block ends at another element")
    return ends, symbols


def _values(symbols: np.ndarray, norms: np.ndarray, s: int) -> np.ndarray:
    """Dequantize symbols, given the norm of the bucket of each; rounds as the kernel does."""
    if not norms.all():
        raise silent_error()
    norms = norms.astype(np.float64)
    step, levels = norms / np.float64(s), (symbols >> np.uint64(1)).astype(np.int64)
    with np.errstate(over="ignore", under="ignore"):
        values = levels.astype(np.float32) * step.astype(np.float32)
        tiny = norms < TINY
        values[tiny] = (levels[tiny] * step[tiny]).astype(np.float32)
    values[(symbols & np.uint64(1)).astype(np.bool_)] *= np.float32(-1)
    return values
