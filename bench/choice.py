"""Compare the codec that `gcodec.choose` picks with the best of all settings of `bench.rd_grid`.

Files are dumps of gradients, or folders of .safetensors files. Each tensor of 4096 values or more
is encoded by the chosen codec at each error, and by every setting of every registered codec; bits
between two close settings are interpolated. Bits count whole frames without a name. The program
prints the tensors on which the choice takes over 10 % more bits than the best setting, and the
number of tensors on which it does not.
"""

from __future__ import annotations

import argparse
import itertools
import time

import numpy as np

import gcodec
from bench import hard_tensors
from bench.bits import EXAMPLE
from bench.rd_grid import grid
from bench.rd_points import LARGE, SEED, SMALL, Curve, at, curves, files, measure, read

ERRORS = (0.01, 0.02, 0.1, 0.3)
TOLERANCE = 1.1  # permitted ratio to the bits of the best
MOST_ENCODES = 3  # encodes per choice, according to its documentation
ROUNDS = 4


def excess(x: np.ndarray, rivals: dict[str, list[Curve]], error: float) -> tuple[float, str]:
    """Return the ratio of the choice's bits to those of the best setting, and both names."""
    codec = gcodec.choose(x, max_nmse=error, seed=SEED)
    chosen = measure(str(codec), x)
    if chosen.error > error:
        raise AssertionError(f"{codec}: the error is {chosen.error}, above {error}")
    points = {name: point for name, each in rivals.items() if (point := at(each, error))}
    best = min(points, key=lambda name: points[name].nbits, default=codec.name)
    least = points[best].nbits if points else chosen.nbits
    return chosen.nbits / least, f"{codec}, {best}"


def effort(x: np.ndarray, **target: float) -> float:
    """Return the time of a choice over that of an ecsq encode, each the least of several."""
    ((name, value),) = target.items()
    rival = gcodec.parse({"name": "ecsq", "nmse" if name == "max_nmse" else "bits": value})
    try:
        gcodec.encode(x, rival)
    except gcodec.ParameterError:  # no step gives so many bits
        rival = gcodec.parse("ecsq")
    times = np.empty((ROUNDS, 2))
    for row in times:
        start = time.process_time()
        gcodec.choose(x, **target)
        middle = time.process_time()
        gcodec.encode(x, rival)
        row[:] = middle - start, time.process_time() - middle
    choice, encode = times.min(axis=0)
    return float(choice / encode)


def check(x: np.ndarray, **target: float) -> None:
    """Raise AssertionError unless the chosen codec meets its target."""
    codec = gcodec.choose(x, seed=SEED, **target)
    point = measure(str(codec), x)
    error, bits = target.get("max_nmse", np.inf), target.get("max_bits", np.inf)
    if point.error > error or point.nbits > bits * x.size:
        raise AssertionError(f"{codec}: {point} does not meet {target}")


def hard() -> None:
    """Print how long choices take on tensors with difficult choices."""
    targets = [{"max_nmse": e} for e in hard_tensors.ERRORS]
    targets += [{"max_bits": b} for b in hard_tensors.BITS]
    print("| tensor |", " | ".join(f"{k[4:]} {v:g}" for t in targets for k, v in t.items()), "|")
    print("|---" * (len(targets) + 1) + "|")
    shaped = (
        (f"{name}, {m} × {k}", x)
        for m, k in hard_tensors.SHAPES
        for name, x in hard_tensors.matrices(m, k)
    )
    efforts = []
    for name, x in itertools.chain(shaped, hard_tensors.other_tensors()):
        for target in targets:
            check(x, **target)
        row = [effort(x, **target) for target in targets]
        efforts += row
        print(f"| {name} |", " | ".join(f"{each:.2f}" for each in row), "|", flush=True)
    above = sum(each > MOST_ENCODES for each in efforts)
    print(
        f"\n{len(efforts)} choices: median {np.median(efforts):.2f}, at most {max(efforts):.2f} "
        f"encodes; {above} take more than {MOST_ENCODES}"
    )


def main() -> None:
    """Parse arguments, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.choice", description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE", default=[str(EXAMPLE)])
    parser.add_argument(
        "--most", type=int, default=1 << 62, help="values of each tensor to measure"
    )
    parser.add_argument("--hard", action="store_true", help="only time synthetic tensors")
    options = parser.parse_args()
    if options.hard:
        hard()
        return
    excesses: dict[float, list[float]] = {error: [] for error in ERRORS}
    efforts: dict[bool, list[float]] = {False: [], True: []}
    for path in files(options.files):
        for name, x in read(path).items():
            if not SMALL <= x.size <= options.most:
                continue
            rivals = {codec: curves(dials, x) for codec, dials in grid().items()}
            for error in ERRORS:
                ratio, text = excess(x, rivals, error)
                excesses[error].append(ratio)
                if ratio > TOLERANCE:
                    print(f"{path.stem} {name}, {x.size:,}, {error:g}: {ratio:.3f} ({text})")
                efforts[x.size >= LARGE].append(effort(x, max_nmse=error))
    for error, ratios in excesses.items():
        near = sum(ratio <= TOLERANCE for ratio in ratios)
        print(f"error {error:g}: {near} of {len(ratios)} tensors, at most {max(ratios):.3f}")
    for large, each in efforts.items():
        if each:
            which = f"{LARGE:,} values or more" if large else "fewer values"
            print(
                f"time of choosing over that of encoding with ecsq, {which}: median "
                f"{np.median(each):.2f}, at most {max(each):.2f}"
            )


if __name__ == "__main__":
    main()
