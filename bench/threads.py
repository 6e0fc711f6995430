"""Gain of a second thread, compared with the capacity of a second processor.

    python -m bench.threads

Each round runs a call of 16 Mi elements on one thread, on two threads, and as two calls of one
thread each side by side; the table contains medians over rounds. Two processors that share a core,
or that other work uses too, do less than twice the work of one. The last column is the part of the
gain side by side that a call on two threads achieves.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import gcodec

SPECS = ("ecsq:step=0.7", "qsgd:form=dense", "minifloat", "sign", "topk")
_ROWS = 4096


def pairs(elements: int) -> dict[str, Callable[[int], object]]:
    """Return the calls, each of which takes the index of its copy of the input."""
    os.environ["GCODEC_NUM_THREADS"] = "1"
    rng, shape = np.random.default_rng(0), (_ROWS, elements // _ROWS)
    scales = np.exp(0.7 * rng.standard_normal((_ROWS, 1)))
    xs = [(scales * rng.standard_normal(shape)).astype(np.float32) for _ in range(2)]
    rooms = [np.empty_like(x) for x in xs]
    calls: dict[str, Callable[[int], object]] = {}
    for spec in SPECS:
        codec = gcodec.parse(spec)
        frames = [gcodec.encode(x, codec) for x in xs]

        def encode(k: int, codec: gcodec.Codec = codec) -> object:
            return codec.encode(xs[k])

        def decode(k: int, frames: list[bytes] = frames) -> object:
            return gcodec.decode(frames[k], out=rooms[k])

        calls[f"{spec}: encode"], calls[f"{spec}: decode"] = encode, decode
    return calls


def seconds(call: Callable[[int], object], threads: int, copies: int) -> float:
    """Time `copies` concurrent copies of a call."""
    os.environ["GCODEC_NUM_THREADS"] = str(threads)
    others = [threading.Thread(target=call, args=(k,)) for k in range(1, copies)]
    start = time.perf_counter()
    for other in others:
        other.start()
    call(0)
    for other in others:
        other.join()
    return time.perf_counter() - start


@click.command()
@click.option("--elements", default=1 << 24, show_default=True)
@click.option("--rounds", default=15, show_default=True)
def main(elements: int, rounds: int) -> None:
    """Print a line for each call."""
    calls = pairs(elements)
    for call in calls.values():  # compile kernels, and fault pages in
        seconds(call, 2, 1)
        seconds(call, 1, 2)
    took: dict[str, list[tuple[float, ...]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            took[name].append(tuple(seconds(call, *counts) for counts in ((1, 1), (2, 1), (1, 2))))
    headings = "call", "one thread, ms", "two threads", "two calls", "of these"
    shown = Table(*headings, box=None, header_style="")
    for column in shown.columns[1:]:
        column.justify = "right"
    for name, rows in took.items():
        one, two, beside = np.median(np.array(rows), axis=0)
        gains = one / two, 2 * one / beside, beside / two / 2
        shown.add_row(name, f"{one * 1e3:.1f}", *(f"{gain:.2f}" for gain in gains))
    Console(width=100).print(shown)


if __name__ == "__main__":
    main()
