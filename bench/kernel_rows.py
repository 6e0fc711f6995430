"""Rows of the benchmark for kernels, and for equivalents in other libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

CACHED = 1 << 20  # elements of a call whose arrays stay in a cache shared by few cores


class Row(NamedTuple):
    """A row of the benchmark: a call to time.

    Attributes
    ----------
    name : str
    run : callable
    twin : callable, optional
        Stream twin; see `bench.twins`.
    goal : float, optional
        Speed goal, relative to memcpy.
    base : callable, optional
        Call whose time the row's time is divided by: the encode or decode that it extends.
    cached : callable, optional
        The same call for `CACHED` elements, as often as makes as many elements.
    """

    name: str
    run: Callable[[], object]
    twin: Callable[[], object] | None = None
    goal: float | None = None
    base: Callable[[], object] | None = None
    cached: Callable[[], object] | None = None


class Times(NamedTuple):
    """The least times of a row, in seconds.

    Attributes
    ----------
    own, memcpy : float
    twin, base, cached : float
        Those of the other calls of the row; infinite if there is none.
    """

    own: float
    memcpy: float
    twin: float
    base: float
    cached: float

    @property
    def copies(self) -> float:
        """Time in memcpys."""
        return self.own / self.memcpy

    @property
    def twins(self) -> float:
        """Time in those of the stream twin."""
        return self.own / self.twin

    @property
    def bases(self) -> float:
        """Time in those of the call that the row extends."""
        return self.own / self.base

    @property
    def parts(self) -> float:
        """Time in those of as many elements in the cache."""
        return self.own / self.cached


def kernel_rows(x: np.ndarray) -> list[Row]:
    """Return benchmark rows for (n,) float32 elements."""
    from bench import twins
    from gcodec.kernels.bits import pack
    from gcodec.kernels.numeric import arithmetic, convert, philox, reduce

    rng, n = np.random.default_rng(0), x.size
    # Plain NumPy buffers, as users have them, with every page touched.
    residual = np.ones(n, np.float32)
    half = convert.to_16_bits(x, "bfloat16")
    codes = rng.integers(0, 4, n).astype(np.uint8)

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
    return [*table, *_passes(x), *_qsgd(x), *_selection(x), *_dct8(x)]


def _passes(x: np.ndarray) -> list[Row]:
    """Return rows for the elementwise passes that codecs consist of."""
    from bench import twins
    from gcodec.kernels.bits import signs
    from gcodec.kernels.numeric import ranges, reduce
    from gcodec.kernels.quantize import ternary, uniform

    n = x.size
    out, values = np.zeros(n, np.uint8), np.ones(n, np.float32)
    bounds, _ = ranges.ranges(x, n)
    uniform.quantize(x, bounds, n, 8, None, out)
    read, narrow, widen = (twins.stream(n, *bits) for bits in ((32, 0), (32, 8), (8, 32)))
    scale = np.float32(2.5)
    return [
        Row("reduce: moments", lambda: reduce.moments(x), read, 1.8),
        Row("sign: pass", lambda: signs.quantize(x, squares=False), twins.stream(n, 32, 1), 1.6),
        Row("minmax: range", lambda: ranges.ranges(x, n), read, 1.8),
        Row("minmax: pass", lambda: uniform.quantize(x, bounds, n, 8, None, out), narrow, 1.8),
        Row("minmax: back", lambda: uniform.dequantize(out, bounds, n, 8, values), widen, 1.8),
        Row("terngrad: pass", lambda: ternary.quantize(x, scale, 1, "chapter"), None, 0.5),
        *_blocks(x),
    ]


def _blocks(x: np.ndarray) -> list[Row]:
    """Return rows for the passes of formats with scales of blocks."""
    from bench import twins
    from gcodec.kernels.quantize import microscale
    from gcodec.kernels.quantize.block_format import FORMATS, BlockFormat
    from gcodec.kernels.quantize.microscale import Quantization

    table, n, values = [], x.size, np.ones(x.size, np.float32)
    for name in FORMATS:
        fmt = BlockFormat.of(name)
        scales, data = np.zeros(fmt.blocks(n), np.uint8), np.zeros(fmt.data_nbytes(n), np.uint8)
        rule = Quantization(fmt, "floor", np.float32(2.0**-9 if name == "nvfp4" else 1))
        microscale.quantize(x, rule, None, scales, data)
        width = 8 // fmt.per_byte
        table += [
            Row(
                f"microscale: {name} pass",
                lambda r=rule, s=scales, d=data: microscale.quantize(x, r, None, s, d),
                twins.stream(n, 32, width),
            ),
            Row(
                f"microscale: {name} back",
                lambda f=fmt, r=rule, s=scales, d=data: microscale.dequantize(
                    s, d, f, float(r.tensor_scale), values
                ),
                twins.stream(n, width, 32),
            ),
        ]
    return table


def _qsgd(x: np.ndarray) -> list[Row]:
    """Return rows for the passes of qsgd, for its strings, and for equivalent plain loops."""
    import gcodec
    from bench import plain, twins
    from gcodec.kernels.numeric import philox
    from gcodec.kernels.numeric.norms import norms
    from gcodec.kernels.quantize import levels

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
                f"qsgd: quantize, bucket {bucket}",
                lambda s=scale: levels.quantize(x, s, 1, 0, out),
                goal=0.5,
            ),
            Row(
                f"qsgd: dequantize, bucket {bucket}",
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
    """Return rows for the passes of dct8, and for SciPy's transform of the same chunks."""
    from scipy import fft

    import gcodec
    from gcodec.codecs.dct8 import chunks as dct8_chunks
    from gcodec.codecs.dct8 import transform
    from gcodec.kernels.transform.dct_select import largest

    codec: Any = gcodec.parse("dct8")
    n, k = x.size, codec.k
    cut = codec._chunks(n)
    chunks = dct8_chunks.take(cut, x, 0, cut.count)
    y, parts, forward = chunks.reshape(cut.count, -1), cut.parts(), transform.Forward(cut.sizes)
    places, values = np.zeros((cut.count, k), np.int32), np.zeros((cut.count, k), np.float32)
    symbols, out = codec.quantize(x), np.ones(n, np.float32)

    def transformed() -> None:
        for first, stop in parts:
            forward(chunks[first:stop])

    return [
        Row("dct8: scipy.fft.dctn", lambda: fft.dctn(chunks, axes=(2, 3), norm="ortho")),
        Row("dct8: transform", transformed),
        Row("dct8: k largest of chunks", lambda: largest(y, k, places, values), goal=1 / 8),
        Row("dct8: sparse inverse", lambda: codec._dequantize(symbols, out), goal=1 / 8),
    ]


