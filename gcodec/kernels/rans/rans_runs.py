"""Index of the runs of a rANS string, for reading blocks in parallel or a range of symbols."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.errors import Corrupt, ParameterError
from gcodec.kernels.rans.rans_table import STATE_NBYTES
from gcodec.kernels.rans.rans_vector import LANES

LOG2_BLOCK = 18
LEAST_LOG2_RUN = 5  # of the symbols of an indexed run
BLOCK = 1 << LOG2_BLOCK
_LOG2_PART = 16  # of the fewest symbols that are read


class Runs(NamedTuple):
    """Where runs of equal numbers of symbols begin; the last run may be shorter.

    Attributes
    ----------
    log2_run : int
        Log2 of the symbols of a run, from 5 to 18.
    offsets : (count + 1,) int64 array
        Bits from the begin of the string to each run, and to the end of the string. A run that
        begins a block begins with the states of the block.
    states : (count, lanes) uint32 array
        The states before each run; zeros for runs that begin a block.
    """

    log2_run: int
    offsets: np.ndarray
    states: np.ndarray

    @classmethod
    def empty(cls, log2_run: int, n: int, lanes: int = LANES) -> Runs:
        """Allocate the index of n symbols."""
        if not LEAST_LOG2_RUN <= log2_run <= LOG2_BLOCK:
            allowed = f"from {LEAST_LOG2_RUN} to {LOG2_BLOCK}"
            raise ParameterError.of("log2_run", log2_run, allowed)
        count = -(-n >> log2_run)
        return cls(log2_run, np.zeros(count + 1, np.int64), np.zeros((count, lanes), np.uint32))

    def settle(self, words: np.ndarray, ends: np.ndarray) -> None:
        """Set the offsets after the blocks were written.

        Parameters
        ----------
        words : (count,) int64 array
            For each run, the number of words from its first to the end of its block.
        ends : (blocks + 1,) int64 array
            The byte before each block, and after the last.
        """
        if words.size == 1:  # the run begins where the string does
            self.offsets[:], self.states[0] = (0, 8 * ends[1]), 0
            return
        per_block, lanes = 1 << LOG2_BLOCK - self.log2_run, self.states.shape[1]
        block = np.arange(words.size) // per_block
        self.offsets[:-1] = 8 * ends[block + 1] - 16 * words
        self.offsets[:-1:per_block] -= 8 * STATE_NBYTES * lanes
        self.offsets[-1] = 8 * ends[-1]
        self.states[::per_block] = 0

    def check(self, n: int, nbits: int, lanes: int = LANES) -> None:
        """Raise `Corrupt` unless this can be the index of n symbols in a string of `nbits`."""
        count = -(-n >> self.log2_run)
        shapes = self.offsets.shape == (count + 1,) and self.states.shape == (count, lanes)
        if not LEAST_LOG2_RUN <= self.log2_run <= LOG2_BLOCK or not shapes or self.offsets[0]:
            raise Corrupt("the seek table is one of another string")
        if self.offsets.min() < 0 or self.offsets.max() > nbits:
            raise Corrupt("the seek table passes the string")

    def covering(self, start: int, stop: int, n: int) -> tuple[int, int]:
        """Return the range of whole runs to read for symbols `start` to `stop` - 1 of n.

        Short runs are read in parts of 2^16 symbols. The part before `start` is read too, because
        only the states after it verify the indexed states, and a wrong index must not yield wrong
        symbols; a block needs no such check, as it begins with its own states.
        """
        log2_part = max(self.log2_run, _LOG2_PART)
        part, per_block = start >> log2_part, 1 << LOG2_BLOCK - log2_part
        part -= part % per_block > 0
        return part << log2_part, min(-(-stop >> log2_part) << log2_part, n)

    def same(self, rows: slice, reader_runs: Runs, first: int) -> bool:
        """Return whether the runs of `rows` end, and their successors begin, as a reader reported.

        For each run, `reader_runs` holds the byte and the states after it. Bits count from bit
        `first` on.
        """
        count, per_block = rows.stop - rows.start, 1 << LOG2_BLOCK - self.log2_run
        ends = 8 * reader_runs.offsets[:count] - first
        if not np.array_equal(self.offsets[rows.start + 1 : rows.stop + 1], ends):
            return False
        # The states after a block are not the states before a run.
        following = np.arange(rows.start + 1, rows.stop + 1)
        inside = (following % per_block > 0) & (following < self.states.shape[0])
        reported = reader_runs.states[:count][inside]
        return np.array_equal(self.states[following[inside]], reported)
