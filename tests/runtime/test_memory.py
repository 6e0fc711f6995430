"""Memory that encoding and decoding allocate, as NumPy reports it to tracemalloc."""

from __future__ import annotations

import itertools
import json
import os
import platform
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from segments import split_inputs
from sweeps import thinned

import gcodec
from gcodec.codecs.ecsq import codec as ecsq
from gcodec.entropy.context import byte_coder, coder
from gcodec.kernels.bits import computed_symbols
from gcodec.runtime import memory

N = 1 << 23
NBYTES = 4 * N
SPECS = [
    *("mxnet-2bit", "mxnet-1bit", "terngrad", "terngrad:pack=terngrad", "terngrad:pack=base3"),
    *("minmax", "minmax:bits=3,rounding=stochastic", "minmax:bits=1,bucket=100"),
    *("sign", "sign:scale=l2", "sign:scale=none", "microscale", "microscale:format=nvfp4"),
    *("blockwise", "blockwise:kind=fp8,block=4096", "blockwise:kind=uniform8"),
    *("blockwise:kind=meanstd16", "blockwise:kind=meanstd16,block=0"),
    *("randomk", "randomk:value=sign,unbiased=yes"),
]


def peak(call: Callable[[], Any]) -> tuple[Any, int]:
    tracemalloc.start()
    try:
        result = call()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("spec", SPECS)
