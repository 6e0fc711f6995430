"""Test the shim itself: it runs correct kernels, and detects defects."""

from __future__ import annotations

import numpy as np
import pytest
import shim
from shim import ORDERS, Order, ShimDevice

pytestmark = pytest.mark.skipif(shim.COMPILER is None, reason="there is no g++")
N = np.int64(8)


@pytest.mark.parametrize("order", ORDERS)
def test_tree_reduction(order: Order) -> None:
    device, x = ShimDevice(order), np.arange(192, dtype=np.uint32) ** 2
    out = device.empty(3, np.uint32)
    device.run("faults", "tree", (3,), 64, device.to_device(x), np.int32(0), out)
    assert device.to_host(out).tolist() == x.reshape(3, 64).sum(axis=1).tolist()


def test_missing_barriers_are_detected() -> None:
    x, wrong = np.arange(64, dtype=np.uint32), set()
    for order in ORDERS:
        device = ShimDevice(order)
        out = device.empty(1, np.uint32)
        device.run("faults", "tree", (1,), 64, device.to_device(x), np.int32(1), out)
        wrong |= {order} if device.to_host(out)[0] != x.sum() else set()
    assert wrong


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("leaves_early", "deadlock in block 0: 1 threads are done, 31 wait at a barrier"),
        ("splits", "wait for different things"),
        ("waits_for_none", "deadlock in block 0: 27 threads are done, 0 wait at a barrier, 5 for"),
        ("names_others", "is not in the mask 00000001"),
        ("asks_none", "from lane 9, which takes no part"),
    ],
)
@pytest.mark.parametrize("order", ORDERS)
def test_undefined_behavior_is_reported(name: str, message: str, order: Order) -> None:
    device = ShimDevice(order)
    out = device.zeros(32, np.uint32)
    for _ in range(2):  # the abandoned fibers can be reused
        with pytest.raises(AssertionError, match=message):
            device.run("faults", name, (1,), 32, out)
    test_tree_reduction(order)


def test_memory() -> None:
    device = ShimDevice()
    out = device.zeros(8, np.uint32)
    with pytest.raises(AssertionError, match="wrote outside of argument 0"):
        device.run("faults", "passes_the_end", (1,), 1, out, N)
    out = device.zeros(8, np.uint32)
    device.run("faults", "reads_shared", (2,), 8, out)
    assert device.to_host(out)[:4].tolist() == [0xA5A5A5A5] * 4  # also in the second block
    assert device.to_host(device.empty(2, np.uint32)).tolist() == [0xA5A5A5A5] * 2


def test_arguments() -> None:
    device = ShimDevice()
    x, out = device.to_device(np.array([0.25], np.float32)), device.empty(1, np.float64)
    fine = [x, np.float64(2), np.int32(-8), np.uint64(1 << 40), np.bool_(True), out]
    device.run("faults", "arguments", (1,), 1, *fine)
    assert device.to_host(out)[0] == 0.25 + 2 - 8 + 2**40 + 0.5
    wrong = [out, np.float32(2), np.int64(-8), np.int64(1), 1, x]
    for k, argument in enumerate(wrong):
        with pytest.raises(AssertionError, match=rf"argument {k}:"):
            device.run("faults", "arguments", (1,), 1, *fine[:k], argument, *fine[k + 1 :])
    with pytest.raises(AssertionError, match="takes 6 arguments, not 5"):
        device.run("faults", "arguments", (1,), 1, *fine[1:])
    with pytest.raises(AssertionError, match="no device array"):
        device.run("faults", "arguments", (1,), 1, np.zeros(1, np.float32), *fine[1:])
    with pytest.raises(AssertionError, match="not contiguous"):
        device.run("faults", "arguments", (1,), 1, device.zeros(4, np.float32)[::2], *fine[1:])


@pytest.mark.parametrize("order", ORDERS)
def test_warps(order: Order) -> None:
    device = ShimDevice(order)
    out = device.empty(6 * 64, np.uint32)
    device.run("faults", "warps", (1,), 64, out)
    actual = device.to_host(out).reshape(64, 6)
    t = np.arange(64)
    lane = t % 32
    assert actual[:, 0].tolist() == np.concatenate([np.cumsum(t[:32]), np.cumsum(t[32:])]).tolist()
    assert actual[:, 1].tolist() == (t ^ 5).tolist()
    assert actual[:, 2].tolist() == np.where(t % 8 < 5, t + 3, t).tolist()
    assert actual[:, 3].tolist() == (t - lane + 7).tolist()
    assert set(actual[:, 4].tolist()) == {0xAAAAAAAA}
    assert actual[:, 5].tolist() == np.where(lane < 16, 0xCCCC, 0).tolist()


def test_counting_barriers() -> None:
    for order in ORDERS:
        device = ShimDevice(order)
        out = device.zeros(1, np.uint32)
        device.run("faults", "counts", (3,), 64, out)
        assert device.to_host(out)[0] == 3 * 64 * 22


@pytest.mark.skipif(not shim.FLUSHES, reason="this processor is not told to flush")
def test_subnormal_numbers_are_flushed() -> None:
    device = ShimDevice()
    x = np.array([1e-40, 2.0**-126, -1e-40, 1], np.float32)
    out = device.empty(4, np.float32)
    device.run("faults", "subnormal", (1,), 4, device.to_device(x), out)
    assert device.to_host(out).tolist() == [0, 2.0**-125, 0, 2]
    assert np.float32(1e-40) * np.float32(2) > 0  # but not after the launch


def test_device_arrays_are_not_host_arrays() -> None:
    x = ShimDevice().zeros(3, np.float32)
    for misuse in (
        lambda: np.asarray(x),
        lambda: np.flatnonzero(x),
        lambda: np.add(x, 1),
        lambda: x[0],
        lambda: x + x,
        lambda: bool(x),
        lambda: list(x),
        lambda: x.__setitem__(slice(None), np.zeros(3, np.float32)),
    ):
        with pytest.raises(TypeError):
            misuse()


def test_launch_converts_arguments_to_declared_types() -> None:
    device = ShimDevice()
    x, out = device.to_device(np.arange(8, dtype=np.float32)), device.zeros(8, np.float32)
    device.launch("arithmetic", "add_scaled", 1, 32, x, 2, out, 8)
    assert device.to_host(out).tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    wide, strided = device.zeros(8, np.float64), device.zeros(16, np.float32)[::2]
    for wrong in ((x, 2, wide, 8), (x, 2, strided, 8), (x, 2, out, 8.5)):
        with pytest.raises((AssertionError, TypeError)):
            device.launch("arithmetic", "add_scaled", 1, 32, *wrong)
    with pytest.raises(ValueError, match="shorter"):
        device.launch("arithmetic", "add_scaled", 1, 32, x, 2, out)
    device.launch("arithmetic", "add_scaled", 0, 32, "an empty grid ignores its arguments")
