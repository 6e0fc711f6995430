"""Levels of two quantisers that a trellis chooses from: the best path for error and bits together.
"""

from __future__ import annotations

import numpy as np

from gcodec import scalar_levels
from gcodec.contexts import strings, trellis_tables
from gcodec.contexts.models import ByClass
from gcodec.contexts.scales import Scales
from gcodec.entropy import rans
from gcodec.kernels import scalar_quantize, trellis_search
from gcodec.kernels.memory import aligned_empty
from gcodec.kernels.trellis import ODD
from gcodec.scalar_levels import CENTRE, Levels

_WORTH = 0.48  # of a bit, in squares of half a step


def nearest(x, step, matrix, passes=2, start=None, info=False, half_fit=False, worth=_WORTH):
    size, symbols = scalar_levels._checked(x, step), aligned_empty(x.size, np.uint8)
    scalar_quantize.plain_levels(x, size, symbols)
    scales = Scales.of(symbols, *matrix)
    plan = strings.plan(symbols, scales)
    lanes = strings.lanes_of(plan.nbits)
    table = start or trellis_tables.static_for(ByClass(symbols, scales).counts(1 << 18))
    if half_fit:
        scalar_quantize.plain_levels(x, np.float32(size/2), symbols)
        scales = Scales.of(symbols, *matrix)
        scales = Scales(scales.width, np.where(scales.rows>0,np.maximum(scales.rows.astype(int)-4,1),0).astype(np.uint8), scales.columns)
    factor = scalar_quantize.inverse(np.float32(size / 2))
    moved = np.zeros(3, np.float32)
    for k in range(passes):
        costs = (table.costs() * (worth / 2**rans.POINT)).astype(np.float32).reshape(-1)
        trellis_search.best_levels(x, factor, scales.classes, costs, moved, lanes, symbols)
        errors = trellis_search.errors_of(x, factor, symbols)
        centroids = scalar_levels._centroids(errors)
        moved = ((centroids.astype(np.int64) - CENTRE) / 256).astype(np.float32)
        if k < passes - 1:
            table = strings.plan(symbols, scales, lanes=lanes).table
    places = np.flatnonzero(symbols >= ODD)
    beyond = trellis_search.beyond(x[places], factor, symbols[places])
    small = beyond < ODD
    symbols[places[small]] = beyond[small]
    found = Levels(step, centroids, symbols, beyond[~small], scales, lanes)
    return (found, errors) if info else found
