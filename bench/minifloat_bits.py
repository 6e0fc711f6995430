"""Print the bits per value of minifloats in each code, as in the table of docs/minifloat.md.

Bits per value are those of the payloads, including their tables. ``entropy`` is the order-0
entropy of the codes; ``nmse`` is the squared error over the sum of squares. Data are those of
`bench.bits`. ``--dumps FILE...`` measures the tensors of files instead, with a row for each
tensor: nmse, entropy and the bits of ``code=auto`` for each format.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import gcodec
from bench.bits import DATA, entropy, tensors, tensors_of

FORMATS = (
    *("e1m1", "e1m2", "e2m1", "e2m1,style=ieee", "e3m0"),
    *("e2m2", "e3m2", "e4m3", "e5m2"),
)
SHORT = ("e1m1", "e1m2", "e2m1", "e2m1,style=ieee", "e3m0", "e3m2", "e4m3")
CODES = ("none", "huffman", "pair", "planes", "rans", "context")
COLUMNS = ("data", "format", "nmse", "entropy", *CODES, "code=auto")


def codes_of(codec: gcodec.Codec, x: np.ndarray) -> np.ndarray:
    """Return the codes of a tensor, one byte per element."""
    payload = codec.replaced(code="none", table="auto").encode(x)
    bits = np.unpackbits(payload.data, count=payload.nbits).reshape(x.size, -1)
    return np.packbits(bits, axis=1).reshape(-1)


def measure(
    data: list[np.ndarray], spec: str, names: tuple[str, ...] = (*CODES, "auto")
) -> list[float]:
    """Return nmse, entropy and bits per value in the named codes; NaN without a code."""
    codec = gcodec.parse(f"minifloat:format={spec}")
    bits = np.zeros(1 + len(names))
    error = energy = 0.0
    for x in data:
        symbols = codec.quantize(x)
        wide, decoded = x.astype(np.float64), codec.dequantize(symbols, x.shape)
        error += float(((decoded - wide) ** 2).sum())
        energy += float((wide**2).sum())
        bits[0] += entropy(codes_of(codec, x))
        for i, code in enumerate(names, 1):
            pairs_of_wide = code == "pair" and codec.max_payload_nbits(1) > 4
            nbits = np.nan if pairs_of_wide else codec.replaced(code=code).pack(symbols).nbits
            bits[i] += nbits
    return [error / energy, *(bits / sum(x.size for x in data))]


def lines(data: dict[str, list[np.ndarray]]) -> Iterator[str]:
    """Return the table."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    for name, dump in data.items():
        for spec in FORMATS:
            nmse, *bits = measure(dump, spec)
            cells = ["–" if np.isnan(b) else f"{b:.3f}" for b in bits]
            yield f"| {name} | `{spec}` | {float(f'{nmse:.2g}'):g} | {' | '.join(cells)} |"


def short_lines(data: dict[str, list[np.ndarray]]) -> Iterator[str]:
    """Return the shorter table for files."""
    yield f"| {' | '.join(('data', *(f'`{spec}`' for spec in SHORT)))} |"
    yield "|" + "---|" * (1 + len(SHORT))
    for name, dump in data.items():
        rows = [measure(dump, spec, ("auto",)) for spec in SHORT]
        cells = [f"{float(f'{e:.2g}'):g} {h:.2f} {b:.2f}" for e, h, b in rows]
        yield f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Parse arguments, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.minifloat_bits", description=__doc__)
    parser.add_argument("--dumps", nargs="*", default=[], help="files of gradients")
    if dumps := parser.parse_args().dumps:
        rows = short_lines({Path(path).stem: tensors_of(path) for path in dumps})
    else:
        rows = lines({name: tensors(name) for name in DATA})
    for line in rows:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
