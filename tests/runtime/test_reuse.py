"""Memory of dropped results is reused: once, within a bound, in any thread and process."""

from __future__ import annotations

import contextlib
import copy
import gc
import mmap
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.runtime import reuse
from gcodec.runtime.reuse import result_beside

LEAST = 1 << 12  # bytes; a small threshold suits tests of the bookkeeping
MIB = 1 << 20


@pytest.fixture(autouse=True)
def blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[reuse._Blocks]:
    """Replace the blocks of the process by none."""
    own = reuse._Blocks()
    monkeypatch.setattr(reuse, "_BLOCKS", own)
    monkeypatch.setattr(reuse, "_LEAST", LEAST)
    monkeypatch.setenv("GCODEC_KEPT_MIB", "1")
    yield own
    own.forget()


def result(nbytes: int) -> np.ndarray:
    return result_beside(nbytes // 4, np.float32, None)


def address(array: np.ndarray) -> int:
    start: int = array.__array_interface__["data"][0]
    return start


def test_memory_waits_after_the_last_view_is_gone(blocks: reuse._Blocks) -> None:
    array = result(LEAST)
    start, view = address(array), array.reshape(2, -1)[1:, ::2]
    del array
    assert not blocks._blocks
    del view
    assert [address(block.array) for block in blocks._blocks] == [start]
    again = result(LEAST)
    assert address(again) == start
    assert not blocks._blocks
    other = result(LEAST)
    assert address(other) != start  # nobody else gets it
    del again, other
    assert len(blocks._blocks) == len({address(block.array) for block in blocks._blocks}) == 2


def test_results_are_ordinary_arrays() -> None:
    array = result(LEAST)
    array[:] = np.arange(array.size)
    assert type(array) is np.ndarray
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.flags.aligned
    assert not address(array) % 64
    assert not array.flags.owndata  # as for other results of this size
    for other in (copy.copy(array), copy.deepcopy(array), pickle.loads(pickle.dumps(array))):
        assert type(other) is np.ndarray
        assert np.array_equal(other, array)
        assert not np.may_share_memory(other, array)
    with pytest.raises(ValueError, match="cannot resize"):
        array.resize(1)
    assert memoryview(array).nbytes == LEAST
    assert np.array_equal(np.from_dlpack(array), array)


def test_torch_keeps_the_memory(blocks: reuse._Blocks) -> None:
    torch = pytest.importorskip("torch")
    array = result(LEAST)
    array[:] = 7
    tensor = torch.from_numpy(array)
    del array
    gc.collect()
    assert not blocks._blocks
    result(LEAST)[:] = 0
    assert (tensor == 7).all()
    del tensor
    assert len(blocks._blocks) == 2


def test_blocks_fit(blocks: reuse._Blocks) -> None:
    """An array never pins much more memory than it needs."""
    start = address(result(8 * LEAST))
    assert address(result(4 * LEAST)) != start
    assert address(result(9 * LEAST)) != start
    blocks.forget()
    start = address(result(8 * LEAST))
    smaller = result(8 * LEAST - LEAST // 2)
    assert address(smaller) == start
    assert smaller.nbytes == 8 * LEAST - LEAST // 2


def test_bound(blocks: reuse._Blocks, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [result(MIB // 4) for _ in range(6)]
    starts = [address(array) for array in arrays]
    while arrays:
        arrays.pop(0)
    assert [address(block.array) for block in blocks._blocks] == starts[2:]  # the oldest are freed
    result(MIB + 4)
    assert len(blocks._blocks) == 4  # larger than the bound
    monkeypatch.setenv("GCODEC_KEPT_MIB", "0")
    result(LEAST)
    assert not blocks._blocks


@pytest.mark.parametrize("text", ["-1", "", "1.5", "lots", "9" * 10, "²"])
def test_invalid_bounds(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCODEC_KEPT_MIB", text)
    with pytest.raises(gcodec.ParameterError, match=r"GCODEC_KEPT_MIB.*an integer number of"):
        result(LEAST)


@pytest.mark.parametrize("size", [0, 1, LEAST // 4 - 1])
def test_small_results_are_not_kept(size: int, blocks: reuse._Blocks) -> None:
    array = result_beside(size, np.float32, None)
    assert array.shape == (size,)
    del array
    assert not blocks._blocks


def test_waiting_memory_is_reclaimable(blocks: reuse._Blocks) -> None:
    advised: list[tuple[int, int, int]] = []
    blocks._advise = lambda *arguments: advised.append(arguments)
    array = result(20 * LEAST)
    start = address(array)
    del array
    ((first, nbytes, advice),) = advised
    assert advice == mmap.MADV_FREE
    assert start <= first < first + nbytes <= start + 20 * LEAST
    assert first % mmap.PAGESIZE == nbytes % mmap.PAGESIZE == 0


@pytest.mark.parametrize("raises", [False, True])
def test_signal_handlers_run_and_raise_at_any_place(
    raises: bool, blocks: reuse._Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, stop = 0, -1

    def interrupt(frame: Any, event: str, argument: object) -> None:
        nonlocal count
        if event in ("call", "c_return") and frame.f_code.co_filename.endswith("reuse.py"):
            count += 1
            if count == stop:
                sys.setprofile(None)
                if raises:
                    raise KeyboardInterrupt
                nest()

    def call() -> None:
        nonlocal count
        count = 0
        sys.setprofile(interrupt)
        try:
            result(LEAST)  # taken, and dropped at once
        finally:
            sys.setprofile(None)

    def nest() -> None:
        first, second = result(LEAST), result(LEAST)
        assert not np.shares_memory(first, second)

    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)  # of a finalizer
    call()
    last = count
    for stop in range(1, last):
        with contextlib.suppress(KeyboardInterrupt):
            call()
        waiting = [address(block.array) for block in blocks._blocks]
        assert len(set(waiting)) == len(waiting)
        nest()
        assert len(blocks._blocks) >= 2, stop
    assert last > 10


def test_threads(blocks: reuse._Blocks) -> None:
    """No two arrays that are alive at the same time share memory."""
    failures = []

    def work(number: int) -> None:
        for turn in range(300):
            array = result(LEAST * (1 + turn % 3))
            array[:] = number
            view = array[::7]
            del array
            if not (view == number).all():
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sum(block.array.nbytes for block in blocks._blocks) <= MIB


_FORK = """
import os
import numpy as np
from gcodec.runtime import reuse

os.environ["GCODEC_KEPT_MIB"] = "16"
kept = reuse.result_beside(1 << 22, np.float32, None)
kept[:] = 3
reuse._LEAST = 1 << 12
reuse.result_beside(1 << 19, np.float32, None)
assert len(reuse._BLOCKS._blocks) == 1
child = os.fork()
if not child:
    assert not reuse._BLOCKS._blocks
    del kept
    assert len(reuse._BLOCKS._blocks) == 1
    reuse.result_beside(1 << 22, np.float32, None)[:] = 4
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert len(reuse._BLOCKS._blocks) == 1
assert (kept == 3).all()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_fork() -> None:
    done = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_arrays_that_outlive_the_interpreter() -> None:
    code = "import gcodec, numpy as np\nfrom gcodec.runtime.reuse import result_beside\n"
    code += "kept = result_beside(1 << 23, np.float32, None)\nother = kept\nkept.fill(1)\n"
    code += "result_beside(1 << 23, np.float32, None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "spec",
    [
        *("raw", "sign", "minmax", "topk", "qsgd:form=dense", "qsgd:form=sparse", "ecsq:step=1"),
        *("minifloat:code=none", "terngrad:pack=context", "mxnet-2bit:form=sparse"),
    ],
)
def test_decoded_tensors_reuse_memory(spec: str, dtype: str) -> None:
    """The second result lies where the first was; its bits do not depend on what was there."""
    x = np.random.default_rng(0).standard_normal((300, 50), np.float32).astype(dtype)
    frame = gcodec.encode(x, spec)
    first = gcodec.decode(frame)
    bits, start = first.tobytes(), address(first)
    first.view(np.uint8)[:] = 0xFF
    del first
    second = gcodec.decode(frame)
    assert second.tobytes() == bits
    assert address(second) == start


def test_sums_and_payloads_reuse_memory() -> None:
    x = np.ones(LEAST, np.float32)
    frames = [gcodec.encode(x, "sign")] * 2
    payload = gcodec.parse("sign").encode(x)
    total = gcodec.decode_sum(frames)
    start = address(total)
    assert (total == 2).all()
    del total
    decoded = gcodec.parse("sign").decode(payload, x.size)
    assert (decoded == 1).all()
    assert address(decoded) == start
    del decoded
    assert address(gcodec.decode_sum(frames)) == start


def test_damaged_frames_return_the_memory(blocks: reuse._Blocks) -> None:
    x = np.ones(2 * LEAST, np.float32)
    gcodec.decode(gcodec.encode(x, "sign"))
    assert len(blocks._blocks) == 1
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, "powersgd"))
    data = frame.payload.data.copy()
    data[:4] = np.frombuffer(np.float32("nan").tobytes(), np.uint8)
    with pytest.raises(gcodec.FormatError):
        frame.codec.decode(frame.payload._replace(data=data), frame.shape)
    gc.collect()
    assert len(blocks._blocks) == 1


def test_the_block_that_was_dropped_last_is_reused_first() -> None:
    blocks = reuse._Blocks()
    assert blocks.take(1 << 12) is None
    first, last = np.empty((2, 1 << 12), np.uint8)
    for block in (first, last):
        blocks.put(block)
    assert blocks.take(1 << 12) is last
    assert blocks.take(1 << 12) is first
