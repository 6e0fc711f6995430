"""The shortest string of codes of minifloats, as a device chooses it; see `string_choice`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.codecs.minifloat import coding_choice
from gcodec.codecs.minifloat.coding_choice import (
    KINDS,
    TABLED,
    Plan,
    alphabet,
    coded_nbytes,
    plane_nbits,
)
from gcodec.codecs.minifloat.payload import CodedAs, coded, write, write_tabled
from gcodec.entropy.coder import Written
from gcodec.entropy.context import device as contexts
from gcodec.entropy.context import symbol_coder
from gcodec.entropy.device import chosen_and_size
from gcodec.entropy.tabled import Table
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.code_parts import parts_of
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.context.string_choice_cuda import Kept
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.quantize import minifloat
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.kernels.quantize.minifloat_block import per_byte
from gcodec.payload import Candidates
from gcodec.runtime.cuda_grid import device_with
from gcodec.runtime.deferred import Deferred, wanted
from gcodec.runtime.device import Device, placed


def choose(
    codes: Any, n: int, fmt: MiniFloat, book: int | str, shape: tuple[int, ...], lead: np.ndarray
) -> Candidates:
    """Write the shortest string of n codes; see `gcodec.codecs.minifloat.payload.choose`."""
    if not n:
        return Candidates([write(codes, n, fmt, "auto", book, shape, lead)])
    device = device_with(codes)
    names = [code for code in TABLED if code != "pair" or per_byte(fmt) == 2]
    plans, sizes = [], device.zeros(1 + len(names), np.int64)
    for k, code in enumerate(names, 1):
        found, sizes[k : k + 1] = _plan(codes, n, fmt, code, book)
        plans.append(found)
    planned, symbols = None, codes
    if book in ("auto", "empirical"):
        symbols = parts_of(codes, n, fmt, "signs last")
        planned = contexts.plan(symbols, shape)
    raw, every = plane_nbits(n, fmt), [plan.code for plan in plans]
    more = [n * fmt.width, *(raw if code == "planes" else 0 for code in every)]
    each = np.array([n * fmt.width, *(coded_nbytes(n, fmt, code) for code in every), n], np.int64)
    estimate = None if planned is None else planned.nbits
    shortest = symbol_coder.SHORTEST
    kept = Kept.of(sizes, more, device.to_device(each), estimate, shortest)
    strings = [_plain(device, codes, n, fmt, lead, kept)]
    for k, plan in enumerate(plans, 1):
        some = kept.coded(k, coded(n, fmt, plan.code))
        if KINDS[plan.code] == "rans":
            some = CodedMask(kept.count_of(k), 1, None)  # type: ignore[arg-type]
        made = write_tabled(codes, n, fmt, plan, lead, some)
        strings.append((plan.code, plan.book, made))
    if planned is not None:
        front = BitString()
        front.extend(lead, 8 * lead.size)
        made = contexts.write_planned(planned, symbols, front, kept.count_of(len(plans) + 1))
        strings.append(("context", None, made))

    return Candidates(strings, kept.which, kept.told, 8 * lead.size)


def _plan(codes: Any, n: int, fmt: MiniFloat, code: str, book: int | str) -> tuple[Plan, Any]:
    """Return the plan with the best table, and its bits but for signs and mantissas."""
    symbols, kind = coding_choice.symbols_of(codes, n, fmt, code), KINDS[code]
    counts, every = byte_counts(symbols), alphabet(fmt, code)
    own = Table.own(kind, counts, every) if book in ("auto", "empirical") else None
    known = coding_choice.known_books(fmt, code, book)
    table, size = chosen_and_size(counts, own, kind, every, known)
    wanted(table.which)
    number = coding_choice.book_of(table, fmt, book)
    most = coding_choice.longest_nbits(n, fmt, code)
    return Plan(code, number, table, most, symbols), size


def _plain(
    device: Device, codes: Any, n: int, fmt: MiniFloat, lead: np.ndarray, kept: Kept
) -> CodedAs:
    """Return all bits of each code, which are fetched only where they are the shortest."""
    data = minifloat.packed(codes, n, fmt)
    out = device.empty(-(-(lead.size + data.size) // 4), np.uint32).view(np.uint8)
    out[: lead.size], out[lead.size : lead.size + data.size] = placed(lead, out), data
    whole = 8 * lead.size + n * fmt.width
    nbits: Any = Deferred(
        device, kept.counts[:1], lambda _: whole, (kept.counts[:1], 1, 8 * lead.size)
    )
    return "none", None, Written(out, nbits)
