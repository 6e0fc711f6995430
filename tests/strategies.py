"""Hypothesis strategies for the law tests: gradients, shapes, codecs in all settings, bytes."""

from __future__ import annotations

import functools
import math
import os
import random
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from reference import halves

import gcodec
from gcodec.codec import Codec
from gcodec.wire.kinds import Choice, Integer, Kind
from gcodec.wire.params import Param

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")
DTYPES: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float64": np.dtype(np.float64),
}
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 127, 128, 129, 255, 256, 257)
LARGE_SIZES = (4095, 4096, 4097)

# Numbers to try for codec parameters; each parameter uses those in its range.
_PROBES = (0.5, 0.25, 0.1, 1, 2, 2.5, 3, 4, 7, 8, 15, 16, 64, 255, 4096, 0.0, 0.01, 1e-3, 1e-6)
_ODD_PROBES = (-1.5, 2.0**-126, 1e-45, 3e38, math.inf, math.nan)
_INTEGERS = (*range(9), 32, 100, 4096, 2**32 - 1)
_MOST_SETTINGS = 48
# Representatives of codecs with many kernels, for laws where each setting costs a whole test.
_CHOSEN = {
    "qsgd": (
        *("qsgd", "qsgd:form=dense", "qsgd:form=sparse,bucket=7", "qsgd:norm=max"),
        *("qsgd:s=1,form=dense,bucket=100,norm=max", "qsgd:s=4096,form=sparse"),
        *("qsgd:s=4,bucket=1,code=rice", "qsgd:s=100,form=sparse,norm=max,code=rice"),
        *("qsgd:s=127,form=dense,bucket=32,code=rice", "qsgd:s=1000,form=dense"),
        *("qsgd:s=16777216,bucket=33,code=packed", "qsgd:code=auto", "qsgd:form=sparse,code=auto"),
        *("qsgd:s=32768,bucket=4294967295,code=auto", "qsgd:s=7,bucket=50,code=huffman"),
        *("qsgd:s=127,form=dense,code=huffman", "qsgd:s=1,bucket=9,code=rans", "qsgd:code=rans"),
        *("qsgd:code=context", "qsgd:s=127,bucket=40,norm=max,code=context"),
    ),
    "minifloat": (
        *("minifloat", "minifloat:style=ieee,scale=co3", "minifloat:code=none"),
        *("minifloat:format=e1m1,scale=0.5,code=none", "minifloat:format=e1m2,code=pair"),
        *("minifloat:style=fn,scale=gennorm,code=huffman", "minifloat:code=huffman,table=0"),
        *("minifloat:code=pair,table=11", "minifloat:scale=1,code=rans", "minifloat:scale=0"),
        *("minifloat:format=e3m0,code=planes", "minifloat:format=e2m2,style=ieee,scale=gennorm"),
        *("minifloat:format=e3m2,code=rans,table=gennorm", "minifloat:format=e4m3,style=fn"),
        *("minifloat:format=e4m3,code=planes", "minifloat:format=e5m2,scale=3e-38,code=huffman"),
        *("minifloat:format=e5m2,style=ieee,code=none", "minifloat:format=e5m2,table=empirical"),
        *("minifloat:block=3", "minifloat:format=e4m3,scale=2,code=none,block=32"),
        *("minifloat:code=context", "minifloat:format=e5m2,code=context,block=7"),
    ),
    "mxnet-2bit": (
        *("mxnet-2bit", "mxnet-2bit:threshold=0.25,server=yes", "mxnet-2bit:threshold=auto"),
        *("mxnet-2bit:threshold=inf", "mxnet-2bit:threshold=1.1754944e-38,form=auto"),
        *("mxnet-2bit:threshold=3e38", "mxnet-2bit:threshold=1e-06,server=yes,form=sparse"),
        *("mxnet-2bit:form=sparse,index=auto", "mxnet-2bit:form=sparse,index=bitmap"),
        *("mxnet-2bit:threshold=auto,form=auto,index=auto", "mxnet-2bit:form=auto,index=rans"),
        *("mxnet-2bit:form=context", "mxnet-2bit:threshold=auto,server=yes,form=context"),
    ),
    "minmax": (
        *("minmax", "minmax:bits=1", "minmax:rounding=stochastic", "minmax:bits=4,bucket=7"),
        *("minmax:bits=1,bucket=3", "minmax:bits=2,bucket=4294967295,rounding=stochastic"),
        *("minmax:bits=3,bucket=1,rounding=stochastic", "minmax:bits=5,bucket=4096"),
        *("minmax:bits=6,bucket=100,rounding=stochastic", "minmax:bits=7,bucket=6"),
        "minmax:bits=2,bucket=8,rounding=stochastic",
    ),
    "dct8": (
        *("dct8", "dct8:chunk=1", "dct8:layout=tiles", "dct8:values=affine8", "dct8:index=rice"),
        *("dct8:chunk=8,k=1,layout=tiles,values=affine8", "dct8:chunk=15,k=65536,index=fixed"),
        *("dct8:chunk=4096,k=3,layout=tiles,values=float32,index=fixed", "dct8:values=float32"),
        *("dct8:chunk=2,k=8,values=affine8,index=rice", "dct8:chunk=255,k=100,index=fixed"),
        *("dct8:chunk=16,layout=tiles,index=fixed", "dct8:chunk=64,k=4096,index=rice"),
        "dct8:chunk=8,k=4,values=float32,index=rice,layout=tiles",
    ),
    "topk": (
        *("topk", "topk:value=sign", "topk:value=int8,index=rice", "topk:k=3,value=float16"),
        *("topk:index=bitmap,ratio=1.0,value=bfloat16", "topk:index=rans,ratio=0.5"),
        *("topk:index=huffman,ratio=0.3,value=int8", "topk:index=eliasfano,k=100"),
        *("topk:threshold=0.5", "topk:k=1", "topk:threshold=1e-06,value=sign,index=rice"),
    ),
    "ecsq": (
        *("ecsq", "ecsq:nmse=0.5", "ecsq:nmse=1e-06", "ecsq:step=0.25", "ecsq:step=0.001"),
        *("ecsq:rounding=stochastic", "ecsq:rounding=stochastic,step=0.5", "ecsq:step=1000.0"),
    ),
    "lowrank": (
        *("lowrank", "lowrank:nmse=0.5", "lowrank:nmse=0.001", "lowrank:trellis=yes"),
        *("lowrank:step=0.25", "lowrank:rank=0,step=0.5", "lowrank:rank=1,step=0.5"),
        "lowrank:rank=2,trellis=yes,step=1.0",
    ),
    "microscale": (
        *("microscale", "microscale:format=mxfp8e5m2,scale=rceil,code=huffman"),
        *("microscale:format=mxfp6e2m3,scale=even", "microscale:format=mxfp6e3m2,scale=ceil"),
        *("microscale:format=mxfp4,scale=rceil", "microscale:format=mxfp4,code=rans"),
        *("microscale:format=mxint8,code=context", "microscale:format=nvfp4"),
        *("microscale:format=nvfp4,code=auto", "microscale:format=nvfp4,tensor_scale=0.25"),
        *("microscale:scale=ceil,rounding=stochastic", "microscale:code=auto,scale=even"),
        "microscale:format=nvfp4,code=context,rounding=stochastic",
    ),
    "blockwise": (
        *("blockwise", "blockwise:nested=yes,block=32", "blockwise:kind=fp4,code=huffman"),
        *("blockwise:kind=dynamic8,block=4096", "blockwise:kind=dynamic8,nested=yes,block=100"),
        *("blockwise:kind=int8,block=33", "blockwise:kind=int4,block=2,code=rans"),
        *("blockwise:kind=fp8,block=0", "blockwise:kind=fp8,code=huffman,block=7"),
        *("blockwise:kind=uniform8", "blockwise:kind=uniform8,code=rans"),
        *("blockwise:kind=quantile8,code=auto", "blockwise:kind=int8,code=auto,block=0"),
        *("blockwise:kind=meanstd16,block=0", "blockwise:kind=meanstd16,block=100,code=auto"),
    ),
    "sparseloco": (
        *("sparseloco", "sparseloco:k=2,chunk=4", "sparseloco:k=1,bins=2,index=rans"),
        *("sparseloco:k=5,chunk=3,bins=256,code=huffman", "sparseloco:index=bitmap,code=none"),
        *("sparseloco:chunk=256,k=65536,bins=5,index=huffman", "sparseloco:sigmas=1.5,bins=16"),
        *("sparseloco:k=8,index=eliasfano,code=huffman", "sparseloco:k=3,chunk=8,index=rice"),
    ),
    "powersgd": ("powersgd", "powersgd:rank=1", "powersgd:rank=2", "powersgd:rank=65536"),
    "randomk": (
        *("randomk", "randomk:k=3", "randomk:unbiased=yes", "randomk:ratio=0.7,value=float16"),
        *("randomk:k=100,unbiased=yes,value=bfloat16", "randomk:value=int8"),
        *("randomk:ratio=1.0,value=sign", "randomk:k=4096,unbiased=yes,value=int8", "randomk:k=1"),
    ),
}
# Settings that accept all gradients, for codecs whose defaults or targets reject some.
_TARGETS = {
    "ecsq": (
        *("ecsq", "ecsq:nmse=0.5", "ecsq:nmse=0.001", "ecsq:rounding=stochastic"),
        *("ecsq:rounding=stochastic,nmse=0.25", "ecsq:trellis=yes", "ecsq:nmse=0.2,trellis=yes"),
        "ecsq:transform=none",
    ),
    "lowrank": (
        *("lowrank", "lowrank:nmse=0.5", "lowrank:nmse=0.001", "lowrank:nmse=0.02,trellis=yes"),
        "lowrank:nmse=0.3,transform=none",
    ),
}
MODERATE = np.float32(1e30)  # every codec accepts finite values up to this magnitude


