"""Codes as CUDA kernels see them: numbers of rules and mappings, and tables on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.prefix.codewords import DELTA, EXPGOLOMB, GAMMA, GOLOMB, OMEGA, RICE
from gcodec.kernels.prefix.prefix_read import check
from gcodec.kernels.prefix.prefix_table import (
    PrefixCode,
    read_runs,
    read_singles,
    ready,
    write_tables,
)
from gcodec.kernels.prefix.table_code import LONGEST, LOOKS, SYMBOLS, TABLE, TableCode
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with
from gcodec.runtime.deferred import fetch_later
from gcodec.runtime.device import Device

# In the order of codewords.cuh.
_RULES = {r: k for k, r in enumerate((OMEGA, GAMMA, DELTA, EXPGOLOMB, GOLOMB, RICE, TABLE))}
_MAPPINGS = {"plain": 0, "zigzag": 1, "signed": 2}
_LOOK = LOOKS[1]  # 12 bits, for all codes: the table takes half of a block's shared memory
NO_ERROR = 2**63 - 1  # initial status of a kernel
TILE = 16 * THREADS  # symbols that a block of threads writes or counts at a time
_MANY = 1 << 9  # symbols up to which the longest word is determined
_FEW = 1 << 14  # blocks up to which few threads share a multiprocessor, to occupy all of them
_ROOMY, _SMALL = 64, 1 << 20  # bits per symbol, and bits: about the size of a tensor
_LEFT = 64  # a status is this many times a position, plus the number of an error


class Words(NamedTuple):
    """Tables of a kernel that writes the words of a code.

    Attributes
    ----------
    table : (size + 1,) uint64 array on the device
        Words of the symbols below a size, see `prefix_table.WriteTables.singles`; then the
        parameter of the rule, which encodes all other symbols.
    rule, mapping, shift : int
    longest : int or None
        Upper bound for the bits of a word; None if it is not determined.
    """

    table: Array
    rule: int
    mapping: int
    shift: int
    longest: int | None

    @classmethod
    def of(
        cls, device: Device, code: PrefixCode | TableCode | Words, size: int = SYMBOLS
    ) -> Words:
        """Copy the tables of a code to a device; `Words` are returned unchanged."""
        if isinstance(code, Words):
            return code
        longest = LONGEST if isinstance(code, TableCode) else None
        if isinstance(code, PrefixCode) and code.top < _MANY:
            longest = int(code.words(code.top + 1)[1].max())
        if isinstance(code, PrefixCode) and size == SYMBOLS:
            singles = write_tables(code).singles
        else:
            singles = ready(*code.words(size))
        rule, mapping, shift, parameter = rule_of(code)
        table = device.to_device(np.append(singles, np.uint64(parameter)))
        return cls(table, rule, mapping, shift, longest)


def rule_of(code: PrefixCode | TableCode) -> tuple[int, int, int, int]:
    """Return the kernel arguments of the rule of a code: rule, mapping, shift, parameter."""
    rule, mapping, shift = code.kind
    return _RULES[rule], _MAPPINGS[mapping], shift % 2**64, code.parameter


def read_tables(device: Device, code: PrefixCode | TableCode) -> tuple[Array, Array]:
    """Return the tables of a reader on a device: up to six symbols by 12 bits, and single ones."""
    runs, singles = read_runs(code, _LOOK), read_singles(code)
    return device.to_device(runs), device.to_device(singles)


def written(string: Any, n: int, lead: int, front: Array) -> tuple[Any, ...]:
    """Write the string of n symbols, which has been measured, after a lead of bytes and `front`.

    Returns
    -------
    data : uint8 array on the device
    nbits, *marks
        Results of ``string.deferred_marks()``. They are `Deferred` if the device has room for the
        longest string.
    """
    device, (nbits, *marks) = device_with(front), string.deferred_marks()
    most = None if string.most is None else string.most + 8 * (lead + front.size)
    if most is None or most > _ROOMY * n + _SMALL:
        words = device.to_host(nbits.words)
        most, *marks = (number.resolve(words) for number in (nbits, *marks))
    out = device.zeros(-(-most // 32), np.uint32)
    data = out.view(np.uint8)
    if front.size:
        data[lead : lead + front.size] = front
    string.put(out)
    if nbits.is_known:
        return data[: -(-most // 8)], most, *marks
    return data, nbits, *marks


def reader_grid(blocks: int, chained: bool) -> tuple[int, int]:
    """Return the grid and threads of a kernel in which each thread, or only one, reads blocks."""
    threads = 32 if blocks <= _FEW else 128
    return -(-blocks // threads) if chained else 1, threads


def note_status(device: Device, status: Array, chained: bool) -> None:
    """Have the error in a (1,) status on the device raised later; see `prefix_read.check`."""
    check_status(device, status, lambda at, error: check(np.array([-error, at]), chained))


def check_status(device: Device, status: Array, raise_error: Callable[[int, int], None]) -> None:
    """Call a function with the position and number of the error in a (1,) status, if there is one.

    The function is called as `gcodec.runtime.deferred.fetch_later` describes.
    """

    def unpack(words: np.ndarray) -> None:
        if words[0] != NO_ERROR:
            raise_error(*divmod(int(words[0]), _LEFT))

    fetch_later(device, status, unpack)
