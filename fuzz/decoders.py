"""The law of decoders: all ways to decode a frame return the same values, or all reject the frame.

`agree` checks the law for one frame. `mutant` turns a short program of bytes into a frame with a
changed structure and correct checksums. Its operations change bits and length of the payload,
numbers of the seek table, scalars, parameters and shape.
"""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

import gcodec
from fuzz.promises import promise, same_bits
from fuzz.settings import codec_of
from gcodec.arrays.source import NUMPY_DTYPES, as_dtype
from gcodec.codec import Codec
from gcodec.kernels.numeric import convert
from gcodec.limits import Limits
from gcodec.wire.primitives import FLOATS
from gcodec.wire.seek import SeekTable

LIMITS = Limits(max_elements=1 << 19, max_bytes=1 << 22)
SHAPES = (
    *((0,), (1,), (5,), (64,), (300,), (1200,), (40, 30), (4, 2, 3, 3), (90, 50), (9000,)),
    *((16, 16, 3, 3), (700, 100), (70_000,), (300_000,)),
)
DTYPES = ("float32", "float16", "bfloat16", "float64")
NUMBERS = (0, 1, 2, 3, 5, 7, 40, 127, 255, 0.0, 0.5, 1e-3, 3e38, 1e37, 1e-45, 2.0**-126)
OPERATION = 4  # bytes of one operation of a program

Values = np.ndarray
Ways = dict[str, Callable[[], Values]]
_KNOWN: dict[Any, Values | None] = {}  # results for the last frames without a table


def agree(
    data: bytes,
    *,
    limits: Limits = LIMITS,
    more: Callable[[bytes, gcodec.Frame], Ways] = lambda data, frame: {},
) -> bool:
    """Check the law for a frame without a tag, with its seek table and without.

    Parameters
    ----------
    data : bytes
        The frame.
    limits : Limits
        Bounds for decoding.
    more : callable
        Returns additional functions, by name, that decode a frame to an array of its shape.

    Returns
    -------
    bool
        Whether the decoders accepted the frame.

    Raises
    ------
    BrokenPromiseError
        If two decoders disagree.
    """
    try:
        frame = gcodec.Frame.from_bytes(data, limits=limits)
    except gcodec.FormatError:
        return False
    values = _agreed(data, frame, limits, more)
    if frame.seek is None:
        return values is not None
    bare = frame.without_seek()
    without = _agreed_before(bare.to_bytes(), bare, limits, more)
    if values is not None:
        equal = without is not None and same_bits(values, without)
        promise(equal, f"{frame.codec}: a seek table changes neither values nor errors")
        _check_table(frame)
    return values is not None


def _agreed_before(
    data: bytes,
    frame: gcodec.Frame,
    limits: Limits,
    more: Callable[[bytes, gcodec.Frame], Ways],
) -> Values | None:
    """Return the result of `_agreed`, known for frames that differ in their seek tables only."""
    key = data, limits, more
    if key not in _KNOWN:
        if len(_KNOWN) == 4:
            del _KNOWN[next(iter(_KNOWN))]
        _KNOWN[key] = _agreed(data, frame, limits, more)
    return _KNOWN[key]


def _agreed(
    data: bytes,
    frame: gcodec.Frame,
    limits: Limits,
    more: Callable[[bytes, gcodec.Frame], Ways],
) -> Values | None:
    """Decode a frame in all ways; return its values, or None if all decoders reject it."""
    expected = _outcome(lambda: gcodec.decode(data, limits=limits))
    ways = _ways(data, frame, limits) | more(data, frame)
    with np.errstate(all="ignore"):
        for name, decode in ways.items():
            outcome = _outcome(decode)
            verdicts = ["refuses" if one is None else "accepts" for one in (expected, outcome)]
            what = f"{frame.codec}: decode {verdicts[0]}, {name} {verdicts[1]} a frame"
            promise((outcome is None) == (expected is None), what)
            if outcome is None or expected is None:
                continue
            wanted = expected
            if name.startswith(("decode_add", "decode_sum")):
                wanted = np.float32(0) + expected.astype(np.float32)
            elif outcome.dtype != expected.dtype:
                wanted = expected.astype(outcome.dtype)
            promise(
                same_bits(outcome, wanted), f"{frame.codec}: {name} returns the values of decode"
            )
    _check_parts(data, frame, limits, expected)
    _check_sparse(data, frame, limits, expected)
    return expected


