"""Test that copies to the host pass through a bounded amount of pinned memory."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
import shim
from stand_in import StandIn

from gcodec.runtime.deferred import LeadingBytes
from gcodec.runtime.device import cuda_device
from gcodec.runtime.staging import BUFFER_SIZE, DIRECT_SIZE

needs_compiler = pytest.mark.skipif(shim.COMPILER is None, reason="there is no g++")
MIB = 1 << 20
SIZES = (0, 1, 15, 17, MIB - 1, MIB, MIB + 1, BUFFER_SIZE, BUFFER_SIZE + 1, 3 * BUFFER_SIZE + 5)


def noise(nbytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def leading(cupy: StandIn, data: np.ndarray, nbytes: int) -> LeadingBytes:
    """Return the first `nbytes` of an array, with their count in bits on the device."""
    return LeadingBytes(cupy.asarray(data), cupy.asarray(np.array([nbytes - 1], np.int64)), 8, 8)


@pytest.mark.parametrize("nbytes", SIZES)
def test_copies_of_one_array(cupy: StandIn, nbytes: int) -> None:
    x = noise(nbytes)
    (actual,) = cuda_device(0).fetch([cupy.asarray(x)])
    assert actual.tobytes() == x.tobytes()
    assert cupy.pinned.peak <= 2 * BUFFER_SIZE
    assert cupy.pinned.peak == BUFFER_SIZE * min(-(-nbytes // BUFFER_SIZE), 2)
    del actual
    assert cupy.pinned.live == 0


def test_results_keep_no_pinned_memory(cupy: StandIn) -> None:
    kept = [cuda_device(0).fetch([cupy.asarray(noise(1000, k))])[0] for k in range(9)]
    assert cupy.pinned.live == 0
    assert all(kept[k].tobytes() == noise(1000, k).tobytes() for k in range(9))


def test_dtypes_and_shapes(cupy: StandIn) -> None:
    arrays = [
        np.float64(2.5).reshape(()),
        np.arange(12, dtype=np.float16).reshape(3, 4)[:, ::2],
        np.zeros((0, 3), np.int64),
        np.arange(7, dtype=np.uint32),
        np.array([True, False]),
    ]
    device = cuda_device(0)
    on_device = [cupy.asarray(x) for x in arrays]
    on_device[1] = cupy.asarray(np.arange(12, dtype=np.float16).reshape(3, 4))[:, ::2]
    for x, actual in zip(arrays, device.fetch(on_device), strict=True):
        assert (actual.dtype, actual.shape) == (x.dtype, x.shape)
        assert actual.tobytes() == x.tobytes()


def test_many_arrays_share_the_buffers(cupy: StandIn) -> None:
    sizes = np.random.default_rng(1).integers(0, BUFFER_SIZE // 3, 40).tolist()
    inputs = [noise(size, seed) for seed, size in enumerate(sizes)]
    actual = cuda_device(0).fetch([cupy.asarray(x) for x in inputs])
    assert [x.tobytes() for x in actual] == [x.tobytes() for x in inputs]
    assert cupy.pinned.requested == 2 * BUFFER_SIZE


def test_the_device_copies_while_the_host_empties_a_buffer(cupy: StandIn) -> None:
    cuda_device(0).fetch([cupy.asarray(noise(6 * BUFFER_SIZE))])
    assert cupy.stream.overlapped == 4  # at each wait except the first two


@needs_compiler
@pytest.mark.parametrize(
    "nbytes", [1, 4, 7, 1000, DIRECT_SIZE, DIRECT_SIZE + 1, 2 * BUFFER_SIZE + 9, 6 * BUFFER_SIZE]
)
def test_payloads_pin_their_own_size_only(cupy: StandIn, nbytes: int) -> None:
    data = noise(6 * BUFFER_SIZE)
    other = noise(100, 1)
    actual, beside = cuda_device(0).fetch([leading(cupy, data, nbytes), cupy.asarray(other)])
    assert actual.size == data.size
    assert actual[:nbytes].tobytes() == data[:nbytes].tobytes()
    assert beside.tobytes() == other.tobytes()
    assert cupy.pinned.peak == BUFFER_SIZE * (1 if nbytes <= BUFFER_SIZE + DIRECT_SIZE else 2)


@needs_compiler
def test_several_payloads(cupy: StandIn) -> None:
    sizes = (1, DIRECT_SIZE + 8, 900, 2 * BUFFER_SIZE)
    parts = [noise(3 * BUFFER_SIZE, seed) for seed in range(len(sizes))]
    inputs = [leading(cupy, *pair) for pair in zip(parts, sizes, strict=True)]
    actual = cuda_device(0).fetch(inputs)
    for x, data, size in zip(actual, parts, sizes, strict=True):
        assert x[:size].tobytes() == data[:size].tobytes()
    assert cupy.pinned.peak == 2 * BUFFER_SIZE


@needs_compiler
@pytest.mark.parametrize("count", [-(1 << 40), -1, 1 << 40])
def test_counts_beyond_the_array(cupy: StandIn, count: int) -> None:
    data = noise(2 * DIRECT_SIZE)
    what = LeadingBytes(cupy.asarray(data), cupy.asarray(np.array([count], np.int64)), 8, 0)
    (actual,) = cuda_device(0).fetch([what])
    assert actual.size == data.size
    if count > 0:
        assert actual.tobytes() == data.tobytes()


@needs_compiler
def test_threads_have_separate_buffers(cupy: StandIn) -> None:
    device, wrong = cuda_device(0), []
    start = threading.Barrier(4)

    def work(thread: int) -> None:
        start.wait()
        for step in range(6):
            size = (1, MIB + 1, 2 * BUFFER_SIZE + 3)[(thread + step) % 3]
            data = noise(3 * BUFFER_SIZE, 10 * thread + step)
            whole = cupy.asarray(data[:size])
            actual, first = device.fetch([whole, leading(cupy, data, size)])
            if not actual.tobytes() == first[:size].tobytes() == data[:size].tobytes():
                wrong.append((thread, step))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert cupy.pinned.peak <= 4 * 2 * BUFFER_SIZE
    assert cupy.pinned.live == 0


def test_errors_wait_for_copies_in_flight(cupy: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise they would write to buffers that have another owner by then."""
    device = cuda_device(0)

    large = cupy.asarray(noise(3 * BUFFER_SIZE))
    copies = itertools.count()
    real = type(large.data).copy_to_host_async

    def copy(*args: Any) -> None:
        if next(copies) == 2:
            raise RuntimeError("an illegal memory access")
        real(*args)

    monkeypatch.setattr(type(large.data), "copy_to_host_async", copy)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        device.fetch([large])
    assert not cupy.stream.queued
    assert cupy.pinned.live == 0
