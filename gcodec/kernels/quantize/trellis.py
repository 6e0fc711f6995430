"""The trellis of two quantizers: the parities of the levels so far select the next quantizer.

Points are multiples h of half a step. Quantizer 0 has the even multiples, quantizer 1 the odd ones
and 0. The points of each are a step apart, and its k-th point is h = 2k or h = 2k − 1. Either way
k = ⌈h/2⌉. The parity of k and the state give the next of four states; states 2 and 3 select
quantizer 1:

    state   0  1  2  3
    even    0  2  1  3
    odd     2  0  3  1

A symbol is 2h, plus 1 if the value is negative. The symbols 254 and 252 are escapes; by this rule
their parities are even and odd.

Source: H. Schwarz et al., "Hybrid video codec based on versatile video coding", dependent
quantization, IEEE DCC 2019; Marcellin and Fischer, "Trellis coded quantization", IEEE Trans.
Communications 38, 1990.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.context.class_map import CLASSES, join_classes
from gcodec.kernels.context.escapes import listed_positions
from gcodec.kernels.context.lane_order import RUN
from gcodec.kernels.quantize.scalar_quantize import ESCAPE
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import inline, kernel

QUANTIZERS = 2
MODELS = QUANTIZERS * CLASSES
EVEN, ODD = 254, 252  # escapes
MOST = 62  # the largest k that has symbols of its own

NEXT = ((0, 2), (2, 0), (1, 3), (3, 1))  # by state and parity
# A path is 8 times a state. Each state and parity has four bits of this number: shifting these to
# the bottom leaves the next state in the place of a path.
STEPS = sum(8 * NEXT[s][p] << 8 * s + 4 * p for s in range(4) for p in range(2))
PATH = 24  # the bits of a path
OTHER = 16  # the bit of a path that selects quantizer 1
PARITY = 4  # the bit of a symbol plus 2 that is the parity
LOG2_QUANTIZER = 2  # distance from that bit of a path to the bit above a class

_SIGNED = np.arange(2 * MOST + 2)  # 2k plus the sign
# For each quantizer, the symbols of its levels.
SYMBOLS = [2 * np.maximum(2 * (_SIGNED >> 1) - q, 0) + _SIGNED % 2 for q in range(QUANTIZERS)]

_STEPS, _PATH, _OTHER = np.uint32(STEPS), np.uint32(PATH), np.uint32(OTHER)
_PARITY, _TWO, _UP = np.uint32(PARITY), np.uint32(2), np.uint32(LOG2_QUANTIZER)


def escapes(symbols: np.ndarray) -> np.ndarray:
    """Return the uint8 escapes with the parities of symbols."""
    odd = symbols + 2 & PARITY > 0
    return np.where(odd, np.uint8(ODD), np.uint8(EVEN))


@dispatched("gcodec.kernels.quantize.trellis_cuda")
def add_quantizers(symbols: np.ndarray, lanes: int, models: np.ndarray) -> None:
    """Turn classes into models, by adding the quantizer above the class, on the calling thread.

    Parameters
    ----------
    symbols : (n,) uint8 array
        Whole runs in coding order; only the last may be shorter. See `lane_order`.
    lanes : int
        Number of interleaved lanes.
    models : (n,) uint8 array
        Classes, which are overwritten.
    """
    _add_quantizers(symbols, lanes, np.empty(lanes, np.uint32), models)


@dispatched("gcodec.kernels.quantize.trellis_cuda")
def model_counts(symbols: np.ndarray, models: np.ndarray, sample: int) -> np.ndarray:
    """Count symbols by model.

    Parameters
    ----------
    symbols, models : (n,) uint8 array
    sample : int
        About how many symbols are counted, in whole runs; 0 for all.

    Returns
    -------
    (MODELS, 256) int64 array
    """
    step = max(1, symbols.size // sample) if sample else 1

    def task(start: int, stop: int) -> np.ndarray:
        counts = np.zeros(2 * MODELS * 256, np.int32)
        for at in range(start, stop, RUN):
            if at // RUN % step == 0:
                end = min(at + RUN, stop)
                _count_models(symbols[at:end], models[at:end], counts)
        return counts.reshape(2, MODELS, 256).sum(axis=0, dtype=np.int64)

    return pool.run_added(task, symbols.size, RUN)


def level_counts(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the counts of 2k plus the sign by class, as (CLASSES, 256) int64 for each quantizer.

    A level that its quantizer does not have counts as an escape. A quantizer without symbols gets
    a single 0.

    Parameters
    ----------
    counts : (MODELS, 256) int64 array
        Counts of symbols.
    """
    levels = np.zeros((QUANTIZERS, CLASSES, 256), np.int64)
    for own, out, symbols in zip(np.split(counts, QUANTIZERS), levels, SYMBOLS, strict=True):
        own.take(symbols, axis=1, out=out[:, : symbols.size], mode="clip")  # faster than "raise"
        out[:, ESCAPE] = own.sum(axis=1) - out[:, : symbols.size].sum(axis=1)
        if not out.any():
            out[0, 0] = 1
    return levels[0], levels[1]


