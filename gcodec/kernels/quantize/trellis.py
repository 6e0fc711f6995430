"""The trellis of two quantisers: which of them is next follows from the parities of levels so far.

Points are multiples h of half a step. Quantiser 0 has the even ones, quantiser 1 the odd ones and
0; so the points of each are a step apart, and its k-th point is h = 2k, or h = 2k − 1. Either way
k = ⌈h/2⌉, whose parity, with the state, gives the next state of four; states 2 and 3 take
quantiser 1:

    state   0  1  2  3
    even    0  2  1  3
    odd     2  0  3  1

A symbol is 2h, plus 1 where the value is negative. The symbols 254 and 252 are escapes, whose
parity by this rule is even and odd.

Source: H. Schwarz et al., "Hybrid video codec based on versatile video coding", dependent
quantisation, IEEE DCC 2019; Marcellin and Fischer, "Trellis coded quantization", IEEE Trans.
Communications 38, 1990.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.context.class_map import CLASSES, join_classes
from gcodec.kernels.context.lane_order import RUN
from gcodec.kernels.quantize.scalar_quantize import ESCAPE
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import inline, kernel

QUANTISERS = 2
MODELS = QUANTISERS * CLASSES
EVEN, ODD = 254, 252  # escapes
MOST = 62  # the largest k that has symbols of its own

NEXT = ((0, 2), (2, 0), (1, 3), (3, 1))  # by state and parity
# A path is 8 times a state. Four bits for each state and parity, of which two are in the next
# one's place: the next path in place.
STEPS = sum(8 * NEXT[s][p] << 8 * s + 4 * p for s in range(4) for p in range(2))
PATH = 24  # the bits of a path
OTHER = 16  # the bit of a path that is set where quantiser 1 is next
PARITY = 4  # the bit of a symbol, plus 2, that is the parity
LOG2_QUANTISER = 2  # places from that bit of a path to the one above a class

_STEPS, _PATH, _OTHER = np.uint32(STEPS), np.uint32(PATH), np.uint32(OTHER)
_PARITY, _TWO, _UP = np.uint32(PARITY), np.uint32(2), np.uint32(LOG2_QUANTISER)


def escapes(symbols: np.ndarray) -> np.ndarray:
    """Return the escapes that have the parities of symbols, as uint8."""
    odd = symbols + 2 & PARITY > 0
    return np.where(odd, np.uint8(ODD), np.uint8(EVEN))


@dispatched("gcodec.kernels.quantize.trellis_cuda")
def add_quantisers(symbols: np.ndarray, lanes: int, models: np.ndarray) -> None:
    """Make models of classes, with the quantiser above them, on the calling thread.

    Parameters
    ----------
    symbols : (n,) uint8 array
        Whole runs, but for the last, as lanes take turns; see `lane_order`.
    lanes : int
    models : (n,) uint8 array
        The classes, which are overwritten.
    """
    _add_quantisers(symbols, lanes, np.empty(lanes, np.uint32), models)


@dispatched("gcodec.kernels.quantize.trellis_cuda")
def model_counts(symbols: np.ndarray, models: np.ndarray, sample: int) -> np.ndarray:
    """Count (n,) uint8 symbols by their models: all, or about so many of them, in whole runs.

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
        return counts

    parts = [counts.reshape(2, MODELS, 256) for counts in pool.run(task, symbols.size, RUN)]
    found: np.ndarray = np.sum([part.sum(axis=0, dtype=np.int64) for part in parts], axis=0)
    return found


