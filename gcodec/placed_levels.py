"""Levels where values are, which a device finds in kernels alone where it can."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.device import twinned
from gcodec.level_ways import Way
from gcodec.scalar_levels import Levels


@twinned("gcodec.device_levels")
def way_for(x: np.ndarray, way: Way) -> Way:
    """Return the way of values where they are, which a device may have in kernels alone."""
    return way


@twinned("gcodec.device_levels")
def levels_at(x: np.ndarray, step: float, shape: tuple[int, ...], way: Way) -> Levels | None:
    """Return the levels of a step without a look at the values first; None where that cannot be.

    So on the host, or with a trellis.

    Parameters
    ----------
    x : (n,) float32 array
        What is wrong of it is raised when all is known.
    step : float
        As float32.
    shape : tuple of int
    way : Way
    """
    return None
