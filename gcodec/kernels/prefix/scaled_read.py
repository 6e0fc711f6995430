"""Words of levels to values in one loop that reads some blocks while it writes the preceding ones.

Lookups of words keep the processor busy and the memory idle; streaming stores of values keep the
memory busy. The loop overlaps both.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.prefix.codewords import LEVELS, OMEGA, RICE
from gcodec.kernels.prefix.look_ahead import (
    AT,
    ENTRIES,
    LAST_AT,
    LAST_PLACE,
    LAST_STEP,
    PLACE,
    STEP,
    TAKEN,
    SideWork,
    looking,
    state,
)
from gcodec.kernels.prefix.prefix_read import BROKEN, between_looks, check
from gcodec.kernels.prefix.prefix_table import WINDOW, Kind, PrefixCode, read_levels
from gcodec.kernels.prefix.table_code import Look
from gcodec.kernels.quantize.levels import Scale, can_stream, factoring
from gcodec.runtime import cover, pool
from gcodec.runtime.device import device_of
from gcodec.runtime.jit import inline, kernel
from gcodec.runtime.lanes import Emitter, Value, block, fence, floats, lanes

LINE = 16  # elements of a cache line of values
_MOST = 127  # largest level that an int8 holds
_LEAST = 1 << 15  # elements from which on the loop pays
_STEPS = 4  # lines that are written in a round of lookups
_SPARE = 64  # bytes before the symbols of a group, for the partial line of the preceding group
_KINDS: tuple[Kind, ...] = ((OMEGA, "signed", 1), (RICE, "zigzag", 0))
_NONE = np.empty(0, np.uint64)
_NAMES = ("symbols", "source", "places", "factors", "values", "target", "streaming")


def is_readable(
    code: PrefixCode, scale: Scale, coded: CodedMask, block_size: int, out: np.ndarray
) -> bool:
    """Return whether `read` applies: levels of a byte in wide buckets, all of them coded."""
    return (
        code.kind in _KINDS
        and code.top <= 2 * _MOST + 1
        and ENTRIES * block_size >= LINE
        and coded.uncoded is None
        and scale.bucket >= LINE
        and out.size >= _LEAST
        and device_of(out) is None
        and not scale.has_tiny(0, out.size)
    )


def read(
    code: PrefixCode,
    data: np.ndarray,
    first: int,
    end: int,
    block_size: int,
    offsets: np.ndarray,
    scale: Scale,
    out: np.ndarray,
) -> None:
    """Read the string of a tensor and write its values.

    Parameters
    ----------
    code : PrefixCode
    data : uint8 array
    first, end : int
        Bits where the string begins and ends.
    block_size : int
        Elements of a block, a power of two.
    offsets : (count + 1,) int64 array
        Bits from `first` to the begin of each block and to the end of the last.
    scale : Scale
    out : (n,) float32 array
        Receives the values.

    Raises
    ------
    FormatError
        The contents of `out` are then undefined.
    """
    tables, numbers, streaming = read_levels(code), code.numbers, can_stream(out)
    block_size = min(block_size, out.size)

    def task(start: int, stop: int) -> None:
        part, status = out[start:stop], np.zeros(2, np.int64)
        starts = first + offsets[start // block_size : -(-stop // block_size) + 1]
        norms, phase, bucket, s = scale.part(start)
        head = cover.to_cache_line(part, 1)
        group = min(ENTRIES * block_size, part.size)
        buf = np.empty((2, _SPARE + group), np.uint8)
        places = np.empty((group + LINE) // LINE, np.int32)
        factors = np.empty(LINE * ((group + LINE) // bucket + 2), np.float32)
        room = state(), buf.ravel(), _NONE, places, factors
        _read_values(
            *(data, starts, block_size, end, numbers, *tables, *room),
            *(norms, phase, bucket, s, head, streaming, part, status),
        )
        check(status, True)

    pool.run(task, out.size, block_size)


def _emit_line(e: Emitter, step: Value) -> None:
    """Emit the step that writes a line of values."""
    builder, whole = e.builder, step.type
    first = builder.mul(step, whole(LINE))
    levels = e.load(builder.gep(e.address("symbols", "source"), [first]), lanes(8, LINE), 1)
    wide = builder.sitofp(builder.sext(levels, lanes(32, LINE)), floats(LINE))
    place = builder.zext(builder.load(builder.gep(e.args["places"], [step])), whole)
    factors = e.load(builder.gep(e.args["factors"], [place]), floats(LINE))
    values = builder.fmul(wide, factors)
    target = builder.gep(e.address("values", "target"), [first])
    with builder.if_else(e.args["streaming"]) as (past_cache, cached):
        with past_cache:
            e.store(values, target, 64, True)
        with cached:
            e.store(values, target)


_scale_by = factoring(False)


@inline
def _write_few(buf, source, scale, out, start, stop):
    """Write values `start` to `stop` - 1, whose levels begin at buf[source]."""
    norms, phase, bucket, s = scale
    for k in range(start, stop):
        level = np.float32(np.int8(buf[source + k - start]))
        out[k] = level * _scale_by(norms[(k + phase) // bucket], s)


@inline
def _fill_factors(norms, s, bucket, start, stop, factors):
    """Write the factors of the buckets of a range, LINE times each; return the first bucket."""
    first = start // bucket
    for b in range(first, (stop - 1) // bucket + 1):  # at most the last of norms
        factor = _scale_by(norms[b], s)
        for k in range(LINE * (b - first), LINE * (b - first + 1)):
            factors[k] = factor
    return first


@inline
def _place_lines(bucket, before, lines, places):
    """Write where the factors of each line begin; the first line begins `before` in a bucket.

    A line in two buckets uses the last factors of the first and the first factors of the second.
    """
    at, place, left = np.int64(0), np.int64(0), bucket - before
    while at < lines:
        whole = min(left // LINE, lines - at)
        for k in range(at, at + whole):
            places[k] = place
        at, left, place = at + whole, left - LINE * whole, place + LINE
        if at < lines:
            if left:  # below LINE
                places[at] = place - left
                at += 1
                left -= LINE
            left += bucket


_LOOK = Look(WINDOW, 6)
_MARGIN = _LOOK.margin
_look_all = looking(ENTRIES, _LOOK, {"out": 0})
_look_beside = looking(ENTRIES, _LOOK, {"out": 0}, SideWork(_STEPS, _NAMES, _emit_line))
_pass_words, _read_rest = between_looks(LEVELS, _LOOK, signed=True)


@block("step", *_NAMES)
def _write_line(e: Emitter) -> None:
    _emit_line(e, e.args["step"])


@kernel(
    "in uint8[], in int64[], int64, int64, (in uint64[], in uint64[], in uint32[]), "
    "(out int64[], out uint8[], out uint64[], out int32[], out float32[]), "
    "(in float32[], int64, int64, uint32), int64, boolean, out float32[], out int64[]",
    vectorized=False,
)
def _read_values(data, starts, block_size, end, tables, room, scale, head, streaming, out, status):
    # Blocks of `block_size` elements cover out, and starts has one more element; the first
    # bucket begins `phase` elements before out, and none has fewer than LINE elements. buf
    # has two halves, each of _SPARE bytes and those of a group; places and factors suffice for
    # a group. Lines begin at `head`, which is below LINE, and so in the first group: out and a
    # group have at least LINE elements. status[0] == 0.
    code, runs, singles = tables
    heads, buf, wide, places, factors = room
    norms, phase, bucket, s = scale
    n, half, group = out.size, buf.size >> 1, ENTRIES * block_size
    last_at = min(end - TAKEN, 8 * (data.size - 8))
    # The preceding group has `lines` lines, which begin at symbol `source` and element `target`,
    # and `over` elements after them. `places` holds the places of `placed` lines; the first of
    # these lines begins `before` elements after the start of a bucket.
    lines, source, target, over = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    placed, before = np.int64(0), np.int64(0)
    base = np.int64(_SPARE)
    for first in range(0, n, group):
        size = min(group, n - first)
        number, blocks = first // block_size, -(-size // block_size)
        for j in range(blocks):
            heads[AT + j] = starts[number + j]
            heads[PLACE + j] = base + j * block_size
            heads[LAST_PLACE + j] = base + min((j + 1) * block_size, size) - _MARGIN
            heads[LAST_AT + j] = last_at
            if heads[AT + j] < 0 or heads[AT + j] > end:
                status[0], status[1] = BROKEN, heads[AT + j]
                return
        heads[STEP], heads[LAST_STEP] = 0, lines - _STEPS
        together, line = blocks == ENTRIES, (buf, source, places, factors, out, target, streaming)
        while together:
            if heads[STEP] <= heads[LAST_STEP]:
                _look_beside(data, runs, heads, 0, buf, *line)
                if heads[STEP] > heads[LAST_STEP]:
                    continue
            else:
                _look_all(data, runs, heads, 0, buf)
            together = _pass_words(code, data, heads, end, singles, buf, wide, status)
        for j in range(blocks):
            if status[0] == 0:
                stop = base + min((j + 1) * block_size, size)
                _read_rest(code, data, heads, j, stop, end, runs, singles, buf, wide, status)
            if status[0] == 0 and heads[AT + j] != starts[number + j + 1]:
                status[0], status[1] = BROKEN, starts[number + j + 1]
            if status[0] < 0:
                return
        for step in range(heads[STEP], lines):
            _write_line(step, *line)
        if first == 0:
            _write_few(buf, base, scale, out, 0, head)
            source, target = base + head, head
        else:
            source, target = base - over, first - over
        left = first + size - target
        lines, over = left // LINE, left % LINE
        base = half + _SPARE if base == _SPARE else np.int64(_SPARE)
        for k in range(over):
            buf[base - over + k] = buf[source + LINE * lines + k]
        b = _fill_factors(norms, s, bucket, target + phase, target + phase + left, factors)
        begun = target + phase - b * bucket
        if begun + left <= bucket:
            begun = np.int64(0)  # any place serves, as all lines are in this bucket
        if begun != before or lines > placed:
            _place_lines(bucket, begun, lines, places)
            placed, before = lines, begun
    for step in range(lines):
        _write_line(step, buf, source, places, factors, out, target, streaming)
    _write_few(buf, base - over, scale, out, n - over, n)
    if streaming:
        fence()
