"""Write the vectors of grail: ``python tools/grail_vectors.py CHECKOUT > NAME.txt``.

They lie in ``tests/golden/upstream``. The program runs in an environment with torch, xxhash and
zstandard, on a checkout of one-covenant/grail, and needs neither gcodec nor a GPU. It encodes the
changes of tensors of zeros in all versions of the layout, and decompresses the updates.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from vectors import hexadecimal

# Dtype, shape, and the positions of changed elements.
TENSORS = {
    "layers.0.weight": ("bfloat16", (6, 5), (0, 1, 7, 9, 29)),
    "layers.0.bias": ("bfloat16", (40,), (3, 4, 39)),
    "wide": ("float32", (2, 70_000), (2, 69_999, 70_001, 139_999)),
    "tall": ("float16", (700, 3), (0, 4, 1000, 2099)),
    "filters": ("bfloat16", (4, 3, 2), (5, 6, 23)),
    "same": ("float32", (3, 3), ()),
}


def module_of(checkout: str, name: str) -> Any:
    """Import a module of the checkout, without the package, which needs much more."""
    path = Path(checkout) / "grail" / "infrastructure" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Print all vectors."""
    import torch

    codec, delta = (module_of(sys.argv[1], name) for name in ("sparse_codec", "delta_checkpoint"))
    print("# What sparse_codec.py of one-covenant/grail 54d6342 makes of tensors of zeros some of")
    print("# whose elements change, without zstd. Made by tools/grail_vectors.py.")
    rng = np.random.default_rng(3)
    old, new = {}, {}
    for name, (dtype, shape, positions) in TENSORS.items():
        old[name] = torch.zeros(shape, dtype=getattr(torch, dtype))
        new[name] = old[name].clone()
        values = torch.from_numpy(rng.standard_normal(len(positions))).to(old[name].dtype)
        new[name].view(-1)[list(positions)] = values
        bits = values.view(torch.int32 if dtype == "float32" else torch.int16).tolist()
        changes = (f"{at}:{bit}" for at, bit in zip(positions, bits, strict=True))
        print("tensor", name, dtype, "x".join(map(str, shape)), *changes)
    tensors, shapes, _ = delta.compute_sparse_delta(new, old)
    for version, suffix in ((2, "v2"), (3, "v3"), (31, "v3_1")):
        update = getattr(codec, f"encode_sparse_delta_{suffix}")(tensors, shapes)
        whole = zstandard.ZstdDecompressor().decompress(update, max_output_size=1 << 20)
        hexadecimal(f"update {version}", np.frombuffer(whole, np.uint8))


if __name__ == "__main__":
    main()
