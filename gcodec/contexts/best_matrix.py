"""The matrix to cut a tensor into: that by whose scales its string is probably shortest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gcodec.contexts import class_tables, models
from gcodec.contexts.scales import ONES, Matrix
from gcodec.contexts.string_plans import SAMPLE
from gcodec.entropy import rans
from gcodec.kernels import class_map
from gcodec.kernels.device import twinned
from gcodec.kernels.matrix_sizes import Prices, matrix_sizes


class Best(NamedTuple):
    """What is best.

    Attributes
    ----------
    matrix : Matrix
    """

    matrix: Matrix


@twinned("gcodec.contexts.device")
def best_matrix(symbols: np.ndarray, every: Sequence[Matrix], times: int = 1) -> Best:
    """Return the matrix with which a string is probably shortest; the first of equals.

    Parameters
    ----------
    symbols : (n,) uint8 array
        n > 0: of whole rows of the first matrix, or of all.
    every : sequence of Matrix
    times : int
        How many times as many symbols there are.
    """
    if len(every) == 1:
        return Best(every[0])
    step = models.share(symbols.size, SAMPLE)
    seen = class_map.seen(symbols.size, step)
    prices = Prices(ONES, class_tables.statics_costs(), rans.log2_table(), rans.POINT)
    found = matrix_sizes(symbols, every, step, prices)
    sizes = [
        told.symbols * symbols.size * times // seen + told.rows * times + told.columns
        for told in found
    ]
    return Best(every[sizes.index(min(sizes))])
