"""Launchers of coded_mask.cu; see `gcodec.kernels.bits.coded_mask`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.kernels.bits.coded_mask import CodedMask, silent_error
from gcodec.kernels.numeric.scan_cuda import sums_before
from gcodec.runtime.cuda_grid import THREADS, device_with, reported, striding_blocks
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import Device


def silent_buckets(norms: Any) -> Deferred:
    """Tell which buckets have norms of 0."""
    device, count = device_with(norms), norms.size
    out = device.empty(count, np.uint8)
    arguments = norms.view(np.uint32), np.int64(count), out
    device.launch("coded_mask", "silent_buckets", striding_blocks(count), THREADS, *arguments)
    return Deferred(device, out, lambda told: told.view(np.bool_))


def silent_of(device: Device, coded: CodedMask) -> Any:
    """Return which buckets are silent, as uint8 on the device."""
    silent: Any = coded.silent
    if type(silent) is Deferred:
        return silent.words
    return device.to_device(silent.view(np.uint8))


def gathered(symbols: Any, coded: CodedMask) -> tuple[Any, CodedMask]:
    """Return the bytes of the elements that have a word, first of all, and how many these are."""
    if coded.silent is None:
        return symbols, coded
    device = device_with(symbols)
    out, starts = device.empty(coded.n, np.uint8), _words_before(device, coded)
    words = CodedMask(Deferred(device, starts[-1:]), 1, None)  # type: ignore[arg-type]
    if coded.bucket >= coded.n:  # all, or none
        return symbols, words
    silent = silent_of(device, coded), np.int64(coded.bucket)
    where = symbols, np.int64(coded.n), *silent, starts, out, np.int64(out.size)
    device.launch("coded_mask", "gather_live", striding_blocks(coded.n), THREADS, *where)
    return out, words


def leave_silent(counts: Any, coded: CodedMask) -> None:
    """Take those that have no word from the counts of all."""
    if coded.silent is None:
        return
    device = device_with(counts)
    what = words_in(device, coded), np.int64(coded.n), counts
    device.launch("coded_mask", "leave_silent", 1, 1, *what)


def words_in(device: Device, coded: CodedMask) -> Any:
    """Return how many elements have a word, as a (1,) array there."""
    if coded.silent is None:
        return device.to_device(np.array([coded.n]))
    return _words_before(device, coded)[-1:]


def hushed(device: Device, coded: CodedMask, silent: Any) -> CodedMask:
    """Return which elements have a word, of which none has where a (1,) array is not 0."""
    if coded.silent is None:
        told: Any = Deferred(device, silent)
        return CodedMask(coded.n, max(coded.n, 1), told)
    some = silent_of(device, coded)
    out, count = device.empty(some.size, np.uint8), np.int64(some.size)
    device.launch(
        "coded_mask", "hush", striding_blocks(some.size), THREADS, some, count, silent, out
    )
    told = Deferred(device, out)
    return CodedMask(coded.n, coded.bucket, told)


def _words_before(device: Device, coded: CodedMask) -> Any:
    """Return how many elements that have a word come before each bucket, and in all."""
    silent = silent_of(device, coded)
    words, sums = device.empty(silent.size, np.int64), device.empty(silent.size + 1, np.int64)
    sizes = silent, np.int64(silent.size), np.int64(coded.n), np.int64(coded.bucket)
    device.launch("coded_mask", "words_of", striding_blocks(silent.size), THREADS, *sizes, words)
    sums_before(device, words, sums)
    return sums


def spread(symbols: Any, coded: CodedMask, take: Callable[[int, Any], None]) -> None:
    """Let the bytes of all elements be taken at once."""
    device = device_with(symbols)
    out = device.empty(coded.n, np.uint8)
    where = symbols, np.int64(symbols.size), *_buckets(device, coded), out, np.int64(coded.n)
    device.launch("coded_mask", "spread_live", striding_blocks(coded.n), THREADS, *where)
    take(0, out)


def refuse_silent(symbols: Any, coded: CodedMask) -> None:
    """Raise `Corrupt` if an element that has no word is not 0."""
    if coded.silent is None:
        return
    device, wrong = device_with(symbols), device_with(symbols).zeros(1, np.uint64)
    part = symbols.view(np.uint8), np.int32(symbols.itemsize), np.int64(coded.n)
    silent = silent_of(device, coded), np.int64(coded.bucket)
    device.launch(
        "coded_mask",
        "refuse_silent",
        striding_blocks(symbols.nbytes),
        THREADS,
        *part,
        *silent,
        wrong,
    )

    def told(at: int | None) -> None:
        if at is not None:
            raise silent_error()

    reported(device, wrong, told)


def _buckets(device: Device, coded: CodedMask) -> tuple[Any, np.int64, Any]:
    """Return which buckets are silent, their size, and the words before each."""
    silent = np.zeros(1, np.bool_) if coded.silent is None else coded.known_silent
    words = np.where(silent, 0, coded.bucket)
    before = device.to_device(np.cumsum(words) - words)
    return device.to_device(silent.view(np.uint8)), np.int64(coded.bucket), before
