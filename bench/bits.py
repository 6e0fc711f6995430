"""Print the bits per value of qsgd's levels in each code, as in the table of docs/qsgd.md.

Bits per value are those of the payload: norms and string. ``entropy`` is the order-0 entropy of
the levels with their signs, plus the norms; ``nmse`` is ‖x − x̂‖²/‖x‖².
Drawn data are 2^20 values of a fixed seed; "example" is the gradient in ``examples/``, with one
payload for each tensor. ``python -m bench.bits --only gaussian`` prints the rows of one kind of
data; ``--dumps FILE...`` measures the tensors of files instead.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gcodec
from gcodec.codecs.qsgd import payload as qsgd
from gcodec.tensorfiles.dumps import open_dump

EXAMPLE = Path(__file__).parent.parent / "examples" / "resnet8_digits_step0300.safetensors"
DATA = ("gaussian", "Laplace", "GenNorm(1/2)", "example")
SETTINGS = (
    *("s=4", "s=15", "s=127", "s=√n"),
    *("s=4,bucket=512", "s=15,bucket=512", "s=127,bucket=512", "s=7,bucket=512,norm=max"),
)
CODES = (
    *("omega dense", "omega sparse", "rice dense", "rice sparse", "packed dense"),
    *("huffman dense", "rans dense", "context dense"),
)
COLUMNS = ("data", "setting", "nmse", "entropy", *CODES, "code=auto")
N = 1 << 20


def tensors_of(path: str | Path) -> list[np.ndarray]:
    """Return the tensors of a file."""
    with open_dump(path) as dump:
        return [dump.load(e).astype(np.float32) for e in dump.entries]


@functools.cache
def tensors(data: str) -> list[np.ndarray]:
    """Return the tensors of one kind of data."""
    if data == "example":
        return tensors_of(EXAMPLE)
    rng = np.random.default_rng(1)
    if data == "GenNorm(1/2)":  # density exp(-sqrt|x|): square of a sum of two exponentials
        x = rng.standard_gamma(2, N) ** 2 * rng.choice([-1, 1], N)
    else:
        x = rng.standard_normal(N) if data == "gaussian" else rng.laplace(size=N)
    return [x.astype(np.float32)]


def codec_of(setting: str, n: int) -> Any:
    """Return the codec of a setting for tensors of n elements."""
    return gcodec.parse("qsgd:" + setting.replace("√n", str(max(1, round(math.sqrt(n))))))


def entropy(levels: np.ndarray) -> float:
    """Return the total bits of all levels in an ideal order-0 code."""
    counts = np.bincount(levels)
    counts = counts[counts > 0]
    return float(counts @ np.log2(levels.size / counts))


def measure(data: list[np.ndarray], setting: str) -> list[float]:
    """Return nmse and bits per value in the order of the columns."""
    bits = np.zeros(len(COLUMNS) - 3)
    error = energy = 0.0
    for x in data:
        codec = codec_of(setting, x.size)
        symbols = codec.quantize(x, seed=1)
        wide, decoded = x.astype(np.float64), codec.dequantize(symbols, x.shape)
        error += float(((decoded - wide) ** 2).sum())
        energy += float((wide**2).sum())
        bits[0] += 32 * symbols.norms.size + entropy(symbols.levels)
        for i, name in enumerate(CODES, 1):
            code, form = name.split()
            if code in qsgd.BYTE_CODES and codec.s > qsgd.LARGEST_BYTE_LEVEL:
                bits[i] = math.nan
            else:
                bits[i] += codec.replaced(code=code, form=form).pack(symbols).nbits
        bits[-1] += codec.replaced(code="auto").pack(symbols).nbits
    return [error / energy, *(bits / sum(x.size for x in data))]


def row(name: str, data: list[np.ndarray], setting: str) -> list[str]:
    """Return a row of the table."""
    nmse, *bits = measure(data, setting)
    return [
        name,
        f"`{setting}`",
        f"{float(f'{nmse:.2g}'):g}",
        *("–" if math.isnan(b) else f"{b:.2f}" for b in bits),
    ]


def lines(data: dict[str, list[np.ndarray]]) -> Iterator[str]:
    """Return the table."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    for name, tensors in data.items():
        for setting in SETTINGS:
            yield f"| {' | '.join(row(name, tensors, setting))} |"


def main() -> None:
    """Parse arguments, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.bits", description=__doc__)
    parser.add_argument("--only", default="", help="only data whose name contains this text")
    parser.add_argument("--dumps", nargs="*", default=[], help="files of gradients")
    options = parser.parse_args()
    data = {Path(path).stem: tensors_of(path) for path in options.dumps}
    for line in lines(data or {name: tensors(name) for name in DATA if options.only in name}):
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
