"""The scale of a tensor of minifloats as a device finds it: the host's, to the last bit."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from gcodec.arrays.sampling import runs_of, sample
from gcodec.codecs.minifloat import gennorm
from gcodec.codecs.minifloat.gennorm import RULES, SMALL_SAMPLE, Rule
from gcodec.kernels.numeric import arithmetic
from gcodec.kernels.quantize import scale_search_cuda
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.kernels.quantize.scale_search_cuda import Values
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import device_of

_ROOTS = 24


def searched(
    values: np.ndarray,
    fmt: MiniFloat,
    rule: Rule,
    residual: np.ndarray | None = None,
    decay: np.float32 | None = None,
) -> Deferred:
    """Find the scale; see `gcodec.codecs.minifloat.scale_search.searched`.

    Whether all is finite is not looked at.
    """
    some, every = sample(values), values
    nonzero = scale_search_cuda.nonzero_of(some)
    if residual is not None and decay is not None:
        taken, some = some, arithmetic.corrected(some, sample(residual), decay)
        if taken is values:
            every = some
        else:
            every = scale_search_cuda.all_corrected(values, residual, decay, nonzero)
    runs = [runs_of(part.size, *SMALL_SAMPLE) for part in (some, every)]
    given = Values(some, every, nonzero, np.concatenate(runs), SMALL_SAMPLE[1])
    if some.size <= SMALL_SAMPLE[0]:
        given = given._replace(runs=np.empty(0, np.int64))
    assert device_of(some) is not None
    return scale_search_cuda.search(given, _rule(fmt, rule))


@functools.cache
def _rule(fmt: MiniFloat, rule: Rule) -> scale_search_cuda.Rule:
    ladder, roots = gennorm.ladder_of(fmt), [math.sqrt(2.0)]
    while len(roots) < _ROOTS:
        roots.append(math.sqrt(roots[-1]))
    scales = "alphas" if rule == "co3" else f"scales {fmt.format} {fmt.style}"
    rows: list[Any] = [gennorm.row("ratios"), gennorm.row("betas"), gennorm.inverse_betas()]
    rows += [gennorm.row(scales), roots, gennorm.fractions(), gennorm.steps_near_one()]
    return scale_search_cuda.Rule(
        RULES.index(rule),
        np.concatenate([np.array(one, np.float64) for one in rows]),
        np.concatenate(ladder[1:4]),
        float(ladder.levels[1]),
        float(ladder.levels[-1]),
        gennorm.most_of(ladder),
        ladder.mantissa,
    )
