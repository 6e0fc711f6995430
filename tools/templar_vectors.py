"""Write the vectors of Templar: ``python tools/templar_vectors.py CHECKOUT > NAME.txt``.

They lie in ``tests/golden/upstream``. The program runs in an environment with torch and einops, on
a checkout of one-covenant/templar, and needs neither gcodec nor a GPU. It compresses a vector and
matrices of several shapes, and decompresses the messages.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
from vectors import hexadecimal

# Shape, largest side of a tile, k and number of bins.
CASES = (
    ((96,), 64, 2, 4),
    ((24, 16), 8, 8, 4),
    ((14, 22), 64, 40, 4),
    ((12, 10), 6, 16, 64),
    ((6, 10), 64, 5, 2),
    ((8, 4), 4, 64, 4),
)


def compressor(checkout: str) -> Any:
    """Import the module of the checkout, without the package, which needs much more."""
    sys.modules["tplr"] = types.ModuleType("tplr")
    path = Path(checkout) / "src" / "tplr" / "compress.py"
    spec = importlib.util.spec_from_file_location("compress", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Print all vectors."""
    import torch

    module = compressor(sys.argv[1])
    print("# What compress.py of one-covenant/templar 2.1.28 makes on a CPU. Float32 numbers are")
    print("# bit patterns. Made by tools/templar_vectors.py.")
    rng = np.random.default_rng(2)
    for shape, chunk, k, bins in CASES:
        x = (rng.laplace(size=shape) * np.exp(rng.normal(size=shape))).astype(np.float32)
        parameter = torch.nn.Parameter(torch.from_numpy(x.copy()))
        model = torch.nn.Module()
        model.register_parameter("w", parameter)
        chunks = module.ChunkingTransformer(model, chunk)
        topk = module.TopKCompressor(
            use_quantization=True, quantization_bins=bins, quantization_range=6
        )
        cut = chunks.encode(parameter.detach())
        idxs, vals, xshape, totalk, parameters = topk.compress(cut, k)
        out = topk.decompress(parameter.detach(), idxs, vals, xshape, totalk, parameters)
        shift, scale, offset, lookup, _ = parameters
        print("case", chunk, k, bins, offset)
        arrays = {
            "x": x.view(np.uint32),
            "idxs": idxs.numpy(),
            "vals": vals.numpy(),
            "shift": shift.numpy().view(np.uint32),
            "scale": np.array(scale, np.float32).view(np.uint32),
            "lookup": lookup.numpy().view(np.uint32),
            "decoded": chunks.decode(out).numpy().view(np.uint32),
        }
        for name, array in arrays.items():
            hexadecimal(f"{name} {'x'.join(map(str, array.shape)) or '1'}", array)


if __name__ == "__main__":
    main()