def level_counts(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count levels of each quantiser: twice the k, plus the sign, as (CLASSES, 256) int64.

    What a quantiser does not have escapes. A quantiser that does not occur has a 0.

    Parameters
    ----------
    counts : (MODELS, 256) int64 array
        Of symbols.
    """
    found = np.zeros((QUANTISERS, CLASSES, 256), np.int64)
    _split_counts(counts.reshape(-1), found.reshape(-1))
    return found[0], found[1]


def symbols_nbits(symbols: np.ndarray, models: np.ndarray, costs: np.ndarray, point: int) -> int:
    """Return about how many bits symbols take.

    Parameters
    ----------
    symbols, models : (n,) uint8 array
        Up to 2^20 of them, of levels that the quantisers of their models have.
    costs : (QUANTISERS, CLASSES, MOST + 2) int64 array
        Of each k, the last of what escapes, in units of 2^-point; below 2^40.
    """
    sums = np.zeros(QUANTISERS, np.int64)
    _add_costs(symbols, models, costs.reshape(-1), sums)
    return int((sums >> point).sum())


@dispatched("gcodec.kernels.quantize.trellis_cuda")
def unknown_places(
    symbols: np.ndarray, models: np.ndarray, known: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the symbols that their models do not have.

    Parameters
    ----------
    symbols, models : (n,) uint8 array
    known : (MODELS * 256,) uint8 array
        1 where a model has a symbol, else 0.

    Returns
    -------
    places : (k,) int64 array
        Rising.
    values : (k,) int64 array
        The symbols there.
    """

    def task(start: int, stop: int) -> np.ndarray:
        places, part = np.empty(1 << 8, np.int64), (symbols[start:stop], models[start:stop])
        found = _find_unknown_models(*part, known, start, places)
        if found > places.size:
            places = np.empty(found, np.int64)
            _find_unknown_models(*part, known, start, places)
        return places[:found]

    places = np.concatenate(pool.run(task, symbols.size, RUN))
    return places, symbols[places].astype(np.int64)


@dispatched("gcodec.kernels.quantize.trellis_cuda")
def join_models(
    symbols: np.ndarray, models: np.ndarray, unknown: np.ndarray, out: np.ndarray
) -> None:
    """Write uint16 numbers, models above symbols, on the calling thread.

    Parameters
    ----------
    symbols, models : (n,) uint8 array
    unknown : (k,) int64 array
        Which of the symbols are written as escapes; on the host.
    out : (n,) uint16 array
    """
    if unknown.size:
        symbols = symbols.copy()
        symbols[unknown] = escapes(symbols[unknown])
    join_classes(symbols, models, out)


@inline
def after(path, symbol):
    """Return the path behind a symbol, both as uint32."""
    return _STEPS >> (path + (symbol + _TWO & _PARITY)) & _PATH


@inline
def above_class(path):
    """Return what a path adds to a class, as uint32."""
    return (path & _OTHER) << _UP


@kernel("in uint8[], int64, out uint32[], out uint8[]")
def _add_quantisers(symbols, lanes, paths, models):
    # symbols.size == models.size, paths.size == lanes, of which RUN is a multiple.
    for first in range(0, symbols.size, lanes):
        if first % RUN == 0:
            for lane in range(lanes):
                paths[lane] = 0
        some, here = symbols[first : first + lanes], models[first : first + lanes]
        for lane in range(here.size):
            path = paths[lane]
            here[lane] |= np.uint8(above_class(path))
            paths[lane] = after(path, np.uint32(some[lane]))


@kernel("in uint8[], in uint8[], out int32[]")
def _count_models(symbols, models, counts):
    # symbols.size == models.size, counts.size == 2 * MODELS * 256. Two tables, as a count that
    # has just been raised is not ready to be raised again.
    half, last = MODELS * 256, symbols.size - symbols.size % 2
    for i in range(0, last, 2):
        counts[np.int64(models[i]) << 8 | np.int64(symbols[i])] += 1
        counts[half + (np.int64(models[i + 1]) << 8 | np.int64(symbols[i + 1]))] += 1
    for i in range(last, symbols.size):
        counts[np.int64(models[i]) << 8 | np.int64(symbols[i])] += 1


@kernel("in int64[], out int64[]")
def _split_counts(counts, found):
    # counts.size == found.size == MODELS * 256; found is 0.
    for other in range(QUANTISERS):
        any_here = False
        for model in range(other * CLASSES, (other + 1) * CLASSES):
            row, out = counts[256 * model : 256 * model + 256], found[256 * model :]
            seen = np.int64(0)
            for symbol in range(row.size):
                seen |= row[symbol]
            if seen == 0:
                continue
            any_here = True
            for symbol in range(row.size):
                if row[symbol]:  # seldom
                    h = symbol >> 1
                    k = h + 1 >> 1
                    own = k <= MOST and (h == 0 or h & 1 == other)
                    out[2 * k + (symbol & 1) if own else ESCAPE] += row[symbol]
        if not any_here:
            found[256 * CLASSES * other] = 1


@kernel("in uint8[], in uint8[], in int64[], out int64[]")
def _add_costs(symbols, models, costs, sums):
    # symbols.size == models.size; models are below MODELS, costs.size == MODELS * (MOST + 2);
    # sums.size == QUANTISERS.
    for i in range(symbols.size):
        k, model = (np.int64(symbols[i] >> np.uint8(1)) + 1) >> 1, np.int64(models[i])
        sums[model // CLASSES] += costs[model * (MOST + 2) + min(k, MOST + 1)]


@kernel("in uint8[], in uint8[], in uint8[], int64, out int64[]")
def _find_unknown_models(symbols, models, known, first, places):
    # symbols.size == models.size, known.size == MODELS * 256. Returned is how many there are;
    # those that fit are told, counted from `first` on.
    found = 0
    for i in range(symbols.size):
        if not known[np.int64(models[i]) << 8 | np.int64(symbols[i])]:
            if found < places.size:
                places[found] = first + i
            found += 1
    return found
