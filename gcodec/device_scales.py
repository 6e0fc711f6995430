"""The scale of a tensor of minifloats as a device finds it: the host's, to the last bit."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from gcodec import gennorm
from gcodec.cuda import scale_search
from gcodec.cuda.scale_search import Values
from gcodec.gennorm import RULES, SMALL_SAMPLE, Rule
from gcodec.kernels import arithmetic
from gcodec.kernels.device import device_of
from gcodec.minifloats import MiniFloat
from gcodec.sampling import runs_of, sample
from gcodec.scalars import Later

_ROOTS = 24


def searched(
    values: np.ndarray,
    fmt: MiniFloat,
    rule: Rule,
    residual: np.ndarray | None = None,
    decay: np.float32 | None = None,
) -> Later:
    """Find the scale; see `gcodec.minifloat_scales.searched`.

    Whether all is finite is not looked at.
    """
    some, every = sample(values), values
    nonzero = scale_search.nonzero_of(some)
    if residual is not None and decay is not None:
        taken, some = some, arithmetic.corrected(some, sample(residual), decay)
        if taken is values:
            every = some
        else:
            every = scale_search.all_corrected(values, residual, decay, nonzero)
    runs = [runs_of(part.size, *SMALL_SAMPLE) for part in (some, every)]
    given = Values(some, every, nonzero, np.concatenate(runs), SMALL_SAMPLE[1])
    if some.size <= SMALL_SAMPLE[0]:
        given = given._replace(runs=np.empty(0, np.int64))
    assert device_of(some) is not None
    return scale_search.search(given, _rule(fmt, rule))


@functools.cache
def _rule(fmt: MiniFloat, rule: Rule) -> scale_search.Rule:
    ladder, roots = gennorm.ladder_of(fmt), [math.sqrt(2.0)]
    while len(roots) < _ROOTS:
        roots.append(math.sqrt(roots[-1]))
    scales = "alphas" if rule == "co3" else f"scales {fmt.format} {fmt.style}"
    rows: list[Any] = [gennorm.row("ratios"), gennorm.row("betas"), gennorm.inverse_betas()]
    rows += [gennorm.row(scales), roots, gennorm.fractions(), gennorm.steps_near_one()]
    return scale_search.Rule(
        RULES.index(rule),
        np.concatenate([np.array(one, np.float64) for one in rows]),
        np.concatenate(ladder[1:4]),
        float(ladder.levels[1]),
        float(ladder.levels[-1]),
        gennorm.most_of(ladder),
        ladder.mantissa,
    )
