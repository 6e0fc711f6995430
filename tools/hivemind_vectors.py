"""Write the vectors of hivemind: ``python tools/hivemind_vectors.py > NAME.txt``.

They lie in ``tests/golden/upstream``. The program runs in an environment with hivemind,
bitsandbytes, torch and NumPy below 2.4, and needs neither gcodec nor a GPU. It hides the native
library of bitsandbytes, so that its neutral kernels run, which follow those for CUDA.
"""

from __future__ import annotations

import ctypes
import sys
from importlib.metadata import version
from typing import Any

import numpy as np
from vectors import hexadecimal


def vectors() -> dict[str, np.ndarray]:
    """Return random numbers, numbers of few values, and a constant, by name."""
    rng = np.random.default_rng(6)
    wide = rng.standard_normal((5, 21)) * np.exp2(rng.integers(-9, 3, (5, 21)))
    return {
        "random": (rng.standard_normal(150) * 0.01 + 0.003).astype(np.float32),
        "matrix": wide.astype(np.float32),
        "few": rng.integers(-3, 4, (2, 3, 7)).astype(np.float32) / 4,
        "half": rng.standard_normal((3, 10)).astype(np.float16),
        "constant": np.full(6, 0.5, np.float32),
        "one": np.full((1, 1), -3e5, np.float32),
    }


def main() -> None:
    """Print all vectors."""
    load = ctypes.cdll.LoadLibrary
    ctypes.cdll.LoadLibrary = lambda name: _refuse() if "bitsandbytes" in str(name) else load(name)
    import torch
    from hivemind.compression import deserialize_torch_tensor, serialize_torch_tensor
    from hivemind.proto import runtime_pb2

    versions = f"hivemind {version('hivemind')} with torch {version('torch')}"
    print(f"# What {versions} writes, and bitsandbytes {version('bitsandbytes')}")
    print("# for BLOCKWISE_8BIT, on a CPU. Numbers are bit patterns. Made by")
    print("# tools/hivemind_vectors.py.")
    for name, x in vectors().items():
        print("vector", name, x.dtype, "x".join(map(str, x.shape)))
        hexadecimal("x", _bits(x))
        for compression, number in runtime_pb2.CompressionType.items():
            message = serialize_torch_tensor(torch.from_numpy(x.copy()), number)
            decoded = deserialize_torch_tensor(message).numpy()
            print("case", compression)
            hexadecimal("message", np.frombuffer(message.SerializeToString(), np.uint8))
            hexadecimal("decoded", _bits(decoded))


def _bits(x: np.ndarray) -> Any:
    return x.view(f"u{x.itemsize}")


def _refuse() -> None:
    raise OSError("hidden")


if __name__ == "__main__":
    sys.exit(main())