def values_of(declared: Param) -> list[Any]:
    """Return values that a declared parameter accepts: all words, several numbers."""
    words = getattr(declared.kind, "words", ())
    numbers: tuple[float, ...] = (*_PROBES, *_ODD_PROBES)
    if isinstance(declared.kind, Integer):
        numbers = (*_INTEGERS, declared.kind.high)
    candidates = [declared.default, *words, *numbers]
    results: list[Any] = []
    for candidate in candidates:
        try:
            value = declared.kind.check(declared.name, candidate)
            if isinstance(declared.kind, Integer):
                declared.kind.check_asked(declared.name, value)
        except gcodec.ParameterError:
            continue
        if repr(value) not in map(repr, results):
            results.append(value)
    return results


def parameters_of(codec: Codec) -> dict[str, Any]:
    """Return the values of the declared parameters by their names in specs."""
    return {declared.name: getattr(codec, declared.attribute) for declared in codec.declared()}


@functools.cache
def settings_of(cls: type[Codec]) -> tuple[Codec, ...]:
    """Return codecs of one class: each value of each parameter alone, and many combinations."""
    if cls.name in _TARGETS:
        return tuple(gcodec.parse(spec) for spec in _TARGETS[cls.name])
    declared = cls.declared()
    values = [values_of(one) for one in declared]
    rows: list[dict[str, Any]] = [{}]
    for one, allowed in zip(declared, values, strict=True):
        rows += [{one.name: value} for value in allowed]
    rng = random.Random(cls.name)
    for _ in range(20 * _MOST_SETTINGS):
        rows.append({d.name: rng.choice(v) for d, v in zip(declared, values, strict=True)})
    results: dict[str, Codec] = {}
    for at, row in enumerate(rows):
        alone = at <= sum(map(len, values))
        if not alone and len(results) >= _MOST_SETTINGS:
            break
        try:
            codec = cls.from_mapping(row)
        except gcodec.ParameterError:
            continue
        results.setdefault(str(codec), codec)
    return tuple(results.values())


