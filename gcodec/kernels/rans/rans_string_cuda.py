"""rANS strings on a device; see `gcodec.kernels.rans.rans_string`."""

from __future__ import annotations

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.context.lane_order import RUN
from gcodec.kernels.numeric.scan_cuda import sums_before
from gcodec.kernels.prefix.codewords_cuda import NO_ERROR, check_status
from gcodec.kernels.rans import rans_string
from gcodec.kernels.rans.rans_read import TRUNCATED, check
from gcodec.kernels.rans.rans_runs import BLOCK, LOG2_BLOCK, Runs
from gcodec.kernels.rans.rans_string import Layout, Take, refuse_more
from gcodec.kernels.rans.rans_table import WriteTables
from gcodec.kernels.rans.rans_vector import LANES
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with
from gcodec.runtime.deferred import Deferred, LeadingBytes, fetch_later
from gcodec.runtime.device import beside

_WARPS = 4  # warps of a block of threads that reads runs
_MOVERS, _MOST = 256, 128  # threads that move words, and their blocks for each rANS block
_LOG2_RUN = 16  # log2 of the shortest runs of symbols with classes
_SERIAL = 1 << 14  # symbols of the longest string that one warp reads


def write(
    tables: WriteTables,
    symbols: Array,
    n: int | Deferred,
    lead: np.ndarray | LeadingBytes,
    log2_run: int | Deferred = LOG2_BLOCK,
    lanes: int | Deferred = LANES,
    before_join: None = None,
) -> tuple[Array, Deferred, Deferred]:
    """Write the string of the first n symbols, with room after it. All stays on the device.

    `before_join` is not called, since the host does not know the number of bits yet. `n` may be a
    `Deferred`, and the bytes before the string a `LeadingBytes`. With classes, `log2_run` and
    `lanes` may be `Deferred` too, for runs of 2^16 symbols or more.
    """
    device, most = device_with(symbols), symbols.size if isinstance(n, Deferred) else n
    least_run = _LOG2_RUN if isinstance(log2_run, Deferred) else log2_run
    most_lanes = LANES if isinstance(lanes, Deferred) else lanes
    blocks, count = -(-most >> LOG2_BLOCK), -(-most >> least_run)
    room = min(most, BLOCK) + 2 * most_lanes
    # The number of symbols, the log2 of the sum of frequencies, the number of states, the log2 of
    # a run; the bits before the lead, before each block and after the last; words of runs; states.
    fields = device.empty(4 + blocks + 2 + count + count * most_lanes // 2, np.int64)
    ends, run_words = fields[4 : blocks + 6], fields[blocks + 6 : blocks + 6 + count]
    snapshots = fields[blocks + 6 + count :].view(np.uint32)
    sizes, slots = device.empty(blocks + 1, np.int64), device.empty(blocks * room, np.uint16)
    front = lead.array if isinstance(lead, LeadingBytes) else device.to_device(lead)
    for k, number in enumerate((n, tables.log2_total, lanes, log2_run)):
        fields[k : k + 1] = number.words if isinstance(number, Deferred) else number
    sizes[:1] = lead.count if isinstance(lead, LeadingBytes) else 8 * lead.size
    kernel = "write_classed" if tables.classed else "write_block"
    layout = LOG2_BLOCK, fields[2:4] if tables.classed else least_run, fields[1:2]
    model = beside(tables.reciprocals, symbols), beside(tables.pairs, symbols)
    arguments = symbols, fields[:1], *layout, *model, slots, room, sizes[1:], run_words, snapshots
    device.launch("rans_write", kernel, blocks, LANES, *arguments)
    sums_before(device, sizes, ends)
    out = device.empty(-(-(front.size + 2 * blocks * room) // 4), np.uint32).view(np.uint8)
    if front.size:
        out[: front.size] = front
    move = slots, room, ends[1:], out, out.size
    device.launch("rans_write", "move_blocks", (_MOST, blocks), _MOVERS, *move)

    def runs_of(fields: np.ndarray) -> Runs:
        n, _, lanes, log2_run = fields[:4].tolist()
        runs = Runs.empty(log2_run, n, lanes)
        first_run = blocks + 6
        snapshots = fields[first_run + count :].view(np.uint32)
        runs.states[:] = snapshots[: runs.states.size].reshape(-1, lanes)
        bits = fields[5 : 6 + (-(-n >> LOG2_BLOCK))]
        runs.settle(fields[first_run:][: runs.states.shape[0]], (bits - bits[0]) // 8)
        return runs

    nbits = Deferred(device, fields, lambda fields: int(fields[blocks + 5]), (ends[-1:], 1, 0))
    return out, nbits, Deferred(device, fields, runs_of)


def read(
    data: Array,
    layout: Layout,
    take: Take,
    runs: Runs | None = None,
    bits_follow: bool = False,
) -> int:
    """Read the string of n symbols; `take` receives all at once.

    Without runs, one warp would read them, which takes the host much less time if there are many.
    """
    layout.refuse_short()
    _, first, end, n, *_ = layout
    if runs is None and n > _SERIAL:
        return _read_on_host(data, layout, take, bits_follow)
    if runs is not None:
        runs.check(n, end - first, layout.lanes)
    run_index = runs or Runs.empty(LOG2_BLOCK, n, layout.lanes)
    symbols, marks = _read_runs(data, layout, run_index, runs is not None)
    after = first + int(run_index.offsets[-1])
    if n:
        take(0, symbols)
        if runs is None:
            last = marks[run_index.offsets.size - 1 :][:1]
            if not bits_follow:
                fetch_later(
                    device_with(data), last, lambda size: refuse_more(first + int(size[0]), end)
                )
                return end
            after = first + int(device_with(data).to_host(last)[0])
    if not bits_follow:
        refuse_more(after, end)
    return after


def _read_on_host(data: Array, layout: Layout, take: Take, bits_follow: bool) -> int:
    device, symbols = device_with(data), np.empty(layout.n, np.uint8)

    def put(start: int, part: np.ndarray) -> None:
        symbols[start : start + part.size] = part

    after = rans_string.read(device.to_host(data), layout, put, None, bits_follow)
    take(0, device.to_device(symbols))
    return after


def index(data: Array, layout: Layout, log2_run: int) -> Runs:
    """Index the runs of a string by reading it; see `read`."""
    layout.refuse_short()
    runs = Runs.empty(log2_run, layout.n, layout.lanes)
    _, marks = _read_runs(data, layout, runs, False)
    if layout.n:
        count, marks = runs.states.shape[0], device_with(data).to_host(marks)
        states = marks[count + 2 :].view(np.uint32).reshape(-1, layout.lanes)
        runs = Runs(log2_run, marks[: count + 1].copy(), states.copy())
    refuse_more(layout.first + int(runs.offsets[-1]), layout.end)
    return runs


def _read_runs(data: Array, layout: Layout, runs: Runs, chained: bool) -> tuple[Array, Array]:
    """Return the symbols and, as one array, the offsets of runs, a status and the states.

    The offsets and states are those of `runs` if `chained`, and the kernel verifies them;
    otherwise the kernel writes them. An error is raised when the host next waits.
    """
    tables, first, end, n, classes_of, lanes, trellis = layout
    device, count = device_with(data), runs.states.shape[0]
    symbols = device.empty(n, np.uint8)
    if not n:
        return symbols, None
    marks = device.to_device(
        np.concatenate([runs.offsets, [NO_ERROR], runs.states.reshape(-1).view(np.int64)])
    )
    offsets, status, states = marks[: count + 1], marks[count + 1 : count + 2], marks[count + 2 :]
    # A path is known only where a run of the trellis begins.
    together = max(1, RUN >> runs.log2_run) if trellis else 1
    blocks = -(-count // (together * _WARPS)) if chained else 1
    end = min(end // 8, data.size)
    kernel, classes = "read_blocks", tuple[object, ...]()
    if classes_of is not None:
        kernel = "read_classed"
        classes = classes_of(0, n, device.empty(n, np.uint8)), lanes, together, trellis
    string = data, end, offsets, first, states.view(np.uint32), n
    run_layout = LOG2_BLOCK, runs.log2_run, chained, tables.log2_total
    model = device.to_device(tables.slots), device.to_device(tables.pairs), *classes
    arguments = *string, *run_layout, *model, symbols, status
    device.launch("rans_read", kernel, blocks, _WARPS * LANES, *arguments)

    def raise_error(run: int, error: int) -> None:
        if -error != TRUNCATED or not chained:
            check(-error, end)
        raise Corrupt(f"the seek table or the payload is wrong: run {run} ends elsewhere")

    check_status(device, status, raise_error)
    return symbols, marks