def _selection(x: np.ndarray) -> list[Row]:
    """Return rows for the selection of few elements, and for equivalents in NumPy and torch."""
    import importlib.util

    from gcodec.kernels.numeric import scatter, select
    from gcodec.kernels.numeric.draw import draw

    n, out = x.size, np.ones(x.size, np.float32)
    minus, plus = np.float32(-1), np.float32(0.5)
    magnitude = np.abs(x)
    table = []
    for share, goal in ((0.001, 1 / 4), (0.01, 1 / 4), (0.1, 1 / 8)):
        k = int(n * share)
        name = f"{100 * share:g} %"
        table += [
            Row(f"select: largest, {name}", lambda k=k: select.take_largest(x, k), goal=goal),
            Row(f"select: np.argpartition, {name}", lambda k=k: np.argpartition(magnitude, n - k)),
        ]
        if importlib.util.find_spec("torch"):
            import torch

            tensor = torch.from_numpy(magnitude)
            table.append(Row(f"select: torch.topk, {name}", lambda k=k, t=tensor: t.topk(k)))
        selection = select.take_largest(x, k)
        assert selection is not None
        at, sent = selection
        threshold = np.abs(sent).min(initial=np.inf)
        table += [
            Row(f"select: at least, {name}", lambda t=threshold: select.take_at_least(x, t)),
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
