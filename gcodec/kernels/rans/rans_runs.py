"""Where runs of rANS strings begin, so that blocks are read side by side, or some runs alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.errors import Corrupt, ParameterError
from gcodec.kernels.rans.rans_table import STATE_NBYTES
from gcodec.kernels.rans.rans_vector import LANES

LOG2_BLOCK = 18
LEAST_LOG2_RUN = 5  # of runs of symbols in a table
BLOCK = 1 << LOG2_BLOCK
_LOG2_PART = 16  # of the fewest symbols that are read


class Runs(NamedTuple):
    """Where runs of equal counts of symbols begin; the last may have fewer.

    Attributes
    ----------
    log2_run : int
        Of the symbols of a run, from 5 to 18.
    offsets : (count + 1,) int64 array
        Bits from the first of the string to each run, and to the string's end. A run that begins
        a block begins with the block's states.
    states : (count, lanes) uint32 array
        The states before each run, but for those that begin a block.
    """

    log2_run: int
    offsets: np.ndarray
    states: np.ndarray

    @classmethod
    def empty(cls, log2_run: int, n: int, lanes: int = LANES) -> Runs:
        """Make room to tell the runs of n symbols."""
        if not LEAST_LOG2_RUN <= log2_run <= LOG2_BLOCK:
            allowed = f"from {LEAST_LOG2_RUN} to {LOG2_BLOCK}"
            raise ParameterError.of("log2_run", log2_run, allowed)
        count = -(-n >> log2_run)
        return cls(log2_run, np.zeros(count + 1, np.int64), np.zeros((count, lanes), np.uint32))

    def settle(self, words: np.ndarray, ends: np.ndarray) -> None:
        """Set the offsets of what was written.

        Parameters
        ----------
        words : (count,) int64 array
            Of each run, the words from its first on to the end of its block.
        ends : (blocks + 1,) int64 array
            The byte before each block, and behind the last.
        """
        if words.size == 1:  # which begins where the string does
            self.offsets[:], self.states[0] = (0, 8 * ends[1]), 0
            return
        per_block, lanes = 1 << LOG2_BLOCK - self.log2_run, self.states.shape[1]
        block = np.arange(words.size) // per_block
        self.offsets[:-1] = 8 * ends[block + 1] - 16 * words
        self.offsets[:-1:per_block] -= 8 * STATE_NBYTES * lanes
        self.offsets[-1] = 8 * ends[-1]
        self.states[::per_block] = 0

    def check(self, n: int, nbits: int, lanes: int = LANES) -> None:
        """Raise `Corrupt` unless these can be runs of n symbols in so many bits."""
        count = -(-n >> self.log2_run)
        shapes = self.offsets.shape == (count + 1,) and self.states.shape == (count, lanes)
        if not LEAST_LOG2_RUN <= self.log2_run <= LOG2_BLOCK or not shapes or self.offsets[0]:
            raise Corrupt("the seek table is one of another string")
        if self.offsets.min() < 0 or self.offsets.max() > nbits:
            raise Corrupt("the seek table passes the string")

    def covering(self, start: int, stop: int, n: int) -> tuple[int, int]:
        """Return the range of whole runs that is read for symbols start to stop - 1 of n.

        Short runs are read by as many as make 2^16 symbols. The states before a run are those
        behind what comes before it, which is read too, lest a wrong table tell wrong symbols; but
        a block begins with its own.
        """
        log2_part = max(self.log2_run, _LOG2_PART)
        part, per_block = start >> log2_part, 1 << LOG2_BLOCK - log2_part
        part -= part % per_block > 0
        return part << log2_part, min(-(-stop >> log2_part) << log2_part, n)

    def same(self, rows: slice, found: Runs, first: int) -> bool:
        """Tell whether runs end, and those behind them begin, as was found.

        Of each run there are, in `found`, the byte and the states behind it. Bits are counted from
        `first` on.
        """
        count, per_block = rows.stop - rows.start, 1 << LOG2_BLOCK - self.log2_run
        ends = 8 * found.offsets[:count] - first
        if not np.array_equal(self.offsets[rows.start + 1 : rows.stop + 1], ends):
            return False
        # What is behind a block is no state before a run.
        behind = np.arange(rows.start + 1, rows.stop + 1)
        inside = (behind % per_block > 0) & (behind < self.states.shape[0])
        return np.array_equal(self.states[behind[inside]], found.states[:count][inside])
