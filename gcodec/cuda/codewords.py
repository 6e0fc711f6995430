"""Codes as kernels know them: numbers of rules and mappings, and the tables of both sides."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from gcodec.kernels.codewords import (
    DELTA,
    EXPGOLOMB,
    FIXED,
    GAMMA,
    GOLOMB,
    OMEGA,
    RICE,
    Rule,
)
from gcodec.kernels.device import Device
from gcodec.kernels.prefix_read import check
from gcodec.kernels.prefix_table import PrefixCode, read_runs, read_singles, ready, write_tables
from gcodec.kernels.table_code import LONGEST, LOOKS, SYMBOLS, TABLE, TableCode

# In the order of codewords.cuh.
_RULES = {r: k for k, r in enumerate((OMEGA, GAMMA, DELTA, EXPGOLOMB, GOLOMB, RICE, FIXED, TABLE))}
_MAPPINGS = {"plain": 0, "zigzag": 1, "signed": 2}
_LOOK = LOOKS[1]  # at 12 bits, for all codes: they take half of a block's shared memory
NO_ERROR = 2**63 - 1  # a status
_MANY = 1 << 9  # symbols, of which all words are looked at
_ROOMY, _SMALL = 64, 1 << 20  # bits for a symbol, and bits: not much more than a tensor takes
_LEFT = 64  # what a status is a multiple of, but for what is wrong


class HeldCode(NamedTuple):
    """A code for bytes whose words a device has made of counts; it has one for all that occur.

    Attributes
    ----------
    singles : (256,) uint64 array on the device
        See `prefix_table.WriteTables`.
    """

    singles: Any

    @property
    def kind(self) -> tuple[Rule, Literal["plain"], int]:
        """What tells one kernel from another."""
        return TABLE, "plain", 0

    @property
    def parameter(self) -> int:
        """No writer looks at it."""
        return 0


Written = PrefixCode | TableCode | HeldCode


def rule_of(code: Written) -> tuple[Any, ...]:
    """Return the numbers that tell a kernel the words that are in no table."""
    rule, mapping, shift = code.kind
    numbers = np.int32(_RULES[rule]), np.int32(_MAPPINGS[mapping]), np.uint64(shift % 2**64)
    return *numbers, np.uint64(code.parameter)


def write_singles(device: Device, code: Written) -> Any:
    """Return the (256,) uint64 words of small symbols; see `prefix_table.WriteTables`."""
    if isinstance(code, HeldCode):
        return code.singles
    if isinstance(code, TableCode):
        return device.to_device(ready(*code.words(SYMBOLS)))
    return device.to_device(write_tables(code).singles)


def read_tables(device: Device, code: PrefixCode | TableCode) -> tuple[Any, Any]:
    """Return what a reader sees in 12 bits: up to six symbols, and a single one."""
    runs, singles = read_runs(code, _LOOK), read_singles(code)
    return device.to_device(runs), device.to_device(singles)


def most_nbits(code: Written) -> int | None:
    """Return the bits of the longest word; None where one may be missing, or there are many."""
    if isinstance(code, HeldCode):
        return LONGEST
    if isinstance(code, TableCode) or code.top >= _MANY:
        return None
    return int(code.words(code.top + 1)[1].max())


def has_room(nbits: int, n: int) -> bool:
    """Whether a string of n symbols may get room for so many bits before its length is known."""
    return nbits <= _ROOMY * n + _SMALL


def raise_status(status: int, chained: bool) -> None:
    """Raise what kernels say of a string; see `prefix_read.check`."""
    if status != NO_ERROR:
        at, wrong = divmod(status, _LEFT)
        check(np.array([-wrong, at]), chained)
