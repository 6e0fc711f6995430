"""Runs of neighbours, taken out of an array."""

from __future__ import annotations

import numpy as np

from gcodec.runtime.device import dispatched


@dispatched("gcodec.kernels.numeric.runs_cuda")
def take_runs(values: np.ndarray, chosen: np.ndarray, length: int) -> np.ndarray:
    """Return the elements of some runs, one run behind the other.

    Parameters
    ----------
    values : (n,) array
        Its runs begin at the multiples of their length.
    chosen : (m,) int64 array
        Numbers of whole runs.
    length : int

    Returns
    -------
    (m * length,) array
    """
    whole = values.size // length
    found: np.ndarray = values[: whole * length].reshape(whole, length)[chosen].ravel()
    return found
