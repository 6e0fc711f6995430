"""Which of many small tensors share a frame: those with similar bytes of the first plane."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gcodec.arrays.bit_patterns import bits_of
from gcodec.arrays.source import inspect
from gcodec.codecs.lossless.first_plane import FirstPlane
from gcodec.codecs.lossless.planes import PlaneLayout
from gcodec.entropy.rans import log2_table
from gcodec.kernels.numeric import byte_clusters

_SAMPLE = 1 << 12  # elements of a tensor whose bytes are counted
_LEAST_SAVING = 160_000  # estimated bits for which a further frame is worth its time


def clusters(arrays: Sequence[np.ndarray], dtype: str) -> list[int]:
    """Return the number of the cluster of each tensor, none of which is empty."""
    sizes = np.array([array.size for array in arrays])
    if 8 * int(sizes.sum()) < _LEAST_SAVING:
        return [0] * len(arrays)
    # An odd step meets elements of all columns of most matrices.
    parts = [array.reshape(-1)[:: array.size // _SAMPLE | 1] for array in arrays]
    joined = inspect(np.concatenate(parts), "tensors").read(all_dtypes=True, segments=True)
    layout = PlaneLayout.of(dtype)
    plane = FirstPlane(layout.arranged(bits_of(joined.values, dtype)), layout)
    ends = np.cumsum([part.size for part in parts])
    labels = byte_clusters.clusters(plane.symbols(), ends, sizes, _LEAST_SAVING, log2_table())
    numbers: list[int] = labels.tolist()
    return numbers
