"""Calls in several threads, and processes that fork or spawn after kernels have run."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import strategies as gs
from sweeps import thinned

import gcodec
from gcodec.runtime import pool


def work(number: int) -> list[bytes]:
    """Run a mix of calls whose results depend on `number` only."""
    rng = np.random.default_rng(number)
    results = []
    for codec in thinned(gs.FEW, 6):
        x = rng.standard_normal(1000 + 37 * number, np.float32)
        frame = gcodec.encode(x, codec, seed=number, name=str(number))
        acc = np.zeros_like(x)
        gcodec.decode_add(frame, acc, 0.5)
        feedback = gcodec.Feedback(codec, seed=number)
        frames = [feedback.compress("w", x.reshape(-1, 1)) for _ in range(2)]
        results += [frame, gcodec.decode(frame).tobytes(), acc.tobytes(), *frames]
    return results


def test_eight_threads() -> None:
    expected = [work(number) for number in range(8)]
    barrier = threading.Barrier(8)

    def task(number: int) -> list[bytes]:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(8) as executor:
        assert list(executor.map(task, range(8))) == expected


def test_threads_share_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads encode large tensors, while the number of pool threads changes."""
    x = np.random.default_rng(0).standard_normal((1 << 20) + 5, np.float32)
    monkeypatch.setenv("GCODEC_NUM_THREADS", "1")
    expected = gcodec.encode(x, "mxnet-2bit:threshold=auto")
    monkeypatch.setenv("GCODEC_NUM_THREADS", "2")
    with ThreadPoolExecutor(4) as executor:
        tasks = [executor.submit(gcodec.encode, x, "mxnet-2bit:threshold=auto") for _ in range(4)]
        monkeypatch.setenv("GCODEC_NUM_THREADS", "3")
        tasks += [executor.submit(gcodec.encode, x, "mxnet-2bit:threshold=auto") for _ in range(4)]
        assert all(task.result() == expected for task in tasks)