def test_calls_need_little_more_memory_than_their_result(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call needs memory for its result, and less than a tenth of the tensor in addition."""
    monkeypatch.setenv("GCODEC_NUM_THREADS", "1")
    x = np.resize(np.random.default_rng(0).standard_normal(65_536, np.float32), N)
    codec = gcodec.parse(spec)
    # Compile the kernels first, including those for large results.
    gcodec.decode(gcodec.encode(x, codec))
    gcodec.decode(gcodec.encode(x[:99], codec), out=np.zeros(99, np.float32))
    gcodec.decode_add(gcodec.encode(x[:99], codec), np.zeros(99, np.float32))
    codec.quantize_residual(x[:99], np.zeros(99, np.float32))
    slack = NBYTES // 10
    payload, used = peak(lambda: codec.encode(x))
    assert used <= payload.data.nbytes + slack
    assert peak(lambda: codec.decode(payload, N))[1] <= NBYTES + slack
    frame, used = peak(lambda: gcodec.encode(x, codec))
    assert used <= 2 * len(frame) + slack  # the payload and the frame
    assert peak(lambda: gcodec.decode(frame))[1] <= NBYTES + slack
    acc = np.zeros(N, np.float32)
    assert peak(lambda: gcodec.decode(frame, out=acc))[1] <= slack
    assert peak(lambda: gcodec.decode_add(frame, acc))[1] <= slack
    assert peak(lambda: codec.quantize_residual(x, acc))[1] <= payload.data.nbytes + slack


FEWER = 1 << 22


def shaped(kind: str) -> np.ndarray:
    """Return values like a gradient's, with buckets of zeros, or with tiny norms."""
    x = np.resize(np.random.default_rng(0).standard_normal(1 << 18, np.float32), FEWER)
    if kind == "zero norms":
        x.reshape(-1, 512)[::3] = 0
    return x * np.float32(1e-33) if kind == "tiny" else x


@pytest.mark.parametrize(("kind", "bucket"), [("normal", 0), ("zero norms", 512), ("tiny", 64)])
@pytest.mark.parametrize(
    ("form", "s"),
    [
        # Each form and each s occurs at least once.
        *thinned(
            itertools.product(
                ["form=dense", "form=sparse", "code=auto", "form=dense,code=packed"],
                [15, 127, 1000, 2**24],
            ),
            5,
        ),
        *(("code=context", s) for s in (15, 127)),
    ],
)
def test_memory_of_levels(
    form: str, s: int, bucket: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call needs memory for its result and input, and 1.2 times the tensor in addition."""
    monkeypatch.setenv("GCODEC_NUM_THREADS", "1")
    x = shaped(kind)
    codec = gcodec.parse(f"qsgd:{form},s={s},bucket={bucket}")
    codec.decode(codec.encode(x), x.size)  # compile the kernels first
    tables = 3 << 20 if form == "code=context" else 0  # of 64 models, and of the symbols' classes
    payload, used = peak(lambda: codec.encode(x))
    most = payload.data.nbytes + 1.2 * x.nbytes + tables
    assert used <= most
    assert peak(lambda: codec.decode(payload, x.size))[1] <= most


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "spec",
    [
        *("qsgd:bucket=512", "qsgd:bucket=100,code=auto", "qsgd:bucket=700000,norm=max", "qsgd"),
        *("minifloat", "minifloat:code=none,scale=gennorm", "minifloat:format=e4m3,block=32"),
        *("ecsq", "ecsq:step=0.3,rounding=stochastic", "ecsq:bits=2"),
        *("sparseloco", "dct8", "dct8:layout=tiles,chunk=30x40"),
    ],
)
def test_tensors_of_16_bits_are_converted_in_parts(
    spec: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An encoder needs less memory than a float32 copy, and writes what it writes for the copy."""
    monkeypatch.setattr(ecsq, "_FEW", 0)
    monkeypatch.setenv("GCODEC_NUM_THREADS", "1")
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x, codec = shaped("normal").reshape(-1, 512).astype(kind), gcodec.parse(spec)
    expected = codec.encode(x.astype(np.float32), seed=3)  # compiles most kernels
    codec.encode(x, seed=3)
    payload, used = peak(lambda: codec.encode(x, seed=3))
    assert payload.tobytes() == expected.tobytes() and payload.scalars == expected.scalars
    assert used < 4 * x.size


# Limit of the growth of resident memory, relative to input and frame. Scratch of kernels accounts
# for a few hundredths; `python -m bench.memory` measures a tensor of 1 GiB, whose limit is 1.2.
MOST_RESIDENT = 1.27
RESIDENT = {
    "float32": [
        *("raw", "sign", "mxnet-2bit", "terngrad", "minmax", "randomk", "powersgd"),
        *("qsgd:form=dense", "qsgd:bucket=512", "qsgd:bucket=512,code=auto"),
        *("qsgd:bucket=512,code=rans", "qsgd:s=127,bucket=512,code=huffman"),
        *("minifloat", "minifloat:block=32", "minifloat:code=none", "minifloat:format=e4m3"),
        *("ecsq:step=1", "ecsq:nmse=0.05", "ecsq:rounding=stochastic,step=1"),
        *("topk", "topk:ratio=0.1", "ecsq:trellis=yes", "sparseloco", "terngrad:pack=context"),
        *("mxnet-2bit:threshold=auto,form=context", "topk:ratio=0.1,index=rice"),
        *("qsgd", "qsgd:s=4096", "qsgd:s=128,bucket=512", "ecsq:bits=1", "ecsq:nmse=0.5"),
        *("mxnet-2bit:threshold=auto,form=auto", "microscale:code=auto", "blockwise:code=auto"),
        *("topk:ratio=0.5", "randomk:ratio=0.5", "dct8:k=512"),
    ],
    "float16": [
        *("raw", "raw:dtype=float16", "sign", "sign:scale=l2", "mxnet-2bit", "mxnet-1bit"),
        *("mxnet-2bit:threshold=auto", "terngrad", "terngrad:pack=base3", "minmax", "randomk"),
        *("microscale:code=auto", "blockwise:code=auto"),
    ],
    "bfloat16": [
        *("sign", "minmax:bits=4,bucket=512", "qsgd:form=dense", "minifloat:format=e4m3"),
        *("mxnet-2bit:threshold=auto,form=auto", "ecsq:step=1", "qsgd:bucket=512", "powersgd"),
    ],
}
ENCODING = {
    # A byte for each element, half as large as the element.
    "ecsq:step=1 of bfloat16": 1.5,
    "qsgd:bucket=512 of bfloat16": 1.45,
    # Parts in float32 are larger beside the smaller input. With a whole copy: 2.7 to 2.9.
    "qsgd:form=dense of bfloat16": 1.45,
    "minifloat:format=e4m3 of bfloat16": 1.35,
    "mxnet-2bit:threshold=auto,form=auto of bfloat16": 1.35,
}
DECODING = {
    # Codecs that cannot decode parts of a tensor first decode a whole float32 array.
    "randomk of float16": 2.2,
    # Positions have 8 bytes, even where all elements are sent.
    "topk:ratio=0.1 of float32": 1.3,
    "topk:ratio=0.1,index=rice of float32": 1.3,
    "topk:ratio=0.5 of float32": 2.1,
    "randomk:ratio=0.5 of float32": 2.1,
    "dct8:k=512 of float32": 1.4,
    "qsgd:form=dense of bfloat16": 2.0,
    "qsgd:bucket=512 of bfloat16": 2.0,
    "ecsq:step=1 of bfloat16": 2.0,
    "minifloat:format=e4m3 of bfloat16": 1.5,
    "blockwise:code=auto of float16": 1.4,
    "microscale:code=auto of float16": 1.5,
    "powersgd of bfloat16": 1.5,
}
_MEASURE = """
import json, sys
from gcodec.codecs.ecsq import codec as ecsq
from gcodec.codecs.mxnet import two_bit
from gcodec.entropy.context import models
from gcodec.kernels.bits import computed_symbols
from gcodec.runtime import memory
memory._LARGEST_REUSED, memory._PAGE = 1 << 19, 1 << 15  # as for arrays 30 times as large
models._KEPT, models._CODED, computed_symbols._FEW = 1 << 18, 1 << 16, 1 << 19
ecsq._FEW, two_bit._FEW = 1 << 19, 1 << 16
from bench.memory import measure
elements, wanted = json.loads(sys.argv[1])
ratios = {}
for dtype, specs in wanted.items():
    for spec in specs:
        peak = measure(spec, elements, dtype, 1)
        ratios[f"{spec} of {dtype}"] = peak.encode_ratio, peak.decode_ratio
print(json.dumps(ratios))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the peak of resident memory")
def test_memory_of_sums_by_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is a segment, but not every segment has sums of all columns."""
    split_inputs(monkeypatch, 1 << 14)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((32, 1 << 15), np.float32)
    x *= np.exp2(3 * rng.standard_normal(1 << 15, np.float32))
    spec, frames = "ecsq:step=0.5,trellis=yes", []
    for threads in ("1", "4"):
        monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
        gcodec.encode(x, spec)  # compile the kernels first
        frame, used = peak(lambda: gcodec.encode(x, spec))
        frames.append(frame)
        assert used <= 6 * x.nbytes  # of four threads at once; with sums of each row, 10.8
    assert frames[0] == frames[1]


def test_resident_memory() -> None:
    """Resident memory includes symbols, and the copy of the payload in the frame."""
    environment = os.environ | {
        "GCODEC_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": str(1 << 15),  # return freed memory to the system
    }
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, json.dumps([1 << 23, RESIDENT])],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ratios = json.loads(done.stdout)
    for name, (encoding, decoding) in ratios.items():
        assert decoding <= DECODING.get(name, MOST_RESIDENT), name
        assert encoding <= ENCODING.get(name, MOST_RESIDENT), name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize(
    "spec",
    [
        *("raw", "sign", "mxnet-1bit", "mxnet-2bit:form=context", "qsgd", "terngrad"),
        *("terngrad:pack=base3", "terngrad:pack=terngrad", "minmax:bits=3"),
        *("minmax:bits=5,bucket=100", "minmax:bits=1,bucket=300001"),
    ],
)
def test_parts_decode_to_the_rounded_whole(spec: str, dtype: str) -> None:
    """The last of several parts ends within a block, a byte and a bucket."""
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x = np.random.default_rng(3).standard_normal(700_003, np.float32).astype(kind)
    codec = gcodec.parse(spec)
    frame = gcodec.encode(x, codec)
    payload = gcodec.Frame.from_bytes(frame).payload
    expected = payload.codec.decode(payload, x.size).astype(kind).tobytes()
    out = np.empty_like(x)
    assert gcodec.decode(frame, out=out) is out
    assert out.tobytes() == gcodec.decode(frame).tobytes() == expected


@pytest.mark.parametrize("nonfinite", ["raise", "propagate"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_memory_of_the_caller_is_not_released(dtype: str, nonfinite: str) -> None:
    """The payload of ``raw`` is the memory of the tensor."""
    x = np.full(9 << 20, 3, dtype)
    frame = gcodec.encode(x, "raw", nonfinite=nonfinite)  # type: ignore[call-overload]
    assert (x == 3).all()
    assert frame[-4 - x.nbytes : -4] == memoryview(x).cast("B")


def test_only_elements_that_were_read_are_released() -> None:
    """The elements left, those beyond a limit, and the memory around an array stay as they are."""
    block = np.full(44 << 20, 7, np.uint8)
    first, end = 3_000_001, (37 << 20) + 3_000_007
    array, around = block[first:end], (block[:first], block[end:])
    half, limit = array.size // 2 + 5, array.size - 3_000_003

    def check(left: np.ndarray, drained: np.ndarray) -> None:
        assert (left == 7).all() and all((part == 7).all() for part in around)
        assert memory.page_adviser() is None or np.count_nonzero(drained == 0) > 8 << 20
        array[:] = 7

    drainable = memory.Drainable(array)
    drainable.done(0, half)
    check(array[half:], array[:half])
    drainable = memory.Drainable(array)
    drainable.done(half, array.size)
    check(array[:half], array[half:])
    drainable = memory.Drainable(array).limited(limit)
    drainable.done(0, array.size)
    check(array[limit:], array[:limit])
    memory.Drainable(array).drop()
    check(array[:0], array)


@pytest.mark.parametrize("spec", ["microscale", "microscale:rounding=stochastic", "minifloat"])
def test_codes_are_restored_where_a_written_string_is_not_the_shortest(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A context string that is longer than estimated releases codes that the next one needs."""
    monkeypatch.setattr(memory, "_LARGEST_REUSED", 1 << 16)
    monkeypatch.setattr(memory, "_PAGE", 1 << 12)
    monkeypatch.setattr(computed_symbols, "_FEW", 0)
    rng, name = np.random.default_rng(0), f"{spec}{',' if ':' in spec else ':'}"
    x = rng.standard_normal((2048, 512), np.float32)
    x *= np.exp2(2 * rng.standard_normal(512, np.float32))
    codes = "none", "huffman", "rans"
    alone = [gcodec.encode(x, f"{name}code={code}", seed=1) for code in codes]
    auto = gcodec.encode(x, f"{name}code=auto", seed=1)
    assert "code=context" in str(gcodec.Frame.from_bytes(auto).codec)
    write_bytes, write = byte_coder.write, coder.write

    def write_longer(*arguments: Any) -> Any:
        return write_bytes(*arguments)._replace(nbits=1 << 40)

    def refuse(*arguments: Any) -> Any:
        return write(*arguments[:4], lambda total: arguments[4](1 << 40))

    monkeypatch.setattr(byte_coder, "write", write_longer)
    monkeypatch.setattr(coder, "write", refuse)
    assert gcodec.encode(x, f"{name}code=auto", seed=1) == min(alone, key=len)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has such thresholds")
@pytest.mark.parametrize("spec", ["minmax", "microscale"])
def test_freed_memory_is_kept_for_the_next_call(spec: str) -> None:
    """Even if the caller never frees a large array, as one that keeps its gradients."""
    program = (
        "import mmap, resource, sys\n"
        "import gcodec, numpy as np\n"
        "x = np.frombuffer(mmap.mmap(-1, 4_000_000), np.float32)\n"
        "x[::7] = 1.5\n"
        "x[::3] = 0.3\n"
        "def encode():\n"
        "    for _ in range(9):\n"
        "        gcodec.encode(x, sys.argv[1])\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "first, second = encode(), encode()\n"
        "print(second - first)\n"
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    environment = {**kept, "GCODEC_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, spec]
    output = subprocess.run(command, env=environment, text=True, capture_output=True, check=True)
    assert int(output.stdout) < 9 * 50  # without this, hundreds for each call


@pytest.mark.parametrize("size", (1, 1000, 1 << 18, (1 << 20) + 3))
def test_large_arrays_start_in_the_middle_of_a_small_page(size: int) -> None:
    for _ in range(3):
        array = memory.aligned_empty(size, np.float32)
        assert array.size == size
        assert array.ctypes.data % memory.LINE == 0
        if size >= 1 << 18:
            assert array.ctypes.data % 4096 == 2048


@pytest.mark.parametrize("first", (0, 1, 4, 32, 1000))
def test_tiles_keep_apart_from_what_they_are_written_to(first: int) -> None:
    """Within a small page, a tile starts a quarter of it before its output."""
    out = np.empty(5000, np.float32)[first:]
    tile = memory.tile_beside(2048, out)
    assert tile.size == 2048
    assert tile.dtype == np.float32
    assert tile.ctypes.data % memory.LINE == 0
    assert 1024 <= (out.ctypes.data - tile.ctypes.data) % 4096 < 1024 + memory.LINE
