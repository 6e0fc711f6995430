"""Compare what `gcodec.choose` picks with the best of all settings of `bench.rd_grid`.

Files are dumps of gradients, or folders of .safetensors files. Each tensor of 4096 values or more
is encoded by the choice at each error, and by every setting of every registered codec, between
which bits are interpolated where settings lie close. Bits are those of whole frames, without a
name. Printed are tensors of which the choice takes over 10 % more than the best, and how many are
within that.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

import gcodec
from bench.bits import EXAMPLE
from bench.rd_grid import grid
from bench.rd_points import SEED, SMALL, Curve, at, curves, files, measure, read

ERRORS = (0.01, 0.02, 0.1, 0.3)
NEAR = 1.1  # times the bits of the best


def excess(x: np.ndarray, rivals: dict[str, list[Curve]], error: float) -> tuple[float, str]:
    """Return the bits of the choice over those of the best, and say which these are."""
    codec = gcodec.choose(x, max_err=error, seed=SEED)
    chosen = measure(str(codec), x)
    if chosen.error > error:
        raise AssertionError(f"{codec}: the error is {chosen.error}, above {error}")
    found = {name: point for name, each in rivals.items() if (point := at(each, error))}
    best = min(found, key=lambda name: found[name].nbits, default=codec.name)
    least = found[best].nbits if found else chosen.nbits
    return chosen.nbits / least, f"{codec}, {best}"


def effort(x: np.ndarray, error: float) -> float:
    """Return the time of choosing over that of encoding with ecsq: each the least of three."""
    times = np.empty((3, 2))
    for row in times:
        start = time.process_time()
        gcodec.choose(x, max_err=error)
        middle = time.process_time()
        gcodec.encode(x, f"ecsq:nmse={error}")
        row[:] = middle - start, time.process_time() - middle
    choice, encode = times.min(axis=0)
    return float(choice / encode)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.choice", description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE", default=[str(EXAMPLE)])
    parser.add_argument("--most", type=int, default=1 << 62, help="values of a tensor measured")
    options = parser.parse_args(arguments)
    found: dict[float, list[float]] = {error: [] for error in ERRORS}
    efforts = []
    for path in files(options.files):
        for name, x in read(path).items():
            if not SMALL <= x.size <= options.most:
                continue
            rivals = {codec: curves(dials, x) for codec, dials in grid().items()}
            for error in ERRORS:
                ratio, text = excess(x, rivals, error)
                found[error].append(ratio)
                if ratio > NEAR:
                    print(f"{path.stem} {name}, {x.size:,}, {error:g}: {ratio:.3f} ({text})")
                efforts.append(effort(x, error))
    for error, ratios in found.items():
        near = sum(ratio <= NEAR for ratio in ratios)
        print(f"error {error:g}: {near} of {len(ratios)} tensors, at most {max(ratios):.3f}")
    print(f"time of choosing over that of encoding with ecsq: at most {max(efforts):.2f}")


if __name__ == "__main__":
    main()
