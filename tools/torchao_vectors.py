"""Write the vectors of torchao: ``python tools/torchao_vectors.py > NAME.txt``.

They lie in ``tests/golden/upstream``. The program runs in an environment with torch and torchao,
and needs neither gcodec nor a GPU. It quantizes two matrices with ``to_mx`` in all formats and
scale modes, and with ``to_nvfp4`` with and without a scale of the tensor.
"""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version

import numpy as np
from vectors import hexadecimal

ELEMENTS = {
    "mxfp8e4m3": "float8_e4m3fn",
    "mxfp8e5m2": "float8_e5m2",
    "mxfp6e2m3": "fp6_e2m3",
    "mxfp6e3m2": "fp6_e3m2",
    "mxfp4": "float4_e2m1fn_x2",
}
TENSOR_SCALES = (None, 2.0**-11, 3e-4, 7.0)
LARGEST = (448.0, 57344.0, 7.5, 28.0, 6.0)


def matrices() -> dict[str, np.ndarray]:
    """Return a matrix of finite numbers, and one with NaN and infinities."""
    rng = np.random.default_rng(18)
    normal = rng.standard_normal((3, 32))
    rows = [
        normal[0] * 1e-3,
        normal[1] * np.exp2(rng.integers(-14, 3, 32)),
        rng.integers(-64, 65, 32) / 16,  # ties
        # Quotients a little above a power of two, whose logarithm may round down to an integer.
        *(top * 2.0**k * (1 + m * 2.0**-23) for top, (k, m) in zip(LARGEST, _POWERS, strict=True)),
        np.where(rng.random(32) < 0.5, 0.0, -0.0),
        rng.integers(-(1 << 23), 1 << 23, 32) * 2.0**-149,  # subnormal numbers
        normal[2] * 2.0**-122,
        1.9 * np.sign(normal[0]),
        rng.standard_normal(32) * 1e38,
    ]
    finite = np.array([np.broadcast_to(row, 32) for row in rows]).astype(np.float32)
    finite = np.where(np.isfinite(finite), finite, np.float32(3e38))
    special = normal.astype(np.float32)
    special[0, :7] = np.nan, -np.nan, np.inf, -np.inf, 0, -0.0, 1
    special[1, :6] = np.inf, -np.inf, 3e38, -0.0, 2.0**120, 0
    special[2, 20] = np.nan
    return {"finite": finite, "special": special}


_POWERS = ((20, 5), (-60, 11), (100, 22), (-9, 2), (3, 1))


def main() -> None:
    """Print all vectors."""
    import torch
    from torchao.prototype.mx_formats import mx_tensor, nvfp4_tensor
    from torchao.prototype.mx_formats.config import ScaleCalculationMode

    versions = f"torchao {version('torchao')} with torch {version('torch')}"
    print(f"# What {versions} writes on a CPU ({platform.machine()}):")
    print(
        "# torchao.prototype.mx_formats.mx_tensor.to_mx in blocks of 32, and NVFP4Tensor.to_nvfp4."
    )
    print(
        "# Made by tools/torchao_vectors.py. Float32 numbers are bit patterns; `decoded` are the"
    )
    print("# values that to_dtype and NVFP4Tensor.dequantize return.")
    for name, x in matrices().items():
        print("matrix", name, *x.shape)
        hexadecimal("x", x.view(np.uint32))
        tensor = torch.from_numpy(x.copy())
        for fmt, element in ELEMENTS.items():
            kind = getattr(torch, element, element)
            for mode in ScaleCalculationMode:
                scale, data = mx_tensor.to_mx(tensor, kind, 32, mode)
                print("format", fmt, mode.value)
                hexadecimal("scale", scale.view(torch.uint8).numpy())
                hexadecimal("data", data.view(torch.uint8).numpy())
                if mode == ScaleCalculationMode.FLOOR:
                    values = mx_tensor.to_dtype(data, scale, kind, 32, torch.float32)
                    hexadecimal("decoded", values.numpy().view(np.uint32))
        for tensor_scale in TENSOR_SCALES:
            own = None if tensor_scale is None else torch.tensor(tensor_scale)
            quantized = nvfp4_tensor.NVFP4Tensor.to_nvfp4(tensor, 16, own)
            print("format nvfp4", tensor_scale)
            hexadecimal("scale", quantized.scale.view(torch.uint8).numpy())
            hexadecimal("data", quantized.qdata.view(torch.uint8).numpy())
            if tensor_scale != 7.0:
                values = quantized.dequantize(torch.float32).numpy()
                hexadecimal("decoded", values.view(np.uint32))


if __name__ == "__main__":
    sys.exit(main())
