"""Fit the synthetic matrices of `gcodec.analysis.synthetic` to real gradients, and compare both.

Files are dumps of gradients. The first axis of a tensor forms the rows and the other axes form the
columns of a matrix. Rows and columns of zeros are removed; a matrix counts if it still has at
least 64 rows, 64 columns and 32,768 values. The program measures

- the spread of scales: the standard deviation of their natural logarithms, where scales of rows
  and columns make the root mean square of each row and each column 1;
- the share of the energy beyond the largest 1, 4, 16 and 48 singular values;
- the shape of the generalized normal distribution, by its moment ratio, of the remainder of the
  normalized matrix without its 64 largest components.

The program prints these numbers for each tensor, and the medians over tensors, which are the
constants of the synthetic matrices. Then it prints bits per value and errors of codecs: the
quartiles on the tensors, and the median on synthetic matrices.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy import optimize

from bench.rd_points import files, measure, read
from gcodec.analysis import synthetic

SIDE, VALUES = 64, 1 << 15
CODECS = (
    *(f"ecsq:nmse={error}" for error in (0.3, 0.1, 0.02, 0.001)),
    *("topk:ratio=0.1", "topk:ratio=0.01", "minifloat", "minifloat:format=e4m3"),
    *(f"powersgd:rank={rank}" for rank in (1, 4, 16)),
)
DRAWN = ((768, 256), (1024, 256), (256, 1024))
SEEDS = 5  # seeds per shape
_ROUNDS = 8  # rounds of alternately fitting scales of rows and columns


def matrices(paths: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield matrices without rows and columns of zeros, with their names."""
    for path in files(paths):
        for name, x in read(path).items():
            if x.ndim > 1:
                matrix = x.reshape(len(x), -1).astype(np.float32)
                matrix = matrix[matrix.any(axis=1)][:, matrix.any(axis=0)]
                if min(matrix.shape) >= SIDE and matrix.size >= VALUES:
                    yield f"{path.stem} {name}", np.ascontiguousarray(matrix)


def fit(matrix: np.ndarray) -> np.ndarray:
    """Return both spreads, the shape of the remainder, and the energy shares beyond each rank."""
    x = matrix.astype(np.float64)
    columns = np.ones(x.shape[1])
    for _ in range(_ROUNDS):
        rows = np.sqrt(np.square(x / columns).mean(axis=1))
        columns = np.sqrt(np.square(x / rows[:, np.newaxis]).mean(axis=0))
    energy = np.linalg.svd(x, compute_uv=False) ** 2
    x = x / rows[:, np.newaxis] / columns
    u, values, v = np.linalg.svd(x, full_matrices=False)
    rest = x - (u[:, :64] * values[:64]) @ v[:64]
    beta = math.nan
    if min(x.shape) > SIDE:
        rest /= np.sqrt(np.square(rest).mean(axis=1, keepdims=True))
        rest /= np.sqrt(np.square(rest).mean(axis=0, keepdims=True))
        beta = _beta(float(np.abs(rest).mean() / np.sqrt(np.square(rest).mean())))
    shares = [energy[rank:].sum() / energy.sum() for rank in synthetic.RANKS]
    return np.array([np.log(rows).std(), np.log(columns).std(), beta, *shares])


def _beta(ratio: float) -> float:
    """Return the shape with a moment ratio E|x| / rms."""

    def off(beta: float) -> float:
        half = (math.lgamma(1 / beta) + math.lgamma(3 / beta)) / 2
        return math.exp(math.lgamma(2 / beta) - half) - ratio

    return float(optimize.brentq(off, 0.1, 100)) if off(0.1) < 0 < off(100) else math.nan


def main() -> None:
    """Parse arguments, fit, compare and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.gradient_fit", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE")
    options = parser.parse_args()
    real = list(matrices(options.files))
    fits = []
    for name, matrix in real:
        fits.append(fit(matrix))
        print(f"{name} {matrix.shape}:", " ".join(f"{value:.3g}" for value in fits[-1]))
    middle = np.nanmedian(fits, axis=0)
    drawn = [synthetic.Gradient(shape=s, seed=i).draw() for s in DRAWN for i in range(SEEDS)]
    for what, each in (("real", middle), ("drawn", np.median([*map(fit, drawn)], axis=0))):
        print(
            f"{what}: ROW_SPREAD {each[0]:.2f}, COLUMN_SPREAD {each[1]:.2f}, BETA {each[2]:.1f}, "
            f"SHARES beyond {synthetic.RANKS}:",
            " ".join(f"{share:.3g}" for share in each[3:]),
        )
    print("\n| codec | bits: real | synthetic | nmse: real | synthetic |\n|---|---|---|---|---|")
    for spec in CODECS:
        cells = []
        for tensors in ([matrix for _, matrix in real], drawn):
            points = [(measure(spec, x), x.size) for x in tensors]
            cells.append(np.array([(point.nbits / size, point.error) for point, size in points]))
        parts = []
        for place, digits in ((0, ".2f"), (1, ".2g")):
            low, half, high = np.percentile(cells[0][:, place], (25, 50, 75))
            parts.append(f"{low:{digits}} – **{half:{digits}}** – {high:{digits}}")
            parts.append(f"{np.median(cells[1][:, place]):{digits}}")
        print(f"| `{spec}` |", " | ".join(parts), "|", flush=True)


if __name__ == "__main__":
    main()
