"""Test packing on a device: the bytes of the CPU in every layout."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from samples import LARGE, same

import gcodec
from gcodec.kernels.bits.pack import FieldLayout, pack_fields, unpack_fields
from gcodec.runtime.device import Device

LAYOUTS = [
    FieldLayout(width, order, align=align)  # type: ignore[arg-type]
    for width, order, align in itertools.product(range(1, 9), ("msb", "lsb"), (1, 4))
]


def test_layouts(gpu: Device) -> None:
    random = np.random.default_rng(0)
    for layout, n in itertools.product(LAYOUTS, (0, 1, 9, 100)):
        codes = random.integers(0, 1 << layout.width, n).astype(np.uint8)
        packed, wanted = pack_fields(gpu.to_device(codes), layout), pack_fields(codes, layout)
        assert same(gpu.to_host(packed), wanted), (layout, n)
        assert same(gpu.to_host(unpack_fields(packed, n, layout)), codes), (layout, n)


def test_damage(gpu: Device) -> None:
    for layout, n in itertools.product(LAYOUTS, (1, 30)):
        packed = pack_fields(np.zeros(n, np.uint8), layout)
        for at in {0, packed.size // 2, packed.size - 1}:
            damaged = packed.copy()
            damaged[at] ^= np.uint8(0x81)
            try:
                wanted = unpack_fields(damaged, n, layout)
            except gcodec.Corrupt as error:
                with pytest.raises(gcodec.Corrupt) as raised:
                    unpack_fields(gpu.to_device(damaged), n, layout)
                assert str(raised.value) == str(error), layout
            else:
                actual = unpack_fields(gpu.to_device(damaged), n, layout)
                assert same(gpu.to_host(actual), wanted), layout


def test_large(gpu: Device) -> None:
    codes = np.random.default_rng(1).integers(0, 8, LARGE).astype(np.uint8)
    packed = pack_fields(gpu.to_device(codes), FieldLayout(3))
    assert same(gpu.to_host(packed), pack_fields(codes, FieldLayout(3)))
    assert same(gpu.to_host(unpack_fields(packed, LARGE, FieldLayout(3))), codes)
