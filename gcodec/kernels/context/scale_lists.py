"""Lists of scales as Rice words or Huffman words: their size, the encoder and the decoder.

A scale is from 0 to 127, and 0 means that a row or column is empty. The words code u: 0 for a
scale of 0, else one more than the distance from the least scale, in units of 1, 2, 4 or 8 that
divide all distances. See `gcodec.entropy.context.scale_lists`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.numeric.words import peek, put
from gcodec.kernels.prefix.codewords import RICE as RICE_CODE
from gcodec.kernels.prefix.look_ahead import AT, LAST_AT, LAST_PLACE, PLACE, looking, state
from gcodec.kernels.prefix.package_merge import scratch_size, word_lengths
from gcodec.kernels.prefix.prefix_read import last_lookup
from gcodec.kernels.prefix.rice_words import put_rice
from gcodec.kernels.prefix.table_code import Look
from gcodec.runtime.jit import inline, kernel, subroutine

MOST = 127  # the largest scale
CODE, SHIFT, SCALE, RICE = 2, 2, 7, 3  # bits of the fields in front of a list, and of k
TOP, LENGTH = 8, 4  # bits of the largest u, and of the length of each Huffman word
LONGEST = 12  # bits of the longest Huffman word
_TOGETHER = 4  # words that are read from the same 64 bits
_LOOK = Look(9, 6)  # of the table of runs, from which several words are read at once
_LEAST_WITH_RUNS = 1 << 10  # scales of a list that are worth a table of runs
MANY = 1 << 11  # scales from which on rANS may pay
_RANS_ENTRY, _RANS_STATE = 6, 860  # bits, about: of each scale in a table of rANS; of its states
_POINT = 28  # fractional bits of logarithms
_KINDS = MOST + 2  # values that u may have
_FIELDS = 6  # of `ListParameters`
_LENGTHS, _COUNTS = _FIELDS + _KINDS, _FIELDS + 2 * _KINDS  # ends of parts of a scratch array
_OFTEN = _COUNTS + _KINDS
SCRATCH = _OFTEN + scratch_size(_KINDS, LONGEST)  # int64 elements; see `find_parameters`
_WORST, _SLACK = 10, 16  # bits of the longest Rice word; bytes that writing needs in addition
_SYMBOLS, _WINDOWS = 1 << TOP, 1 << LONGEST
HEAD = CODE + SHIFT + SCALE
_ENDS, _CODE, _TABLE, _WORD, _SCALE = range(1, 6)  # faults of a list
_ABOVE, _LOW = np.uint16(TOP), np.uint16(_SYMBOLS - 1)
_RUN, _MOST_WORDS, _MARGIN = _LOOK.window, _LOOK.most, _LOOK.margin
_BITS_AT, _COUNT_AT = np.uint64(8 * _LOOK.most), np.uint64(8 * _LOOK.most + 8)  # of an entry

_read_word = RICE_CODE.value
_look_ahead = looking(1, _LOOK, {"out": 0})


class ListParameters(NamedTuple):
    """Parameters and sizes of the codes of a list.

    Attributes
    ----------
    least, shift : int
        u of a scale other than 0 is one more than (scale − least) >> shift.
    center : int
        Median of all u.
    k : int
        Parameter of the shortest Rice words for zigzag(u − center).
    rice_nbits : int
        Bits of the Rice words, with their parameters.
    words_nbits : int
        Bits of Huffman words for u, with their table.
    """

    least: int
    shift: int
    center: int
    k: int
    rice_nbits: int
    words_nbits: int


class DecodedList(NamedTuple):
    """The fields of a list, and its scales.

    Attributes
    ----------
    code : int
        0 for Rice words, 1 for Huffman words, 2 for rANS, whose string the caller decodes.
    shift, least : int
        See `ListParameters`.
    after : int
        Position of the next bit.
    scales : (k,) uint8 array
    """

    code: int
    shift: int
    least: int
    after: int
    scales: np.ndarray


def list_parameters(scales: np.ndarray) -> ListParameters:
    """Find the parameters of the codes of (k,) uint8 scales."""
    scratch = np.empty(SCRATCH, np.int64)
    find_parameters(scales, scratch)
    return ListParameters(*scratch[:_FIELDS].tolist())


def nbits(scales: np.ndarray, logs: np.ndarray) -> int:
    """Return the bits of a list of (k,) uint8 scales; an estimate where rANS may pay.

    Parameters
    ----------
    scales : (k,) uint8 array
    logs : (m,) int64 array
        log2 of 1 to m − 1 in units of 2^-28; m − 1 is a power of two, at least 2^8.
    """
    return int(list_nbits(scales, logs, np.empty(SCRATCH, np.int64)))


def put_list(scales: np.ndarray, string: BitString) -> None:
    """Append (k,) uint8 scales, k > 0, to a string, in Rice or Huffman words, the shorter ones."""
    string.reserve(scales.size * _WORST // 8 + _SLACK)
    _put_list(scales, np.empty(SCRATCH, np.int64), string.data, string.state)


def read_list(data: np.ndarray, at: int, end: int, count: int) -> DecodedList:
    """Read a list of `count` scales from bit `at` on; it must end at bit `end` or before.

    Raises
    ------
    FormatError
    """
    # Every word takes a bit or more, so `count` alone allocates nothing.
    scales = np.empty(min(count, max(end - at, 0)), np.uint8)
    lengths, windows = np.empty(_SYMBOLS, np.uint8), np.empty(_WINDOWS, np.uint16)
    runs = np.empty(1 << _LOOK.window if count >= _LEAST_WITH_RUNS else 0, np.uint64)
    tables, fields = (lengths, windows, runs), np.empty(5, np.int64)
    _read_list(data, at, end, count, *tables, state(), scales, fields)
    fault, code, shift, least, after = fields.tolist()
    if fault == _ENDS:
        raise Truncated(f"a list of scales is cut off at bit {end}")
    if fault == _CODE:
        raise Corrupt(f"a list of scales has the code {code}, not 0, 1 or 2")
    if fault == _TABLE:
        raise Corrupt("the word lengths in front of a list of scales form no prefix code")
    if fault == _WORD:
        raise Corrupt(f"a list of scales has an invalid word at bit {after}")
    if fault == _SCALE:
        raise Corrupt(f"a list holds a scale that is not from 0 to {MOST}")
    return DecodedList(code, shift, least, after, scales)


@inline
def _zigzag(value):
    return 2 * value if value >= 0 else -1 - 2 * value


@inline
def _u_of(scale, least, shift):
    return (scale - least >> shift) + 1 if scale > 0 else 0


@inline
def _scale_of(u, least, shift):
    return np.uint8((u - 1 << shift) + least if u > 0 else 0)


# --- sizes ---------------------------------------------------------------------------------------


@inline
def _longest(total):
    """Return the bits of the longest Huffman word of counts with a total, up to LONGEST.

    A word of l bits needs counts that grow like Fibonacci numbers, with the (l + 2)th as their
    sum. A larger limit would not change the lengths of words.
    """
    longest, needed, following = 1, np.int64(3), np.int64(5)
    while longest < LONGEST and needed <= total:
        longest, needed, following = longest + 1, following, needed + following
    return longest


@kernel("in uint8[], out int64[]", vectorized=False)
def find_parameters(scales, scratch):
    """Write the fields of `ListParameters` to the beginning of `scratch`; scratch.size == SCRATCH.

    No scale exceeds MOST.

    After the fields follow the lengths of the Huffman words of each u up to the largest, the
    counts of each u, and the counts of each scale.
    """
    out, lengths = scratch[:_FIELDS], scratch[_FIELDS:_LENGTHS]
    counts, often = scratch[_LENGTHS:_COUNTS], scratch[_COUNTS:_OFTEN]
    often[:] = 0
    counts[:] = 0
    for i in range(scales.size):
        often[scales[i]] += 1
    least, bits = np.int64(MOST), np.int64(8)
    for scale in range(MOST, 0, -1):
        if often[scale] > 0:
            least = np.int64(scale)
    for scale in range(least, MOST + 1):
        if often[scale] > 0:
            bits |= np.int64(scale) - least
    shift = 0
    while not bits >> shift & 1:
        shift += 1
    counts[0], top = often[0], 0
    for scale in range(least, MOST + 1):
        if often[scale] > 0:
            top = (np.int64(scale) - least >> shift) + 1
            counts[top] = often[scale]
    # The median of an even number of elements is the mean of the two in the middle.
    low = high = below = np.int64(0)
    for u in range(top + 1):
        below += counts[u]
        low += below <= (scales.size - 1) // 2
        high += below <= scales.size // 2
    center = (low + high) // 2
    k, fewest = 0, np.int64(0)
    for parameter in range(1 << RICE):
        total = np.int64((parameter + 1) * scales.size)
        for u in range(top + 1):
            total += (_zigzag(np.int64(u) - center) >> parameter) * counts[u]
        if parameter == 0 or total < fewest:
            k, fewest = parameter, total
    word_lengths(counts[: top + 1], _longest(scales.size), scratch[_OFTEN:], lengths[: top + 1])
    words = np.int64(0)
    for u in range(top + 1):
        words += counts[u] * lengths[u]
    out[0], out[1], out[2], out[3] = least, shift, center, k
    out[4], out[5] = SCALE + RICE + fewest, TOP + LENGTH * (top + 1) + words


@kernel("in uint8[], in int64[], out int64[]", vectorized=False)
def list_nbits(scales, logs, scratch):
    """Return the bits of a list; see `nbits`. scratch.size == SCRATCH."""
    find_parameters(scales, scratch)
    fewest = HEAD + min(scratch[4], scratch[5])
    if scales.size < MANY:
        return fewest
    drop = 0
    while scales.size >> drop >= logs.size - 1:
        drop += 1
    total, kinds = np.int64(0), np.int64(0)
    for scale in range(MOST + 1):
        count = scratch[_COUNTS + scale]
        if count > 0:
            total += count * (logs[scales.size >> drop] - logs[max(count >> drop, 1)])
            kinds += 1
    return min(fewest, (total >> _POINT) + _RANS_ENTRY * kinds + _RANS_STATE)


# --- encoder -------------------------------------------------------------------------------------


@subroutine
def _put_rice_words(scales, least, shift, center, k, out, at, acc, have):
    for i in range(scales.size):
        number = _zigzag(_u_of(np.int64(scales[i]), least, shift) - center)
        acc, have, at = put_rice(out, at, acc, have, number, k)
    return acc, have, at


@subroutine
def _put_huffman_words(scales, least, shift, lengths, codes, out, at, acc, have):
    # codes.size >= lengths.size, which exceeds the largest u.
    acc, have, at = put(out, at, acc, have, np.uint64(lengths.size - 1), np.uint64(TOP))
    longest = np.int64(0)
    for u in range(lengths.size):
        acc, have, at = put(out, at, acc, have, np.uint64(lengths[u]), np.uint64(LENGTH))
        longest = max(longest, lengths[u])
    # Canonical words: consecutive numbers, shifted wherever words become longer.
    code = 0
    for length in range(1, longest + 1):
        code <<= 1
        for u in range(lengths.size):
            if lengths[u] == length:
                codes[u] = code
                code += 1
    for i in range(scales.size):
        u = _u_of(np.int64(scales[i]), least, shift)
        acc, have, at = put(out, at, acc, have, np.uint64(codes[u]), np.uint64(lengths[u]))
    return acc, have, at


@kernel("in uint8[], out int64[], out uint8[], out uint64[]", vectorized=False)
def _put_list(scales, scratch, out, state):
    # scratch.size == SCRATCH; `out` has room for Rice words of the largest parameter, at most
    # _WORST bits each, and for the slack of `put`. The shortest words are no longer.
    find_parameters(scales, scratch)
    least, shift, center, k = scratch[0], scratch[1], scratch[2], scratch[3]
    largest = np.int64(0)
    for i in range(scales.size):
        largest = max(largest, np.int64(scales[i]))
    top = _u_of(largest, least, shift)
    by_huffman = scratch[5] < scratch[4]
    at, acc, have = np.int64(state[0]), state[1], state[2]
    head, nbits = (np.int64(by_huffman) << SHIFT | shift) << SCALE | least, HEAD
    if by_huffman:
        acc, have, at = put(out, at, acc, have, np.uint64(head), np.uint64(nbits))
        lengths, codes = scratch[_FIELDS : _FIELDS + top + 1], scratch[_OFTEN:]
        acc, have, at = _put_huffman_words(
            scales, least, shift, lengths, codes, out, at, acc, have
        )
    else:
        head, nbits = (head << SCALE | center) << RICE | k, nbits + SCALE + RICE
        acc, have, at = put(out, at, acc, have, np.uint64(head), np.uint64(nbits))
        acc, have, at = _put_rice_words(scales, least, shift, center, k, out, at, acc, have)
    state[0], state[1], state[2] = np.uint64(at), acc, have


# --- decoder -------------------------------------------------------------------------------------


@subroutine
def _read_rice_words(data, at, end, least, shift, out):
    """Read Rice words; return the fault, if any, and the position of the next bit."""
    head = np.int64(peek(data, at) >> np.uint64(64 - SCALE - RICE))
    center, most = head >> RICE, (MOST - least >> shift) + 1
    k = np.uint64(head & ((1 << RICE) - 1))
    at, fault = at + SCALE + RICE, 0
    for i in range(out.size):
        word, at = _read_word(data, at, end, k)
        if at < 0:
            return _ENDS, at
        number = np.int64(word)  # k < 8, and no string has 2^55 zeros
        u = center + (-1 - (number >> 1) if number & 1 else number >> 1)
        if u < 0 or u > most:
            fault = _SCALE
        out[i] = _scale_of(u, least, shift)
    return (_ENDS if at > end else fault), at


@subroutine
def _fill_windows(lengths, windows):
    """Write, for all next bits, the symbol and above it the bits of its word; 0 for no word.

    Return whether the lengths are a code: the words fill all windows, or one word has one bit.
    """
    words, taken, longest = 0, np.int64(0), np.int64(0)
    for symbol in range(lengths.size):
        length = np.int64(lengths[symbol])
        if length > LONGEST:
            return False
        words += length > 0
        longest = max(longest, length)
        taken += np.int64(1) << LONGEST - length if length > 0 else 0
    if taken > _WINDOWS or (taken < _WINDOWS and (words != 1 or longest != 1)):
        return False
    windows[taken:] = 0
    at = 0
    for length in range(1, longest + 1):
        for symbol in range(lengths.size):
            if lengths[symbol] == length:
                stop = at + (1 << LONGEST - length)
                windows[at:stop] = np.uint16(length) << _ABOVE | np.uint16(symbol)
                at = stop
    return True


@subroutine
def _fill_runs(windows, least, shift, most, runs):
    """Write the scales of consecutive words that fit in a window; see `look_ahead` for entries."""
    for index in range(runs.size):  # 1 << _RUN
        run, used, count = np.uint64(0), np.int64(0), np.int64(0)
        while count < _MOST_WORDS:
            entry = windows[index << LONGEST - _RUN + used & _WINDOWS - 1]
            length, u = np.int64(entry >> _ABOVE), np.int64(entry & _LOW)
            if length == 0 or used + length > _RUN or u > most:
                break
            run |= np.uint64(_scale_of(u, least, shift)) << np.uint64(8 * count)
            used, count = used + length, count + 1
        runs[index] = run | np.uint64(used) << _BITS_AT | np.uint64(count) << _COUNT_AT


@subroutine
def _read_huffman_words(data, at, end, least, shift, lengths, windows, runs, heads, out):
    """Read Huffman words; return the fault, if any, and the position of the next bit."""
    top = np.int64(peek(data, at) >> np.uint64(64 - TOP))
    at += TOP
    if end - at < LENGTH * (top + 1):
        return _ENDS, at
    for symbol in range(top + 1):
        lengths[symbol] = np.uint8(peek(data, at) >> np.uint64(64 - LENGTH))
        at += LENGTH
    if lengths[top] == 0 or not _fill_windows(lengths[: top + 1], windows):
        return _TABLE, at
    most, fault = (MOST - least >> shift) + 1, 0
    if runs.size > 0:
        _fill_runs(windows, least, shift, most, runs)
    heads[LAST_AT] = last_lookup(data, end)
    heads[LAST_PLACE] = out.size - _MARGIN
    i = np.int64(0)
    while i < out.size:
        if runs.size > 0:
            heads[AT], heads[PLACE] = at, i
            _look_ahead(data, runs, heads, 0, out)
            at, i = heads[AT], heads[PLACE]
        part, bits = out[i : i + _TOGETHER], peek(data, at)
        for k in range(part.size):
            entry = windows[np.int64(bits >> np.uint64(64 - LONGEST))]
            length = np.int64(entry >> _ABOVE)
            if length == 0:
                return (_WORD if at < end else _ENDS), at
            at += length
            bits <<= np.uint64(length)
            u = np.int64(entry & _LOW)
            if u > most:
                fault = _SCALE
            part[k] = _scale_of(u, least, shift)
        i += part.size
    return (_ENDS if at > end else fault), at


@kernel(
    "in uint8[], int64, int64, int64, out uint8[], out uint16[], out uint64[], out int64[], "
    "out uint8[], out int64[]",
    vectorized=False,
)
def _read_list(data, at, end, count, lengths, windows, runs, heads, out, fields):
    # 0 <= at; end <= 8 * data.size; lengths.size == _SYMBOLS, windows.size == _WINDOWS, runs.size
    # is 1 << _RUN or 0, heads is a `look_ahead.state`, fields.size == 5: fault, code,
    # shift, least, next bit. out.size is the number of scales or of bits, whichever is less.
    fields[:] = 0
    if end - at < HEAD:
        fields[0] = _ENDS
        return
    head = np.int64(peek(data, at) >> np.uint64(64 - HEAD))
    code, shift = head >> SHIFT + SCALE, head >> SCALE & ((1 << SHIFT) - 1)
    least = head & ((1 << SCALE) - 1)
    at += HEAD
    fields[1], fields[2], fields[3], fields[4] = code, shift, least, at
    if code > 2:
        fields[0] = _CODE
    elif code < 2 and out.size < count:
        fields[0] = _ENDS
    elif code == 0:
        fields[0], fields[4] = _read_rice_words(data, at, end, least, shift, out)
    elif code == 1:
        fields[0], fields[4] = _read_huffman_words(
            data, at, end, least, shift, lengths, windows, runs, heads, out
        )
