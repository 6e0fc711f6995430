"""Test blocks with shared scales on a device: the bytes and values of the CPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from checks import block_codec_agrees, frames_agree
from samples import LARGE, arbitrary_floats, gradient, same

import gcodec
from gcodec.kernels.quantize import microscale
from gcodec.kernels.quantize.block_format import FORMATS, RULES, BlockFormat
from gcodec.kernels.quantize.microscale import Quantization
from gcodec.runtime.device import Device

TENSOR_SCALES = (1.0, 2.0**-120, 3e-5, 1e35)
SETTINGS = [
    *itertools.product([name for name in FORMATS if name != "nvfp4"], RULES, [1.0]),
    *itertools.product(["nvfp4"], RULES[:1], TENSOR_SCALES),
]


def near_ties(fmt: BlockFormat) -> np.ndarray:
    """Return blocks with numbers next to the middles of two elements, of all magnitudes."""
    sizes = fmt.values()[: fmt.top + 1].astype(np.float64)
    middles = np.append((sizes[1:] + sizes[:-1]) / 2, sizes).astype(np.float32)
    bits = np.add.outer(middles.view(np.int32), [-1, 0, 1]).ravel().clip(0)
    near = bits.astype(np.int32).view(np.float32)
    signs = np.where(np.arange(near.size) % 3, 1, -1).astype(np.float32)
    rows = np.resize(near * signs, (near.size // (fmt.block - 1) + 1, fmt.block - 1))
    largest = np.full((len(rows), 1), fmt.largest, np.float32)  # so that scales are 1
    one = np.hstack([largest, rows])
    powers = np.float32(2.0) ** np.array([-126, -100, -20, 0, 60], np.float32)
    return np.concatenate([one * power for power in powers]).reshape(-1)


def bytes_and_values_agree(
    gpu: Device, x: np.ndarray, quantization: Quantization, seed: int | None
) -> None:
    fmt, n = quantization.fmt, x.size
    scales, data = np.empty(fmt.blocks(n), np.uint8), np.empty(fmt.data_nbytes(n), np.uint8)
    top = microscale.quantize(x, quantization, seed, scales, data)
    on_device = gpu.empty(scales.size, np.uint8), gpu.empty(data.size + 1, np.uint8)[1:]
    assert int(microscale.quantize(gpu.to_device(x), quantization, seed, *on_device)) == top
    assert same(gpu.to_host(on_device[0]), scales)
    assert same(gpu.to_host(on_device[1]), data)
    for add in (None, np.float32(-1), np.float32(2.0**-100)):
        out, wanted = gpu.to_device(gradient(n, 1)), gradient(n, 1)
        numbers = fmt, float(quantization.tensor_scale)
        microscale.dequantize(scales, data, *numbers, wanted, add)
        microscale.dequantize(*on_device, *numbers, out, add)
        assert same(gpu.to_host(out), wanted)


def test_all_settings(gpu: Device) -> None:
    for (name, rule, scale), seed in itertools.product(SETTINGS, (None, 7)):
        fmt = BlockFormat.of(name)
        quantization = Quantization(fmt, rule, np.float32(scale))
        x = np.concatenate([near_ties(fmt), gradient(700), np.zeros(40, np.float32)])
        bytes_and_values_agree(gpu, x, quantization, seed)


def test_nonfinite_blocks(gpu: Device) -> None:
    for (name, rule, scale), seed in itertools.product(SETTINGS, (None, 7)):
        x = arbitrary_floats(999)
        x[64:128] = gradient(64).clip(-9, 9)
        x[70], x[100], x[111] = np.inf, -np.inf, -0.0
        quantization = Quantization(BlockFormat.of(name), rule, np.float32(scale))
        bytes_and_values_agree(gpu, x, quantization, seed)


def test_any_bytes(gpu: Device) -> None:
    random = np.random.default_rng(3)
    for name in FORMATS:
        fmt, n = BlockFormat.of(name), 5000
        scales = random.integers(0, 256 - 128 * fmt.is_two_level, fmt.blocks(n), np.uint8)
        data = random.integers(0, 64 if fmt.width == 6 else 256, fmt.data_nbytes(n), np.uint8)
        wanted, out = np.empty(n, np.float32), gpu.empty(n, np.float32)
        microscale.dequantize(scales, data, fmt, 3e-5, wanted)
        microscale.dequantize(gpu.to_device(scales), gpu.to_device(data), fmt, 3e-5, out)
        assert same(gpu.to_host(out), wanted)


SPECS = [f"microscale:format={name}" for name in FORMATS]
SPECS += ["microscale:scale=rceil,rounding=stochastic", "microscale:format=nvfp4,tensor_scale=1.0"]
SPECS += [
    f"microscale:format=mxfp4,code={code}" for code in ("huffman", "rans", "context", "auto")
]


@pytest.mark.parametrize("spec", SPECS)
def test_codec(gpu: Device, spec: str) -> None:
    block_codec_agrees(gpu, spec, seed=5)


def test_large(gpu: Device) -> None:
    frames_agree(gpu, "microscale:format=nvfp4", gradient(LARGE).clip(-1e30, 1e30))


def test_nonfinite(gpu: Device) -> None:
    wrong = arbitrary_floats(100)
    for spec in ("microscale", "microscale:format=nvfp4"):
        with pytest.raises(gcodec.ParameterError, match="NaN or Inf"):
            gcodec.encode(gpu.to_device(wrong), spec)
    frames_agree(gpu, "microscale", wrong, nonfinite="propagate")
