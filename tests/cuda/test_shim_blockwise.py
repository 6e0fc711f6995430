"""Test tables of numbers with scales of blocks on a device: the bytes and values of the CPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from checks import block_codec_agrees, frames_agree
from samples import LARGE, arbitrary_floats, gradient, same

import gcodec
from gcodec.codecs.blockwise import quantizer
from gcodec.codecs.blockwise.layout import Layout
from gcodec.kernels.quantize import blockwise
from gcodec.runtime.device import Device

KINDS = ("nf4", "fp4", "dynamic8", "int4", "int8", "fp8")
BLOCKS = (1, 6, 64, 100, 2048, 10**6)


def near_boundaries(layout: Layout) -> np.ndarray:
    """Return blocks with numbers next to the boundaries of codes."""
    entries = layout.table().cells.entries
    tops = np.unique(entries & np.uint64(0x7FFFFFFF)).astype(np.int64)
    bits = np.add.outer(tops[tops < 0x7F000000], [-1, 0, 1, 2]).ravel().clip(0)
    near = bits.astype(np.int32).view(np.float32)
    largest = {"int4": 8, "int8": 128, "fp8": 448}.get(layout.kind, 1)
    x = np.resize(np.concatenate([near, -near]), 2 * near.size + layout.block)
    x[:: layout.block] = largest  # so that factors are 1
    return np.asarray(x, np.float32)


def bytes_and_values_agree(gpu: Device, x: np.ndarray, layout: Layout) -> None:
    data, on_device = np.empty(layout.nbytes, np.uint8), gpu.empty(layout.nbytes, np.uint8)
    quantizer.quantize(x, layout, data)
    quantizer.quantize(gpu.to_device(x), layout, on_device)
    assert same(gpu.to_host(on_device), data)
    size = layout.front_nbytes
    values, scales, _ = layout.scales(data[:size])
    numbers = layout.block, scales, values, layout.is_multiplier
    for add in (None, np.float32(-1), np.float32(2.0**-100)):
        out, wanted = gpu.to_device(gradient(x.size, 1)), gradient(x.size, 1)
        blockwise.dequantize(data[size:], *numbers, wanted, add)
        blockwise.dequantize(on_device[size:], *numbers, out, add)
        assert same(gpu.to_host(out), wanted)


def test_all_settings(gpu: Device) -> None:
    for kind, block in itertools.product(KINDS, BLOCKS):
        if kind in ("nf4", "fp4", "int4") and block % 2:
            continue
        near = near_boundaries(Layout(kind, False, 1, min(block, 5000)))
        wide = gradient(777).clip(-1e30, 1e30)
        for x in (near, wide, np.zeros(130, np.float32), wide * np.float32(2.0**-60)):
            bytes_and_values_agree(gpu, x, Layout(kind, False, x.size, block))


def test_nested(gpu: Device) -> None:
    for kind, block in itertools.product(KINDS[:3], (2, 64)):
        x = gradient(3001).clip(-1e30, 1e30)
        bytes_and_values_agree(gpu, x, Layout(kind, True, x.size, block))


SPECS = [
    *(f"blockwise:kind={kind}" for kind in KINDS),
    *("blockwise:kind=fp8,block=0", "blockwise:nested=yes", "blockwise:kind=int8,block=100"),
    *(f"blockwise:code={code}" for code in ("huffman", "rans", "auto")),
]


@pytest.mark.parametrize("spec", SPECS)
def test_codec(gpu: Device, spec: str) -> None:
    block_codec_agrees(gpu, spec)


def test_large(gpu: Device) -> None:
    frames_agree(gpu, "blockwise", gradient(LARGE).clip(-1e30, 1e30))


def test_values_that_are_refused(gpu: Device) -> None:
    for wrong, text in ((arbitrary_floats(100), "NaN or Inf"), (np.full(9, 1e38), r"2\^126")):
        x = wrong.astype(np.float32)
        for spec in ("blockwise", "blockwise:kind=fp8", "blockwise:nested=yes"):
            with pytest.raises(gcodec.ParameterError, match=text):
                gcodec.encode(gpu.to_device(x), spec)


@pytest.mark.parametrize("kind", ["uniform8", "quantile8", "meanstd16"])
def test_other_kinds_are_refused(gpu: Device, kind: str) -> None:
    with pytest.raises(TypeError, match="takes no arrays on a CUDA device yet"):
        gcodec.encode(gpu.to_device(gradient(100)), f"blockwise:kind={kind}")
