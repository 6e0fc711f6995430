"""Codes as kernels know them: numbers of rules and mappings, and the tables of both sides."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.prefix.codewords import DELTA, EXPGOLOMB, FIXED, GAMMA, GOLOMB, OMEGA, RICE
from gcodec.kernels.prefix.prefix_read import check
from gcodec.kernels.prefix.prefix_table import (
    PrefixCode,
    read_runs,
    read_singles,
    ready,
    write_tables,
)
from gcodec.kernels.prefix.table_code import LONGEST, LOOKS, SYMBOLS, TABLE, TableCode
from gcodec.runtime.device import Device

# In the order of codewords.cuh.
_RULES = {r: k for k, r in enumerate((OMEGA, GAMMA, DELTA, EXPGOLOMB, GOLOMB, RICE, FIXED, TABLE))}
_MAPPINGS = {"plain": 0, "zigzag": 1, "signed": 2}
_LOOK = LOOKS[1]  # at 12 bits, for all codes: they take half of a block's shared memory
NO_ERROR = 2**63 - 1  # a status
_MANY = 1 << 9  # symbols, of which all words are looked at
_ROOMY, _SMALL = 64, 1 << 20  # bits for a symbol, and bits: not much more than a tensor takes
_LEFT = 64  # what a status is a multiple of, but for what is wrong


class Words(NamedTuple):
    """What a kernel looks up that writes the words of a code, which a device may have made.

    Attributes
    ----------
    table : (size + 1,) uint64 array on the device
        Words of the symbols below a size, as `prefix_table.WriteTables.singles`; the parameter of
        the rule for others.
    rule, mapping : int32
    shift : uint64
    longest : int or None
        Bits of the longest word, or more; None where there are many.
    """

    table: Any
    rule: np.int32
    mapping: np.int32
    shift: np.uint64
    longest: int | None

    @classmethod
    def of(
        cls, device: Device, code: PrefixCode | TableCode | Words, size: int = SYMBOLS
    ) -> Words:
        """Bring those of a code to a device, if they are not there."""
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
        table = device.to_device(np.append(singles, parameter))
        return cls(table, rule, mapping, shift, longest)


def rule_of(code: PrefixCode | TableCode) -> tuple[Any, ...]:
    """Return the numbers that tell a kernel the words that are in no table."""
    rule, mapping, shift = code.kind
    numbers = np.int32(_RULES[rule]), np.int32(_MAPPINGS[mapping]), np.uint64(shift % 2**64)
    return *numbers, np.uint64(code.parameter)


def read_tables(device: Device, code: PrefixCode | TableCode) -> tuple[Any, Any]:
    """Return what a reader sees in 12 bits: up to six symbols, and a single one."""
    runs, singles = read_runs(code, _LOOK), read_singles(code)
    return device.to_device(runs), device.to_device(singles)


def has_room(nbits: int, n: int) -> bool:
    """Whether a string of n symbols may get room for so many bits before its length is known."""
    return nbits <= _ROOMY * n + _SMALL


def raise_status(status: int, chained: bool) -> None:
    """Raise what kernels say of a string; see `prefix_read.check`."""
    if status != NO_ERROR:
        at, wrong = divmod(status, _LEFT)
        check(np.array([-wrong, at]), chained)