def all_settings() -> list[Codec]:
    """Return every registered codec in its settings."""
    return [codec for cls in gcodec.codecs().values() for codec in settings_of(cls)]


CODECS = all_settings()


def _few_settings() -> list[Codec]:
    """Return codecs with every word and integer of every parameter, and some other numbers.

    Tests use this shorter list where each codec costs a whole test.
    """
    seen: dict[object, int] = {}
    results = []
    others = [codec for codec in CODECS if codec.name not in _CHOSEN]
    for codec in others:
        values = parameters_of(codec).values()
        kind = (type(codec), *(v if isinstance(v, str) else "number" for v in values))
        seen[kind] = seen.get(kind, 0) + 1
        odd = [v for v in values if isinstance(v, float) and not math.isfinite(v)]
        if seen[kind] <= 2 or odd:
            results.append(codec)
    covered = {(type(c), *item) for c in results for item in parameters_of(c).items()}
    for codec in reversed(others):  # combinations first
        items = parameters_of(codec).items()
        new = {(type(codec), *item) for item in items if isinstance(item[1], int)} - covered
        if new:
            results.append(codec)
            covered |= new
    results.sort(key=CODECS.index)
    return [*results, *(gcodec.parse(spec) for specs in _CHOSEN.values() for spec in specs)]


