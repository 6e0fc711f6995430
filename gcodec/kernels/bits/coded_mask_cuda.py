"""Launchers of coded_mask.cu; see `gcodec.kernels.bits.coded_mask`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.kernels.bits.coded_mask import CodedMask, nonzero_error
from gcodec.kernels.numeric.scan_cuda import sums_before
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_striding, raise_reported
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import Device


def zero_norm_buckets(norms: Array) -> Deferred:
    """Return which buckets have norms of 0."""
    device, count = device_with(norms), norms.size
    out = device.empty(count, np.uint8)
    launch_striding(device, "coded_mask", "zero_norm_buckets", count, norms, count, out)
    return Deferred(device, out, lambda mask: mask.view(np.bool_))


def uncoded_of(device: Device, coded: CodedMask) -> Array:
    """Return which buckets are uncoded, as uint8 on the device."""
    uncoded: Any = coded.uncoded
    if type(uncoded) is Deferred:
        return uncoded.words
    return device.to_device(uncoded.view(np.uint8))


def buckets_of(device: Device, coded: CodedMask) -> tuple[Array, int]:
    """Return flags of the uncoded buckets, and the size of a bucket; 0 if all are coded."""
    if coded.uncoded is None:
        return device.empty(0, np.uint8), 0
    return uncoded_of(device, coded), coded.bucket


def gathered(symbols: Array, coded: CodedMask) -> tuple[Array, CodedMask]:
    """Return the symbols of the coded elements, followed by undefined ones, and their number."""
    if coded.uncoded is None:
        return symbols, coded
    device, n = device_with(symbols), coded.n
    out, starts = device.empty(n, np.uint8), coded_before(device, coded)
    dense = CodedMask(Deferred(device, starts[-1:]), 1, None)  # type: ignore[arg-type]
    if coded.bucket >= n:  # all elements, or none
        return symbols, dense
    arguments = symbols, n, uncoded_of(device, coded), coded.bucket, starts, out, n
    launch_striding(device, "coded_mask", "gather_coded", n, *arguments)
    return out, dense


def subtract_uncoded(counts: Array, coded: CodedMask) -> None:
    """Subtract the elements of zero-norm buckets from the counts of symbols."""
    if coded.uncoded is not None:
        device = device_with(counts)
        arguments = words_in(device, coded), coded.n, counts
        device.launch("coded_mask", "subtract_uncoded", 1, 1, *arguments)


def words_in(device: Device, coded: CodedMask) -> Array:
    """Return the number of coded elements, as a (1,) array on the device."""
    if coded.uncoded is None:
        return device.to_device(np.array([coded.n]))
    return coded_before(device, coded)[-1:]


def without_words_if(device: Device, coded: CodedMask, closed: Array) -> CodedMask:
    """Return a mask without coded elements if the (1,) array `closed` is not 0, else the same."""
    if coded.uncoded is None:
        all_uncoded: Any = Deferred(device, closed)
        return CodedMask(coded.n, max(coded.n, 1), all_uncoded)
    buckets = uncoded_of(device, coded)
    out = device.empty(buckets.size, np.uint8)
    arguments = buckets, buckets.size, closed, out
    launch_striding(device, "coded_mask", "exclude_buckets", buckets.size, *arguments)
    return CodedMask(coded.n, coded.bucket, Deferred(device, out))  # type: ignore[arg-type]


def coded_before(device: Device, coded: CodedMask) -> Array:
    """Return the number of coded elements preceding each bucket, and of all buckets."""
    uncoded = uncoded_of(device, coded)
    count = uncoded.size
    words, sums = device.empty(count, np.int64), device.empty(count + 1, np.int64)
    arguments = uncoded, count, coded.n, coded.bucket, words
    launch_striding(device, "coded_mask", "words_of", count, *arguments)
    sums_before(device, words, sums)
    return sums


def spread(symbols: Array, coded: CodedMask, take: Callable[[int, Array], None]) -> None:
    """Pass the symbols of all elements to `take` in one call."""
    device = device_with(symbols)
    uncoded = np.zeros(1, np.bool_) if coded.uncoded is None else coded.known_uncoded
    words = np.where(uncoded, 0, coded.bucket)
    starts = device.to_device(np.cumsum(words) - words)
    buckets = device.to_device(uncoded.view(np.uint8)), coded.bucket, starts
    out = device.empty(coded.n, np.uint8)
    arguments = symbols, symbols.size, *buckets, out, coded.n
    launch_striding(device, "coded_mask", "spread_coded", coded.n, *arguments)
    take(0, out)


def refuse_nonzero(symbols: Array, coded: CodedMask, start: int = 0) -> None:
    """Raise `Corrupt` if the symbol of an element in a zero-norm bucket is not 0."""
    assert start == 0  # a device decodes all symbols at once
    if coded.uncoded is None:
        return
    device = device_with(symbols)
    wrong, data = device.zeros(1, np.uint64), symbols.view(np.uint8)
    buckets = uncoded_of(device, coded), coded.bucket
    arguments = data, symbols.itemsize, coded.n, *buckets, wrong
    launch_striding(device, "coded_mask", "refuse_nonzero", data.size, *arguments)
    raise_reported(device, wrong, lambda _: nonzero_error())