def _check_table(frame: gcodec.Frame) -> None:
    """Check that an accepted seek table is the only table of that block size for the payload."""
    assert frame.seek is not None
    own = frame.without_seek().with_seek(frame.seek.log2_block).seek
    if own is None:  # the payload has no codewords
        same = frame.codec.seek_blocks == "elements" and not frame.seek.lengths.any()
    else:
        same = own.to_bytes() == frame.seek.to_bytes()
    promise(same, f"{frame.codec}: a payload has one seek table for a block size")


def _outcome(decode: Callable[[], Values]) -> Values | None:
    try:
        return decode()
    except gcodec.FormatError:
        return None


def _ways(data: bytes, frame: gcodec.Frame, limits: Limits) -> Ways:
    """Return all ways to decode a whole frame, by name."""
    bounds: Any = {"limits": limits}
    dtype, floats = NUMPY_DTYPES[frame.dtype], frame.dtype in FLOATS

    def into(out: Values) -> Values:
        return gcodec.decode(data, out=out, **bounds)

    def added(acc: Values) -> Values:
        gcodec.decode_add(data, acc, **bounds)
        return acc

    def dequantized() -> Values:
        symbols = frame.codec.unpack(frame.payload, frame.shape)
        return rounded(frame.codec.dequantize(symbols, frame.shape))

    def rounded(values: Values) -> Values:
        if not floats:
            return values
        flat = convert.round_to(values.reshape(-1), frame.dtype)
        return as_dtype(flat, frame.dtype).reshape(frame.shape)

    reverse = (*[slice(None, None, -1)] * len(frame.shape), ...)
    backwards = np.full(frame.shape, 1, dtype)[reverse]
    ways = {
        "decode(out=)": lambda: into(np.full(frame.shape, 1, dtype)),
        "decode(out=) of a strided array": lambda: into(backwards),
        "decode(like=)": lambda: gcodec.decode(
            data, like=np.zeros(frame.shape, np.float64 if floats else dtype), **bounds
        ),
        "decode_range": lambda: gcodec.decode_range(data, 0, frame.size, **bounds).reshape(
            frame.shape
        ),
        "Frame.decode": frame.decode,
        "Codec.decode": lambda: rounded(frame.codec.decode(frame.payload, frame.shape)),
    }
    if floats:  # integers have no decode_add, and their symbols do not contain the dtype
        ways["decode_add"] = lambda: added(np.zeros(frame.shape, np.float32))
        ways["decode_sum"] = lambda: gcodec.decode_sum([data], **bounds)
        ways["unpack and dequantize"] = dequantized
    return ways