FEW = _few_settings()


def missing_scalars(codec: Codec) -> list[str]:
    """Return the names of the scalars that bare bytes of this codec lack."""
    return [*codec.unresolved(), *(field.name for field in codec.scalar_fields())]


def scalars_for(codec: Codec) -> dict[str, Any]:
    """Return a value for each scalar that bare bytes of this codec lack."""
    fields = {field.name: field.kind for field in codec.message_fields()}
    names = [name for name in missing_scalars(codec) if name in fields]
    return {name: _sample(fields[name]) for name in names}


def _sample(kind: Kind) -> Any:
    """Return a value of a field."""
    if isinstance(kind, Choice):
        return kind.words[0]
    return 2 if isinstance(kind, Integer) else 0.5


@functools.cache
def codecs() -> st.SearchStrategy[Codec]:
    """Draw any codec in any setting, each class equally often.

    The variable GCODEC_TEST_CODEC restricts the tests to one codec, such as one of your own.
    """
    only = os.environ.get("GCODEC_TEST_CODEC")
    classes = [gcodec.codecs()[only]] if only else gcodec.codecs().values()
    of_class = [[c for c in CODECS if type(c) is cls] for cls in classes]
    return st.one_of([st.sampled_from(actual) for actual in of_class])


@functools.cache
def sizes(large: bool = False) -> st.SearchStrategy[int]:
    """Draw numbers of elements around the sizes of words, tiles and blocks."""
    return st.sampled_from(SIZES + (LARGE_SIZES if large else ()))


@functools.cache
def seeds() -> st.SearchStrategy[int]:
    """Draw seeds of 64 bits."""
    return st.sampled_from([0, 1, 7, 2**32 - 1, 2**32, 2**63, 2**64 - 1])


def threshold_of(codec: Codec | None) -> float:
    """Return a decision threshold of the codec, for drawing ties."""
    threshold = getattr(codec, "threshold", 0.5)
    if isinstance(threshold, float) and math.isfinite(threshold) and threshold != 0:
        return threshold
    return 0.5


SPECIALS = np.array([np.nan, np.inf, -np.inf], np.float32)