@pytest.mark.parametrize(
    "spec", ["qsgd:form=dense,s=127", "qsgd:form=sparse", "qsgd:code=auto", "qsgd:code=context"]
)
def test_strings_in_several_threads(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Concurrent calls join parts of a string, and decode blocks of a seek table."""
    x = np.random.default_rng(0).standard_normal((1 << 21) + 5, np.float32)
    x[1 << 19 : 3 << 19] = 0  # whole segments without transmitted values
    x[5::7] = 0
    monkeypatch.setenv("GCODEC_NUM_THREADS", "1")
    expected = gcodec.encode(x, spec)
    plain = gcodec.Frame.from_bytes(expected).without_seek().decode()
    monkeypatch.setenv("GCODEC_NUM_THREADS", "3")
    with ThreadPoolExecutor(3) as executor:
        frames = list(executor.map(lambda _: gcodec.encode(x, spec), range(4)))
        assert all(frame == expected for frame in frames)
        assert all(executor.map(lambda one: np.array_equal(gcodec.decode(one), plain), frames))


def test_an_error_in_a_segment_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", "2")

    def task(start: int, stop: int) -> None:
        if start:
            raise KeyError(start)

    with pytest.raises(KeyError):
        pool.run(task, 1 << 21)


@pytest.mark.parametrize("threads", ["2", "3"])
def test_the_error_of_the_first_segment_is_raised(
    threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later segment may fail earlier; no segment starts after an error."""
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    started, failed = [], threading.Event()

    def task(start: int, stop: int) -> None:
        started.append(start)
        if start == 0:
            failed.wait()
            raise KeyError(start)
        if start == pool.SEGMENT:
            failed.set()
            raise ValueError(start)
        failed.wait()

    with pytest.raises(KeyError, match="0"):
        pool.run(task, 8 * pool.SEGMENT)
    assert len(started) <= int(threads)


def test_no_thread_takes_a_segment_after_the_error_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread of the pool may begin to help when the call is over."""
    monkeypatch.setenv("GCODEC_NUM_THREADS", "1")
    begun = []

    def task(start: int, stop: int) -> None:
        begun.append(start)
        raise ValueError("a segment fails")

    segments = pool._Segments(task, 4, 1)
    with pytest.raises(ValueError, match="a segment fails"):
        segments.run()
    segments.help()
    assert begun == [0]


def test_errors_do_not_keep_arrays() -> None:
    """An error that a caller has handled leaves no cycle that holds the arrays of the call."""
    arrays = []

    def refused() -> None:
        array = np.zeros(10)
        arrays.append(weakref.ref(array))
        pool._Segments(lambda start, stop: array.reshape(3), 4, 1).run()

    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            refused()
        assert arrays[0]() is None
    finally:
        gc.enable()


def test_a_changed_number_of_threads_takes_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (2, 4, 3):
        monkeypatch.setenv("GCODEC_NUM_THREADS", str(count))
        together, idents = threading.Barrier(count), set[int]()

        def task(
            start: int,
            stop: int,
            together: threading.Barrier = together,
            idents: set[int] = idents,
        ) -> None:
            together.wait(30)
            idents.add(threading.get_ident())

        pool.run_each(task, 3 * count)
        assert len(idents) == count


def test_results_are_in_order_and_calls_may_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", "2")

    def outer(start: int, stop: int) -> list[tuple[int, int]]:
        return pool.run(lambda a, b: (start + a, start + b), 4 * pool.SEGMENT)

    results = pool.run(outer, 6 * pool.SEGMENT)
    firsts = [inner[0][0] for inner in results]
    assert firsts == sorted(firsts) and firsts[0] == 0
    assert all(inner == sorted(inner) for inner in results)


def test_segments_cover_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads in ("1", "3"):
        monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
        for n in (0, 1, pool.SEGMENT, 1 << 20, (1 << 20) + 1, (1 << 21) + 3):
            parts: list[tuple[int, int]] = []
            pool.run(lambda start, stop, parts=parts: parts.append((start, stop)), n)
            parts.sort()
            assert parts[0][0] == 0
            assert parts[-1][1] == n
            assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))
            assert all(start % pool.SEGMENT == 0 for start, _ in parts)
            assert threads != "1" or len(parts) == 1


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to threads")
def test_an_interrupt_waits_for_segments_that_have_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise they would write to arrays that the caller restores or uses again."""
    monkeypatch.setenv("GCODEC_NUM_THREADS", "2")
    caller, begun, finished = threading.get_ident(), threading.Event(), threading.Event()

    def task(start: int, stop: int) -> None:
        if threading.get_ident() == caller:
            begun.wait()
        elif not begun.is_set():
            begun.set()
            time.sleep(0.1)  # until the caller waits
            signal.pthread_kill(caller, signal.SIGINT)
            time.sleep(0.3)
            finished.set()

    # Shells start commands in the background without a handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            pool.run_each(task, 2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert finished.is_set()


def test_the_pool_works_after_an_interrupt_at_any_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python raises one where a function begins, and after calls of functions written in C."""
    monkeypatch.setenv("GCODEC_NUM_THREADS", "3")
    pool.run_each(lambda start, stop: start, 8)  # starts the threads
    count, last, stop = 0, 0, -1

    def interrupt(frame: Any, event: str, argument: object) -> None:
        nonlocal count
        if event in ("call", "c_return"):
            count += 1
            if count == stop:
                raise KeyboardInterrupt

    def run() -> list[int]:
        nonlocal count
        count = 0
        sys.setprofile(interrupt)
        try:
            return pool._Segments(lambda start, stop: start, 8, 1).run()
        finally:
            sys.setprofile(None)

    for _ in range(20):  # the number of events depends on the threads
        run()
        last = max(last, count)
    while stop < last:
        stop += 1
        with contextlib.suppress(KeyboardInterrupt):
            run()
        assert pool.run_each(lambda start, stop: start, 8) == list(range(8))
    together = threading.Barrier(3)
    pool.run_each(lambda start, stop: together.wait(30), 3)  # all threads still work
    assert last > 20


@pytest.mark.parametrize("threads", ["1", "3"])
def test_results_are_consumed_in_order(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that ends before the preceding one leaves its result to that one."""
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    monkeypatch.setattr(pool, "_THRESHOLD", 1)
    has_last, consumed = threading.Event(), list[tuple[int, int]]()

    def task(start: int, stop: int) -> int:
        if start == 14:
            has_last.set()
        elif not start and threads != "1":
            assert has_last.wait(30)
        return stop

    pool.run_in_order(task, lambda *part: consumed.append(part), 17, 2)
    assert consumed == [(start, min(start + 2, 17)) for start in range(0, 17, 2)]


def test_one_thread_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system, or the end of the interpreter, may prevent new threads."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setenv("GCODEC_NUM_THREADS", "3")
    monkeypatch.setattr(pool, "_threads", [])
    monkeypatch.setattr(threading.Thread, "start", start)
    assert pool.run_each(lambda number, _: number, 20) == list(range(20))
    assert not pool._threads and pool._calls.empty()


LATE = """
import atexit, threading
import numpy as np
import gcodec

x = np.random.default_rng(0).standard_normal((1 << 21) + 5, np.float32)
before = gcodec.encode(x, "mxnet-2bit")

def check():
    print(gcodec.encode(x, "mxnet-2bit") == before)

def check_late():
    threading.main_thread().join()
    check()

atexit.register(check)
threading.Thread(target=check_late).start()
"""


def test_calls_while_the_interpreter_ends() -> None:
    environment = os.environ | {"GCODEC_NUM_THREADS": "2"}
    command = [sys.executable, "-W", "error", "-c", LATE]
    ended = subprocess.run(command, env=environment, check=True, timeout=60, capture_output=True)
    assert (ended.stdout.split(), ended.stderr) == ([b"True", b"True"], b"")


@pytest.mark.parametrize("value", ["0", "-1", "1025", "two", "1.5", "", " 2", "²", "9" * 5000])
def test_number_of_threads(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", value)
    with pytest.raises(gcodec.ParameterError, match="GCODEC_NUM_THREADS"):
        pool.thread_count()
    monkeypatch.setenv("GCODEC_NUM_THREADS", "1024")
    assert pool.thread_count() == 1024
    monkeypatch.delenv("GCODEC_NUM_THREADS")
    assert pool.thread_count() >= 1


FORK = """
import os, sys
import numpy as np
import gcodec

x = np.random.default_rng(0).standard_normal((1 << 21) + 5, np.float32)
before = gcodec.encode(x, "mxnet-2bit")
child = os.fork()
if child == 0:
    same = gcodec.encode(x, "mxnet-2bit") == before
    small = gcodec.decode(gcodec.encode(x[:9], "mxnet-1bit")).size == 9
    os._exit(0 if same and small else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert gcodec.encode(x, "mxnet-2bit") == before
"""

FORK_WHILE_LOADING = """
import os, signal, threading, time
import numpy as np
import gcodec
from gcodec.runtime import jit

loading = threading.Event()

def load():
    with jit._LOCK:
        loading.set()
        time.sleep(0.5)

thread = threading.Thread(target=load)
thread.start()
loading.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)  # a signal ends a child that waits for a thread of its parent
    same = gcodec.decode(gcodec.encode(np.ones(9, np.float32), "sign")).sum() == 9
    os._exit(0 if same else 1)
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert gcodec.decode(gcodec.encode(np.ones(9, np.float32), "sign")).sum() == 9
"""

SPAWN = """
import multiprocessing
import numpy as np
import gcodec

def encode(seed):
    x = np.random.default_rng(seed).standard_normal(5000, np.float32)
    return gcodec.encode(x, "mxnet-2bit:threshold=auto")

if __name__ == "__main__":
    expected = [encode(seed) for seed in range(2)]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(encode, range(2)) == expected
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("script", [FORK, FORK_WHILE_LOADING])
def test_fork(script: str) -> None:
    environment = os.environ | {"GCODEC_NUM_THREADS": "2"}
    # Python 3.12 warns of a fork in a process with threads, which this test needs.
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", script]
    subprocess.run(command, env=environment, check=True, timeout=60)


def test_spawn(tmp_path: object) -> None:
    script = os.path.join(str(tmp_path), "spawn_script.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(SPAWN)
    root = os.path.dirname(os.path.dirname(gcodec.__file__))
    paths = filter(None, [root, os.environ.get("PYTHONPATH")])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([sys.executable, script], env=environment, check=True, timeout=60)
