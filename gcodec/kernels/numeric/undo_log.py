"""A log that restores a residual in place, with one byte for most elements.

Where a sum u = x + decay·r replaces the residual r, r is nearly (u − x)/decay. The log has the
difference of the bit patterns of r and of that prediction: one byte for each element of a block of
32, if a byte holds all of them, and else a copy of the block. Writing the log takes a fraction of
the time of writing a copy of the residual.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.runtime.cover import cover, head_of
from gcodec.runtime.jit import kernel
from gcodec.runtime.lanes import BLOCK, Emitter, Value, block, floats, integer, lanes
from gcodec.runtime.memory import aligned_zeros
from gcodec.runtime.reuse import scratch

LOG = "(out uint8[], out int32[], out int64[], float32)"
"""Types of what `UndoLog.part` returns, one parameter of kernels."""
LOG_NAMES = "records", "copied", "count", "inverse"
"""Arguments of a block that calls `emit_logged`: the elements of that parameter."""
_PART = 1 << 11  # blocks that are restored at a time
_MOST = 127  # largest difference
_COPY = 4 * BLOCK  # bytes of a copied block
NO_LOG = np.empty(0, np.uint8), np.empty(0, np.int32), np.empty(0, np.int64), np.float32(0)
"""Parameter of a kernel that keeps no log."""


class UndoLog(NamedTuple):
    """Log of a residual of n elements.

    Attributes
    ----------
    inverse : float32
        Factor of u − x in predictions.
    records : (4 * n,) uint8 array
        Records of the blocks of a segment, from four times the number of its first element on:
        differences in two's complement, or a copy of the block. A kernel replaces the blocks of
        both halves of the segment in turn, and then a last one.
    copied : (ceil(n / 32),) int32 array
        Which records of a segment are copies, in ascending order, from the number of its first
        block on.
    segments : list of (start, stop, count)
        Replaced segments of whole blocks; count is the number of copied blocks.
    ends : list of (places, copy)
        Replaced elements outside of all blocks.
    """

    inverse: np.float32
    records: np.ndarray
    copied: np.ndarray
    segments: list[tuple[int, int, int]]
    ends: list[tuple[slice, np.ndarray]]

    @classmethod
    def of(cls, n: int, decay: np.float32) -> UndoLog:
        """Return an empty log of n elements."""
        with np.errstate(all="ignore"):
            inverse = np.float32(1) / decay
        return cls(inverse, scratch(4 * n), np.empty(-(-n // BLOCK), np.int32), [], [])

    def part(self, start: int, stop: int) -> tuple[Any, ...]:
        """Return the parameter `LOG` of the kernel that replaces a segment of whole blocks.

        Segments may begin at any element, but must not overlap.
        """
        first = start // BLOCK
        copied = self.copied[first : first + (stop - start) // BLOCK]
        return self.records[4 * start : 4 * stop], copied, np.zeros(1, np.int64), self.inverse

    def mark_replaced(self, start: int, stop: int, part: tuple[Any, ...]) -> None:
        """Note that a segment has been replaced, given the result of `part`."""
        self.segments.append((start, stop, int(part[2][0])))

    def keep(self, start: int, former: np.ndarray) -> None:
        """Copy elements outside of all blocks, before they are replaced."""
        self.ends.append((slice(start, start + former.size), former.copy()))

    def restore(
        self,
        x: np.ndarray,
        residual: np.ndarray,
        sums: Callable[[int, int], np.ndarray] | None = None,
    ) -> None:
        """Restore the residual.

        `sums` returns the sums of a range; without it, they are what replaced the residual.
        """
        for first, end, count in self.segments:
            copied = self.part(first, end)[1][:count].astype(np.int64)
            order = _order((end - first) // BLOCK)
            places = np.empty_like(order)  # of the record of each block
            places[order] = BLOCK * np.arange(order.size)
            places[order] += (_COPY - BLOCK) * np.searchsorted(copied, np.arange(order.size))
            records = self.records[4 * first : 4 * end]
            for at in range(0, order.size, _PART):
                own = places[at : at + _PART, np.newaxis]
                start, stop = first + BLOCK * at, first + BLOCK * (at + own.size)
                total = residual[start:stop] if sums is None else sums(start, stop)
                with np.errstate(all="ignore"):
                    predicted = (total - x[start:stop]) * self.inverse
                differences = records[own + np.arange(BLOCK)].view(np.int8).reshape(-1)
                residual[start:stop] = (predicted.view(np.int32) + differences).view(np.float32)
            blocks = residual[first:end].reshape(-1, BLOCK)
            for at in range(0, count, _PART):
                numbers = order[copied[at : at + _PART]]
                copies = records[places[numbers, np.newaxis] + np.arange(_COPY)]
                blocks[numbers] = copies.view(np.float32)
        for end_places, former in self.ends:
            residual[end_places] = former


def _order(blocks: int) -> np.ndarray:
    """Return the numbers of the blocks of a segment in the order of their records."""
    order, half = np.arange(blocks), blocks // 2
    order[: 2 * half : 2], order[1 : 2 * half : 2] = np.arange(half), half + np.arange(half)
    return order


def emit_logged(e: Emitter, done: str, former: Value, x: Value, total: Value) -> None:
    """Emit the log of 32 elements, given their residual, x and sums.

    The argument `done` is the number of elements of the segment that have been replaced before.
    The arguments of the block include `LOG_NAMES`.
    """
    builder, word = e.builder, lanes(32)
    predicted = builder.fmul(builder.fsub(total, x), e.splat(e.args["inverse"]))
    difference = builder.sub(builder.bitcast(former, word), builder.bitcast(predicted, word))
    moved = builder.add(difference, word([_MOST] * BLOCK))
    is_near = builder.icmp_unsigned("<=", moved, word([2 * _MOST] * BLOCK))
    is_near = builder.and_(is_near, builder.fcmp_ordered("ord", predicted, predicted))
    count, before = builder.load(e.args["count"]), e.args[done]
    further = builder.mul(count, count.type(_COPY - BLOCK))
    record = builder.gep(e.args["records"], [builder.add(before, further)])
    e.store(builder.trunc(difference, lanes(8)), record, align=1)
    mask = builder.bitcast(is_near, integer(BLOCK))
    with builder.if_then(builder.icmp_signed("!=", mask, mask.type(-1)), likely=False):
        e.store(former, record, align=1)
        number = builder.trunc(builder.udiv(before, before.type(BLOCK)), integer(32))
        builder.store(number, builder.gep(e.args["copied"], [count]))
        builder.store(builder.add(count, count.type(1)), e.args["count"])


def replace_by_sum(x: np.ndarray, residual: np.ndarray, decay: np.float32) -> tuple[int, UndoLog]:
    """Replace a residual on the host by x + decay·residual; both are (n,) float32 arrays.

    Returns
    -------
    top_bits : int
        Bit pattern of the largest magnitude of the sum; NaN is larger than infinity.
    log : UndoLog
        What restores the residual, given the sums.
    """
    log, tops = UndoLog.of(x.size, decay), [0]

    def blocks(start: int, stop: int) -> None:
        largest, logged = aligned_zeros(BLOCK, np.int32), log.part(start, stop)
        _add_blocks(x[start:stop], residual[start:stop], decay, largest, *logged)
        log.mark_replaced(start, stop, logged)
        tops.append(int(largest.max()))

    def padded(start: int, stop: int) -> None:
        own = residual[start:stop]
        log.keep(start, own)
        with np.errstate(all="ignore"):
            own[:] = x[start:stop] + decay * own
        tops.append(int(np.abs(own).view(np.int32).max()))

    cover(blocks, padded, head_of(residual, 1), x.size, x)
    return max(tops), log


@block("x", "i", "residual", "decay", "largest", "done", *LOG_NAMES)
def _add_block(e: Emitter) -> None:
    """Replace 32 elements of the residual from i on, log them, and raise `largest`."""
    source, place = e.address("x", "i"), e.address("residual", "i")
    former, x = e.fetched(place, floats()), e.fetched(source, floats())
    total = e.builder.fadd(x, e.builder.fmul(e.splat(e.args["decay"]), former))
    emit_logged(e, "done", former, x, total)
    e.store(total, place)
    so_far = e.load(e.args["largest"], lanes(32))
    e.store(e.larger(e.magnitude_bits(total), so_far), e.args["largest"])


@kernel(f"in float32[], out float32[], float32, out int32[], {LOG}")
def _add_blocks(x, residual, decay, largest, log):
    # residual.size == x.size, a multiple of BLOCK; largest.size == BLOCK; the log has as many
    # elements. A record is no longer than its block, so it ends before 4 * x.size.
    half = x.size // (2 * BLOCK) * BLOCK
    for i in range(0, half, BLOCK):
        _add_block(x, i, residual, decay, largest, 2 * i, *log)
        _add_block(x, half + i, residual, decay, largest, 2 * i + BLOCK, *log)
    for i in range(2 * half, x.size, BLOCK):
        _add_block(x, i, residual, decay, largest, i, *log)
