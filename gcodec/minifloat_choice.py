"""The shortest string of codes of minifloats, as a device chooses it: it alone is written there.

How long the string of "context" is, the host knows when it has made what comes before its symbols.
Where that turns out not to be the shortest, the host asks for the other one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gcodec import minifloat_plans
from gcodec.contexts import device as contexts
from gcodec.contexts import symbol_strings
from gcodec.cuda.grid import device_with
from gcodec.entropy.device import chosen_and_size
from gcodec.entropy.tabled import Table
from gcodec.kernels import minifloat
from gcodec.kernels.bit_string import BitString
from gcodec.kernels.byte_counts import byte_counts
from gcodec.kernels.code_parts import parts_of
from gcodec.kernels.device import Device, placed
from gcodec.kernels.live import Live
from gcodec.kernels.minifloat_block import per_byte
from gcodec.minifloat_plans import KINDS, TABLED, Plan, alphabet, coded, plane_nbits
from gcodec.minifloat_strings import Choice, Written, write, write_tabled
from gcodec.minifloats import MiniFloat
from gcodec.scalars import Later, wanted


def choose(
    codes: Any, n: int, fmt: MiniFloat, book: int | str, shape: tuple[int, ...], lead: np.ndarray
) -> Choice:
    """Write the shortest string of n codes; see `gcodec.minifloat_strings.choose`."""
    if not n:
        return Choice([write(codes, n, fmt, "auto", book, shape, lead)], 0, None)
    device = device_with(codes)
    names = [code for code in TABLED if code != "pair" or per_byte(fmt) == 2]
    plans, sizes = [], device.zeros(1 + len(names), np.int64)
    for k, code in enumerate(names, 1):
        found, sizes[k : k + 1] = _plan(codes, n, fmt, code, book)
        plans.append(found)
    planned, symbols = None, codes
    estimate = device.zeros(1, np.int64)
    if book in ("auto", "empirical"):
        symbols = parts_of(codes, n, fmt, "signs last")
        planned = contexts.plan(symbols, shape)
        estimate = planned.nbits
    kept = _Kept.of(device, sizes, plans, n, fmt, estimate, planned is not None)
    strings = [_plain(device, codes, n, fmt, lead, kept)]
    for k, plan in enumerate(plans, 1):
        made = write_tabled(codes, n, fmt, plan, lead, kept.live(k, plan.code, n, fmt))
        strings.append(Written(plan.code, plan.book, *made))
    if planned is not None:
        front = BitString()
        front.extend(lead, 8 * lead.size)
        count = Later(device, kept.counts[len(plans) + 1 :])
        made = contexts.write_planned(planned, symbols, front, count)
        strings.append(Written("context", None, *made))

    def otherwise(code: str, nbits: int) -> Written | None:
        _, best, least = kept.told.value.tolist()
        if code != "context" or nbits < 8 * lead.size + least:
            return None
        if not best:
            return write(codes, n, fmt, "none", "empirical", shape, lead)
        other = plans[best - 1]
        assert other.table is not None
        which = int(other.table.which)
        number = minifloat_plans.books(fmt, book)[which - 1] if which else "empirical"
        return write(codes, n, fmt, other.code, number, shape, lead)

    which = Later(device, kept.told.words, lambda told: int(kept.told.tell(told)[0]))
    return Choice(strings, which, otherwise)


class _Kept(NamedTuple):
    """What is written.

    Attributes
    ----------
    device : Device
    counts : (k,) int64 array
        Symbols of each string, none of those that are not written.
    silent : (k,) uint8 array
        Not 0 for those.
    told : Later
        Which it is; which it would be without the last one; and the bits of that.
    """

    device: Device
    counts: Any
    silent: Any
    told: Later

    @classmethod
    def of(
        cls,
        device: Device,
        sizes: Any,
        plans: list[Plan],
        n: int,
        fmt: MiniFloat,
        estimate: Any,
        estimated: bool,
    ) -> _Kept:
        """Choose it."""
        codes = [plan.code for plan in plans]
        more = [n * fmt.width, *(plane_nbits(n, fmt) * (code == "planes") for code in codes)]
        symbols = [n * fmt.width, *(coded(n, fmt, code) for code in codes), n]
        given = sizes, device.to_device(np.array(more, np.int64)), np.int32(len(more))
        with_context = estimate, np.bool_(estimated), np.int64(symbol_strings.SHORTEST)
        counts, silent = device.empty(len(symbols), np.int64), device.empty(len(symbols), np.uint8)
        told = device.empty(3, np.int64)
        made = device.to_device(np.array(symbols, np.int64)), counts, silent, told
        device.launch("table_choice", "choose_string", 1, 1, *given, *with_context, *made)
        return cls(device, counts, silent, Later(device, told, np.array))

    def live(self, k: int, code: str, n: int, fmt: MiniFloat) -> Live:
        """Return which symbols of a string are written: all, or none."""
        count: Any = coded(n, fmt, code)
        if KINDS[code] == "rans":
            return Live(Later(self.device, self.counts[k : k + 1]), 1, None)  # type: ignore[arg-type]
        silent: Any = Later(self.device, self.silent[k : k + 1])
        return Live(count, max(count, 1), silent)


def _plan(codes: Any, n: int, fmt: MiniFloat, code: str, book: int | str) -> tuple[Plan, Any]:
    """Return the plan with the best table, and its bits but for signs and mantissas."""
    symbols, kind = minifloat_plans.symbols_of(codes, n, fmt, code), KINDS[code]
    counts, every = byte_counts(symbols), alphabet(fmt, code)
    own = Table.own(kind, counts, every) if book in ("auto", "empirical") else None
    known = minifloat_plans.known_books(fmt, code, book)
    table, size = chosen_and_size(counts, own, kind, every, known)
    wanted(table.which)
    number = minifloat_plans.book_of(table, fmt, book)
    most = minifloat_plans.longest_nbits(n, fmt, code)
    return Plan(code, number, table, most, symbols), size


def _plain(
    device: Device, codes: Any, n: int, fmt: MiniFloat, lead: np.ndarray, kept: _Kept
) -> Written:
    """Return all bits of each code, which are fetched only where they are the shortest."""
    data = minifloat.packed(codes, n, fmt)
    out = device.empty(-(-(lead.size + data.size) // 4), np.uint32).view(np.uint8)
    out[: lead.size], out[lead.size : lead.size + data.size] = placed(lead, out), data
    whole = 8 * lead.size + n * fmt.width
    nbits: Any = Later(
        device, kept.counts[:1], lambda _: whole, (kept.counts[:1], 1, 8 * lead.size)
    )
    return Written("none", None, out, nbits, None)
