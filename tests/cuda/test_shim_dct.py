"""Test the DCT of chunks on a device: exact selection and inverse, close forward transform."""

from __future__ import annotations

import numpy as np
import pytest
from samples import arbitrary_floats, gradient, same

from gcodec.codecs.dct8 import chunks, transform, transform_cuda
from gcodec.kernels.transform import dct_select
from gcodec.runtime import cuda_grid
from gcodec.runtime.device import Device

# Size of a tensor, its columns (None: a vector), and a chunk.
FLAT = [(n, chunk) for n in (1, 100, 4097) for chunk in ((8, 8), (4, 5, 6))]
FLAT += [(700, (300,)), (9000, (65, 70)), (9000, (7, 30, 40))]
CUTS = [chunks.flat(n, chunk) for n, chunk in FLAT]
CUTS += [chunks.tiles(35 * 41, 41, chunk, 4096) for chunk in ((8, 8), (64, 64), (3, 16))]
CUTS += [chunks.tiles(n, None, (64, 64), 4096) for n in (10, 4500)]


@pytest.mark.parametrize(("m", "size", "k"), [(3, 64, 8), (2, 33, 33), (1, 5000, 60)])
def test_select(gpu: Device, m: int, size: int, k: int) -> None:
    random = np.random.default_rng(size)
    for y in (gradient(m * size), random.integers(-3, 4, m * size).astype(np.float32)):
        y = y.reshape(m, size)
        wanted = np.empty((m, k), np.int32), np.empty((m, k), np.float32)
        assert dct_select.largest(y, k, *wanted)
        actual = (
            gpu.empty(m * k, np.int32).reshape(m, k),
            gpu.empty(m * k, np.float32).reshape(m, k),
        )
        assert dct_select.largest(gpu.to_device(y), k, *actual)
        assert same(gpu.to_host(actual[0]), wanted[0])
        assert same(gpu.to_host(actual[1]), wanted[1])
    y = arbitrary_floats(m * size).reshape(m, size)
    assert not dct_select.largest(gpu.to_device(y), k, *actual)


def coefficients(
    cut: chunks.Chunks, k: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return chunk starts, coefficient positions, and values of any magnitude."""
    random = np.random.default_rng(seed)
    live = random.random(cut.count) < 0.8
    each = [np.sort(random.choice(cut.size, k, replace=False)) for _ in range(int(live.sum()))]
    starts = np.concatenate([[0], np.cumsum(k * live)]).astype(np.int64)
    places = np.concatenate([np.empty(0, np.int64), *each]).astype(np.int32)
    return starts, places, gradient(places.size, seed)


def check_restore(gpu: Device, cut: chunks.Chunks, k: int, seed: int) -> None:
    """Check that the device restores the values that the host does."""
    inputs = coefficients(cut, k, seed)
    wanted, out = np.empty(cut.n, np.float32), gpu.empty(cut.n, np.float32)
    transform.restore(*inputs, cut, wanted)
    transform.restore(*inputs, cut, out)
    assert same(gpu.to_host(out), wanted)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_restore(gpu: Device, cut: chunks.Chunks) -> None:
    for k in {1, min(8, cut.size), min(cut.size, 40)}:
        check_restore(gpu, cut, k, seed=2)


def test_few_blocks(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_BLOCKS", "_ROOM"):
        monkeypatch.setattr(transform_cuda, name, 2)  # so that each block processes several chunks
    monkeypatch.setattr(cuda_grid, "_MAX_STRIDING_BLOCKS", 2)
    for cut in (chunks.flat(2000, (4, 6, 10)), chunks.flat(10_000, (4200, 1))):
        check_restore(gpu, cut, 9, seed=3)
    # The last warp has fewer rows of a chunk than the others, and therefore runs ahead of them.
    x, cut = gradient(6000), chunks.flat(6000, (65, 33))
    monkeypatch.setattr(transform_cuda, "_BLOCKS", 1)
    places, values = transform.select(gpu.to_device(x), cut, 50)
    monkeypatch.undo()
    again, others = transform.select(gpu.to_device(x), cut, 50)
    assert same(places, again)
    assert same(values, others)


def test_restore_of_all(gpu: Device) -> None:
    # The second tensor has more rows than fit the list in shared memory.
    for cut in (chunks.flat(1200, (30, 40)), chunks.flat(1500, (1500, 1))):
        check_restore(gpu, cut, cut.size, seed=1)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_transform(gpu: Device, cut: chunks.Chunks) -> None:
    n, k = cut.n, min(8, cut.size)
    for x in (np.random.default_rng(n).standard_normal(n).astype(np.float32), gradient(n)):
        places, values = transform.select(gpu.to_device(x), cut, k)
        wanted = transform.select(x, cut, k)
        if max(cut.sizes) <= 256:
            assert same(places, wanted[0])
            assert same(values, wanted[1])
    # Where the order differs, rounding may swap two almost equal coefficients, so search for each
    # among all coefficients.
    everywhere = transform.select(x, cut, cut.size)[1]
    close = 1e-6 * np.abs(everywhere).sum(axis=1, keepdims=True)
    assert (np.abs(np.take_along_axis(everywhere, places, axis=1) - values) <= close).all()
    assert (np.abs(np.sort(np.abs(values)) - np.sort(np.abs(wanted[1]))) <= close).all()
    assert (np.diff(places, axis=1) > 0).all()


def test_transform_of_subnormal_numbers(gpu: Device) -> None:
    random, cut = np.random.default_rng(3), chunks.flat(6000, (16, 12))
    for scale in (2.0**-126, 2.0**-135, 2.0**-148):
        x = (scale * random.standard_normal(cut.n)).astype(np.float32)
        actual, wanted = transform.select(gpu.to_device(x), cut, 40), transform.select(x, cut, 40)
        assert same(actual[0], wanted[0])
        assert same(actual[1], wanted[1])


def test_sums_that_exceed_float32(gpu: Device) -> None:
    """The device transforms again without folds, as the host does."""
    cut = chunks.flat(640, (64,))
    x = np.random.default_rng(1).standard_normal(640).astype(np.float32)
    x[[0, 63]] = 2e38
    actual, wanted = transform.select(gpu.to_device(x), cut, 7), transform.select(x, cut, 7)
    assert wanted is not None
    assert same(actual[0], wanted[0])
    assert same(actual[1], wanted[1])


def test_infinite_coefficients(gpu: Device) -> None:
    cut = chunks.flat(200, (8, 8))
    x = np.full(200, 3e38, np.float32)
    assert transform.select(gpu.to_device(x), cut, 3) is None