@st.composite
def gradients(
    draw: st.DrawFn,
    codec: Codec | None = None,
    *,
    size: int | None = None,
    large: bool = False,
    finite: bool = True,
    modest: bool = False,
) -> np.ndarray:
    """Draw a flat float32 gradient.

    Parameters
    ----------
    codec : Codec, optional
        Codec that must accept the gradient; some elements are equal to its threshold, or the next
        floats below and above.
    size : int, optional
        Number of elements.
    large : bool
        Whether to draw sizes around 4096 too.
    finite : bool
        Whether to exclude NaN and Inf.
    modest : bool
        Whether magnitudes stay within 2**±10, far from the range limits of float16.
    """
    n = draw(sizes(large)) if size is None else size
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kinds = ["zeros", "normal", "tails", "ties", "integers", "mixed", "constant", "offset"]
    wild = ["tiny", "huge", "patterns", "neighbors", "small", "large"]
    kind = draw(st.sampled_from(kinds if modest else [*kinds, *wild]))
    with np.errstate(all="ignore"):
        x = _gradient(kind, n, rng, np.float32(threshold_of(codec)))
        if modest:
            x = np.clip(x, -1024, 1024).astype(np.float32)
            x[np.abs(x) < 2.0**-10] = 0
    x[~np.isfinite(x)] = 0
    if codec is not None and codec.takes_up_to < math.inf:
        x[np.abs(x) > MODERATE] *= np.float32(2.0**-40)
    if not finite and n:
        for at in draw(st.lists(st.integers(0, n - 1), max_size=4)):
            x[at] = draw(st.sampled_from(list(SPECIALS)))
    return placed(x, draw(st.sampled_from([0, 1, 4, 8, 12, 15])))


