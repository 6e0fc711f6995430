"""Launchers of live.cu; see `gcodec.kernels.bits.live`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.kernels.bits.live import Live, silent_error
from gcodec.kernels.numeric.scan_cuda import sums_before
from gcodec.runtime.cuda_grid import THREADS, device_with, reported, striding_blocks
from gcodec.runtime.deferred import Later
from gcodec.runtime.device import Device


def silent_buckets(norms: Any) -> Later:
    """Tell which buckets have norms of 0."""
    device, count = device_with(norms), norms.size
    out = device.empty(count, np.uint8)
    arguments = norms.view(np.uint32), np.int64(count), out
    device.launch("live", "silent_buckets", striding_blocks(count), THREADS, *arguments)
    return Later(device, out, lambda told: told.view(np.bool_))


def silent_of(device: Device, live: Live) -> Any:
    """Return which buckets are silent, as uint8 on the device."""
    silent: Any = live.silent
    if type(silent) is Later:
        return silent.words
    return device.to_device(silent.view(np.uint8))


def gathered(symbols: Any, live: Live) -> tuple[Any, Live]:
    """Return the bytes of the elements that have a word, first of all, and how many these are."""
    if live.silent is None:
        return symbols, live
    device = device_with(symbols)
    out, starts = device.empty(live.n, np.uint8), _words_before(device, live)
    words = Live(Later(device, starts[-1:]), 1, None)  # type: ignore[arg-type]
    if live.bucket >= live.n:  # all, or none
        return symbols, words
    silent = silent_of(device, live), np.int64(live.bucket)
    where = symbols, np.int64(live.n), *silent, starts, out, np.int64(out.size)
    device.launch("live", "gather_live", striding_blocks(live.n), THREADS, *where)
    return out, words


def leave_silent(counts: Any, live: Live) -> None:
    """Take those that have no word from the counts of all."""
    if live.silent is None:
        return
    device = device_with(counts)
    what = words_in(device, live), np.int64(live.n), counts
    device.launch("live", "leave_silent", 1, 1, *what)


def words_in(device: Device, live: Live) -> Any:
    """Return how many elements have a word, as a (1,) array there."""
    if live.silent is None:
        return device.to_device(np.array([live.n]))
    return _words_before(device, live)[-1:]


def hushed(device: Device, live: Live, silent: Any) -> Live:
    """Return which elements have a word, of which none has where a (1,) array is not 0."""
    if live.silent is None:
        told: Any = Later(device, silent)
        return Live(live.n, max(live.n, 1), told)
    some = silent_of(device, live)
    out, count = device.empty(some.size, np.uint8), np.int64(some.size)
    device.launch("live", "hush", striding_blocks(some.size), THREADS, some, count, silent, out)
    told = Later(device, out)
    return Live(live.n, live.bucket, told)


def _words_before(device: Device, live: Live) -> Any:
    """Return how many elements that have a word come before each bucket, and in all."""
    silent = silent_of(device, live)
    words, sums = device.empty(silent.size, np.int64), device.empty(silent.size + 1, np.int64)
    sizes = silent, np.int64(silent.size), np.int64(live.n), np.int64(live.bucket)
    device.launch("live", "words_of", striding_blocks(silent.size), THREADS, *sizes, words)
    sums_before(device, words, sums)
    return sums


def spread(symbols: Any, live: Live, take: Callable[[int, Any], None]) -> None:
    """Let the bytes of all elements be taken at once."""
    device = device_with(symbols)
    out = device.empty(live.n, np.uint8)
    where = symbols, np.int64(symbols.size), *_buckets(device, live), out, np.int64(live.n)
    device.launch("live", "spread_live", striding_blocks(live.n), THREADS, *where)
    take(0, out)


def refuse_silent(symbols: Any, live: Live) -> None:
    """Raise `Corrupt` if an element that has no word is not 0."""
    if live.silent is None:
        return
    device, wrong = device_with(symbols), device_with(symbols).zeros(1, np.uint64)
    part = symbols.view(np.uint8), np.int32(symbols.itemsize), np.int64(live.n)
    silent = silent_of(device, live), np.int64(live.bucket)
    device.launch(
        "live", "refuse_silent", striding_blocks(symbols.nbytes), THREADS, *part, *silent, wrong
    )

    def told(at: int | None) -> None:
        if at is not None:
            raise silent_error()

    reported(device, wrong, told)


def _buckets(device: Device, live: Live) -> tuple[Any, np.int64, Any]:
    """Return which buckets are silent, their size, and the words before each."""
    silent = np.zeros(1, np.bool_) if live.silent is None else live.known_silent
    words = np.where(silent, 0, live.bucket)
    before = device.to_device(np.cumsum(words) - words)
    return device.to_device(silent.view(np.uint8)), np.int64(live.bucket), before
