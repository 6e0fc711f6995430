"""Test the DDP hook with gradients on a device: messages and means must equal the host's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import gradient
from shim import ShimArray, ShimDevice

import gcodec
from gcodec.arrays.source import Source, inspect
from gcodec.runtime.device import Device

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("torch has no distributed", allow_module_level=True)

from gcodec.torch import buckets, ddp, ddp_hook  # noqa: E402
from gcodec.torch.buckets import Bucket  # noqa: E402
from gcodec.torch.messages import BucketCoder, Key, Part  # noqa: E402

SHAPES = ((40, 30), (7,), (2, 3, 4, 5), (30, 20))


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Initialize a process group with a single rank."""
    store = Path(tmp_path_factory.mktemp("store")) / "file"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def bucket(step: int, dtype: Any, room: np.ndarray) -> tuple[Any, list[Any]]:
    """Return a flat tensor in `room`, and the gradients in it, one with another layout."""
    sizes = [int(np.prod(shape)) for shape in SHAPES]
    values = torch.from_numpy(gradient(sum(sizes), step).clip(-9, 9)).to(dtype)
    flat = torch.from_numpy(room).view(dtype)[: values.numel()].copy_(values)
    parts = [part.view(shape) for part, shape in zip(flat.split(sizes), SHAPES, strict=True)]
    strides = torch.empty(SHAPES[2]).to(memory_format=torch.channels_last).stride()
    parts[2] = flat.as_strided(SHAPES[2], strides, parts[2].storage_offset())
    return flat, parts


def hooked(codec: str) -> Any:
    return ddp_hook(codec, min_numel=10, start_iter=0, seed=3)[0]


CODECS = ("sign", "topk:ratio=0.1", "ecsq:trellis=yes", "lossless", "minmax")
DTYPES = (torch.float32, torch.bfloat16)


def test_average(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    if not isinstance(gpu, ShimDevice):
        pytest.skip("only the shim shares memory with tensors of the host")
    # Behaves like a user's codec, whose kernels have no CUDA twins.
    monkeypatch.setattr(type(gcodec.parse("minmax")), "has_cuda_kernels", False)
    for codec, dtype in itertools.product(CODECS, DTYPES):
        check_average(gpu, codec, dtype, monkeypatch)


def check_average(gpu: Device, codec: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    on_host, on_device, names = hooked(codec), hooked(codec), ["a", "b", "c", "d"]
    taken: list[Any] = []

    def inspected(x: Any, name: str) -> Source:
        """Inspect a host tensor as one on the device, which has a copy of the values."""
        source = inspect(x, name)
        if name == "bucket":  # only its stream matters
            return source
        result = gpu.to_device(x.numpy())
        taken.append((result, x))
        return source._replace(resident=result)

    average = on_device._coder.average

    def averaged(*args: Any) -> None:
        average(*args)
        for result, x in taken:  # treat both as the same memory
            x.copy_(torch.from_numpy(gpu.to_host(result)))
        taken.clear()

    for step in range(2):
        room = np.empty(4 * 2000, np.uint8)
        flat, parts = bucket(step, dtype, room)
        on_host._average(Bucket(flat, parts, names, True, True, None, None))
        wanted = flat.clone()
        flat, parts = bucket(step, dtype, room)
        with monkeypatch.context() as patch:
            patch.setattr(ddp, "has_kernels_for", lambda _: True)
            for module in (buckets, ddp):
                patch.setattr(module, "inspect", inspected)
            patch.setattr(on_device._coder, "average", averaged)
            on_device._average(Bucket(flat, parts, names, True, True, None, None))
        for state in (on_host, on_device):
            state._end_step(counts=True)
        assert torch.equal(flat, wanted)
        assert on_host.sent_nbytes == on_device.sent_nbytes
    states = on_host.state_dict(), on_device.state_dict()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    residual = on_device._coder.feedback.residual("a")
    assert isinstance(residual, ShimArray) == (codec not in ("minmax", "lossless"))
    assert torch.equal(on_device.residual("a"), on_host.residual("a"))


def test_all_buckets_of_a_device_use_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy keeps the memory that one stream has freed from all others."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: [device])
    state, (one, two) = hooked("sign"), (torch.device("cuda", number) for number in (0, 1))
    assert state._stream_on(one) is state._stream_on(one) is not state._stream_on(two)


def test_the_host_waits_twice_for_a_bucket(gpu: Device) -> None:
    """Once for which tensors are zero, and once for all frames."""
    coders = [
        BucketCoder(gcodec.Feedback("qsgd"), seed=0, rank=0, key=Key(None)) for _ in range(2)
    ]
    codec = gcodec.parse("qsgd")
    for step in range(3):
        grads = {name: gradient(400, 5 * step + n) for n, name in enumerate("abcd")}
        grads["b"][:] = 0
        if step == 2:
            grads["c"][7] = np.nan
        messages = []
        for coder, place in zip(coders, (np.array, gpu.to_device), strict=True):
            parts = [Part(name, place(x), codec) for name, x in grads.items()]
            before = getattr(gpu, "fetched", 0)
            messages.append(coder.encode(parts, step))
            waited = getattr(gpu, "fetched", 2) - before
            coder.commit()
        assert messages[0] == messages[1]
        assert waited == 2 or step != 1  # the first step may copy tables to the device
    states = [coder.state_dict() for coder in coders]
    assert all(np.array_equal(states[0][key], states[1][key]) for key in states[0])
