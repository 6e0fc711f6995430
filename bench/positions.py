"""Print bits per position of the largest elements in each index code, and the codes' speed.

Bits count the string alone; ``limit`` is n·H(k/n)/k, the bound for uniform positions. Data are
those of `bench.bits`, and uniformly drawn positions; ``--dumps FILE...`` measures the tensors of
files instead. ``--speed`` prints millions of positions per second on one core, for 16 Mi uniform
ones, as medians.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from bench.bits import DATA, tensors, tensors_of
from gcodec.entropy import positions
from gcodec.entropy.coder import BitSpan
from gcodec.entropy.positions import CODES, IndexString
from gcodec.kernels.numeric import select

SHARES = (0.001, 0.01, 0.1)
_LEAST = 64  # fewest positions of a tensor that counts
_FRONT = np.empty(0, np.uint8), 0


def limit(n: int, k: int) -> float:
    """Return the bits per position of k of n positions if all sets are equally likely."""
    p = k / n
    return float(-n * (p * np.log2(p) + (1 - p) * np.log2(1 - p))) if k < n else 0.0


def uniform(n: int, share: float) -> np.ndarray:
    """Draw positions, approximately the given share of n."""
    return np.flatnonzero(np.random.default_rng(0).random(n) < share)


def bits(name: str, data: list[np.ndarray], share: float) -> str | None:
    """Return a row: bits per position over all tensors with enough positions; None without one."""
    total, count, least = np.zeros(len(CODES) + 1), 0, 0.0
    for x in data:
        k = round(share * x.size)
        if k >= _LEAST:
            if name == "uniform":  # the values of x are not set, and can be NaN
                indices = uniform(x.size, share)
            else:
                selection = select.take_largest(x.reshape(-1), k)
                assert selection is not None
                indices = selection[0]
            each = [positions.write(indices, x.size, c, _FRONT)[1].nbits for c in (*CODES, "auto")]
            total, count = total + each, count + indices.size
            least += limit(x.size, indices.size)
    if not count:
        return None
    cells = " | ".join(f"{b:.2f}" for b in total / count)
    return f"| {name} | {100 * share:g} % | {least / count:.2f} | {cells} |"


def lines(data: dict[str, list[np.ndarray]]) -> Iterator[str]:
    """Return the table of bits."""
    columns = ("data", "sent", "limit", *CODES, "`index=auto`")
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for name, dump in data.items():
        yield from filter(None, (bits(name, dump, share) for share in SHARES))


def speeds(n: int, rounds: int) -> Iterator[str]:
    """Return the table of speeds."""
    yield "| sent | code | write, M/s | read, M/s |"
    yield "|---|---|---|---|"
    for share in SHARES:
        indices = uniform(n, share)
        for code in CODES:
            _, (data, nbits, seek) = positions.write(indices, n, code, _FRONT)
            string = IndexString(BitSpan(data, 0, nbits, seek), code, indices.size, n)
            write = _seconds(lambda c=code, f=indices: positions.write(f, n, c, _FRONT), rounds)
            read = _seconds(lambda s=string: s.read(), rounds)
            cells = (f"{indices.size / t / 1e6:,.0f}" for t in (write, read))
            yield f"| {100 * share:g} % | {code} | {' | '.join(cells)} |"


def _seconds(run: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


def main() -> None:
    """Parse arguments, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.positions", description=__doc__)
    parser.add_argument("--dumps", nargs="*", default=[], help="files of gradients")
    parser.add_argument("--speed", action="store_true", help="print speeds instead of bits")
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    if options.speed:
        os.environ["GCODEC_NUM_THREADS"] = "1"
        table = speeds(1 << 24, options.rounds)
    elif options.dumps:
        table = lines({Path(path).stem: tensors_of(path) for path in options.dumps})
    else:
        drawn = {name: tensors(name) for name in DATA}
        table = lines({"uniform": [np.empty(1 << 20, np.float32)], **drawn})
    for line in table:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
