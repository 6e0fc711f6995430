"""F10: many concurrent threads, and processes that fork or spawn after use."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import gcodec
from fuzz.figures.figure import Figure
from fuzz.fork import fork
from fuzz.goldens import of_codecs

THREADS = 8
CALLS, FEW = 10_000, 60  # calls of each thread


def threads(short: bool) -> Figure:
    """Call gcodec from many threads, and from a forked and a spawned process."""
    expected = [_work(number) for number in range(_kinds())]
    barrier = threading.Barrier(THREADS)

    def task(seed: int) -> list[str]:
        rng = random.Random(seed)
        barrier.wait()
        wrong = []
        for _ in range(FEW if short else CALLS):
            number = rng.randrange(_kinds())
            if _work(number) != expected[number]:
                wrong.append(f"thread {seed}, call {number}")
        return wrong

    with ThreadPoolExecutor(THREADS) as executor:
        failures = [what for failed in executor.map(task, range(THREADS)) for what in failed]
    if hasattr(os, "fork") and not _forked(expected):
        failures.append("a forked process returns other results")
    if not short:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            if pool.map(_work, range(_kinds())) != expected:
                failures.append("a spawned process returns other results")
    detail = f"{THREADS} threads; fork after use{'' if short else '; spawn'}"
    count = THREADS * (FEW if short else CALLS)
    return Figure("F10", "results do not depend on threads", count, "calls", failures, detail)


def _kinds() -> int:
    return 4 * len(_frames())


def _frames() -> list[tuple[bytes, bytes | None]]:
    return [(golden.data, golden.key) for golden in of_codecs(2)]


def _work(number: int) -> bytes:
    """Make a call of a kind selected by number; return its results."""
    data, key = _frames()[number // 4]
    match number % 4:
        case 0:
            return bytes(gcodec.decode(data, key=key).tobytes())
        case 1:
            frame = gcodec.Frame.from_bytes(data, key=key)
            acc = np.ones(frame.shape, np.float32)
            with np.errstate(all="ignore"), contextlib.suppress(gcodec.ParameterError):
                gcodec.decode_add(data, acc, 0.5, key=key)  # integers are refused
            return acc.tobytes()
        case 2:
            frame = gcodec.Frame.from_bytes(data, key=key)
            x = np.random.default_rng(number).standard_normal(frame.shape).astype(np.float32)
            return gcodec.encode(x, gcodec.codecs()[frame.codec.name](), seed=number)
        case _:
            try:
                return bytes(gcodec.decode(data[:-1], key=key).tobytes())
            except gcodec.FormatError as error:
                return str(error).encode()


def _forked(expected: list[bytes]) -> bool:
    child = fork()
    if child == 0:
        code = 1
        try:
            code = int([_work(number) for number in range(_kinds())] != expected)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
