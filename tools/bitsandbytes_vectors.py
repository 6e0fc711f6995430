"""Write the vectors of bitsandbytes: ``python tools/bitsandbytes_vectors.py > NAME.txt``.

They lie in ``tests/golden/upstream``. The program runs in an environment with bitsandbytes and
torch, and needs neither gcodec nor a GPU. It hides the native library, so that bitsandbytes uses
its neutral kernels, which follow those for CUDA.
"""

from __future__ import annotations

import ctypes
import sys
from importlib.metadata import version

import numpy as np
from vectors import hexadecimal

CASES = (
    ("nf4", 64, False),
    ("nf4", 32, True),
    ("fp4", 64, False),
    ("fp4", 32, True),
    ("dynamic8", 64, False),
    ("dynamic8", 32, True),
    ("dynamic8", 4096, False),
)


def vectors() -> dict[str, np.ndarray]:
    """Return random numbers, and special ones: zeros, subnormals, ties and extremes."""
    rng = np.random.default_rng(4)
    random = rng.standard_normal(331) * np.exp2(rng.integers(-9, 3, 331))
    special = np.concatenate(
        [
            np.where(rng.random(64) < 0.5, 0.0, -0.0),
            rng.integers(-(1 << 20), 1 << 20, 64) * 2.0**-149,
            rng.integers(-24, 25, 64) / 24,  # values in the middle of two entries of fp4
            rng.standard_normal(64) * 1e37,
            [1e-3, -1e-9, 1e-9, 0.0, -0.0, -1.0, 0.5],
        ]
    )
    return {"random": random.astype(np.float32), "special": special.astype(np.float32)}


def main() -> None:
    """Print all vectors."""
    load = ctypes.cdll.LoadLibrary
    ctypes.cdll.LoadLibrary = lambda name: _refuse() if "bitsandbytes" in str(name) else load(name)
    import torch
    from bitsandbytes import functional

    versions = f"bitsandbytes {version('bitsandbytes')} with torch {version('torch')}"
    print(f"# What the neutral kernels of {versions} write on a CPU. Float32")
    print("# numbers are bit patterns. Made by tools/bitsandbytes_vectors.py.")
    for name, x in vectors().items():
        print("vector", name)
        hexadecimal("x", x.view(np.uint32))
        for kind, blocksize, nested in CASES:
            tensor = torch.from_numpy(x.copy())
            if kind == "dynamic8":
                data, state = functional.quantize_blockwise(
                    tensor, blocksize=blocksize, nested=nested
                )
                decoded = functional.dequantize_blockwise(data, state)
            else:
                data, state = functional.quantize_4bit(
                    tensor, blocksize=blocksize, compress_statistics=nested, quant_type=kind
                )
                decoded = functional.dequantize_4bit(data, state)
            print("case", kind, blocksize, int(nested))
            hexadecimal("data", data.numpy())
            absmax = state.absmax.numpy()
            hexadecimal("absmax", absmax if nested else absmax.view(np.uint32))
            if nested:
                hexadecimal("nested_absmax", state.state2.absmax.numpy().view(np.uint32))
                hexadecimal("nested_offset", state.offset.numpy().view(np.uint32))
            hexadecimal("decoded", decoded.numpy().view(np.uint32))


def _refuse() -> None:
    raise OSError("hidden")


if __name__ == "__main__":
    sys.exit(main())
