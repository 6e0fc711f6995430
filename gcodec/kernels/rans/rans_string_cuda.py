"""rANS strings on a device; see `gcodec.kernels.rans.rans_string`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.context.lane_order import RUN
from gcodec.kernels.numeric.scan_cuda import sums_before
from gcodec.kernels.prefix.codewords_cuda import NO_ERROR
from gcodec.kernels.rans.rans_runs import BLOCK, LOG2_BLOCK, Runs
from gcodec.kernels.rans.rans_string import ClassesOf, refuse_short
from gcodec.kernels.rans.rans_table import ReadTables, WriteTables
from gcodec.kernels.rans.rans_vector import LANES
from gcodec.runtime.cuda_grid import device_with
from gcodec.runtime.deferred import Deferred, note
from gcodec.runtime.device import placed

_WARPS = 4  # that read runs together
_MOVERS, _MOST = 256, 128  # threads that move words, and their blocks for each block of symbols
_LOG2_RUN = 16  # of the shortest runs of symbols with classes
_LEFT = 64  # what a status is a multiple of, but for what is wrong
_TRUNCATED, _LOW_HEAD, _OTHER_END = 1, 2, 3


def write(
    tables: WriteTables,
    symbols: Any,
    n: Any,
    lead: Any,
    log2_run: Any = LOG2_BLOCK,
    lanes: Any = LANES,
    before_join: None = None,
) -> tuple[Any, Deferred, Deferred]:
    """Write the string of the first n symbols, with room behind it. All stays on the device.

    No `before_join` is called, since the host does not know the number of bits yet.

    So may n, as a `Deferred`, and what comes before the string, as a `Leading` of so many bits;
    and with classes the last two, runs being of 2^16 symbols or more.
    """
    device, most = device_with(symbols), symbols.size if type(n) is Deferred else n
    known_run, known_lanes = (
        least if type(number) is Deferred else number
        for number, least in ((log2_run, _LOG2_RUN), (lanes, LANES))
    )
    blocks, count = -(-most >> LOG2_BLOCK), -(-most >> known_run)
    room = min(most, BLOCK) + 2 * known_lanes
    # Symbols, the log2 of what frequencies add up to, states, and that of runs; the bits before
    # all, before each block and behind the last; words of runs; states.
    told = device.empty(4 + blocks + 2 + count + count * known_lanes // 2, np.int64)
    ends, rest = told[4 : blocks + 6], told[blocks + 6 :]
    sizes, slots = device.empty(blocks + 1, np.int64), device.empty(blocks * room, np.uint16)
    known = isinstance(lead, np.ndarray)
    numbers = n, tables.log2_total, lanes, log2_run
    for k, number in enumerate(numbers):
        told[k : k + 1] = number.words if type(number) is Deferred else number
    sizes[:1] = 8 * lead.size if known else lead.count
    runs = np.int32(LOG2_BLOCK), told[2:4] if tables.classed else np.int32(known_run)
    device.launch(
        *("rans_write", "write_classed" if tables.classed else "write_block", blocks, LANES),
        *(symbols, told[:1], *runs, told[1:2]),
        *(placed(tables.reciprocals, symbols), placed(tables.pairs, symbols)),
        *(slots, np.int64(room), sizes[1:], rest[:count], rest[count:].view(np.uint32)),
    )
    sums_before(device, sizes, ends)
    front = device.to_device(lead) if known else lead.array
    out = device.empty(-(-(front.size + 2 * blocks * room) // 4), np.uint32).view(np.uint8)
    if front.size:
        out[: front.size] = front
    device.launch(
        *("rans_write", "move_blocks", (_MOST, blocks), _MOVERS, slots, np.int64(room)),
        *(ends[1:], out, np.int64(out.size)),
    )

    def found_runs(found: np.ndarray) -> Runs:
        n, _, lanes, log2_run = found[:4].tolist()
        runs = Runs.empty(log2_run, n, lanes)
        used, behind = runs.states.shape[0], found[blocks + 6 :]
        runs.states[:] = behind[count:].view(np.uint32)[: used * lanes].reshape(-1, lanes)
        bits = found[5 : 6 + (-(-n >> LOG2_BLOCK))]
        runs.settle(behind[:used], (bits - bits[0]) // 8)
        return runs

    nbits = Deferred(device, told, lambda found: int(found[blocks + 5]), (ends[-1:], 1, 0))
    return out, nbits, Deferred(device, told, found_runs)


def read(
    tables: ReadTables,
    data: Any,
    first: int,
    end: int,
    n: int,
    take: Callable[[int, Any], None],
    runs: Runs | None = None,
    bits_follow: bool = False,
    classes_of: ClassesOf | None = None,
    lanes: int = LANES,
    trellis: bool = False,
) -> int:
    """Read the string of n symbols; `take` gets all at once. Without runs, one warp reads them."""
    refuse_short(n, end - first, lanes)
    told = runs or Runs.empty(LOG2_BLOCK, n, lanes)
    if runs is not None:
        runs.check(n, end - first, lanes)
    string = _String(tables, data, first, end, n, classes_of, lanes, trellis)
    symbols, kept = string.read(told, runs is not None)
    if n:
        take(0, symbols)
    behind = int(told.offsets[-1])
    if n and runs is None and bits_follow:
        behind = int(device_with(data).to_host(kept)[told.offsets.size - 1])
    elif n and runs is None:
        last = kept[told.offsets.size - 1 : told.offsets.size]
        note(device_with(data), last, lambda size: _refuse_more(first + int(size[0]), end))
        return end
    if not bits_follow:
        _refuse_more(first + behind, end)
    return first + behind


def read_range(
    tables: ReadTables,
    data: Any,
    first: int,
    end: int,
    n: int,
    start: int,
    stop: int,
    take: Callable[[int, Any], None],
    runs: Runs | None = None,
    classes_of: ClassesOf | None = None,
    lanes: int = LANES,
    trellis: bool = False,
) -> None:
    """Read all symbols, whatever the range."""
    read(tables, data, first, end, n, take, runs, False, classes_of, lanes, trellis)


def index(
    tables: ReadTables,
    data: Any,
    first: int,
    end: int,
    n: int,
    log2_run: int,
    classes_of: ClassesOf | None = None,
    lanes: int = LANES,
    trellis: bool = False,
) -> Runs:
    """Find where the runs of a string begin, by reading it; see `read`."""
    refuse_short(n, end - first, lanes)
    string = _String(tables, data, first, end, n, classes_of, lanes, trellis)
    runs = Runs.empty(log2_run, n, lanes)
    _, kept = string.read(runs, False)
    if n:
        count, found = runs.states.shape[0], device_with(data).to_host(kept)
        states = found[count + 2 :].view(np.uint32).reshape(-1, lanes)
        runs = Runs(log2_run, found[: count + 1].copy(), states.copy())
    _refuse_more(first + int(runs.offsets[-1]), end)
    return runs


def _refuse_more(behind: int, end: int) -> None:
    if behind < end:
        raise Corrupt(f"the payload has {end - behind} bits behind its last word")


class _String(NamedTuple):
    """Reads the blocks of a string; see `read`."""

    tables: ReadTables
    data: Any
    first: int
    end: int
    n: int
    classes_of: ClassesOf | None
    lanes: int
    trellis: bool

    def read(self, runs: Runs, chained: bool) -> tuple[Any, Any]:
        """Return the symbols, and offsets, a status and states of runs, known or found.

        What is wrong is raised when the host next waits.
        """
        device, n, tables = device_with(self.data), self.n, self.tables
        count = runs.states.shape[0]
        symbols = device.empty(n, np.uint8)
        if not n:
            return symbols, None
        told = np.concatenate([runs.offsets, [NO_ERROR], runs.states.reshape(-1).view(np.int64)])
        kept = device.to_device(told)
        # No path is known within a run of the trellis.
        together = max(1, RUN >> runs.log2_run) if self.trellis else 1
        blocks = -(-count // (together * _WARPS)) if chained else 1
        end = np.int64(min(self.end // 8, self.data.size))
        name, lanes, classes = "read_blocks", tuple[np.int32, ...](), tuple[Any, ...]()
        how = tuple[Any, ...]()
        if self.classes_of is not None:
            found = self.classes_of(0, n, device.empty(n, np.uint8))
            name, lanes, classes = "read_classed", (np.int32(self.lanes),), (found,)
            how = np.int64(together), np.int32(self.trellis)
        device.launch(
            *("rans_read", name, blocks, _WARPS * LANES),
            *(self.data, end, kept[: count + 1], np.int64(self.first)),
            *(kept[count + 2 :].view(np.uint32), np.int64(n), *lanes, np.int32(LOG2_BLOCK)),
            *(np.int32(runs.log2_run), *how, np.int32(chained), np.int32(tables.log2_total)),
            *(device.to_device(tables.slots), device.to_device(tables.pairs)),
            *(*classes, symbols, kept[count + 1 : count + 2]),
        )
        status = kept[count + 1 : count + 2]
        note(device, status, lambda told: _raise_status(int(told[0]), chained, int(end)))
        return symbols, kept


def _raise_status(status: int, chained: bool, end: int) -> None:
    if status == NO_ERROR:
        return
    run, wrong = divmod(status, _LEFT)
    if wrong == _TRUNCATED and not chained:
        raise Truncated(f"the payload ends within a block of symbols, at byte {end}")
    if wrong == _LOW_HEAD:
        raise Corrupt("a block of symbols begins in a state below 2**16")
    if wrong == _OTHER_END:
        raise Corrupt("a block of symbols does not end in the states that it must")
    raise Corrupt(f"the seek table or the payload is wrong: run {run} ends elsewhere")
