"""Write the vectors of torchft: ``python tools/torchft_vectors.py > NAME.txt``.

They lie in ``tests/golden/upstream``. The program runs in an environment with torchft, torch and
triton, and needs neither gcodec nor a GPU: torchft's kernels run in Triton's interpreter. The
interpreter drops the carry where rounding to FP8 raises the exponent, so the bytes of values come
from torch's conversion of the same products; multipliers, layout and decoded values are those of
the kernels.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from vectors import hexadecimal


def module() -> Any:
    """Import the module without the package, which needs a compiled part."""
    package = importlib.util.find_spec("torchft")
    path = Path(package.submodule_search_locations[0]) / "quantization.py"
    spec = importlib.util.spec_from_file_location("quantization", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    loaded._supports_native_fp8 = lambda: True
    return loaded


def vectors() -> list[tuple[int, np.ndarray]]:
    """Return numbers of ranks and tensors."""
    rng = np.random.default_rng(8)
    wide = rng.standard_normal((7, 21)) * np.exp2(rng.integers(-12, 3, (7, 21)))
    special = np.zeros((4, 6))
    special[1] = rng.integers(-448, 449, 6) / 8
    special[2] = [1e-40, -1e-41, 0, 0, 0, -0.0]
    special[3] = [1e30, -1e22, 3, 0, -0.0, -1e30]
    cases = [(1, wide), (4, wide), (1, special), (3, rng.standard_normal((2, 3000))[:, ::37])]
    cases.append((2, rng.standard_normal(5)))
    return [(ranks, np.ascontiguousarray(x, np.float32)) for ranks, x in cases]


def main() -> None:
    """Print all vectors."""
    os.environ["TRITON_INTERPRET"] = "1"
    import torch

    quantization = module()
    print(f"# What the kernels of torchft {version('torchft')} write in the interpreter of Triton")
    print(f"# {version('triton')}, with FP8 of torch {version('torch')}. Float32 numbers are bit")
    print("# patterns. Made by tools/torchft_vectors.py.")
    for ranks, x in vectors():
        tensor = torch.from_numpy(x.copy())
        message = quantization.fused_quantize_into_fp8([tensor], ranks)
        matrix = torch.from_numpy(x.reshape(len(x), -1))
        rows, columns = matrix.shape
        table = message.numpy().reshape(-1, 4 + -(-columns // 4) * 4)
        scales = torch.from_numpy(table[:rows, :4].copy().view(np.float32))
        codes = (matrix * scales).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        table[:rows, 4 : 4 + columns] = codes
        out = torch.zeros_like(matrix)
        quantization.fused_dequantize_from_fp8([out], message, ranks)
        print("case", ranks, "x".join(map(str, x.shape)))
        hexadecimal("x", x.view(np.uint32))
        hexadecimal("message", message.numpy())
        hexadecimal("decoded", out.numpy().view(np.uint32))


if __name__ == "__main__":
    sys.exit(main())
