"""Test fields of levels on a device: bytes of the CPU, and its errors for levels above s."""

from __future__ import annotations

import numpy as np
import pytest
from strings import agree, broken, outcome, resolved, symbols

from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.prefix import level_fields
from gcodec.kernels.prefix.level_fields_cuda import Measured
from gcodec.runtime.device import Device

LEAD = 4


def read(device: Device | None, data: np.ndarray, s: int, coded: CodedMask) -> np.ndarray:
    parts = []

    def take(at: int, part: np.ndarray) -> None:
        parts.append((at, part.copy() if device is None else device.to_host(part)))

    on_device = data if device is None else device.to_device(data)
    level_fields.read(on_device, 8 * LEAD, s, coded, take)
    return np.concatenate([part for _, part in sorted(parts, key=lambda pair: pair[0])])


@pytest.mark.parametrize("bucket", [0, 7, 512, 5000])
@pytest.mark.parametrize("s", [1, 15, 127, 1000, 2**16, 2**24])
def test_levels(gpu: Device, s: int, bucket: int) -> None:
    for n in (1, 15, 4096, 9001):
        inputs, coded = symbols(n, s), CodedMask.all(n)
        if bucket:
            silent = np.random.default_rng(bucket).random(-(-n // bucket)) < 0.4
            inputs[np.repeat(silent, bucket)[:n]] = 0
            coded = CodedMask.of(n, bucket, silent)
        data, nbits = level_fields.write(inputs, s, coded, 1 << 17, LEAD)
        data[:LEAD] = 0
        fields = Measured.of(gpu.to_device(inputs), s, coded, LEAD)
        out = gpu.zeros(-(-data.size // 4), np.uint32)
        fields.put(out)
        (end,) = fields.deferred_marks()
        assert resolved(end) == nbits
        assert np.array_equal(gpu.to_host(out).view(np.uint8)[: data.size], data)
        assert np.array_equal(read(gpu, data, s, coded), inputs)


def test_nothing_is_written_where_the_end_is_zero(gpu: Device) -> None:
    fields = Measured.of(gpu.to_device(symbols(100, 15)), 15, CodedMask.all(100), LEAD)
    fields.end[:1] = gpu.zeros(1, np.int64)
    out = gpu.zeros(25, np.uint32)
    fields.put(out)
    assert not gpu.to_host(out).any()


@pytest.mark.parametrize("s", [5, 300, 2**16])
def test_broken(gpu: Device, s: int) -> None:
    inputs, coded = symbols(300, s, spread=100.0), CodedMask.all(300)
    data, _ = level_fields.write(inputs, s, coded, 1 << 17, LEAD)
    for seed in range(12):
        wrong = broken(data, 8 * LEAD, seed)
        here = outcome(lambda data=wrong: read(None, data, s, coded))
        assert agree(here, outcome(lambda data=wrong: read(gpu, data, s, coded))), seed
