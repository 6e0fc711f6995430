"""MXNet's quantizers by a threshold, which write packed codes of 2 bits or 1 bit in one pass.

The arithmetic is MXNet's: v = x + decay·residual is compared with the threshold, and the new
residual is v minus the decoded value. Each operation is rounded to float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Literal

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.pack import FieldLayout, check_padding
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.kernels.numeric.undo_log import LOG, LOG_NAMES, NO_LOG, UndoLog, emit_logged
from gcodec.runtime.cover import cover, head_of, streams
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Intrinsic, Kernel, factory, kernel
from gcodec.runtime.lanes import BLOCK, Emitter, Value, block, fence, floats, lanes
from gcodec.runtime.memory import empty_beside

TWO_BIT = FieldLayout(width=2, align=4)
ONE_BIT = FieldLayout(width=1, align=4)

ONE = np.float32(1)

Output = Literal["cached", "streamed", "logged"]
"""How a kernel writes the new residual: to the cache, past the cache, or in place, with a log that
restores the former one."""


@dispatched("gcodec.kernels.quantize.threshold_cuda")
def quantize(
    x: np.ndarray,
    layout: FieldLayout,
    threshold: np.float32,
    level: np.float32 = ONE,
    update: ResidualUpdate | None = None,
    check: Callable[[int], object] | None = None,
    undoes: bool = False,
) -> np.ndarray:
    """Quantize v, which is x or x + decay·residual, by a threshold.

    Parameters
    ----------
    x : (n,) float32 array
    layout : TWO_BIT or ONE_BIT
        Two bits: 11 for v ≥ t, 10 for v ≤ −t, else 00. One bit: 1 for v > t, else 0.
    threshold : float32
    level : float32
        Magnitude of the decoded values other than 0, on which the new residual depends.
    update : ResidualUpdate, optional
        The residual.
    check : callable, optional
        Gets the bit pattern of a magnitude, which is finite only if v is.
    undoes : bool
        Whether an update in place restores the residual if `check` raises an error. The codes must
        have one bit.

    Returns
    -------
    (layout.nbytes(n),) uint8 array
        Packed codes, padded with zero bits.
    """
    n, width = x.size, layout.width
    head = head_of(x if update is None else update.new_residual, 8 // width)
    log = UndoLog.of(n, update.decay) if update is not None and undoes else None
    loop = _quantizer(width, _output(update, head, log))
    numbers = np.float32(0) if update is None else update.decay, threshold, level
    out = empty_beside(layout.nbytes(n), np.uint8, None)
    out[-(-n * width // 8) :] = 0
    tops = [np.zeros(1, np.int32)]

    def blocks(start: int, stop: int) -> None:
        part, largest = out[start * width // 8 : stop * width // 8], np.zeros(BLOCK, np.int32)
        if update is None:
            zeros, ignored = np.zeros(BLOCK, np.float32), np.empty(BLOCK, np.float32)
            loop(x[start:stop], zeros, ignored, 0, *numbers, part, largest, *NO_LOG)
        else:
            own = update.part(start, stop)
            logged = NO_LOG if log is None else log.part(start, stop)
            arrays = x[start:stop], own.residual, own.new_residual
            loop(*arrays, 1, *numbers, part, largest, *logged)
            if log is not None:
                log.mark_replaced(start, stop, logged)
        tops.append(largest)

    def padded(start: int, stop: int) -> None:
        # NaN reaches no threshold, so the bits of the padding are zero.
        values = np.full(BLOCK, np.nan, np.float32)
        values[: stop - start] = x[start:stop]
        error = np.zeros(BLOCK, np.float32)
        if update is not None:
            own = update.part(start, stop)
            if log is not None:
                log.keep(start, own.residual)
            error[: stop - start] = own.residual
        packed, ignored = np.empty(BLOCK * width // 8, np.uint8), np.zeros(BLOCK, np.int32)
        _quantizer(width, "cached")(values, error, error, 1, *numbers, packed, ignored, *NO_LOG)
        tops.append(np.abs(error[: stop - start]).view(np.int32))
        if update is not None:
            own.new_residual[:] = error[: stop - start]
        at, size = start * width // 8, -(-(stop - start) * width // 8)
        out[at : at + size] = packed[:size]

    try:
        cover(blocks, padded, head, n, x)
        if check is not None:
            check(max(int(part.max()) for part in tops))
    except BaseException:
        if update is not None and log is not None:
            _undo(log, x, update.new_residual, out, level)
        raise
    return out


def _undo(
    log: UndoLog, x: np.ndarray, errors: np.ndarray, codes: np.ndarray, level: np.float32
) -> None:
    """Restore a residual, which errors of codes of one bit have replaced."""

    def sums(start: int, stop: int) -> np.ndarray:
        first = start // 8
        bits = np.unpackbits(codes[first : -(-stop // 8)])[start - 8 * first : stop - 8 * first]
        return errors[start:stop] + np.where(bits, level, -level)

    log.restore(x, errors, sums)


@dispatched("gcodec.kernels.quantize.threshold_cuda")
def check_codes_2bit(data: np.ndarray, n: int) -> None:
    """Raise `Corrupt` if the padding after n codes is not zero, or a code is 01."""
    check_padding(data, 2 * n)
    if _code_01_bits(data):
        raise code_error()


def code_error() -> Corrupt:
    """Make the error for an invalid code."""
    return Corrupt("a field of two bits holds the invalid code 01")


def _output(update: ResidualUpdate | None, head: int, log: UndoLog | None) -> Output:
    """Return how the kernel writes the new residual from element `head` on."""
    if log is not None:
        return "logged"
    if update is None or update.is_in_place or not streams(update.new_residual[head:]):
        return "cached"
    return "streamed"


def _quantize_block(rule: Callable[..., tuple[Value, Value]], output: Output) -> Intrinsic:
    """Make the block quantizer for a rule, which emits the comparison and the packing.

    The block takes 32 elements of x from i, and of before and after from j: v = x + decay·before,
    after = v minus the step of the rule. The codes go to the bytes of `out` from `at` on, and the
    largest magnitudes of v, as bits, to `largest`.
    """
    arrays = "x", "i", "before", "after", "j"
    numbers = "decay", "threshold", "level"

    @block(*arrays, *numbers, "out", "at", "largest", "done", *LOG_NAMES)
    def quantize(e: Emitter) -> None:
        source, kept = e.address("x", "i"), e.address("before", "j")
        decay, threshold, level = (e.splat(e.args[k]) for k in numbers)
        former, x = e.fetched(kept, floats()), e.fetched(source, floats())
        v = e.builder.fadd(x, e.builder.fmul(decay, former))
        step, codes = rule(e, v, threshold, level)
        error = e.builder.fsub(v, step)
        if output == "logged":
            emit_logged(e, "done", former, x, e.builder.fadd(error, step))
        e.store(error, e.address("after", "j"), streaming=output == "streamed")
        e.store(codes, e.address("out", "at"), align=1)
        so_far = e.load(e.args["largest"], lanes(32))
        e.store(e.larger(e.magnitude_bits(v), so_far), e.args["largest"])

    return quantize


def _rule_2bit(e: Emitter, v: Value, threshold: Value, level: Value) -> tuple[Value, Value]:
    """Emit code 3 and step = level for v ≥ threshold, 2 and −level for v ≤ −threshold, else 0."""
    builder, code = e.builder, lanes(8)
    up = builder.fcmp_ordered(">=", v, threshold)
    down = builder.fcmp_ordered("<=", v, builder.fneg(threshold))
    zero = v.type([0.0] * BLOCK)
    step = builder.select(up, level, builder.select(down, builder.fneg(level), zero))
    negative = builder.select(down, code([2] * BLOCK), code([0] * BLOCK))
    codes = builder.select(up, code([3] * BLOCK), negative)
    # One multiplication collects the four codes in the bytes of a word in its top byte.
    four = builder.bitcast(codes, lanes(32, BLOCK // 4))
    collect = four.type([1 | 1 << 10 | 1 << 20 | 1 << 30] * (BLOCK // 4))
    top = builder.lshr(builder.mul(four, collect), four.type([24] * (BLOCK // 4)))
    return step, builder.trunc(top, lanes(8, BLOCK // 4))


def _rule_1bit(e: Emitter, v: Value, threshold: Value, level: Value) -> tuple[Value, Value]:
    """Emit code 1 and step = level for v > threshold, else code 0 and step = −level."""
    up = e.builder.fcmp_ordered(">", v, threshold)
    return e.builder.select(up, level, e.builder.fneg(level)), e.first_highest(up)


@factory(lambda: [*itertools.product((1, 2), ("cached", "streamed")), (1, "logged")])
def _quantizer(width: int, output: Output) -> Kernel:
    """Make the kernel for codes of 1 or 2 bits."""
    one_block = _quantize_block(_rule_1bit if width == 1 else _rule_2bit, output)
    per_byte = 8 // width
    streaming = output == "streamed"

    @kernel(
        "in float32[], in float32[], out float32[], int64, float32, float32, float32, "
        f"out uint8[], out int32[], {LOG}",
        variant=f"{width} {output}",
    )
    def quantize_blocks(x, before, after, stride, decay, threshold, level, out, largest, log):
        # x has whole blocks, and `out` the packed bytes of as many codes. before and after are as
        # long as x if stride is 1, and BLOCK long if it is 0. So each block lies inside its
        # arrays. largest.size == BLOCK. The log has as many elements where it is written.
        #
        # The loop alternates between the two halves: two streams keep more of the memory busy
        # than one, which gains a tenth. An odd block in the middle comes last.
        numbers = decay, threshold, level
        half = x.size // (2 * BLOCK) * BLOCK
        for i in range(0, half, BLOCK):
            for k, done in ((i, 2 * i), (half + i, 2 * i + BLOCK)):
                at, j = k // per_byte, k * stride
                one_block(x, k, before, after, j, *numbers, out, at, largest, done, *log)
        for k in range(2 * half, x.size, BLOCK):
            at, j = k // per_byte, k * stride
            one_block(x, k, before, after, j, *numbers, out, at, largest, k, *log)
        if streaming:
            fence()

    return quantize_blocks


@kernel("in uint8[]")
def _code_01_bits(data):
    # Gathers the low bits of fields whose high bit is 0. The mask comes last and every step is cut
    # to 8 bits, so that the loop runs on byte lanes.
    bits = np.uint8(0)
    for i in range(data.size):
        high = np.uint8(data[i] >> np.uint8(1))
        bits = np.uint8(bits | np.uint8(data[i] & np.uint8(~high)))
    return bits & np.uint8(0x55)
