"""Devices for the tests of CUDA kernels: the shim, and a real device."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator

import pytest
import shim
from stand_in import StandIn

from gcodec.runtime import device


@pytest.fixture(params=["shim", pytest.param("gpu", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest) -> Iterator[device.Device]:
    """Yield an active device: the shim, whose thread order varies, or a real device."""
    if request.param == "gpu":
        if isinstance(actual := _real(), str):
            pytest.skip(actual)
        yield actual
        return
    if shim.COMPILER is None:
        pytest.skip("there is no g++")
    with device.use(shim.ShimDevice(order=None)) as result:
        yield result


@functools.cache
def _real() -> device.Device | str:
    """Return the first CUDA device, or why there is none."""
    try:
        return device.cuda_device(0)
    except (ImportError, RuntimeError) as error:
        return str(error)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Yield the stand-in for CuPy."""
    expected = StandIn()
    monkeypatch.setitem(sys.modules, "cupy", expected)
    device.cuda_device.cache_clear()
    yield expected
    device.cuda_device.cache_clear()
