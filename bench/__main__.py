"""Print the time of each kernel and public call as a ratio to a memcpy of the float32 input.

Every round times each row once, with a memcpy and the row's stream twin beside it, so that a host
whose speed drifts does so for all of them; the ratios are medians over rounds. Above 1 is faster
than the memcpy.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table


class Row(NamedTuple):
    """One thing to time."""

    name: str
    run: Callable[[], object]
    twin: Callable[[], object] | None = None
    goal: float | None = None


def rows(n: int) -> tuple[Callable[[], object], list[Row]]:
    """Return the memcpy, and all rows over n float32 elements."""
    import gcodec
    from bench import twins
    from gcodec.kernels import arithmetic, convert, pack, philox, quantize, reduce

    rng = np.random.default_rng(0)
    x = rng.standard_normal(n, dtype=np.float32)
    # Buffers as a user has them: plain NumPy, and every page touched.
    copy, residual, acc = (np.ones(n, np.float32) for _ in range(3))
    half = convert.to_16_bits(x, "bfloat16")
    codes = rng.integers(0, 4, n).astype(np.uint8)

    def memcpy() -> None:
        np.copyto(copy, x)

    def twin(read_bits: int, write_bits: int) -> Callable[[], None]:
        return twins.stream(n, read_bits, write_bits)

    widen = twin(16, 32)
    table = [
        Row("reduce: sum of squares", lambda: reduce.sum_squares(x), twin(32, 0)),
        Row("reduce: all finite", lambda: reduce.all_finite(x), twin(32, 0)),
        Row(
            "reduce: all finite, with residual",
            lambda: reduce.all_finite_corrected(x, residual, np.float32(1)),
            twin(64, 0),
        ),
        Row("philox: words", lambda: philox.words(1, 0, n), twin(0, 32)),
        Row(
            "arithmetic: corrected",
            lambda: arithmetic.corrected(x, residual, np.float32(1)),
            twin(64, 32),
        ),
        Row("convert: to bfloat16", lambda: convert.to_16_bits(x, "bfloat16"), twin(32, 16)),
        Row(
            "convert: from bfloat16", lambda: convert.from_16_bits(half, "bfloat16"), twin(16, 32)
        ),
        Row("convert: to float16", lambda: convert.to_16_bits(x, "float16"), twin(32, 16)),
        Row("convert: from float16", lambda: convert.from_16_bits(half, "float16"), widen),
    ]
    for width, order in ((1, "msb"), (2, "msb"), (2, "lsb"), (3, "msb"), (4, "lsb"), (7, "lsb")):
        layout = pack.FieldLayout(width, order)
        small = codes & (1 << width) - 1 if width < 2 else codes
        packed = pack.pack_fields(small, layout)
        table += [
            Row(
                f"pack: {width} bits, {order}",
                lambda c=small, s=layout: pack.pack_fields(c, s),
                twin(8, width),
            ),
            Row(
                f"unpack: {width} bits, {order}",
                lambda p=packed, s=layout: pack.unpack_fields(p, n, s),
                twin(width, 8),
            ),
        ]
    goals = {"mxnet-2bit": (1.1, 1.8, 1.8), "mxnet-1bit": (None, None, None)}
    for spec, (goal_encode, goal_decode, goal_add) in goals.items():
        codec = gcodec.parse(spec)
        frame = gcodec.encode(x, codec)
        data = codec.encode(x).data
        width = {"mxnet-2bit": quantize.TWO_BIT, "mxnet-1bit": quantize.ONE_BIT}[spec].width
        out = np.empty(data.size, np.uint8)
        other = np.ones(n, np.float32)
        feedback = gcodec.Feedback(codec)
        table += [
            Row(
                f"{spec}: quantize_residual",
                lambda c=codec: c.quantize_residual(x, residual),
                lambda o=out, r=other, w=width: twins.quantize_residual(x, r, o, w),
                goal_encode,
            ),
            Row(f"{spec}: quantize", lambda c=codec: c.quantize(x), twin(32, width)),
            Row(f"{spec}: encode", lambda c=codec: gcodec.encode(x, c)),
            Row(f"{spec}: Feedback.compress", lambda f=feedback: f.compress("x", x)),
            Row(
                f"{spec}: decode(out=)",
                lambda f=frame: gcodec.decode(f, out=acc),
                lambda d=data, r=other, w=width: twins.dequantize(d, r, w, False),
                goal_decode,
            ),
            Row(
                f"{spec}: decode_add",
                lambda f=frame: gcodec.decode_add(f, acc),
                lambda d=data, r=other, w=width: twins.dequantize(d, r, w, True),
                goal_add,
            ),
            Row(f"{spec}: decode", lambda f=frame: gcodec.decode(f)),
        ]
    raw = gcodec.encode(x, "raw")
    table += [
        Row("raw: encode", lambda: gcodec.encode(x, "raw")),
        Row("raw: decode(out=)", lambda: gcodec.decode(raw, out=acc)),
    ]
    return memcpy, table


def measure(memcpy: Callable[[], object], table: list[Row], rounds: int) -> Table:
    """Time all rows and lay the medians out."""

    def seconds(call: Callable[[], object]) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    for row in table:  # compile, and fault pages in
        row.run()
        if row.twin is not None:
            row.twin()
    own, against, beside = ({row.name: [] for row in table} for _ in range(3))
    for _ in range(rounds):
        for row in table:
            baseline = seconds(memcpy)
            took = seconds(row.run)
            own[row.name].append(took)
            against[row.name].append(baseline / took)
            if row.twin is not None:
                beside[row.name].append(seconds(row.twin) / took)
    shown = Table("what", "ms", "÷ memcpy", "÷ twin", "goal", box=None, header_style="")
    for column in shown.columns[1:]:
        column.justify = "right"
    for row in table:
        shown.add_row(
            row.name,
            f"{np.median(own[row.name]) * 1e3:.2f}",
            f"{np.median(against[row.name]):.2f}",
            f"{np.median(beside[row.name]):.2f}" if beside[row.name] else "",
            "" if row.goal is None else f"{row.goal:.1f}",
        )
    return shown


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 24, help="default 16 Mi")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = parser.parse_args()
    os.environ["GCODEC_NUM_THREADS"] = str(options.threads)
    import numba

    print(
        f"{options.elements} float32 elements, {options.threads} thread(s), "
        f"median of {options.rounds} rounds; Python {platform.python_version()}, "
        f"NumPy {np.__version__}, Numba {numba.__version__}, {processor()}"
    )
    memcpy, table = rows(options.elements)
    table = [row for row in table if options.only in row.name]
    Console(width=100).print(measure(memcpy, table, options.rounds))


def processor() -> str:
    """Name the processor, as far as the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":")[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
