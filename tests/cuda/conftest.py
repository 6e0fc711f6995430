"""Devices for the tests of CUDA kernels: the shim in three orders, and a real one."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import shim
from stand_in import StandIn

from gcodec.runtime import device


@pytest.fixture(
    params=[*shim.ORDERS, pytest.param("gpu", marks=pytest.mark.gpu)],
)
def gpu(request: pytest.FixtureRequest) -> Iterator[device.Device]:
    """Yield a device in use: the shim, whose threads run in some order, or a real one."""
    if request.param == "gpu":
        yield _real()
        return
    if shim.COMPILER is None:
        pytest.skip("there is no g++")
    with device.use(shim.ShimDevice(request.param)) as result:
        yield result


def _real() -> device.Device:
    try:
        return device.cuda_device(0)
    except (ImportError, RuntimeError) as error:
        pytest.skip(str(error))


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Yield what stands in for CuPy."""
    expected = StandIn()
    monkeypatch.setitem(sys.modules, "cupy", expected)
    device.cuda_device.cache_clear()
    yield expected
    device.cuda_device.cache_clear()
