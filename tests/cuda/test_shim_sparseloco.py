"""Test the largest elements of tiles on a device: the frames, residuals and values of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from checks import feedback_agrees, frames_agree, same_verdict
from samples import LARGE, arbitrary_floats, gradient, same

import gcodec
from gcodec.kernels.transform.chunk_layout import Layout, gather
from gcodec.runtime.device import Device

LAYOUTS = (
    (35, Layout(7, 1, 7, False)),
    (33, Layout(7, 1, 7, False)),
    (33, Layout(7, 1, 7, True)),
    (12 * 70, Layout(70, 4, 7, False)),
    (13 * 71, Layout(71, 4, 7, True)),
    (130 * 66, Layout(66, 64, 64, True)),
)


def test_gather(gpu: Device) -> None:
    for n, layout in LAYOUTS:
        x, rows = gradient(n), -(-n // layout.columns)
        count = -(-layout.columns // layout.width) * -(-rows // layout.height)
        for first in (0, count // 2):
            size = (count - first) * layout.height * layout.width
            wanted, out = np.empty(size, np.float32), gpu.empty(size, np.float32)
            gather(x, layout, first, wanted)
            gather(gpu.to_device(x), layout, first, out)
            assert same(gpu.to_host(out), wanted)


SHAPES = ((0,), (), (1,), (97,), (640,), (66, 130), (9, 2, 35), (128, 64))


@pytest.mark.parametrize("spec", ["sparseloco:k=2", "sparseloco:k=5,chunk=7,bins=8,code=huffman"])
def test_codec(gpu: Device, spec: str) -> None:
    for shape in SHAPES:
        x = gradient(int(np.prod(shape))).clip(-1e30, 1e30).reshape(shape)
        frame = frames_agree(gpu, spec, x)
        same_verdict(gpu, frame, [0, 7, 31, 63, -1, -2, 70, 100])
    frames_agree(gpu, spec, gradient(1000).clip(-9, 9).astype(np.float16).reshape(8, 125))
    steps = [gradient(500, k).clip(-1e30, 1e30).reshape(20, 25) for k in range(3)]
    feedback_agrees(gpu, spec, steps, decay=0.9)
    feedback_agrees(gpu, spec, [gradient(500, k).clip(-9, 9).astype(np.float16) for k in range(2)])


def test_large(gpu: Device) -> None:
    x = gradient(LARGE).clip(-1e30, 1e30)
    frames_agree(gpu, "sparseloco:k=16,chunk=256", x.reshape(512, -1))


def test_nonfinite(gpu: Device) -> None:
    with pytest.raises(gcodec.ParameterError, match="NaN or Inf"):
        gcodec.encode(gpu.to_device(arbitrary_floats(100)), "sparseloco")
