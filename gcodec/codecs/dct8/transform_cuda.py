"""Launchers of dct_forward.cu and dct_inverse.cu; see `gcodec.codecs.dct8.transform`.

Coefficients are few, so the host quantizes and codes them: they are copied from and to the device.
"""

from __future__ import annotations

import functools

import numpy as np

from gcodec.codecs.dct8.chunks import Chunks
from gcodec.codecs.dct8.transform import Basis
from gcodec.kernels.numeric.arithmetic import add_scaled
from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.kernels.transform import basis
from gcodec.kernels.transform.dct_forward import folds_of
from gcodec.kernels.transform.dct_inverse import TABLED
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with
from gcodec.runtime.device import Device
from gcodec.runtime.memory import empty_beside

_HELD = 4096  # most elements of a chunk that fit into shared memory
_LISTED = 512  # most rows of coefficients whose lists fit into shared memory
_BLOCKS = 1 << 12
_ROOM = 1 << 26  # most elements of scratch memory


def select(
    values: Array, chunks: Chunks, k: int, other: Basis | None = None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the k largest coefficients of each chunk, or None if one is not finite."""
    device, count = device_with(values), chunks.count
    blocks = _blocks(count, chunks.size)
    scratch = device.empty(2 * chunks.size * blocks if chunks.size > _HELD else 0, np.float32)
    layout = *_layout(chunks), chunks.layout.edge, count
    bases = [_table(device, n, other, transposed=True) for n in chunks.sizes]
    folds = tuple(folds_of(n) if other is None else 0 for n in chunks.sizes)
    # As on the host, sums of two values may exceed float32 where no coefficient does.
    for own_folds in (folds, (0, 0, 0)):
        words = device.zeros(2 * count * k + 1, np.uint32)  # positions, coefficients, the largest
        inputs = values, *layout, *chunks.sizes, *own_folds, *bases, k, scratch
        outputs = (words[: count * k], words[count * k : -1], words[-1:])
        device.launch("dct_forward", "dct_largest", blocks, THREADS, *inputs, *outputs)
        fetched = device.to_host(words)
        if fetched[-1] < INFINITY_BITS:
            selected = fetched[:-1].reshape(2, count, k)
            return selected[0].view(np.int32), selected[1].view(np.float32)
    return None


def restore(
    starts: np.ndarray,
    positions: np.ndarray,
    coefficients: np.ndarray,
    chunks: Chunks,
    out: Array,
    other: Basis | None = None,
    add: np.float32 | None = None,
) -> None:
    """Write the values of coefficients, or add a multiple of them."""
    if add is not None:
        decoded = empty_beside(out.size, np.float32, out)
        restore(starts, positions, coefficients, chunks, decoded, other)
        add_scaled(decoded, add, out)
        return
    device, (a, b, _) = device_with(out), chunks.sizes
    most = min(int(np.diff(starts).max(initial=0)), a * b)
    blocks = _blocks(chunks.count, chunks.size)
    scratch = device.empty(2 * chunks.size * blocks if chunks.size > _HELD else 0, np.uint32)
    lists = device.empty((4 * most + 2) * blocks if most > _LISTED else 0, np.int32)
    inputs = [device.to_device(part) for part in (starts, positions, coefficients)]
    layout = positions.size, chunks.count, *_layout(chunks), *chunks.sizes
    bases = [_table(device, n, other, transposed=False) for n in chunks.sizes]
    arguments = *inputs, *layout, *bases, most, scratch, lists, out
    device.launch("dct_inverse", "inverse", blocks, THREADS, *arguments)


def _layout(chunks: Chunks) -> tuple[int, int, int]:
    """Return the number of elements, and the rows and columns of a matrix; 0 for runs."""
    n, columns = chunks.n, chunks.layout.columns
    return (n, 0, 0) if chunks.are_runs else (n, n // columns, columns)


def _blocks(count: int, size: int) -> int:
    return min(count, _BLOCKS if size <= _HELD else max(_ROOM // (2 * size), 1))


@functools.lru_cache(maxsize=64)
def _table(device: Device, n: int, other: Basis | None, *, transposed: bool) -> Array:
    """Return a basis on a device, for n > TABLED as its factors; see `basis.table`.

    A transposed matrix has one row for each point, and transposed factors one for each factor.
    """
    rows = basis.table(n).reshape(n, -1) if n > TABLED else (other or basis.basis)(n)
    rows = np.ascontiguousarray(rows.T if transposed else rows)
    table = device.to_device(rows.reshape(-1))
    device.to_host(table[:1])  # wait: the next user of the cached table may be on another stream
    return table
