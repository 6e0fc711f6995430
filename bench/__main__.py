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
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table


class Row(NamedTuple):
    """One thing to time."""

    name: str
    run: Callable[[], object]
    twin: Callable[[], object] | None = None
    goal: float | None = None


def rows(x: np.ndarray) -> tuple[Callable[[], object], list[Row]]:
    """Return the memcpy, and all rows over (n,) float32 elements."""
    import gcodec
    from bench import twins
    from gcodec.kernels import arithmetic, convert, pack, philox, reduce

    rng, n = np.random.default_rng(0), x.size
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
    table += _passes(x)
    table += _qsgd(x)
    table += _selection(x)
    table += _dct8(x)
    for spec, goals in _GOALS.items():
        table += _calls(spec, x, residual, acc, goals)
    raw = gcodec.encode(x, "raw")
    table += [
        Row("raw: encode", lambda: gcodec.encode(x, "raw")),
        Row("raw: decode(out=)", lambda: gcodec.decode(raw, out=acc)),
    ]
    return memcpy, table


class Goals(NamedTuple):
    """What the calls of a codec are meant to reach, ÷ memcpy."""

    payload: float | None = None
    residual: float | None = None
    decode: float | None = None
    add: float | None = None


_GOALS = {
    "mxnet-2bit": Goals(residual=1.1, decode=1.8, add=1.8),
    "mxnet-2bit:threshold=3,form=auto": Goals(),
    "mxnet-1bit": Goals(),
    "sign": Goals(payload=1.6),
    "sign:scale=none": Goals(payload=1.8),
    "minmax": Goals(payload=0.9),
    "minmax:bits=4,bucket=512": Goals(),
    "minmax:rounding=stochastic": Goals(),
    "terngrad": Goals(payload=0.42),
    "terngrad:pack=terngrad": Goals(),
    "terngrad:pack=base3": Goals(),
    "qsgd:form=dense": Goals(payload=0.33, decode=0.95),
    "qsgd:form=dense,bucket=512": Goals(payload=0.33, decode=0.73),
    "qsgd:form=sparse": Goals(payload=0.42),
    "qsgd:bucket=512": Goals(),
    "qsgd:bucket=512,code=rice": Goals(),
    "qsgd:s=127,form=dense,bucket=512": Goals(),
    "qsgd:s=4096,form=dense": Goals(),
    "qsgd:bucket=512,code=rans": Goals(),
    "terngrad:pack=rans": Goals(),
    "dct8": Goals(),
    "dct8:layout=tiles": Goals(),
    "minifloat": Goals(),
    "minifloat:code=none": Goals(),
    "minifloat:scale=0.5,code=pair,table=3": Goals(decode=0.95),
    "minifloat:format=e4m3,code=huffman": Goals(),
    "randomk": Goals(),
    "randomk:value=int8": Goals(),
}


def _passes(x: np.ndarray) -> list[Row]:
    """Rows for the passes that codecs are made of."""
    from bench import twins
    from gcodec.kernels import ranges, reduce, signs, ternary, uniform

    n = x.size
    out, values = np.zeros(n, np.uint8), np.ones(n, np.float32)
    found = ranges.ranges(x, n)
    assert found is not None
    uniform.quantize(x, found, n, 8, None, out)
    read, narrow, widen = (twins.stream(n, *bits) for bits in ((32, 0), (32, 8), (8, 32)))
    scale = np.float32(2.5)
    return [
        Row("reduce: moments", lambda: reduce.moments(x), read, 1.8),
        Row("sign: pass", lambda: signs.quantize(x, squares=False), twins.stream(n, 32, 1), 1.6),
        Row("minmax: range", lambda: ranges.ranges(x, n), read, 1.8),
        Row("minmax: pass", lambda: uniform.quantize(x, found, n, 8, None, out), narrow, 1.8),
        Row("minmax: back", lambda: uniform.dequantize(out, found, n, 8, values), widen, 1.8),
        Row("terngrad: pass", lambda: ternary.quantize(x, scale, 1, "chapter"), None, 0.5),
    ]


