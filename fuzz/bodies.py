"""Random valid frame bodies of each codec: parameters, scalars, payload and seek table."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from reference import ans as rans
from reference import (
    blockwise,
    canonical,
    contexts,
    dct8,
    ecsq,
    fields,
    integers,
    leb128,
    lossless,
    lowrank,
    microscale,
    minifloat,
    minmax,
    mxnet_sparse,
    positions,
    powersgd,
    qsgd,
    randomk,
    seek,
    sparse_values,
    sparseloco,
    tabled,
    ternary,
    topk,
    trellis,
    universal,
)

LOG2_BLOCKS = (0, 1, 3, 6, 8, 20, 62)


class Body(NamedTuple):
    """The part of a frame that a codec writes.

    Attributes
    ----------
    id : int
        Number of the codec.
    params, scalars, payload : bytes
        Encoded parameters, encoded scalars and the payload.
    nbits : int
        Length of the payload in bits.
    table : seek.Table or None
        Seek table of the payload, if the frame has one.
    dtype : int or None
        Code of the tensor's dtype; None permits any floating-point dtype.
    """

    id: int
    params: bytes
    scalars: bytes
    payload: bytes
    nbits: int
    table: seek.Table | None = None
    dtype: int | None = None


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _any_floats(rng: random.Random, n: int) -> np.ndarray:
    """Draw finite values of all magnitudes, with zeros and subnormals among them."""
    values = np.frombuffer(rng.randbytes(4 * n), np.uint32).copy()
    values[[rng.random() < 0.2 for _ in range(n)]] &= np.uint32(0x80000000)
    x = values.view(np.float32)
    return np.where(np.isfinite(x), x, np.float32(1)).astype(np.float32)


def _scale(rng: random.Random) -> float:
    return float(np.float32(rng.choice((0.0, -0.0, 1.0, 0.3, 1e-44, 1e-20, 7e5))))


def _blocked(rng: random.Random, make: Callable[[int], Any], least: int = 0) -> seek.Table | None:
    """Return a seek table with a few blocks, or None."""
    if rng.random() < 0.4:
        return None
    table: seek.Table = make(rng.choice([log2 for log2 in LOG2_BLOCKS if log2 >= least]))
    return table


def _states(rng: random.Random, make: Callable[[int], Any]) -> seek.Table | None:
    table: seek.Table | None = None if rng.random() < 0.4 else make(rng.randint(5, 18))
    return table


def _model(rng: random.Random, kind: str, sent: Sequence[int], size: int) -> list[int]:
    """Return valid but suboptimal code lengths or frequencies for the symbols."""
    counts = [rng.choice((0, 0, 1, 2, 50)) for _ in range(size)]
    for place in sent:
        counts[place] += 1
    if kind == "huffman":
        return canonical.lengths_of(counts)
    return rans.frequencies_of(counts, rng.randint(12, 15)) if sum(map(bool, counts)) > 1 else []


def _raw(rng: random.Random, shape: tuple[int, ...]) -> Body:
    kind = rng.randrange(6)
    if kind > 2:
        codes = integers.CODES | integers.FLOATS8
        dtype = rng.choice(list(codes))
        low, high = integers.bounds(dtype)
        values = [rng.choice((low, high, rng.randint(low, high))) for _ in range(_size(shape))]
        data = integers.write(values, dtype)
        return Body(1, b"", b"", data, 8 * len(data), None, codes[dtype])
    data = rng.randbytes(_size(shape) * (2 if kind else 4))  # including NaN and infinities
    return Body(1, bytes([kind]) if kind else b"", b"", data, 8 * len(data))


def _qsgd(rng: random.Random, shape: tuple[int, ...]) -> Body:
    n = _size(shape)
    form, code = rng.choice([(f, c) for c, f in (*qsgd.ALL, *qsgd.TABLED)])
    s = rng.choice((1, 2, 3, 15, 127) if code in ("huffman", "rans") else (1, 5, 300, 2**24))
    setting = qsgd.Setting(s, form, rng.choice((0, 1, 7, 4096)), rng.choice(qsgd.NORMS), code)
    size = qsgd.bucket_of(n, setting.bucket)
    norms = [np.float32(abs(_scale(rng))) for _ in range(-(-n // size))]
    quiet = qsgd.in_zero_norm_bucket(norms, n, setting.bucket)
    largest = min(s, 40) if code == "rice" else s
    levels = [0 if q or rng.random() < 0.3 else rng.randint(-largest, largest) for q in quiet]
    rices: tuple[int, ...] | None = None
    if code == "rice":
        rices = tuple(rng.choice((0, 1, 4, 9, 47)) for _ in range(2 if form == "sparse" else 1))
    sent = qsgd.coded_symbols(levels, quiet)
    model = None
    if code in ("huffman", "rans") and sent:
        model = _model(rng, code, sent, 2 * s + 1) or None
    message = qsgd.write(setting, norms, levels, rices, model)
    table = None
    if code == "rans":
        table = _states(rng, lambda log2: qsgd.seek_table(message, log2)) if sent else None
    elif code != "packed" and (sent if form == "dense" else any(levels)):
        table = _blocked(rng, lambda log2: qsgd.seek_table(message, log2))
    return Body(
        2, qsgd.parameters(setting), qsgd.scalars(message), message.data, message.nbits, table
    )


def _two_bit(rng: random.Random, shape: tuple[int, ...]) -> Body:
    n, threshold = _size(shape), np.float32(rng.choice((0.5, 0.1, np.inf, 1e-30)))
    scalars = threshold.tobytes()
    if rng.random() < 0.5:
        codes = [rng.choice((0, 2, 3)) for _ in range(n)]
        data = fields.pack(codes, 2, align=4)
        return Body(3, b"", scalars, data, 8 * len(data))
    sent = [(i, rng.random() < 0.5) for i in range(n) if rng.random() < 0.3]
    index = rng.randrange(len(positions.CODES))
    places = [place for place, _ in sent]
    choice, table = _index(rng, positions.CODES[index], places, n)
    text = mxnet_sparse.write(sent, n, positions.CODES[index], choice)
    params = bytes([0, 1, index]) if index else b"\0\1"
    scalars += leb128.encode(len(sent))
    return Body(3, params, scalars, universal.to_bytes(text), len(text), table)


def _index(
    rng: random.Random, code: str, places: Sequence[int], n: int
) -> tuple[list[int] | None, seek.Table | None]:
    """Return random parameters for an index code and, where drawn, a seek table."""
    choice = positions.choice_of(code, places, n)
    if not places or code == "bitmap":
        return choice, None
    if code == "rice":
        choice = [max(r - 1, 0) if rng.random() < 0.5 else r for r in choice]
    if code in ("huffman", "rans"):
        own = positions.classes(places)
        choice = _model(rng, code, own, positions.class_count(n)) or choice
    make = lambda log2: positions.seek_table(code, places, n, choice, log2)  # noqa: E731
    least = positions.LEAST_LOG2_RICE if code == "rice" else 0
    return choice, _states(rng, make) if code == "rans" else _blocked(rng, make, least)


def _one_bit(rng: random.Random, shape: tuple[int, ...]) -> Body:
    n = _size(shape)
    data = fields.pack([rng.randrange(2) for _ in range(n)], 1, align=4)
    return Body(4, b"", b"", data, 8 * len(data))


def _terngrad(rng: random.Random, shape: tuple[int, ...]) -> Body:
    packing, n = rng.randrange(4), _size(shape)
    codes = [rng.choice((0, 1, -1)) for _ in range(n)]
    clip = np.float32(rng.choice((2.5, 0.0, 1e30))).tobytes()
    params = clip + bytes([packing])
    scalars = np.float32(_scale(rng)).tobytes()
    packs = ("chapter", "terngrad", "base3", "rans")
    if packs[packing] == "rans":
        sent = list(ternary.pack(codes, "base3"))
        if not sent:
            return Body(5, params, scalars, b"", 0)
        model = _model(rng, "rans", sent, ternary.BYTES)
        model = model or tabled.model_of("rans", sent, ternary.BYTES)
        text = tabled.write("rans", sent, model)
        table = _states(rng, lambda log2: tabled.seek_table("rans", sent, model, log2))
        return Body(5, params, scalars, universal.to_bytes(text), len(text), table)
    data = ternary.pack(codes, packs[packing])
    return Body(5, params, scalars, data, 8 * len(data))


def _minmax(rng: random.Random, shape: tuple[int, ...]) -> Body:
    n, bits, bucket = _size(shape), rng.randint(1, 8), rng.choice((0, 1, 9, 1000))
    head = b""
    for _ in range(-(-n // minmax.bucket_of(n, bucket))):
        pair = sorted(float(v) for v in np.abs(_any_floats(rng, 2)) / 4)
        low, high = (pair[0], pair[1]) if rng.random() < 0.7 else (-pair[1] or 0.0, pair[0])
        low, high = rng.choice(((low, high), (high, high)))
        head += np.array([low + 0.0, high + 0.0], ">f4").tobytes()
    codes = [rng.randrange(1 << bits) for _ in range(n)]
    params = bytes([bits]) + leb128.encode(bucket)
    return Body(6, params, b"", head + fields.pack(codes, bits), 8 * len(head) + bits * n)


def _sign(rng: random.Random, shape: tuple[int, ...]) -> Body:
    n, scale_kind = _size(shape), rng.randrange(3)
    scalars = b"" if scale_kind == 2 else np.float32(_scale(rng)).tobytes()
    data = fields.pack([rng.randrange(2) for _ in range(n)], 1)
    return Body(7, bytes([scale_kind]), scalars, data, n)


def _minifloat(rng: random.Random, shape: tuple[int, ...]) -> Body:
    n = _size(shape)
    format, style = rng.choice(minifloat.FORMATS), rng.choice(minifloat.STYLES)
    code = rng.choice(("none", "huffman", "pair", "planes", "rans"))
    setting = minifloat.Setting(format, style, code, rng.choice((0, 0, 5, 32)))
    if setting.width > 4 and code == "pair":
        setting = setting._replace(code="huffman")
    alphabet = minifloat.alphabet(setting)
    few = rng.sample(alphabet, min(len(alphabet), rng.randint(1, 9)))
    codes = [rng.choice(few) for _ in range(n)]
    scale = abs(float(np.float32(rng.choice((0.0, 1.0, 0.3, 1e-44, 1e20)))))
    factors = [rng.randrange(256) for _ in range(minifloat.blocks_of(setting, n))]
    model = None
    if setting.code != "none" and n:
        places = minifloat.places_of(setting, codes)
        model = _model(rng, setting.kind, places, len(minifloat.symbol_alphabet(setting))) or None
    message = minifloat.write(setting, scale, codes, model=model, factors=factors)
    table = None
    if setting.code != "none" and n:
        make = lambda log2: minifloat.seek_table(message, log2)  # noqa: E731
        table = _states(rng, make) if setting.kind == "rans" else _blocked(rng, make)
    params = minifloat.parameters(setting)
    return Body(8, params, minifloat.scalars(message), message.data, message.nbits, table)


def _topk(rng: random.Random, shape: tuple[int, ...]) -> Body:
    n = _size(shape)
    places = [i for i in range(n) if rng.random() < rng.choice((0.02, 0.3))]
    k = len(places) if len(places) < n or rng.random() < 0.5 else n + rng.randrange(2**40)
    value, index = rng.choice(sparse_values.VALUES), rng.choice(positions.CODES)
    setting = topk.Setting(value, index, k)
    x = np.clip(_any_floats(rng, n), -1e38, 1e38)
    choice, table = _index(rng, index, places, n)
    message = topk.write(x, places, setting, choice)
    return Body(9, topk.parameters(setting), b"", message.data, message.nbits, table)


def _randomk(rng: random.Random, shape: tuple[int, ...]) -> Body:
    n, seed = _size(shape), rng.randrange(2**64)
    setting = randomk.Setting(
        rng.choice(sparse_values.VALUES), rng.random() < 0.5, rng.choice((None, 0, 3, 2**62))
    )
    x = np.clip(_any_floats(rng, n), -1e30, 1e30)
    data, nbits = randomk.encode(x, setting, seed)
    return Body(10, randomk.parameters(setting), randomk.scalars(seed), data, nbits)


def _dct8(rng: random.Random, shape: tuple[int, ...]) -> Body:
    chunk = rng.choice(((1,), (8,), (4, 4), (2, 3, 5)))
    setting = dct8.Setting(
        chunk,
        rng.choice((1, 3, 8, 100)),
        rng.choice(dct8.LAYOUTS),
        rng.choice(dct8.VALUES),
        rng.choice(dct8.INDEXES),
    )
    if len(chunk) == 3:
        setting = setting._replace(layout="flat")
    grid = dct8.grid_of(setting, shape)
    count, chunks = min(setting.k, grid.size), []
    for _ in range(grid.count):
        places = sorted(rng.sample(range(grid.size), count))
        top = int(np.float32(rng.choice((0.0, 1.0, 1e-30, 300.0))).view(np.uint32)) >> 15 << 15
        if setting.values == "sign7":
            magnitudes = [rng.randint(0, 127) for _ in places]
            if len(magnitudes) == 1:
                magnitudes = [127]
            levels = [(rng.randrange(2) if m else 0, m) for m in magnitudes]
            scales: tuple[int, ...] = (top,)
        elif setting.values == "float32":
            scales = ()
            numbers = _any_floats(rng, count) % np.float32(1e15)
            levels = [(0, pattern) for pattern in numbers.view(np.uint32).tolist()]
        else:
            scales = (top, int(np.float32(rng.choice((0.0, -5.0))).view(np.uint32)))
            levels = [(0, rng.choice((0, 255))) for _ in places]
            if len(levels) == 1:
                levels = [(0, 0)]
        silent = not dct8.is_coded(setting, scales)
        chunks.append(dct8.Chunk(scales, [] if silent else places, [] if silent else levels))
    text = dct8.text_of(setting, chunks, grid.size)
    return Body(11, dct8.parameters(setting), b"", universal.to_bytes(text), len(text))


def _powersgd(rng: random.Random, shape: tuple[int, ...]) -> Body:
    rank = rng.choice((1, 2, 4, 300))
    sizes = powersgd.sizes(shape, rank)
    count = _size(shape) if sizes is None else rank * sum(sizes)
    # Products of two factors up to this bound fit float32.
    data = (_any_floats(rng, count) % np.float32(1e15)).tobytes()
    params = b"" if rank == 4 else leb128.encode(rank)
    return Body(12, params, b"", data, 8 * len(data))


def _context_string(rng: random.Random, n: int, with_trellis: bool = False) -> contexts.String:
    """Return a valid string of n > 0 random symbols."""
    width = rng.randint(min(n, 8), n)
    group = rng.randint(1, width) if n >= 8 * width and rng.random() < 0.8 else 0
    few = [0, *range(1 + rng.randrange(9), 128, rng.choice((1, 2, 8)))]
    rows = [rng.choice(few) for _ in range(-(-n // width))]
    columns = [rng.choice(few) for _ in range(-(-width // group))] if group else []
    symbols = [rng.choice((0, 0, 0, 2, 3, 4, 9, 252, 253, 255, 7654321)) for _ in range(n)]
    number = rng.randrange(len((trellis if with_trellis else contexts).static_tables()))
    lists = rng.choice((contexts.RICE, contexts.HUFFMAN, contexts.RANS)), contexts.RICE
    string = contexts.write_string(
        symbols, width, group, (rows, columns), number, rng.choice(contexts.LANES), lists
    )
    # The outliers of a trellis differ from those of plain symbols; these numbers suit any.
    return string._replace(gap_k=7, symbol_k=20) if with_trellis else string


def _ecsq(rng: random.Random, shape: tuple[int, ...]) -> Body:
    n = _size(shape)
    step = np.float32(rng.choice((0.0, 1.0, 1e-30)))
    if not n or not step:
        message = ecsq.Message("nearest", step, (0, 255, 7), None)
        return Body(13, b"", ecsq.scalars(message), b"", 0)
    string = _context_string(rng, n)
    arguments = step, (rng.randrange(256), 0, 255), string, _transform(rng, shape)
    message = ecsq.Message(rng.choice(ecsq.ROUNDINGS), *arguments)
    params = ecsq.parameters(message.rounding)
    return Body(13, params, ecsq.scalars(message), message.data, 8 * len(message.data))


def _lowrank(rng: random.Random, shape: tuple[int, ...]) -> Body:
    n, with_trellis = _size(shape), rng.random() < 0.3
    ranks = {split: _most_rank(shape, split) for split in range(1, len(shape))}
    splits = [split for split, most in ranks.items() if most]
    step = np.float32(rng.choice((0.0, -0.0, 1.0, 1e-30, 1e-42, 1e20)))
    if not splits or rng.random() < 0.3:
        step = np.float32(0) if not n else np.abs(step)
        string = _context_string(rng, n, with_trellis) if step else None
        data = b"" if string is None else lowrank.string_data(string, with_trellis)
        params = lowrank.parameters(0, with_trellis)
        whole = ecsq.Message("nearest", step, (9, 128, 0), None, _transform(rng, shape))
        return Body(14, params, ecsq.scalars(whole), data, 8 * len(data))
    split = rng.choice(splits)
    rank = rng.randint(1, ranks[split])
    sizes = _size(shape[split:]), _size(shape[:split])
    right, left = (
        lowrank.Factor(
            (rng.randrange(256), 0, 255),
            lowrank.string_data(_context_string(rng, rank * size, with_trellis), with_trellis),
        )
        for size in sizes
    )
    falls = [rng.choice((0, 0, 1, 5)) for _ in range(rank - 1)]
    last = rng.choice((0, 3, 100, 2047 - sum(falls)))
    exponents = [last + sum(falls[j:]) for j in range(rank)]
    residual = None
    if rng.random() < 0.5:
        size = np.float32(rng.choice((1.0, 1e-42, 1e28)))
        inner = ecsq.Message("nearest", size, (0, 255, 7), None, _transform(rng, shape))
        data = lowrank.string_data(_context_string(rng, n, with_trellis), with_trellis)
        residual = inner, data
    message = lowrank.Message(split, exponents, right, left, residual)
    params = lowrank.parameters(rank, with_trellis)
    return Body(14, params, lowrank.scalars(step), message.data, 8 * len(message.data))


def _most_rank(shape: tuple[int, ...], split: int) -> int:
    """Return the largest rank whose factors have fewer values than the matrix, or 0."""
    m, k = _size(shape[:split]), _size(shape[split:])
    return min((m * k - 1) // (m + k), 9) if m * k else 0


def _transform(rng: random.Random, shape: tuple[int, ...]) -> str:
    return rng.choice(ecsq.TRANSFORMS[: 1 if ecsq.taps(shape) is None else 2])


def _lossless(rng: random.Random, shape: tuple[int, ...]) -> Body:
    dtypes = *lossless.FLOATS, *integers.CODES, *integers.FLOATS8
    n, dtype = _size(shape), rng.choice(dtypes)
    code = dtypes.index(dtype) + 1
    floats = lossless.FLOATS.get(dtype)
    itemsize = integers.nbytes(dtype) if floats is None else floats[0]
    mode = rng.randrange(3)
    values = [rng.choice((0, 1)) if dtype == "bool" else rng.randrange(256) for _ in range(n)]
    planes = [values, *([rng.randrange(256) for _ in range(n)] for _ in range(1, itemsize))]
    if mode == 2 or not n:
        data = bytes(byte for element in zip(*planes, strict=True) for byte in element)
        return Body(15, bytes([2]), b"", data, 8 * len(data), None, code)
    unit = lossless.UNITS.get(dtype, 1)
    method = rng.choice(lossless.ALLOWED[("fast", "small")[mode]])
    if method == lossless.CONSTANT:
        planes[0] = values = values[:1] * n
    escape = None
    if dtype in lossless.FLOATS and rng.random() < 0.5:
        escape = rng.randrange(256)
        present = [bool(value) for value in values]
        planes[1:] = [
            [v for v, is_coded in zip(plane, present, strict=True) if is_coded]
            for plane in planes[1:]
        ]
    first = _plane(rng, values, method, unit)
    methods = [m for m in lossless.OTHERS if escape is None or m != lossless.DIFFERENCES]
    others = [_plane(rng, plane, rng.choice(methods), 1) for plane in planes[1:]]
    data, nbits = lossless.write(lossless.Message([first, *others], escape))
    return Body(15, bytes([mode]), b"", data, nbits, None, code)


def _plane(rng: random.Random, values: list[int], method: int, unit: int) -> lossless.Plane:
    """Return a plane with random scales or models; a constant one has the first byte."""
    n = len(values)
    if method == lossless.CONSTANT:
        return lossless.Plane(method, values[:1] * n)
    if method == lossless.STORED or not n:
        return lossless.Plane(lossless.STORED, values)
    if method == lossless.PACKED:
        width = rng.randint(1, 7)
        return lossless.Plane(method, [value % (1 << width) for value in values], width)
    if method == lossless.DIFFERENCES:
        return lossless.differing_plane(values, rng.randint(min(8, n), n))
    scales = None
    if method in (lossless.LOWERED_HUFFMAN, lossless.LOWERED_RANS, lossless.CLASSES):
        width = rng.randint(min(8, n), n)
        group = rng.choice((0, 1, 3)) if n >= 8 * width and width > 2 else 0
        rows = [rng.randrange(128) for _ in range(-(-n // width))]
        columns = [rng.randrange(128) for _ in range(-(-width // group))] if group else []
        scales = lossless.Scales(width, group, rows, columns)
    if method != lossless.CLASSES:
        return lossless.tabled_plane(method, values, unit, scales)
    models = []
    for _ in range(64):
        counts = [values.count(value) + rng.randrange(2) for value in range(256)]
        models.append(rans.frequencies_of(counts, 12))
    return lossless.Plane(method, values, models, scales, rng.choice((2, 8, 32)))


def _microscale(rng: random.Random, shape: tuple[int, ...]) -> Body:
    n, name = _size(shape), rng.choice(list(microscale.FORMATS))
    code = rng.choice(microscale.CODES)
    width, size = microscale.FORMATS[name].width, microscale.FORMATS[name].block
    few = [rng.randrange(1 << width) for _ in range(rng.randint(1, 9))]
    codes = [rng.choice(few) for _ in range(n)]
    most = 128 if name == "nvfp4" else 256
    scales = [rng.choice((0, 1, 120, most - 1, rng.randrange(most))) for _ in range(0, n, size)]
    message = microscale.message(name, "none", scales, codes)._replace(code=code)
    message = message._replace(has_words=bool(n) and rng.random() < 0.5)
    table = None
    if code != "none" and n:
        values = microscale.data_of(name, codes)
        if code == "context":
            values = [microscale.symbol_of(name, one) for one in codes]
        plane = _plane(rng, values, microscale.METHODS[code], 1)
        message = message._replace(plane=plane)
        if plane.lanes == 32 or code != "context":
            make = lambda log2: microscale.seek_table(message, log2)  # noqa: E731
            table = _blocked(rng, make) if code == "huffman" else _states(rng, make)
    params = [list(microscale.FORMATS).index(name), 0, microscale.CODES.index(code), 0]
    if name != "nvfp4":
        params[1] = rng.randrange(4)
    params[3] = rng.randrange(2)
    while params and not params[-1]:
        params.pop()
    scalars = b""
    if name == "nvfp4" and rng.random() < 0.8:
        scalars = np.float32(rng.choice((0.5, 3e-7, 2.0**-120, 2.0**116))).tobytes()
    data, nbits = microscale.write(message)
    return Body(17, bytes(params), scalars, data, nbits, table)


def _blockwise(rng: random.Random, shape: tuple[int, ...]) -> Body:
    n, kind, code = _size(shape), rng.choice(blockwise.KINDS), rng.choice(blockwise.CODES)
    narrow, limit = kind in blockwise.NARROW, 256
    if kind == blockwise.WIDE:  # bits of finite float16
        code, limit = "none", 0x7C00
    few = [rng.randrange(16 if narrow else limit) for _ in range(rng.randint(1, 9))]
    codes = [rng.choice(few) for _ in range(n)]
    nested = kind in blockwise.ABSMAX and rng.random() < 0.5
    param = rng.choice((2, 4, 64) if narrow else (0, 1, 3, 64))
    if kind in blockwise.TABLES:
        param = 64
    block = param or (shape[-1] if shape else 1)
    size = blockwise.front_nbytes(kind, n, max(block, 1), nested)
    inner = -(-n // block) if nested and n else 0
    numbers = [abs(float(x)) or 1.0 for x in _any_floats(rng, (size - inner) // 4)]
    if nested:
        numbers = [min(number, 1e38) for number in numbers]
    front = np.array(numbers, "<f4").tobytes() + rng.randbytes(inner)
    message = blockwise.message(kind, "none", front, codes)._replace(code=code)
    table = None
    if code != "none" and n:
        values = blockwise.data_of(kind, codes)
        message = message._replace(plane=_plane(rng, values, blockwise.METHODS[code], 1))
        make = lambda log2: blockwise.seek_table(message, log2)  # noqa: E731
        table = _blocked(rng, make) if code == "huffman" else _states(rng, make)
    params = [blockwise.KINDS.index(kind), param, int(nested), blockwise.CODES.index(code)]
    while params and params[-1] == (0, 64, 0, 0)[len(params) - 1]:
        params.pop()
    data, nbits = blockwise.write(message)
    return Body(18, bytes(params), b"", data, nbits, table)


def _sparseloco(rng: random.Random, shape: tuple[int, ...]) -> Body:
    n, code = _size(shape), rng.choice(sparseloco.CODES)
    setting = sparseloco.Setting(
        rng.choice((1, 2, 5, 64)),
        rng.choice((2, 3, 64, 256)),
        rng.choice((2, 4, 5, 256)),
        rng.choice(positions.CODES),
        code,
    )
    message = sparseloco.encode(np.clip(_any_floats(rng, n), -1e30, 1e30), shape, setting)
    bins = [rng.randrange(setting.bins) for _ in message.bins]
    numbers = [rng.uniform(-1e30, 1e30) for _ in message.numbers]
    message = message._replace(bins=bins, numbers=numbers)
    choice, table = _index(rng, setting.index, message.places, n)
    data, nbits = sparseloco.write(message, n, choice)
    return Body(19, sparseloco.parameters(setting), b"", data, nbits, table)


WRITERS: dict[str, Callable[[random.Random, tuple[int, ...]], Body]] = {
    "raw": _raw,
    "qsgd": _qsgd,
    "mxnet-2bit": _two_bit,
    "mxnet-1bit": _one_bit,
    "terngrad": _terngrad,
    "minmax": _minmax,
    "sign": _sign,
    "minifloat": _minifloat,
    "topk": _topk,
    "randomk": _randomk,
    "dct8": _dct8,
    "powersgd": _powersgd,
    "ecsq": _ecsq,
    "lowrank": _lowrank,
    "lossless": _lossless,
    "microscale": _microscale,
    "blockwise": _blockwise,
    "sparseloco": _sparseloco,
}
