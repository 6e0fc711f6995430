"""What strings take by several matrices: counted on a device, priced on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.cuda import class_map
from gcodec.kernels import list_sizes
from gcodec.kernels.class_costs import counts_nbits
from gcodec.kernels.matrix_sizes import Matrices, Prices, Sizes
from gcodec.kernels.scale_logs import scales_of_sums


def matrix_sizes(symbols: Any, every: Matrices, step: int, prices: Prices) -> list[Sizes]:
    """Tell what symbols take in matrices; see `gcodec.kernels.matrix_sizes`."""
    kinds = list(dict.fromkeys((width, group > 0) for width, group, _ in every))
    sums = dict(zip(kinds, class_map.magnitude_sums(symbols, kinds), strict=True))
    scales = [
        scales_of_sums(symbols.size, matrix, prices.ones, *sums[matrix[0], matrix[1] > 0])
        for matrix in every
    ]
    told = [(*both, matrix[0]) for both, matrix in zip(scales, every, strict=True)]
    found = []
    counts = class_map.class_counts(symbols, told, step)
    for own, (rows, columns), (_, group, _) in zip(counts, scales, every, strict=True):
        coded = counts_nbits(own.reshape(-1), prices.costs, prices.point)
        each = np.ascontiguousarray(columns[:: max(group, 1)])
        down, across = (
            list_sizes.nbits(part, prices.logs) if part.size else 0 for part in (rows, each)
        )
        found.append(Sizes(int(coded.min()), down, across, ((rows, columns), own)))
    return found