def placed(x: np.ndarray, offset: int) -> np.ndarray:
    """Copy a flat float32 array to an address `offset` elements into a cache line."""
    memory = np.zeros(x.size + 48, np.float32)
    start = -(memory.ctypes.data // 4) % 16 + offset
    memory[start : start + x.size] = x
    return memory[start : start + x.size]


def _gradient(kind: str, n: int, rng: np.random.Generator, t: np.float32) -> np.ndarray:
    if kind == "zeros":
        return np.where(rng.random(n) < 0.5, np.float32(0), np.float32(-0.0)).astype(np.float32)
    if kind == "normal":
        return rng.standard_normal(n, np.float32)
    if kind == "tails":
        return (rng.standard_t(1.5, n) * 0.1).astype(np.float32)
    if kind == "integers":
        return rng.integers(-64, 65, n).astype(np.float32) / np.float32(16)
    if kind == "tiny":
        bits = rng.integers(0, 1 << 24, n, np.uint32) | rng.integers(0, 2, n, np.uint32) << 31
        return bits.astype(np.uint32).view(np.float32)
    if kind == "constant":
        return np.full(n, rng.standard_normal() * 10.0 ** rng.integers(-3, 3), np.float32)
    if kind == "offset":
        return (rng.choice([-1e4, 1e4]) / 16 + rng.standard_normal(n) * 1e-3).astype(np.float32)
    if kind == "neighbors":
        lowest = rng.integers(0, 0x7F000000) | rng.integers(0, 2) << 31
        steps = rng.integers(0, rng.choice([2, 3, 17, 256]), n)
        return (lowest + steps).astype(np.uint32).view(np.float32)
    if kind in ("small", "large"):
        size = 1e-30 if kind == "small" else 1e30
        return (rng.standard_normal(n) * size).astype(np.float32)
    if kind == "huge":
        return (rng.standard_normal(n) * 1e38).astype(np.float32)
    if kind == "patterns":
        return rng.integers(0, 1 << 32, n, np.uint32).view(np.float32)
    edges = np.array(
        [
            *(t, -t, np.nextafter(t, np.float32(0)), np.nextafter(-t, np.float32(0))),
            *(np.nextafter(t, np.float32(np.inf)), np.float32(2) * t, t / np.float32(2)),
            *(0.0, -0.0, 1.0, -1.0, 2.0**-126, -(2.0**-149)),
        ],
        np.float32,
    )
    ties = rng.choice(edges, n) if n else np.zeros(0, np.float32)
    if kind == "ties":
        return ties
    return np.where(rng.random(n) < 0.5, ties, rng.standard_normal(n)).astype(np.float32)


@functools.cache
def dtypes() -> st.SearchStrategy[str]:
    """Draw names of floating-point dtypes of frames."""
    return st.sampled_from(list(DTYPES))


@st.composite
def integers(draw: st.DrawFn, size: int | None = None) -> np.ndarray:
    """Draw a flat array of integers or booleans, of any such dtype of frames."""
    n = draw(sizes()) if size is None else size
    kind = np.dtype(draw(st.sampled_from(INTEGERS)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    data = rng.integers(0, 256, n * kind.itemsize).astype(np.uint8)
    if kind == np.bool_:
        return data > 127
    front = np.zeros(draw(st.sampled_from([0, 1, 3, 8])), kind)
    x = np.concatenate([front, data.view(kind)])[front.size :]
    for at in draw(st.lists(st.integers(0, n - 1), max_size=4)) if n else ():
        edges = np.iinfo(kind)
        x[at] = draw(st.sampled_from([0, 1, int(edges.min), int(edges.max)]))
    return x


def f32(*values: float) -> np.ndarray:
    """Return values as a float32 array."""
    return np.array(values, np.float32)


def as_dtype(x: np.ndarray, dtype: str) -> np.ndarray:
    """Convert a float32 array; overflowing values become zero, so that finite stays finite."""
    if dtype == "float32":
        return x
    with np.errstate(all="ignore"):
        out = x.astype(DTYPES[dtype])
    lost = np.isinf(out.astype(np.float32)) & np.isfinite(x)
    out[lost] = 0
    return out


def narrowed(x: np.ndarray, dtype: str) -> np.ndarray:
    """Convert float32 values to an array of `dtype` with the reference."""
    flat = x.reshape(-1)
    if dtype in ("float16", "bfloat16"):
        return halves.narrow(flat, dtype).view(DTYPES[dtype]).reshape(x.shape)
    return x.astype(DTYPES[dtype])


def widened(x: np.ndarray) -> np.ndarray:
    """Convert values of a frame's dtype to float32 with the reference."""
    if x.dtype.itemsize == 2:
        name = "float16" if x.dtype == np.float16 else "bfloat16"
        return halves.widen(x.reshape(-1).view(np.uint16), name).reshape(x.shape)
    return x.astype(np.float32)


@st.composite
def shapes(draw: st.DrawFn, n: int) -> tuple[int, ...]:
    """Draw a shape of n elements with 0 to 32 dimensions."""
    if n == 0:
        others = draw(st.lists(st.sampled_from([0, 1, 3, 2**19]), max_size=3))
        return (*others, 0)
    dims: list[int] = []
    rest = n
    for factor in (2, 3, 5, 17):
        while rest % factor == 0 and draw(st.booleans()):
            dims.append(factor)
            rest //= factor
    if rest != 1 or draw(st.booleans()):
        dims.insert(draw(st.integers(0, len(dims))), rest)
    ones = draw(st.sampled_from([0, 0, 1, 2, 32 - len(dims)]))
    return (*dims[:1], *[1] * ones, *dims[1:])


@functools.cache
def names() -> st.SearchStrategy[str | None]:
    """Draw a name of a tensor, or None."""
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    return st.one_of(st.none(), text, st.just("w" * 300))


@functools.cache
def keys() -> st.SearchStrategy[bytes | None]:
    """Draw a key of a tag, or None."""
    return st.one_of(st.none(), st.binary(min_size=1, max_size=64))


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two arrays have equal dtype, shape and bits, with all NaN equal."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    equal = a.reshape(-1).view(unsigned) == b.reshape(-1).view(unsigned)
    return bool(np.all(equal | (np.isnan(a) & np.isnan(b)).reshape(-1)))
