"""MXNet's quantizers by a threshold, which write packed codes of 2 bits or 1 bit in one pass.

The arithmetic is MXNet's: v = x + decay·residual is compared with the threshold, and the new
residual is v minus the decoded value. Each operation is rounded to float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.pack import FieldLayout, check_padding
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.runtime.cover import cover, head_of, streams
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Intrinsic, Kernel, factory, kernel
from gcodec.runtime.lanes import BLOCK, Emitter, Value, block, fence, floats, lanes
from gcodec.runtime.memory import empty_beside

TWO_BIT = FieldLayout(width=2, align=4)
ONE_BIT = FieldLayout(width=1, align=4)

ONE = np.float32(1)
_NONE = np.empty(0, np.float32)

PastCache = Literal["none", "residual", "backup"]
"""What a kernel writes past the cache: nothing, the new residual, or a copy of the former one."""


@dispatched("gcodec.kernels.quantize.threshold_cuda")
def quantize(
    x: np.ndarray,
    layout: FieldLayout,
    threshold: np.float32,
    level: np.float32 = ONE,
    update: ResidualUpdate | None = None,
    check: Callable[[int], object] | None = None,
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
        The residual. An update in place may save it.
    check : callable, optional
        Gets the bit pattern of a magnitude, which is finite only if v is.

    Returns
    -------
    (layout.nbytes(n),) uint8 array
        Packed codes, padded with zero bits.
    """
    n, width = x.size, layout.width
    head = head_of(x if update is None else update.new_residual, 8 // width)
    past_cache = _past_cache(update, head)
    loop = _quantizer(width, past_cache)
    numbers = np.float32(0) if update is None else update.decay, threshold, level
    out = empty_beside(layout.nbytes(n), np.uint8, None)
    out[-(-n * width // 8) :] = 0
    tops = [np.zeros(1, np.int32)]

    def blocks(start: int, stop: int) -> None:
        part, largest = out[start * width // 8 : stop * width // 8], np.zeros(BLOCK, np.int32)
        if update is None:
            zeros, ignored = np.zeros(BLOCK, np.float32), np.empty(BLOCK, np.float32)
            loop(x[start:stop], zeros, ignored, _NONE, 0, *numbers, part, largest)
        else:
            own = update.part(start, stop)
            former = own.residual if past_cache == "backup" else own.save()
            arrays = x[start:stop], former, own.new_residual, own.backup
            loop(*arrays, 1, *numbers, part, largest)
            own.mark_replaced()
        tops.append(largest)

    def padded(start: int, stop: int) -> None:
        # NaN reaches no threshold, so the bits of the padding are zero.
        values = np.full(BLOCK, np.nan, np.float32)
        values[: stop - start] = x[start:stop]
        error = np.zeros(BLOCK, np.float32)
        if update is not None:
            own = update.part(start, stop)
            error[: stop - start] = own.save()
        packed, ignored = np.empty(BLOCK * width // 8, np.uint8), np.zeros(BLOCK, np.int32)
        _quantizer(width, "none")(values, error, error, _NONE, 1, *numbers, packed, ignored)
        tops.append(np.abs(error[: stop - start]).view(np.int32))
        if update is not None:
            own.new_residual[:] = error[: stop - start]
            own.mark_replaced()
        at, size = start * width // 8, -(-(stop - start) * width // 8)
        out[at : at + size] = packed[:size]

    cover(blocks, padded, head, n, x)
    if check is not None:
        check(max(int(part.max()) for part in tops))
    return out


@dispatched("gcodec.kernels.quantize.threshold_cuda")
def check_codes_2bit(data: np.ndarray, n: int) -> None:
    """Raise `Corrupt` if the padding after n codes is not zero, or a code is 01."""
    check_padding(data, 2 * n)
    if _code_01_bits(data):
        raise code_error()


def code_error() -> Corrupt:
    """Make the error for an invalid code."""
    return Corrupt("a field of two bits holds the invalid code 01")


def _past_cache(update: ResidualUpdate | None, head: int) -> PastCache:
    """Return what the kernel should write past the cache, from element `head` on."""
    if update is None or not streams(update.separate_output[head:]):
        return "none"
    if update.saves:
        return "backup"
    return "none" if update.is_in_place else "residual"


def _quantize_block(rule: Callable[..., tuple[Value, Value]], past_cache: PastCache) -> Intrinsic:
    """Make the block quantizer for a rule, which emits the comparison and the packing.

    The block takes 32 elements of x from i, and of before and after from j: v = x + decay·before,
    after = v minus the step of the rule. Where `past_cache` says so, before is copied to `backup`.
    The codes go to the bytes of `out` from `at` on, and the largest magnitudes of v, as bits, to
    `largest`.
    """
    arrays = "x", "i", "before", "after", "backup", "j"

    @block(*arrays, "decay", "threshold", "level", "out", "at", "largest")
    def quantize(e: Emitter) -> None:
        source, kept = e.address("x", "i"), e.address("before", "j")
        decay, threshold, level = (e.splat(e.args[k]) for k in ("decay", "threshold", "level"))
        former = e.fetched(kept, floats())
        memory = e.builder.fmul(decay, former)
        v = e.builder.fadd(e.fetched(source, floats()), memory)
        step, codes = rule(e, v, threshold, level)
        error = e.builder.fsub(v, step)
        if past_cache == "backup":
            e.store(former, e.address("backup", "j"), streaming=True)
        e.store(error, e.address("after", "j"), streaming=past_cache == "residual")
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


@factory(lambda: itertools.product((1, 2), get_args(PastCache)))
def _quantizer(width: int, past_cache: PastCache) -> Kernel:
    """Make the kernel for codes of 1 or 2 bits."""
    one_block = _quantize_block(_rule_1bit if width == 1 else _rule_2bit, past_cache)
    per_byte = 8 // width
    fences = past_cache != "none"

    @kernel(
        "in float32[], in float32[], out float32[], out float32[], int64, float32, float32, "
        "float32, out uint8[], out int32[]",
        variant=f"{width} {past_cache}",
    )
    def quantize_blocks(x, before, after, backup, stride, decay, threshold, level, out, largest):
        # x has whole blocks, and `out` the packed bytes of as many codes. before and after are as
        # long as x if stride is 1, and BLOCK long if it is 0. So each block lies inside its
        # arrays. backup is as long as before where it is written. largest.size == BLOCK.
        #
        # The loop alternates between the two halves: two streams keep more of the memory busy
        # than one, which gains a tenth. An odd block in the middle comes last.
        numbers = decay, threshold, level
        half = x.size // (2 * BLOCK) * BLOCK
        for i in range(0, half, BLOCK):
            for k in (i, half + i):
                at, j = k // per_byte, k * stride
                one_block(x, k, before, after, backup, j, *numbers, out, at, largest)
        for k in range(2 * half, x.size, BLOCK):
            at, j = k // per_byte, k * stride
            one_block(x, k, before, after, backup, j, *numbers, out, at, largest)
        if fences:
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
