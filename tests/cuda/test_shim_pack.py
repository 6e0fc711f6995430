"""Test packing on a device: the bytes of the CPU in every layout."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from samples import LARGE, same

import gcodec
from gcodec.kernels.bits.pack import FieldLayout, pack_fields, unpack_fields
from gcodec.runtime.device import Device

CONTIGUOUS = [
    FieldLayout(width, order, word, False, pad, align)
    for width, order, word, pad, align in itertools.product(
        range(1, 9), ("msb", "lsb"), (1, 4), ("zero", "count"), (1, 8)
    )
    if pad == "zero" or (8 % width == 0 and word == 1)
]
STRIDED = [
    FieldLayout(width, order, strided=True, pad=pad, align=align)
    for width, order, pad, align in itertools.product(
        (1, 2, 4, 8), ("msb", "lsb"), ("zero", "count"), (1, 4)
    )
    if pad == "zero" or width > 1  # the pad code of a one-bit field cannot exceed 1
]


@pytest.mark.parametrize("layouts", [CONTIGUOUS, STRIDED], ids=["contiguous", "strided"])
def test_layouts(gpu: Device, layouts: list[FieldLayout]) -> None:
    random = np.random.default_rng(0)
    for layout, n in itertools.product(layouts, (0, 1, 9, 100)):
        codes = random.integers(0, 1 << layout.width, n).astype(np.uint8)
        packed, wanted = pack_fields(gpu.to_device(codes), layout), pack_fields(codes, layout)
        assert same(gpu.to_host(packed), wanted), (layout, n)
        assert same(gpu.to_host(unpack_fields(packed, n, layout)), codes), (layout, n)


@pytest.mark.parametrize("layouts", [CONTIGUOUS, STRIDED], ids=["contiguous", "strided"])
def test_damage(gpu: Device, layouts: list[FieldLayout]) -> None:
    for layout, n in itertools.product(layouts[::3], (1, 30)):
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
