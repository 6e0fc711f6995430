"""Byte planes, the first one in Huffman words, in one pass over the elements.

The reader joins the planes of some tiles while the cache contains their words' symbols.
"""

from __future__ import annotations

import numpy as np

from gcodec.errors import ParameterError
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.byte_planes import (
    FLOAT_SHIFTS,
    FORMS,
    group_arguments,
    orders,
    taking_coded,
    taking_others,
)
from gcodec.kernels.context.byte_scales import (
    FORM,
    PlaneForm,
    joiner,
    taking_part,
    wrong_group,
)
from gcodec.kernels.context.class_map import TILE
from gcodec.kernels.prefix.look_ahead import ENTRIES, state
from gcodec.kernels.prefix.prefix_read import check, prepared, reader
from gcodec.kernels.prefix.prefix_write import TABLES, table_arguments, write_table_words
from gcodec.kernels.prefix.table_code import IN_TABLES, LOOKS, Look, TableCode
from gcodec.runtime import pool
from gcodec.runtime.jit import Kernel, factory, kernel

# Elements whose words are read before their planes are joined: as many tiles for each string that
# is read in turn, so that all strings end at about the same time.
_TOGETHER = 16 * ENTRIES * TILE
_READ_FORMS = tuple(FLOAT_SHIFTS.items())[
    :2
]  # of 16 and 32 bits; float64 has further coded planes
_WRONG_GROUP = 1  # status of a tile with another number of zeros
_NO_WIDE, _NO_PARTS = np.empty(0, np.uint64), np.empty(0, np.uint8)


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


def is_readable(itemsize: int, form: PlaneForm) -> bool:
    """Return whether `read` has kernels for elements and a first plane of this form."""
    return (itemsize, form.shift) in _READ_FORMS


def read(
    code: TableCode,
    data: np.ndarray,
    starts: np.ndarray,
    end: int,
    form: PlaneForm,
    others: np.ndarray,
    coded: np.ndarray | None,
    out: np.ndarray,
    *,
    streaming: bool,
) -> None:
    """Read the words of a first plane, and write the bit patterns of the elements.

    Parameters
    ----------
    code : TableCode
    data : uint8 array
    starts : (ceil(n / 4096) + 1,) int64 array
        Bit where the words of each tile begin, and where the last ones end.
    end : int
        Bit where the string ends.
    form : PlaneForm
        See `is_readable`.
    others : uint8 array
        The other planes of all elements, one after the other.
    coded : (ceil(n / 4096),) uint16 array or None
        See `append`.
    out : (n,) unsigned array
    streaming : bool
        Whether stores bypass the cache where `out` is aligned.

    Raises
    ------
    FormatError
        The contents of `out` are then undefined.
    """
    counts, planes = group_arguments(out.itemsize, coded)
    stride = others.size // (out.itemsize - 1)
    loop, (_, *tables) = _reading(out.itemsize, form.shift, code.look), prepared(code)

    def task(start: int, stop: int) -> None:
        tiles, size = slice(start // TILE, -(-stop // TILE)), min(_TOGETHER, stop - start)
        before = counts[: tiles.start]
        place = start if coded is None else int(np.add.reduce(before, dtype=np.int64))
        status, symbols = np.zeros(2, np.int64), np.empty(size, np.uint8)
        room = state(), np.arange(TILE, size + TILE, TILE), symbols, _NO_WIDE, _NO_PARTS
        groups = counts[tiles], orders()[1], planes.copy(), np.empty(TILE, np.uint8)
        string = data, starts[tiles.start : tiles.stop + 1], end, *tables, *room
        sources = start, *groups, others, place, stride
        loop(*string, *form.arguments, *sources, streaming, out[start:stop], status)
        if status[0] == _WRONG_GROUP:
            raise wrong_group(tiles.start + int(status[1]))
        check(status, True)

    pool.run(task, out.size, TILE)


@factory(lambda: ((*form, look) for form in _READ_FORMS for look in LOOKS))
def _reading(itemsize: int, shift: int, look: Look) -> Kernel:
    read_words, join_planes = reader(IN_TABLES, look), joiner(itemsize, shift)

    @kernel(
        f"in uint8[], out int64[], int64, (in uint64[], in uint{8 * look.nbytes}[], in uint32[]), "
        f"(out int64[], out int64[], out uint8[], out uint64[], out uint8[]), {FORM}, int64, "
        "(in uint16[], in uint64[], out uint8[], out uint8[]), (in uint8[], int64, int64), "
        f"boolean, out uint{8 * itemsize}[], out int64[]",
        variant=f"{itemsize} {shift} {look.window}",
        vectorized=False,
    )
    def read_planes(
        data, starts, end, tables, room, form, start, groups, sources, streaming, out, status
    ):
        # starts has one more element than `out` has tiles, and bounds[k] is (k + 1) * TILE for
        # each tile of `symbols`, whose size is a multiple of TILE or out.size. wide and parts have
        # no elements; status[0] is 0. counts.size is 0 or the number of tiles; `place` is the
        # first coded element of `others`. See `byte_scales.joiner` for the other arrays.
        heads, bounds, symbols, wide, parts = room
        code, runs, singles = tables
        counts, orders, planes, raised = groups
        others, place, stride = sources
        for first in range(0, out.size, symbols.size):
            target = out[first : first + symbols.size]
            tile, tiles = first // TILE, (target.size + TILE - 1) // TILE
            bounds[tiles - 1] = target.size  # smaller than before for the last tile alone
            part, own = symbols[: target.size], starts[tile : tile + tiles + 1]
            read_words(
                *(data, own, bounds[:tiles], True, end, 0.0, code, runs, singles, heads),
                *((part, wide, parts), status),
            )
            if status[0] < 0:
                return
            coded = counts[tile : tile + tiles]
            valid = join_planes(
                *(part, others[place:], stride, form, start + first, raised),
                *(coded, orders, planes, streaming, target),
            )
            if valid < coded.size:
                status[0], status[1] = _WRONG_GROUP, tile + valid
                return
            if counts.size == 0:
                place += target.size
            for group in range(coded.size):
                place += np.int64(coded[group])

    return read_planes
