"""Print CO3's figure of communication with gcodec: training NASNetMobile with the paper's fp4.

The paper (Chen et al., "Convert, compress, correct", arXiv 2203.09044) reports 2.15e12 bits for
150 epochs of 782 steps. Bits per value are measured on whole frames: first for GenNorm values, as
many as the network has trainable parameters, then for the given dumps, one frame for each tensor;
by default for the gradient in ``examples/``. All tensors are coded with the paper's own quantizer,
``format=e2m1,style=ieee``, with the paper's scale and with the default scale.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import gcodec
from bench.bits import EXAMPLE, tensors_of

PRINTED = 2.15e12  # bits
PARAMETERS = 4_243_548  # trainable, for 32 x 32 pixels and 10 classes
STEPS = 150 * 782
SHAPES = (0.5, 1.0, 2.0)  # β
SCALES = ("co3", "histogram")


def generalized_normal(beta: float, n: int) -> np.ndarray:
    """Draw n values of a generalized normal distribution with α = 1 and the given β."""
    rng = np.random.default_rng(1)
    return (rng.standard_gamma(1 / beta, n) ** (1 / beta) * rng.choice([-1, 1], n)).astype("f4")


def bits_per_value(tensors: list[np.ndarray], spec: str) -> tuple[float, float, float]:
    """Return ‖x − x̂‖²/‖x‖², and the bits per value of payloads and of frames."""
    error = energy = payload = frame = 0.0
    for x in tensors:
        encoded = gcodec.encode(x, spec)
        decoded, wide = gcodec.decode(encoded).astype(np.float64), x.astype(np.float64)
        error, energy = error + ((wide - decoded) ** 2).sum(), energy + (wide**2).sum()
        payload += gcodec.Frame.from_bytes(encoded).payload.nbits
        frame += 8 * len(encoded)
    n = sum(x.size for x in tensors)
    return error / energy, payload / n, frame / n


def sources(dumps: list[str], n: int) -> dict[str, list[np.ndarray]]:
    """Return the tensors to measure, by name of the data."""
    distributions = {f"GenNorm, β = {beta:g}": [generalized_normal(beta, n)] for beta in SHAPES}
    return distributions | {Path(path).stem: tensors_of(path) for path in dumps}


def main() -> None:
    """Parse arguments, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.co3", description=__doc__)
    parser.add_argument("dumps", nargs="*", default=[str(EXAMPLE)])
    parser.add_argument("--values", type=int, default=PARAMETERS, help="GenNorm values to draw")
    options = parser.parse_args()
    titles = ("gradient", "scale", "nmse", "bits/value", "with frame", "bits in all", "printed ÷")
    table = Table(*titles, box=None, header_style="")
    for column in table.columns[2:]:
        column.justify = "right"
    for name, tensors in sources(options.dumps, options.values).items():
        for scale in SCALES:
            spec = f"minifloat:format=e2m1,style=ieee,scale={scale}"
            nmse, payload, frame = bits_per_value(tensors, spec)
            total = frame * PARAMETERS * STEPS
            cells = f"{nmse:.4f}", f"{payload:.3f}", f"{frame:.3f}", f"{total:.3g}"
            table.add_row(name, scale, *cells, f"{PRINTED / total:.2f}")
    console = Console(width=100)
    console.print(f"{PARAMETERS:,} parameters, {STEPS:,} steps; printed: {PRINTED:.3g} bits")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
