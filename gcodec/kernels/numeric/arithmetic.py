"""Element-wise sums for error feedback and aggregation, each in one pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.numeric.reduce import (
    LANES,
    TILE,
    Moments,
    add_lanes,
    emit_range,
    finish_moments,
    fold,
    key_of,
    ranges_of_keys,
    top_of_keys,
)
from gcodec.runtime import pool
from gcodec.runtime.cover import streams
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Intrinsic, inline, kernel
from gcodec.runtime.lanes import BLOCK, STREAMED, Emitter, Value, block, doubles, fence, floats
from gcodec.runtime.memory import (
    aligned_empty,
    bits_float,
    empty_beside,
    float_bits,
    magnitude_bits,
)
from gcodec.runtime.reuse import scratch

_NONE = np.empty(0, np.float32)
_PART = 1 << 16  # elements whose range is found together, where no buckets are requested
TERMS = "(in float32[], in float32[], float32, out float32[], out float32[])"
"""Types of what `ResidualUpdate.terms` returns, one parameter of kernels."""
NO_TERMS = _NONE, _NONE, np.float32(0), _NONE, _NONE
"""Terms of a kernel that adds no residual."""


class ResidualUpdate(NamedTuple):
    """The residual of a tensor, which a quantizer adds and replaces.

    Attributes
    ----------
    residual : (n,) float32 array
    decay : float32
        Factor of the residual in the sum u = x + decay·residual.
    new_residual : (n,) float32 array
        Output: the quantization error, u minus the decoded value. May be `residual`.
    backup : (n,) float32 array, optional
        Output, if `new_residual` is the residual: the former residual, saved by the pass that adds
        it. By default, it has no elements, and nothing is saved.
    replaced : list of pairs of arrays, optional
        Parts of the residual that have been replaced, and their backups; see `saving`.
    rounded_to : int
        Index in `gcodec.runtime.lanes.ROUNDED` of the dtype to which decoded values are rounded
        before they are subtracted.
    """

    residual: np.ndarray
    decay: np.float32
    new_residual: np.ndarray
    backup: np.ndarray = _NONE
    replaced: list[tuple[np.ndarray, np.ndarray]] | None = None
    rounded_to: int = 0

    @property
    def is_in_place(self) -> bool:
        """Whether the output is the residual itself."""
        return self.new_residual is self.residual

    @property
    def saves(self) -> bool:
        """Whether the pass that adds the residual saves it."""
        return self.backup.size > 0

    @property
    def separate_output(self) -> np.ndarray:
        """The output that does not overwrite the residual: the backup if there is one."""
        return self.backup if self.saves else self.new_residual

    def part(self, start: int, stop: int) -> ResidualUpdate:
        """Return the update of the elements from `start` to `stop`."""
        own = slice(start, stop)
        residual, new_residual = self.residual[own], self.new_residual[own]
        backup = self.backup[own]
        return self._replace(residual=residual, new_residual=new_residual, backup=backup)

    def terms(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.float32, Any, Any]:
        """Return the elements of `TERMS`: x, residual, decay, new residual and backup."""
        return x, self.residual, self.decay, self.new_residual, self.backup

    def saving(self) -> ResidualUpdate:
        """Return an update in place that saves the residual, so that `restore` can undo it."""
        backup: np.ndarray = scratch(self.new_residual.nbytes).view(np.float32)
        return self._replace(backup=backup, replaced=[])

    @property
    def former(self) -> np.ndarray:
        """The residual before the step; an update in place must have saved all of it."""
        return self.backup if self.saves else self.residual

    def save(self) -> np.ndarray:
        """Copy the residual to the backup, if there is one; return the former residual."""
        if self.saves:
            self.backup[:] = self.residual
        return self.former

    def mark_replaced(self) -> None:
        """Note that an update in place has saved the residual of this part, and replaced it."""
        if self.replaced is not None:
            self.replaced.append((self.new_residual, self.former))

    def restore(self) -> None:
        """Restore the residual wherever it has been replaced."""
        for residual, former in self.replaced or ():
            residual[:] = former


class ValueStatistics(NamedTuple):
    """What a quantizer knows about its values, such as what the pass that added a residual found.

    Attributes
    ----------
    top_bits : int or Deferred
        Bit pattern of the largest magnitude; NaN is larger than infinity.
    ranges : tuple, optional
        Result of `ranges` for the buckets that were requested; None if they are not known.
    moments : Moments, optional
        Moments of the values; None if they are not known.
    plain : (n,) uint8 array, optional
        Symbols of the levels of ecsq by plain rounding; None if they are not known.
    """

    top_bits: int | Deferred
    ranges: tuple[np.ndarray, bool] | None = None
    moments: Moments | None = None
    plain: np.ndarray | None = None


def corrected(x: np.ndarray, residual: np.ndarray, decay: np.float32) -> np.ndarray:
    """Return x + decay·residual of (n,) float32 arrays; each step is rounded once."""
    out = empty_beside(x.size, np.float32, x)
    correct(x, residual, decay, out)
    return out


@dispatched("gcodec.kernels.numeric.arithmetic_cuda")
def correct(x: np.ndarray, residual: np.ndarray, decay: np.float32, out: np.ndarray) -> int:
    """Write x + decay·residual to `out`, another array; see `corrected`.

    Returns
    -------
    int
        Bit pattern of the largest magnitude; NaN is larger than infinity.
    """
    return int(add_residual(x, ResidualUpdate(residual, decay, out)).top_bits)


def add_residual(x: np.ndarray, update: ResidualUpdate, bucket: int = 0) -> ValueStatistics:
    """Write x + decay·residual of arrays on the host to `update.new_residual`.

    Parameters
    ----------
    x : (n,) float32 array or ConvertedArray
    update : ResidualUpdate
        An update in place saves the residual.
    bucket : int
        Elements of the buckets whose ranges are found where this costs no pass; 0 for none.
    """
    if not _bypasses_cache(update):

        def task(i: int, j: int) -> int:
            own = update.part(i, j)
            top = int(_correct(x[i:j], own.save(), own.decay, own.new_residual))
            own.mark_replaced()
            return top

        return ValueStatistics(max(pool.run(task, x.size, 1, x)))
    is_one = bucket >= x.size
    part = _PART if is_one or bucket % BLOCK or not bucket else bucket
    keys = _past_cache(x, update, part)
    top_bits = top_of_keys(keys)
    if is_one:
        keys = np.array([[keys[:, 0].min(), keys[:, 1].max()]], np.int32)
    has_ranges = is_one or part == bucket
    return ValueStatistics(top_bits, ranges_of_keys(keys) if has_ranges else None)


def add_residual_with_moments(x: np.ndarray, update: ResidualUpdate) -> ValueStatistics:
    """Do what `add_residual` does, and find the moments where this costs no pass."""
    if not _bypasses_cache(update):
        return add_residual(x, update)
    sums, squares = np.empty((2, -(-x.size // TILE)), np.float64)

    def task(i: int, j: int) -> int:
        part, own = slice(i // TILE, -(-j // TILE)), update.part(i, j)
        scratch = aligned_empty(2 * LANES, np.float64), np.zeros(BLOCK, np.uint32)
        terms = own.terms(x[i:j])
        top = int(_correct_with_moments(*terms, *scratch, sums[part], squares[part]))
        own.mark_replaced()
        return top

    top_bits = max(pool.run(task, x.size, TILE, x))
    return ValueStatistics(top_bits, moments=Moments(fold(sums), fold(squares), top_bits))


def _bypasses_cache(update: ResidualUpdate) -> bool:
    """Return whether the sum, or a copy of the residual, is written past the cache."""
    if update.saves:  # a part of an update may begin at any element
        return update.backup.ctypes.data % STREAMED == 0
    return streams(update.new_residual)


def _past_cache(x: np.ndarray, update: ResidualUpdate, bucket: int) -> np.ndarray:
    """Write x + decay·residual, and return the least and greatest keys of buckets.

    `bucket` is a multiple of BLOCK; see `gcodec.kernels.numeric.ranges` for keys.
    """
    keys = np.empty((-(-x.size // bucket), 2), np.int32)

    def task(i: int, j: int) -> None:
        own = update.part(i, j)
        own_keys = keys[i // bucket : -(-j // bucket)].reshape(-1)
        _correct_past_cache(*own.terms(x[i:j]), bucket, own_keys)
        own.mark_replaced()

    pool.run(task, x.size, bucket, x)
    return keys


@dispatched("gcodec.kernels.numeric.arithmetic_cuda")
def add_scaled(decoded: np.ndarray, scale: np.float32, out: np.ndarray) -> None:
    """Add scale·v to (n,) float32 `out`; each step is rounded once.

    `decoded` is an (n,) float32 array, the values v. On the host, it may be their (4·n,) bytes,
    which may begin at any address.
    """
    stored = decoded.view(np.uint8)
    pool.run(lambda i, j: _add_scaled(stored[4 * i : 4 * j], scale, out[i:j]), out.size)


# All arrays of a call have the same size.


@kernel("in float32[], in float32[], float32, out float32[]")
def _correct(x, residual, decay, out):
    top = np.uint32(0)
    for i in range(out.size):
        out[i] = x[i] + decay * residual[i]
        top = max(top, magnitude_bits(out[i]))
    return top


# The following kernels write the sum to `new_residual`, past the cache. With a `backup`,
# `new_residual` may be the residual, which goes to the backup past the cache. What is written past
# the cache begins at a multiple of STREAMED bytes; see `_bypasses_cache`.


def _sums_block(streaming: bool) -> Intrinsic:
    """Make the block of `_correct_past_cache`, or one whose sums stay in the cache."""
    saves = ("saves",) if streaming else ()

    @block("x", "residual", "i", "stop", "decay", "new_residual", "backup", *saves, "keys", "at")
    def add_range(e: Emitter) -> None:
        """Add the residual to the elements from i to stop, whose number is a multiple of BLOCK.

        The least key of the sums goes to element `at` of keys, and the greatest one to the next.
        """
        builder, decay = e.builder, e.splat(e.args["decay"])

        def sums(i: Value) -> Value:
            x, former = (
                e.fetched(builder.gep(e.args[name], [i]), floats()) for name in ("x", "residual")
            )
            total = builder.fadd(x, builder.fmul(decay, former))
            target = builder.gep(e.args["new_residual"], [i])
            if streaming:
                _emit_stores(e, total, target, former, builder.gep(e.args["backup"], [i]))
            else:
                e.store(total, target)
            return total

        emit_range(e, sums, e.address("keys", "at"))

    return add_range


def _emit_stores(e: Emitter, total: Value, target: Value, former: Value, backup: Value) -> None:
    """Emit the stores of a sum and, if the argument "saves" is true, of the former residual.

    One of the two goes past the cache.
    """
    with e.builder.if_else(e.args["saves"]) as (saving, replacing):
        with saving:
            e.store(former, backup, streaming=True)
            e.store(total, target)
        with replacing:
            e.store(total, target, streaming=True)


add_range, _stream_range = _sums_block(False), _sums_block(True)


@kernel(f"{TERMS}, int64, out int32[]", variant="stream")
def _correct_past_cache(terms, bucket, keys):
    # bucket is a multiple of BLOCK; keys.size == 2 * ceil(new_residual.size / bucket)
    x, residual, decay, new_residual, backup = terms
    saves = backup.size > 0
    for b in range(keys.size // 2):
        start = b * bucket
        stop = min(start + bucket, new_residual.size)
        whole = stop - (stop - start) % BLOCK
        _stream_range(x, residual, start, whole, decay, new_residual, backup, saves, keys, 2 * b)
        low, high = keys[2 * b], keys[2 * b + 1]
        for i in range(whole, stop):
            total = x[i] + decay * residual[i]
            if saves:
                backup[i] = residual[i]
            new_residual[i] = total
            key = key_of(np.int32(float_bits(total)))
            low, high = min(low, key), max(high, key)
        keys[2 * b], keys[2 * b + 1] = low, high
    fence()


# Kernels that quantize a sum add the residual to a bucket, a block or a tile while it is in the
# cache. They quantize the sum there and replace it by its error, which goes to `new_residual`.
# That may be the residual, if there is a `backup` that gets the former one. With `streaming`, the
# backup, or `new_residual` if there is none, is written past the cache, and a `fence` must follow
# the last call.


def _copy_block(stream: bool) -> Intrinsic:
    """Make the block that copies 32 elements of `source` from j on to `target` from i on."""

    @block("source", "j", "target", "i")
    def copy(e: Emitter) -> None:
        elements = e.load(e.address("source", "j"), floats())
        e.store(elements, e.address("target", "i"), streaming=stream)

    return copy


_write_block, _stream_block = _copy_block(False), _copy_block(True)


@inline
def copy_block(source, j, target, i, streaming):
    """Copy 32 elements of `source` from j on to `target`, from i on, perhaps past the cache."""
    if streaming:
        _stream_block(source, j, target, i)
    else:
        _write_block(source, j, target, i)


@block("x", "residual", "i", "decay", "sums", "j")
def _sum_block(e: Emitter) -> None:
    """Write x + decay·residual of 32 elements from i on to `sums`, from element j on."""
    x, residual = (e.load(e.address(name, "i"), floats()) for name in ("x", "residual"))
    product = e.builder.fmul(e.splat(e.args["decay"]), residual)
    e.store(e.builder.fadd(x, product), e.address("sums", "j"))


@inline
def add_block(terms, i, sums, j, streaming):
    """Save 32 elements of the residual from i on; write the sums of terms to `sums`, from j on."""
    x, residual, decay, _, backup = terms
    if backup.size:
        copy_block(residual, i, backup, i, streaming)  # `sums` may be the residual
    _sum_block(x, residual, i, decay, sums, j)


@inline
def store_errors(errors, j, terms, i, streaming):
    """Write 32 errors, from j on, to the new residual, from element i on."""
    new_residual, backup = terms[3], terms[4]
    copy_block(errors, j, new_residual, i, streaming and backup.size == 0)


@block("x", "residual", "i")
def fetch_terms(e: Emitter) -> None:
    """Prefetch what `add_block` reads from element i on."""
    for name in ("x", "residual"):
        e.fetch(e.address(name, "i"), 0)


@inline
def add_tile(terms, start, size, sums, streaming, ahead):
    """Save the residual of `size` elements from `start` on, and write their sums.

    The sums go to `sums`, from its first element on, and to `new_residual`. The terms of the sums
    that lie `ahead` elements further on are prefetched.
    """
    x, residual, decay, new_residual, backup = terms
    whole = size - size % BLOCK
    for j in range(0, whole, BLOCK):
        i = start + j
        add_block(terms, i, sums, j, streaming)
        store_errors(sums, j, terms, i, streaming)
        fetch_terms(x, residual, i + ahead)
    for j in range(whole, size):
        i = start + j
        sums[j] = x[i] + decay * residual[i]
        if backup.size:
            backup[i] = residual[i]
        new_residual[i] = sums[j]


@block("x", "i")
def fetch_block(e: Emitter) -> None:
    """Prefetch 32 elements from i on, which may lie beyond the end of x."""
    e.fetch(e.address("x", "i"), 0)


def _row_block(is_first: bool) -> Intrinsic:
    """Make the block that adds the residual to 32 elements from i on, in a row of a tile.

    It writes the sums and their squares to lanes from t on, or adds them there if the row is not
    the first one, and raises `largest`, 32 bit patterns of magnitudes. The lanes of all rows stay
    in the cache, so that the block reads and writes memory in order: stores past the cache that
    jump from row to row would take longer than the sums.
    """
    terms = "x", "residual", "i", "decay", "new_residual", "backup", "saves"

    @block(*terms, "sums", "squares", "t", "largest")
    def add_row(e: Emitter) -> None:
        builder, largest = e.builder, e.args["largest"]
        x, former = (e.load(e.address(name, "i"), floats()) for name in ("x", "residual"))
        total = builder.fadd(x, builder.fmul(e.splat(e.args["decay"]), former))
        place, backup = (e.address(name, "i") for name in ("new_residual", "backup"))
        _emit_stores(e, total, place, former, backup)
        bits = e.magnitude_bits(total)
        e.store(e.larger(bits, e.load(largest, bits.type)), largest)
        wide = builder.fpext(total, doubles())
        for name, term in (("sums", wide), ("squares", builder.fmul(wide, wide))):
            lanes = e.address(name, "t")
            if not is_first:
                term = builder.fadd(e.load(lanes, term.type, 8), term)
            e.store(term, lanes, 8)

    return add_row


_first_row, _next_row = _row_block(True), _row_block(False)


@kernel(f"{TERMS}, out float64[], out uint32[], out float64[], out float64[]", variant="stream")
def _correct_with_moments(terms, scratch, top, sums, squares):
    # See reduce._tile_moments for the arguments after `terms`; top.size == BLOCK.
    x, residual, decay, new_residual, backup = terms
    saves = backup.size > 0
    lanes_1, lanes_2 = scratch[:LANES], scratch[LANES:]
    for i in range(x.size - x.size % TILE, x.size):
        total = x[i] + decay * residual[i]
        if saves:
            backup[i] = residual[i]
        new_residual[i] = total
    for tile in range(x.size // TILE):
        start = tile * TILE
        for t in range(0, LANES, BLOCK):  # BLOCK divides LANES, and LANES divides TILE
            block_terms = x, residual, start + t, decay, new_residual, backup, saves
            _first_row(*block_terms, lanes_1, lanes_2, t, top)
        for j in range(LANES, TILE, BLOCK):
            block_terms = x, residual, start + j, decay, new_residual, backup, saves
            _next_row(*block_terms, lanes_1, lanes_2, j % LANES, top)
        sums[tile], squares[tile] = add_lanes(lanes_1), add_lanes(lanes_2)
    fence()
    return finish_moments(new_residual, scratch, top, sums, squares)


@block("stored", "at", "scale", "out", "i")
def _add_block(e: Emitter) -> None:
    """Add scale times the 32 values that begin at a byte of `stored` to elements from i on."""
    values, target = e.load(e.address("stored", "at"), floats(), 1), e.address("out", "i")
    product = e.builder.fmul(e.splat(e.args["scale"]), values)
    e.store(e.builder.fadd(e.load(target, floats()), product), target)


@kernel("in uint8[], float32, out float32[]")
def _add_scaled(stored, scale, out):
    # stored.size == 4 * out.size
    whole = out.size - out.size % BLOCK
    for i in range(0, whole, BLOCK):
        _add_block(stored, 4 * i, scale, out, i)
    for i in range(whole, out.size):
        bits = np.uint32(0)
        for k in range(4 * i, 4 * i + 4):
            bits = np.uint32(bits >> np.uint32(8) | np.uint32(stored[k]) << np.uint32(24))
        out[i] += scale * bits_float(bits)