def _check_parts(
    data: bytes, frame: gcodec.Frame, limits: Limits, expected: Values | None
) -> None:
    """Check that slices equal those of the whole; of a rejected frame, some may decode."""
    rng = random.Random(zlib.crc32(data))
    for _ in range(2):
        start = rng.randrange(frame.size + 1)
        stop = min(start + rng.randrange(frame.size // 3 + 2), frame.size)
        decode = functools.partial(gcodec.decode_range, data, start, stop, limits=limits)
        part = _outcome(decode)
        if expected is not None:
            whole = expected.reshape(-1)[start:stop]
            same = part is not None and same_bits(part, whole)
            promise(same, f"{frame.codec}: decode_range returns a slice of the values of decode")


def _check_sparse(
    data: bytes, frame: gcodec.Frame, limits: Limits, expected: Values | None
) -> None:
    """Check that sparse codecs decode sparsely to the same values, and dense ones refuse."""
    try:
        sparse = gcodec.decode_sparse(data, limits=limits)
    except gcodec.ParameterError:
        sends_few = frame.codec.name in ("topk", "randomk") or _form(frame.codec) == "sparse"
        promise(not sends_few, f"{frame.codec}: decode_sparse accepts exactly the sparse codecs")
        return
    except gcodec.FormatError:
        promise(
            expected is None, f"{frame.codec}: decode accepts and decode_sparse rejects a frame"
        )
        return
    promise(
        expected is not None, f"{frame.codec}: decode rejects and decode_sparse accepts a frame"
    )
    assert expected is not None
    places, values = sparse
    scattered = np.zeros(frame.size, values.dtype)
    scattered[places] = values
    promise(bool((np.diff(places) > 0).all()), f"{frame.codec}: positions increase")
    same = same_bits(scattered, expected.reshape(-1))
    promise(same, f"{frame.codec}: decode_sparse returns the values of decode")


def _form(codec: Codec) -> Any:
    return getattr(codec, "form", None)


@functools.lru_cache(256)
def honest(codec: Codec, shape: tuple[int, ...], dtype: str, seed: int) -> gcodec.Frame | None:
    """Return a frame of a random gradient, or None if the codec does not accept it."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape, np.float32)
    x.reshape(-1)[: x.size // 3] *= np.float32(seed % 3)
    if seed % 5 == 0 and x.ndim > 1:
        scales = np.exp2(rng.normal(0, 2, x.shape[0])).astype(np.float32)
        x *= scales.reshape(-1, *[1] * (x.ndim - 1))
    if seed % 7 == 0:
        x.reshape(-1)[::97] *= 1000
    try:
        data = gcodec.encode(as_dtype(x.reshape(-1), dtype).reshape(shape), codec, seed=seed)
    except gcodec.ParameterError:
        return None
    return gcodec.Frame.from_bytes(data)


@functools.lru_cache(1024)
def indexed(frame: gcodec.Frame, log2_block: int) -> gcodec.Frame:
    """Return the frame with a seek table whose block size is near 2^log2_block."""
    log2_block %= 14
    if frame.codec.seek_blocks == "states":
        log2_block += 5
    elif getattr(frame.codec, "index", "") == "rice":  # which permits no smaller block
        log2_block = 12
    return frame.with_seek(log2_block)


def mutant(program: bytes) -> bytes | None:
    """Return the frame that a program makes, or None if it makes none.

    Five bytes select codec, setting, shape, blocks of the seek table, and seed and dtype of the
    gradient; each following group of four bytes is an operation.
    """
    if len(program) < 5:
        return None
    shape = SHAPES[program[2] % len(SHAPES)]
    seed, dtype = program[4] % 16, DTYPES[max(0, program[4] // 16 - 12)]
    frame = honest(codec_of(program[0], program[1]), shape, dtype, seed)
    if frame is None:
        return None
    if program[3] % 8:
        frame = indexed(frame, program[3] // 8)
    else:
        frame = frame.without_seek()
    return changed(frame, program[5:])


def changed(frame: gcodec.Frame, operations: bytes) -> bytes | None:
    """Apply operations of four bytes each to a frame; return None if the result is no frame."""
    for at in range(0, len(operations) - OPERATION + 1, OPERATION):
        operation, *numbers = operations[at : at + OPERATION]
        change = CHANGES[operation % len(CHANGES)]
        try:
            frame = change(frame, *numbers)
        except gcodec.ParameterError:  # for example, the codec has no such setting
            continue
        except gcodec.FormatError:  # rejected before any element is decoded
            return None
    data: bytes = frame.to_bytes()
    return data


def _with_payload(frame: gcodec.Frame, **fields: Any) -> gcodec.Frame:
    return _like(frame, payload=frame.payload._replace(**fields))


def _like(frame: gcodec.Frame, **fields: Any) -> gcodec.Frame:
    own = {name: getattr(frame, name) for name in ("codec", "dtype", "shape", "payload")}
    return gcodec.Frame(**(own | fields))


def _place(a: int, b: int, size: int) -> int:
    return (a << 8 | b) * size >> 16


# --- payloads -----------------------------------------------------------------------------------


def _bit(frame: gcodec.Frame, a: int, b: int, c: int) -> gcodec.Frame:
    data = frame.payload.data.copy()
    if data.size:
        data[_place(a, b, data.size)] ^= 1 << c % 8
    return _with_payload(frame, data=_padded(data, frame.payload.nbits, c))


def _byte(frame: gcodec.Frame, a: int, b: int, c: int) -> gcodec.Frame:
    data = frame.payload.data.copy()
    if data.size:
        data[_place(a, b, data.size)] = c
    return _with_payload(frame, data=_padded(data, frame.payload.nbits, c))


def _copy(frame: gcodec.Frame, a: int, b: int, c: int) -> gcodec.Frame:
    data = frame.payload.data.copy()
    at, size = _place(a, b, data.size), 1 + c % 9
    data[at : at + size] = data[: data[at : at + size].size]
    return _with_payload(frame, data=_padded(data, frame.payload.nbits, 1))


def _front(frame: gcodec.Frame, a: int, b: int, c: int) -> gcodec.Frame:
    data = frame.payload.data.copy()
    data[a % 64 : a % 64 + 1] = b
    return _with_payload(frame, data=_padded(data, frame.payload.nbits, c))


def _size(frame: gcodec.Frame, a: int, b: int, c: int) -> gcodec.Frame:
    nbits = frame.payload.nbits
    nbits = _place(a, b, nbits) if c % 2 else max(0, nbits + (a - 128) * (8 if c % 4 else 1))
    data = np.zeros(-(-nbits // 8), np.uint8)
    data[: frame.payload.data.size] = frame.payload.data[: data.size]
    return _with_payload(frame, data=_padded(data, nbits, 1), nbits=nbits)


def _padded(data: np.ndarray, nbits: int, c: int) -> np.ndarray:
    """Clear the padding bits, but for one value of `c` in eight."""
    if nbits % 8 and c % 8:
        data[-1] &= 0xFF << 8 - nbits % 8 & 0xFF
    return data


# --- seek tables --------------------------------------------------------------------------------


def _table(frame: gcodec.Frame) -> tuple[int, np.ndarray, Any, Any]:
    table = frame.seek
    if table is None:
        raise gcodec.ParameterError("no table")
    parts = (None if p is None else p.copy() for p in (table.advances, table.states))
    return table.log2_block, table.lengths.copy(), *parts


def _tabled(frame: gcodec.Frame, *table: Any) -> gcodec.Frame:
    return _with_payload(frame, seek=SeekTable(*table))


def _move(frame: gcodec.Frame, a: int, b: int, c: int) -> gcodec.Frame:
    log2_block, lengths, advances, states = _table(frame)
    column = advances if advances is not None and c % 4 == 3 else lengths
    one, other = a % column.size, b % column.size
    bits = np.uint64(min(int(column[one]), (1 + c // 4) * (8 if c % 2 else 1)))
    column[one] -= bits
    column[other] += bits
    return _tabled(frame, log2_block, lengths, advances, states)


def _number(frame: gcodec.Frame, a: int, b: int, c: int) -> gcodec.Frame:
    log2_block, lengths, advances, states = _table(frame)
    column = advances if advances is not None and a % 2 else lengths
    column[b % column.size] = max(0, int(column[b % column.size]) + c - 128)
    return _tabled(frame, log2_block, lengths, advances, states)


def _state(frame: gcodec.Frame, a: int, b: int, c: int) -> gcodec.Frame:
    log2_block, lengths, advances, states = _table(frame)
    if states is None:
        raise gcodec.ParameterError("no states")
    states[_place(a, 0, len(states)), b % 32] ^= np.uint32(1 << c % 32)
    return _tabled(frame, log2_block, lengths, advances, states)


def _swap(frame: gcodec.Frame, a: int, b: int, c: int) -> gcodec.Frame:
    log2_block, *columns = _table(frame)
    rows = [a % columns[0].size, b % columns[0].size]
    for k, column in enumerate(columns):
        if column is not None and c >> k & 1:
            column[rows] = column[rows[::-1]]
    return _tabled(frame, log2_block, *columns)


def _drop(frame: gcodec.Frame, a: int, b: int, c: int) -> gcodec.Frame:
    log2_block, *columns = _table(frame)
    at = a % columns[0].size
    for k, column in enumerate(columns):
        if column is None:
            continue
        if k < 2 and c % 2 and at + 1 < column.size:  # move the state into the next column
            column[at + 1] += column[at]
        columns[k] = np.delete(column, at, 0)
    return _tabled(frame, log2_block - c % 3 // 2, *columns)


def _repeat(frame: gcodec.Frame, a: int, b: int, c: int) -> gcodec.Frame:
    log2_block, *columns = _table(frame)
    at = a % columns[0].size
    for k, column in enumerate(columns):
        if column is None:
            continue
        row = column[at].copy()
        if k < 2 and c % 2:  # half of the value for each column
            row //= np.uint64(2)
            column[at] -= row
        columns[k] = np.insert(column, at, row, 0)
    return _tabled(frame, log2_block, *columns)


def _block(frame: gcodec.Frame, a: int, b: int, c: int) -> gcodec.Frame:
    log2_block, *columns = _table(frame)
    return _tabled(frame, max(0, log2_block + a % 7 - 3), *columns)


def _other_block(frame: gcodec.Frame, a: int, b: int, c: int) -> gcodec.Frame:
    return indexed(frame, a)


def _no_table(frame: gcodec.Frame, a: int, b: int, c: int) -> gcodec.Frame:
    return frame.without_seek()


def _made_table(frame: gcodec.Frame, a: int, b: int, c: int) -> gcodec.Frame:
    blocks, n = frame.codec.seek_blocks, frame.codec.seek_count(frame.size)
    log2_block = 5 + a % 14 if blocks == "states" else a % 20
    count = 1 + b % 4 if blocks == "values" else max(1, -(-n >> log2_block))
    lengths = np.zeros(count, np.uint64)
    lengths[c % count] = b if c % 2 else frame.payload.nbits
    advances = np.ones(count, np.uint64) << np.uint64(log2_block) if blocks == "values" else None
    states = np.full((count, 32), 1 << 16, np.uint32) if blocks == "states" else None
    return _tabled(frame, log2_block, lengths, advances, states)


# --- headers ------------------------------------------------------------------------------------


def _scalar(frame: gcodec.Frame, a: int, b: int, c: int) -> gcodec.Frame:
    fields = frame.codec.message_fields()
    if not fields:
        raise gcodec.ParameterError("no scalars")
    field = fields[a % len(fields)]
    own, words = frame.payload.scalars[field.name], getattr(field.kind, "words", ())
    values: list[Any] = [*NUMBERS, *words]
    if isinstance(own, (int, float)):
        values += [own + 1, own * 2, abs(own - 1), own / 3]
    scalars = dict(frame.payload.scalars)
    value = field.kind.check(field.name, values[b % len(values)])
    if value in getattr(field.kind, "unsent", ()):
        raise gcodec.ParameterError(
            "no message has this value"
        )  # a word that the encoder resolves first
    scalars[field.name] = value
    codec = frame.codec.of_message(scalars)
    return _like(frame, codec=codec, payload=frame.payload._replace(codec=codec, scalars=scalars))


def _parameter(frame: gcodec.Frame, a: int, b: int, c: int) -> gcodec.Frame:
    declared = frame.codec.declared()
    if not declared:
        raise gcodec.ParameterError("no parameters")
    one = declared[a % len(declared)]
    if one.in_message:
        return _scalar(frame, a, b, c)
    values = [*getattr(one.kind, "words", ()), *NUMBERS]
    value = one.kind.check(one.name, values[b % len(values)])
    codec = frame.codec.replaced(**{one.attribute: value})
    names = {field.name for field in codec.message_fields()}
    scalars = {name: value for name, value in frame.payload.scalars.items() if name in names}
    for field in codec.message_fields():
        if field.name not in scalars:
            scalars[field.name] = field.kind.check(field.name, c % 3)
    if codec.unresolved():
        raise gcodec.ParameterError("no message has this value")
    seek = frame.seek if codec.seek_blocks == frame.codec.seek_blocks else None
    payload = frame.payload._replace(codec=codec, scalars=scalars, seek=seek)
    return _like(frame, codec=codec, payload=payload)


def _shape(frame: gcodec.Frame, a: int, b: int, c: int) -> gcodec.Frame:
    n = frame.size
    shapes: list[tuple[int, ...]] = [(n,), (1, n), (n, 1), (n + 1,), (max(n - 1, 0),), (2 * n,)]
    shapes += [(n // k, k) for k in (2, 3, 7, 64) if n % k == 0]
    shapes += [(n // 9, 1, 3, 3)] if n % 9 == 0 else []
    return _like(frame, shape=shapes[a % len(shapes)])


def _dtype(frame: gcodec.Frame, a: int, b: int, c: int) -> gcodec.Frame:
    return _like(frame, dtype=DTYPES[a % len(DTYPES)])


CHANGES: tuple[Callable[..., gcodec.Frame], ...] = (
    *(_bit, _bit, _byte, _copy, _front, _front, _size),
    *(_move, _number, _state, _swap, _drop, _repeat, _block, _other_block, _no_table, _made_table),
    *(_scalar, _parameter, _shape, _dtype),
)
