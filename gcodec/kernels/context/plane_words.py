"""Byte planes, the first one in Huffman words, in one pass over the elements."""

from __future__ import annotations

import numpy as np

from gcodec.errors import ParameterError
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.byte_planes import (
    FORMS,
    group_arguments,
    orders,
    taking_coded,
    taking_others,
)
from gcodec.kernels.context.byte_scales import FORM, PlaneForm, taking_part
from gcodec.kernels.context.class_map import TILE
from gcodec.kernels.prefix.prefix_write import TABLES, table_arguments, write_table_words
from gcodec.kernels.prefix.table_code import TableCode
from gcodec.runtime.jit import Kernel, factory, kernel


def append(
    code: TableCode,
    bits: np.ndarray,
    form: PlaneForm,
    others: np.ndarray,
    coded: np.ndarray | None,
    tiles: slice,
    string: BitString,
) -> np.ndarray:
    """Append the words of a range of the first plane to a string, and write its other planes.

    Parameters
    ----------
    code : TableCode
    bits : (n,) unsigned array
        Bit patterns of all elements.
    form : PlaneForm
    others : uint8 array
        The other planes of all elements, one after the other.
    coded : (ceil(n / 4096),) uint16 array or None
        The numbers of `byte_planes.coded_counts` if the other planes leave out elements of 0; then
        the form has an escape if an element is hidden.
    tiles : slice
        Tiles of 2^12 elements.
    string : BitString

    Returns
    -------
    (count,) int64 array
        Bits of the string, including its lead, at the end of each tile.

    Raises
    ------
    ParameterError
        If the code has no word for a byte.
    """
    start, bits = TILE * tiles.start, bits[: TILE * tiles.stop]
    counts, room = group_arguments(bits.itemsize, coded)
    place = start if coded is None else int(np.add.reduce(counts[: tiles.start], dtype=np.int64))
    stride = others.size // max(bits.itemsize - 1, 1)
    part, progress = np.empty(2 * TILE, np.uint8), np.zeros(7, np.int64)
    ends = np.empty(-(-(bits.size - start) // TILE), np.int64)
    planes = part, start, counts[tiles], orders()[0], room, place, stride, others
    tables = table_arguments(code, bits.size - start)
    loop = _appending(bits.itemsize, form.shift)
    while True:
        target = string.data, string.state, ends, progress
        loop(bits, *form.arguments, *planes, *tables, *target)
        if progress[1] == ends.size:
            return ends
        if progress[2]:
            raise ParameterError("a byte of the plane has no word")
        string.grow()


@factory(lambda: FORMS)
def _appending(itemsize: int, shift: int) -> Kernel:
    take_first, take_others = taking_part(itemsize, shift), taking_others(itemsize, shift)
    take_coded = taking_coded(itemsize, shift)

    @kernel(
        f"in uint{8 * itemsize}[], {FORM}, out uint8[], int64, "
        "(in uint16[], in uint64[], out uint8[]), int64, int64, out uint8[], "
        f"{TABLES}, out uint8[], out uint64[], out int64[], out int64[]",
        variant=f"{itemsize} {shift}",
    )
    def append_planes(
        bits, form, room, start, coded, place, stride, others, tables, out, state, ends, progress
    ):
        # room.size == 2 * TILE; others.size >= (itemsize - 1) * stride; ends.size is the number of
        # tiles, which are groups, from element `start` on; see `taking_part` for the scales.
        # counts.size is 0, and `stride` is at least bits.size; or counts.size is ends.size, and
        # `stride` is the sum of the counts of all groups, `place` that of preceding ones; see
        # `take_coded` for `orders` and `planes`. The first three fields of `progress` are the ones
        # of `write_table_words`; the next three are those of a tile, whose size is the last field.
        # See there for the other arrays.
        counts, orders, planes = coded
        own, bound = progress[3:6], progress[6:]
        for group in range(min(progress[1], counts.size)):
            place += np.int64(counts[group])
        for tile in range(progress[1], ends.size):
            first = start + tile * TILE
            source = bits[first : first + TILE]
            part = room[: source.size]
            take_first(bits, form, first, part, room[TILE:])
            if counts.size == 0:
                take_others(source, stride, others[first:])
            else:
                count = np.int64(counts[tile])
                take_coded(source, part, count, stride, orders, planes, others[place:])
                place += count
            own[0], own[1], own[2], bound[0] = progress[0] - tile * TILE, 0, 0, part.size
            write_table_words(part, tables, bound, out, state, ends[tile : tile + 1], own)
            progress[0], progress[1], progress[2] = tile * TILE + own[0], tile + own[1], own[2]
            if own[1] == 0:
                break

    return append_planes
