"""Print bytes and error of dct8, and of the layouts of Panthalia and DeMo, as in docs/dct8.md.

Chunks are 64x64, with k = 32. A cell contains the bytes per 4096 values, and the squared error of
one step over the sum of squares. For dct8, bytes count whole frames: one frame for all tensors of
a file laid end to end (``flat``, as Panthalia does) or one for each tensor (``tiles``). For the
other two, bytes count only their tensors: Panthalia's 9 per coefficient and 8 per chunk; DeMo's 12
per coefficient, in tiles whose sides are the largest divisors up to 64 of the sides of the matrix;
a vector has one side.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import fft

import gcodec
from gcodec.codecs.dct8 import from_panthalia, to_panthalia
from gcodec.tensorfiles.dumps import open_dump

CHUNK, K = 64, 32
Result = tuple[float, float]  # bytes, squared error


def squares(x: np.ndarray) -> float:
    return float(np.sum(x.astype(np.float64) ** 2))


def framed(x: np.ndarray, spec: str) -> Result:
    frame = gcodec.encode(x, spec)
    return len(frame), squares(x - gcodec.decode(frame))


def panthalia(x: np.ndarray) -> Result:
    message = to_panthalia(x, CHUNK, K)
    nbytes = sum(a.nbytes for name, a in message.items() if name.startswith("freq"))
    return nbytes, squares(x - from_panthalia(message))


def divisor(n: int) -> int:
    return max(d for d in range(1, CHUNK + 1) if n % d == 0)


def demo(x: np.ndarray) -> Result:
    """Keep the k largest coefficients of each tile as float32 values and int64 positions."""
    matrix = x.reshape(len(x), -1) if x.ndim > 1 else x.reshape(1, -1)
    a, b = map(divisor, matrix.shape)
    tiles = matrix.reshape(-1, a, matrix.shape[1] // b, b).swapaxes(1, 2).reshape(-1, a, b)
    y = fft.dctn(tiles, axes=(1, 2), norm="ortho").reshape(len(tiles), -1)
    k = min(K, a * b)
    # The transform is orthonormal, so these coefficients have the whole error.
    dropped = np.sort(np.abs(y), axis=1)[:, : a * b - k]
    return 12 * k * len(tiles), squares(dropped)


def row(name: str, data: list[np.ndarray]) -> str:
    flat = np.concatenate([x.reshape(-1) for x in data])
    results = [framed(flat, "dct8"), framed(flat, "dct8:values=affine8"), panthalia(flat)]
    for each in (lambda x: framed(x, "dct8:layout=tiles"), demo):
        measured = [each(x) for x in data if x.size]
        results.append((sum(n for n, _ in measured), math.fsum(e for _, e in measured)))
    energy = squares(flat)
    cells = (f"{4096 * nbytes / flat.size:.1f}, {e / energy:.4f}" for nbytes, e in results)
    return f"| {name} | {flat.size:,} | {' | '.join(cells)} |"


def lines(files: list[str]) -> Iterator[str]:
    columns = ("flat", "flat, affine8", "Panthalia", "tiles", "DeMo")
    yield f"| data | values | {' | '.join(columns)} |"
    yield "|" + "---|" * (2 + len(columns))
    yield row("normal", [np.random.default_rng(0).standard_normal((1024, 1024), np.float32)])
    for file in files:
        with open_dump(file) as dump:
            data = [np.asarray(dump.load(entry), np.float32) for entry in dump.entries]
        yield row(f"`{Path(file).name}`", data)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.dct", description=__doc__)
    parser.add_argument("dumps", nargs="*", help="files of gradients")
    for line in lines(parser.parse_args().dumps):
        print(line)


if __name__ == "__main__":
    sys.exit(main())