def _qsgd(x: np.ndarray) -> list[Row]:
    """Rows for the passes of qsgd, for its strings, and for the same in plain loops."""
    import gcodec
    from bench import plain, twins
    from gcodec.kernels import levels, philox
    from gcodec.kernels.norms import norms

    n = x.size
    out, values = np.zeros(n, np.uint8), np.ones(n, np.float32)
    table = []
    for bucket in (n, 512):
        scale = levels.Scale(norms(x, bucket, "l2"), bucket, 15)
        codec = gcodec.parse(f"qsgd:form=dense,bucket={bucket % n}")
        frame = gcodec.Frame.from_bytes(gcodec.encode(x, codec)).without_seek().to_bytes()
        table += [
            Row(
                f"qsgd: norms, bucket {bucket}",
                lambda b=bucket: norms(x, b, "l2"),
                twins.stream(n, 32, 0),
                1.8,
            ),
            Row(
                f"qsgd: quantise, bucket {bucket}",
                lambda s=scale: levels.quantize(x, s, 1, 0, out),
                goal=0.5,
            ),
            Row(
                f"qsgd: dequantise, bucket {bucket}",
                lambda s=scale: levels.dequantize(out, s, 0, values),
                twins.stream(n, 8, 32),
            ),
            Row(
                f"{codec}: decode, no seek table",
                lambda f=frame: gcodec.decode(f, out=values),
                goal=0.35,
            ),
        ]
    factor, words = np.float32(15 / np.sqrt(n)), philox.words(1, 0, n)
    bits = np.zeros(2 * n, np.uint8)
    plain.encode(x, words, factor, np.uint32(15), bits)

    def encode() -> None:
        bits[:] = 0
        plain.encode(x, words, factor, np.uint32(15), bits)

    plain_decode = Row("qsgd: plain loop, decode", lambda: plain.decode(bits, 1 / factor, values))
    omega, levels_of = gcodec.entropy.parse("omega"), (out // 2 + 1).astype(np.uint64)
    coded = omega.encode(levels_of)
    return [
        *table,
        Row("qsgd: plain loop, encode, without random words", encode),
        plain_decode,
        Row("entropy: omega encode, of uint64", lambda: omega.encode(levels_of)),
        Row("entropy: omega decode, to uint64", lambda: omega.decode(coded, n)),
    ]


def _dct8(x: np.ndarray) -> list[Row]:
    """Rows for the passes of dct8, and SciPy's transform of the same chunks."""
    from scipy import fft

    import gcodec
    from gcodec.dct import transform
    from gcodec.kernels.dct_select import largest

    codec: Any = gcodec.parse("dct8")
    n, k = x.size, codec.k
    cut = codec._chunks(n)
    chunks = cut.take(x, 0, cut.count)
    y, parts, forward = chunks.reshape(cut.count, -1), cut.parts(), transform.Forward(cut.sizes)
    places, values = np.zeros((cut.count, k), np.int32), np.zeros((cut.count, k), np.float32)
    symbols, out = codec.quantize(x), np.ones(n, np.float32)

    def transformed() -> None:
        for first, stop in parts:
            forward(chunks[first:stop])

    return [
        Row("dct8: scipy.fft.dctn", lambda: fft.dctn(chunks, axes=(2, 3), norm="ortho")),
        Row("dct8: BLAS transform", transformed),
        Row("dct8: k largest of chunks", lambda: largest(y, k, places, values), goal=1 / 8),
        Row("dct8: sparse inverse", lambda: codec._dequantize(symbols, out), goal=1 / 8),
    ]


def _selection(x: np.ndarray) -> list[Row]:
    """Rows for the choice of few elements, with what NumPy and torch have for it."""
    import importlib.util

    from gcodec.kernels import scatter, select
    from gcodec.kernels.draw import draw

    n, out = x.size, np.ones(x.size, np.float32)
    minus, plus = np.float32(-1), np.float32(0.5)
    magnitude = np.abs(x)
    table = []
    for share, goal in ((0.001, 1 / 4), (0.01, 1 / 4), (0.1, 1 / 8)):
        k = int(n * share)
        name = f"{100 * share:g} %"
        table += [
            Row(f"select: largest, {name}", lambda k=k: select.largest(x, k), goal=goal),
            Row(f"select: np.argpartition, {name}", lambda k=k: np.argpartition(magnitude, n - k)),
        ]
        if importlib.util.find_spec("torch"):
            import torch

            tensor = torch.from_numpy(magnitude)
            table.append(Row(f"select: torch.topk, {name}", lambda k=k, t=tensor: t.topk(k)))
        at = select.largest(x, k)
        assert at is not None
        threshold, sent = magnitude[at].min(initial=np.inf), scatter.take(x, at)
        table += [
            Row(f"select: at least, {name}", lambda t=threshold: select.at_least(x, t)),
            Row(f"draw: {name}", lambda k=k: draw(n, k, 1)),
            Row(f"scatter: take, {name}", lambda at=at: scatter.take(x, at)),
            Row(f"scatter: put, {name}", lambda at=at, v=sent: scatter.put(out, at, v)),
            Row(f"scatter: add, {name}", lambda at=at, v=sent: scatter.add(out, at, v, plus)),
            Row(
                f"scatter: subtract, {name}",
                lambda at=at, v=sent: scatter.add(out, at, v, minus),
            ),
        ]
    return table


def _calls(
    spec: str, x: np.ndarray, residual: np.ndarray, acc: np.ndarray, goals: Goals
) -> list[Row]:
    """Rows for the public calls of a codec."""
    import gcodec
    from bench import twins

    codec = gcodec.parse(spec)
    frame = gcodec.encode(x, codec)
    data = codec.encode(x).data
    width = 8 * data.size // x.size
    out, other = np.empty(data.size, np.uint8), np.ones(x.size, np.float32)
    feedback = gcodec.Feedback(codec)
    packed = width in (1, 2)  # what the twins can do
    return [
        Row(
            f"{spec}: quantize_residual",
            lambda: codec.quantize_residual(x, residual),
            (lambda: twins.quantize_residual(x, other, out, width)) if packed else None,
            goals.residual,
        ),
        Row(
            f"{spec}: payload",
            lambda: codec.encode(x),
            twins.stream(x.size, 32, width) if width else None,
            goals.payload,
        ),
        Row(f"{spec}: encode", lambda: gcodec.encode(x, codec)),
        Row(f"{spec}: Feedback.compress", lambda: feedback.compress("x", x)),
        Row(
            f"{spec}: decode(out=)",
            lambda: gcodec.decode(frame, out=acc),
            (lambda: twins.dequantize(data, other, width, False)) if packed else None,
            goals.decode,
        ),
        Row(
            f"{spec}: decode_add",
            lambda: gcodec.decode_add(frame, acc),
            (lambda: twins.dequantize(data, other, width, True)) if packed else None,
            goals.add,
        ),
        Row(f"{spec}: decode", lambda: gcodec.decode(frame)),
    ]


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
            "" if row.goal is None else f"{row.goal:.3g}",
        )
    return shown


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 24, help="default 16 Mi")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dump", help="take the tensors of this file, again and again")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = parser.parse_args()
    os.environ["GCODEC_NUM_THREADS"] = str(options.threads)
    import numba

    x = elements(options.dump, options.elements)
    print(
        f"{x.size} float32 elements of {options.dump or 'N(0, 1)'}, {options.threads} thread(s), "
        f"median of {options.rounds} rounds; Python {platform.python_version()}, "
        f"NumPy {np.__version__}, Numba {numba.__version__}, {processor()}"
    )
    memcpy, table = rows(x)
    table = [row for row in table if options.only in row.name]
    Console(width=100).print(measure(memcpy, table, options.rounds))


def elements(dump: str | None, n: int) -> np.ndarray:
    """Return what is measured: normal numbers, or the values of a dump, repeated."""
    if dump is None:
        return np.random.default_rng(0).standard_normal(n, dtype=np.float32)
    from gcodec.gradients.dumps import open_dump

    with open_dump(dump) as file:
        flat = [np.asarray(file.load(e), np.float32).reshape(-1) for e in file.entries]
    return np.resize(np.concatenate(flat), n)


def processor() -> str:
    """Name the processor, as far as the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":")[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
