"""Print the speed of each kernel and public call as a ratio to a memcpy of the float32 input.

Every round times each row once, together with a memcpy and the row's stream twin, so that a change
in the speed of the host affects all of them; the ratios are those of the least times over rounds,
which other programs on the host disturb least. A ratio above 1 is faster than the memcpy. The
column "× base" is the row's time divided by that of the call that it extends: `encode` of gradient
and residual together for error feedback, and ``decode(out=)`` for the other ways to decode. The
column "× cached" is that divided by the time of as many values in arrays that stay in the cache:
where both take as long, arithmetic takes the time, and not memory. The stream twin of
`Feedback.compress` reads and writes the bytes that error feedback must move, and that of
`decode_add` the payload and the sum.

With ``--page``, the rows of codecs and sums also replace the tables of a page.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.codec_rows import codec_rows, half_rows
from bench.interop_rows import interop_rows
from bench.kernel_rows import Row, Times, kernel_rows
from bench.matrix_rows import matrix_rows
from bench.page import put
from bench.speed_page import codec_lines, decoding_lines, half_lines, sum_lines
from bench.sum_rows import sum_rows
from gcodec.analysis.host import processor


def measure(memcpy: Callable[[], object], table: list[Row], rounds: int) -> dict[str, Times]:
    """Time all rows; return the least times by the names of the rows."""

    def seconds(call: Callable[[], object]) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    for row in table:  # compile kernels, and fault pages in
        row.run()
        for other in (row.twin, row.base, row.cached):
            if other is not None:
                other()
    least: dict[str, list[float]] = {}
    for _ in range(rounds):
        for row in table:
            times = [
                math.inf if call is None else seconds(call)
                for call in (row.run, memcpy, row.twin, row.base, row.cached)
            ]
            least[row.name] = list(map(min, times, least.get(row.name, times)))
    return {name: Times(*times) for name, times in least.items()}


def shown(table: list[Row], measured: Mapping[str, Times]) -> Table:
    """Return the rows as lines of a table."""
    heads = "what", "ms", "÷ memcpy", "÷ twin", "goal", "× base", "× cached"
    lines = Table(*heads, box=None, header_style="")
    for column in lines.columns[1:]:
        column.justify = "right"
    for row in table:
        times = measured[row.name]
        lines.add_row(
            row.name,
            f"{times.own * 1e3:.2f}",
            f"{1 / times.copies:.2f}",
            "" if row.twin is None else f"{1 / times.twins:.2f}",
            "" if row.goal is None else f"{row.goal:.3g}",
            "" if row.base is None else f"{times.bases:.2f}",
            "" if row.cached is None else f"{times.parts:.2f}",
        )
    return lines


def main() -> None:
    """Parse arguments, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 24, help="default 16 Mi")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dump", help="measure the repeated tensors of this file")
    parser.add_argument("--only", default="", help="only rows whose name contains this text")
    parser.add_argument("--bfloat16", action="store_true", help="only error feedback, on bfloat16")
    parser.add_argument("--page", type=Path, help="page whose tables to replace; without --only")
    options = parser.parse_args()
    os.environ["GCODEC_NUM_THREADS"] = str(options.threads)
    import numba

    x = elements(options.dump, options.elements)
    print(
        f"{x.size} float32 elements of {options.dump or 'N(0, 1)'}, {options.threads} thread(s), "
        f"least of {options.rounds} rounds; Python {platform.python_version()}, "
        f"NumPy {np.__version__}, Numba {numba.__version__}, {processor()}"
    )
    if options.bfloat16:
        x = x.astype(ml_dtypes.bfloat16)
        rows = half_rows(x)
    else:
        others = *matrix_rows(x.size), *interop_rows(x), *sum_rows(x)
        rows = [*kernel_rows(x), *codec_rows(x), *others]
    copy = np.ones(x.size, x.dtype)
    table = [row for row in rows if options.only in row.name]
    measured = measure(lambda: np.copyto(copy, x), table, options.rounds)
    Console(width=100).print(shown(table, measured))
    if options.page is None:
        return
    if options.bfloat16:
        put(options.page, half_lines(measured), "bfloat16")
    else:
        put(options.page, codec_lines(measured), "codecs")
        put(options.page, decoding_lines(measured), "decoding")
        put(options.page, sum_lines(measured), "sums")


def elements(dump: str | None, n: int) -> np.ndarray:
    """Return the elements to measure: normal numbers, or the repeated values of a dump."""
    if dump is None:
        return np.random.default_rng(0).standard_normal(n, dtype=np.float32)
    from gcodec.tensorfiles.dumps import open_dump

    with open_dump(dump) as file:
        flat = [np.asarray(file.load(e), np.float32).reshape(-1) for e in file.entries]
    return np.resize(np.concatenate(flat), n)


if __name__ == "__main__":
    sys.exit(main())