def symbols_nbits(symbols: np.ndarray, models: np.ndarray, costs: np.ndarray, point: int) -> int:
    """Return about how many bits symbols take.

    Parameters
    ----------
    symbols, models : (n,) uint8 array
        n ≤ 2^20; every model has its symbol.
    costs : (QUANTIZERS, CLASSES, MOST + 2) int64 array
        Cost of each k, and of an escape, in units of 2^-point bits; below 2^40.
    point : int
    """
    sums = np.zeros(QUANTIZERS, np.int64)
    _add_costs(symbols, models, costs.reshape(-1), sums)
    return int((sums >> point).sum())


@dispatched("gcodec.kernels.quantize.trellis_cuda")
def escaped_symbols(
    symbols: np.ndarray, models: np.ndarray, has_symbol: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the symbols that their models do not have.

    Parameters
    ----------
    symbols, models : (n,) uint8 array
    has_symbol : (MODELS * 256,) uint8 array
        1 if a model has a symbol, else 0.

    Returns
    -------
    places : (k,) int64 array
        Positions in increasing order.
    values : (k,) int64 array
        Symbols at these positions.
    """

    def task(start: int, stop: int) -> np.ndarray:
        part, own = symbols[start:stop], models[start:stop]
        return listed_positions(
            lambda places: _find_unknown_models(part, own, has_symbol, start, places), 1 << 8
        )

    places = np.concatenate(pool.run(task, symbols.size, RUN))
    return places, symbols[places].astype(np.int64)


@dispatched("gcodec.kernels.quantize.trellis_cuda")
def join_models(
    symbols: np.ndarray, models: np.ndarray, unknown: np.ndarray, out: np.ndarray
) -> None:
    """Write uint16 words, the model in the high byte, the symbol in the low, on this thread.

    Parameters
    ----------
    symbols, models : (n,) uint8 array
    unknown : (k,) int64 array on the host
        Positions of the symbols that are replaced by escapes.
    out : (n,) uint16 array
    """
    if unknown.size:
        symbols = symbols.copy()
        symbols[unknown] = escapes(symbols[unknown])
    join_classes(symbols, models, out)


@inline
def after(path, symbol):
    """Return the path after a symbol, both as uint32."""
    return _STEPS >> (path + (symbol + _TWO & _PARITY)) & _PATH


@inline
def above_class(path):
    """Return the quantizer of a path as a bit above the class, as uint32."""
    return (path & _OTHER) << _UP


@kernel("in uint8[], int64, out uint32[], out uint8[]")
def _add_quantizers(symbols, lanes, paths, models):
    # symbols.size == models.size, paths.size == lanes, which divides RUN.
    for first in range(0, symbols.size, lanes):
        if first % RUN == 0:
            for lane in range(lanes):
                paths[lane] = 0
        part, own = symbols[first : first + lanes], models[first : first + lanes]
        for lane in range(own.size):
            path = paths[lane]
            own[lane] |= np.uint8(above_class(path))
            paths[lane] = after(path, np.uint32(part[lane]))


@kernel("in uint8[], in uint8[], out int32[]")
def _count_models(symbols, models, counts):
    # symbols.size == models.size, counts.size == 2 * MODELS * 256. Two tables: a count that has
    # just been stored is not yet ready to be loaded again.
    half, last = MODELS * 256, symbols.size - symbols.size % 2
    for i in range(0, last, 2):
        counts[np.int64(models[i]) << 8 | np.int64(symbols[i])] += 1
        counts[half + (np.int64(models[i + 1]) << 8 | np.int64(symbols[i + 1]))] += 1
    for i in range(last, symbols.size):
        counts[np.int64(models[i]) << 8 | np.int64(symbols[i])] += 1


@kernel("in uint8[], in uint8[], in int64[], out int64[]")
def _add_costs(symbols, models, costs, sums):
    # symbols.size == models.size; models are below MODELS, costs.size == MODELS * (MOST + 2);
    # sums.size == QUANTIZERS.
    for i in range(symbols.size):
        k, model = (np.int64(symbols[i] >> np.uint8(1)) + 1) >> 1, np.int64(models[i])
        sums[model // CLASSES] += costs[model * (MOST + 2) + min(k, MOST + 1)]


@kernel("in uint8[], in uint8[], in uint8[], int64, out int64[]")
def _find_unknown_models(symbols, models, has_symbol, first, places):
    # symbols.size == models.size, has_symbol.size == MODELS * 256. Positions count from `first`;
    # see `listed_positions`.
    count = 0
    for i in range(symbols.size):
        if not has_symbol[np.int64(models[i]) << 8 | np.int64(symbols[i])]:
            if count < places.size:
                places[count] = first + i
            count += 1
    return count
