"""Rows of the benchmark for the messages of other systems, next to PyTorch's own operators."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

from bench.kernel_rows import Row

COLUMNS = 128


def interop_rows(x: np.ndarray) -> list[Row]:
    """Return benchmark rows for (n,) float32 elements; BytePS's rows use its partition size."""
    return [*_mxnet(x), *_byteps(x), *_caffe2(x)]


def _pair(name: str, encode: Any, decode: Any) -> list[Row]:
    data = encode()
    return [
        Row(f"interop: {name}, encode", encode),
        Row(f"interop: {name}, decode", lambda: decode(data)),
    ]


def _mxnet(x: np.ndarray) -> list[Row]:
    from gcodec.interop import mxnet

    table = []
    for kind in ("2bit", "1bit"):
        table += _pair(
            f"mxnet {kind}",
            lambda kind=kind: mxnet.encode(x, type=kind),
            lambda data, kind=kind: mxnet.decode(data, x.size, type=kind),
        )
    return table


def _byteps(x: np.ndarray) -> list[Row]:
    from gcodec.interop import byteps

    generator, parts = byteps.XorShift128Plus(1), np.array_split(x, -(-x.size // 2**20))
    kinds: dict[str, dict[str, Any]] = {
        "onebit": {"scaling": True},
        "topk": {"k": 0.01},
        "randomk": {"k": 0.01, "seed": generator},
        "dithering": {"k": 4, "seed": generator},
        "dithering natural": {"k": 4, "seed": generator, "partition": "natural"},
        "dithering l2": {"k": 127, "seed": generator, "normalize": "l2"},
    }
    table = []
    for title, options in kinds.items():
        name: Any = title.split()[0]
        known = {key: options[key] for key in ("k", "partition") if key in options}
        table += _pair(
            f"byteps {title}",
            lambda n=name, g=options: [byteps.encode(p, n, **g) for p in parts],
            lambda data, n=name, known=known: [
                byteps.decode(d, n, p.shape, **known) for d, p in zip(data, parts, strict=True)
            ],
        )
    return table


def _caffe2(x: np.ndarray) -> list[Row]:
    from gcodec.interop import caffe2

    matrix = x[: x.size // COLUMNS * COLUMNS].reshape(-1, COLUMNS)
    table = []
    for bits, dtype in ((8, "float32"), (8, "float16"), (4, "float16"), (2, "float16")):
        kind: Any = {"bits": bits, "scale_dtype": dtype}
        table += _pair(
            f"caffe2 {bits} bits, {dtype}",
            lambda kind=kind: caffe2.encode(matrix, **kind),
            lambda rows, kind=kind: caffe2.decode(rows, **kind),
        )
    if importlib.util.find_spec("torch"):
        import torch

        torch.set_num_threads(1)
        tensor = torch.from_numpy(matrix)
        for name in ("byte", "4bit", "2bit"):
            pack = getattr(torch.ops.quantized, f"embedding_bag_{name}_prepack")
            unpack = getattr(torch.ops.quantized, f"embedding_bag_{name}_unpack")
            table += _pair(f"torch {name}", lambda pack=pack: pack(tensor), unpack)
    return table
