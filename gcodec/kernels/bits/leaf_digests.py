"""Digests of the leaves of a tree: BLAKE2b of 128 bits, in a tree of depth 2.

The leaves are independent. Each lane of a vector digests one of them, and threads share the groups
of leaves. The parameters of the tree are: unlimited fanout, depth 2, inner digests of 16 bytes.
"""

from __future__ import annotations

import hashlib

import numpy as np

from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel
from gcodec.runtime.lanes import Emitter, Value, block, compiles_for, fence, integer, lanes

DIGEST_NBYTES = 16
BLOCK_NBYTES = 128  # bytes that BLAKE2b compresses at a time

# RFC 7693: the initial state, and the words of a block in the order in which each round adds them,
# as hexadecimal digits.
_INITIAL = (
    *(0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1),
    *(0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179),
)
_WORDS = (
    *("0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8"),
    *("905724afe1bc683d", "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a"),
    *("6fe9b308c2d714a5", "a2847615fb9e3cd0", "0123456789abcdef", "ea489fd61c02b753"),
)


@dispatched("gcodec.kernels.bits.leaf_digests_cuda")
def leaf_digests(bits: np.ndarray, leaf_nbytes: int, copy: np.ndarray | None = None) -> np.ndarray:
    """Return the digests of all leaves, joined.

    Parameters
    ----------
    bits : (n,) unsigned array
        Contiguous. The last leaf may be shorter, and is the only one of an empty array.
    leaf_nbytes : int
        Bytes of a leaf, a multiple of `BLOCK_NBYTES` below 2^32.
    copy : (n,) array of the same dtype, optional
        Receives the elements while they are digested, which takes hardly more time. It starts at a
        multiple of `STREAMED` bytes.

    Returns
    -------
    (k,) uint8 array
        For an array on a device, a `Deferred` one.
    """
    data, count = bits.view(np.uint8), leaf_count(bits, leaf_nbytes)
    # A group takes as long as two or three leaves alone, which other threads could digest.
    width = _lane_count() if count > 2 * pool.thread_count() else 1
    digests = np.empty((count, DIGEST_NBYTES // 8), "<u8")
    target = np.empty(0, np.uint8) if copy is None else copy.view(np.uint8)

    def group(number: int, stop: int) -> None:
        first, end = number * width, min(stop * width, count)
        whole = min(end, data.size // leaf_nbytes) - first
        if whole > 2:
            digests[first : first + whole] = _together(data, leaf_nbytes, first, whole, target)
            first += whole
        for leaf in range(first, end):
            own = slice(leaf * leaf_nbytes, (leaf + 1) * leaf_nbytes)
            digest = node_digest(data[own].data, leaf_nbytes, 0, leaf, is_last=leaf + 1 == count)
            if copy is not None:
                target[own] = data[own]
            digests[leaf] = np.frombuffer(digest, "<u8")

    pool.run_each(group, -(-count // width))
    return digests.reshape(-1).view(np.uint8)


def leaf_count(bits: np.ndarray, leaf_nbytes: int) -> int:
    """Return the number of leaves of an array."""
    return max(-(-bits.nbytes // leaf_nbytes), 1)


def node_digest(
    data: bytes | memoryview, leaf_nbytes: int, depth: int, number: int, is_last: bool
) -> bytes:
    """Return the digest of a node of the tree: of a leaf, or of the root, whose depth is 1."""
    node = hashlib.blake2b(
        data,
        digest_size=DIGEST_NBYTES,
        fanout=0,
        depth=2,
        leaf_size=leaf_nbytes,
        node_offset=number,
        node_depth=depth,
        inner_size=DIGEST_NBYTES,
        last_node=is_last,
    )
    return node.digest()


def _lane_count() -> int:
    """Return the number of leaves that are digested together."""
    return 8 if compiles_for("avx512f") else 4


def _together(
    data: np.ndarray, leaf_nbytes: int, first: int, count: int, target: np.ndarray
) -> np.ndarray:
    """Return the (count, 2) uint64 digests of at most `_lane_count()` whole leaves.

    Copy the leaves unless `target` is empty.
    """
    leaves = first + np.minimum(np.arange(_lane_count()), count - 1)  # spare lanes repeat the last
    state = np.repeat(np.array(_INITIAL, np.uint64), leaves.size).reshape(-1, leaves.size)
    state[0] ^= np.uint64(DIGEST_NBYTES | 2 << 24 | leaf_nbytes << 32)
    state[1] ^= leaves.astype(np.uint64)
    state[2] ^= np.uint64(DIGEST_NBYTES << 8)
    last = np.where((leaves + 1) * leaf_nbytes == data.size, ~np.uint64(0), np.uint64(0))
    _digest_leaves(data, leaves * leaf_nbytes, leaf_nbytes, last, state.reshape(-1), target)
    return state[: DIGEST_NBYTES // 8, :count].T


@block("data", "starts", "length", "last", "state", "target", "copies")
def _compress(e: Emitter) -> None:
    """Compress all blocks of the leaves that begin at `starts`, each in a lane.

    If `copies` is true, copy them to `target`, past the cache. `last` has all bits of the lane of
    the last leaf of the tree. `state` has the vectors of the 8 words of the state.
    """
    builder, word, count = e.builder, integer(64), _lane_count()
    vector = lanes(64, count)

    def loaded(name: str, number: int = 0) -> Value:
        return e.load(e.element(e.args[name], number * count), vector, 8)

    starts = [builder.load(e.element(e.args["starts"], k)) for k in range(count)]
    leaves, targets = (
        [builder.gep(e.args[name], [start]) for start in starts] for name in ("data", "target")
    )
    last, initial = loaded("last"), [vector([value] * count) for value in _INITIAL]
    step = word(BLOCK_NBYTES)

    def compressed(at: Value, *state: Value) -> list[Value]:
        blocks = [builder.gep(leaf, [at]) for leaf in leaves]
        words = _words_at(e, blocks)
        with builder.if_then(e.args["copies"]):
            for source, target in zip(blocks, targets, strict=True):
                values = e.load(source, lanes(8, BLOCK_NBYTES), 1)
                e.store(values, builder.gep(target, [at]), streaming=True)
        end = builder.add(at, step)
        is_end = builder.icmp_signed("==", end, e.args["length"])
        flags = e.splat(builder.sext(is_end, word), count)
        mixed = [*state, *initial]
        mixed[12] = builder.xor(mixed[12], e.splat(end, count))
        mixed[14] = builder.xor(mixed[14], flags)
        mixed[15] = builder.xor(mixed[15], builder.and_(flags, last))
        for order in _WORDS:
            added = iter([words[int(digit, 16)] for digit in order])
            for turn in (0, 1):  # columns, then diagonals
                for k in range(4):
                    a, b, c, d = (4 * row + (k + turn * row) % 4 for row in range(4))
                    mixed[a], mixed[b], mixed[c], mixed[d] = _mixed(
                        e, mixed[a], mixed[b], mixed[c], mixed[d], next(added), next(added)
                    )
        pairs = zip(mixed[:8], mixed[8:], strict=True)
        return [
            builder.xor(before, builder.xor(*pair))
            for before, pair in zip(state, pairs, strict=True)
        ]

    begun = [loaded("state", k) for k in range(8)]
    ended = e.count(word(0), e.args["length"], step, begun, compressed)
    for k, value in enumerate(ended):
        e.store(value, e.element(e.args["state"], k * count), 8)


def _words_at(e: Emitter, blocks: list[Value]) -> list[Value]:
    """Emit the vectors of the 16 words of blocks: the transpose of what is in memory."""
    count, words = len(blocks), list[Value]()
    for first in range(0, BLOCK_NBYTES, 8 * count):
        rows = [e.load(e.element(block, first), lanes(64, count), 1) for block in blocks]
        distance = 1
        while distance < count:
            for k in range(count):
                if not k & distance:
                    pair = rows[k], rows[k + distance]
                    # In each square of two distances, swap the upper right and the lower left.
                    low = [i & ~distance | (count if i & distance else 0) for i in range(count)]
                    for place, order in ((k, low), (k + distance, [i + distance for i in low])):
                        rows[place] = e.builder.shuffle_vector(*pair, lanes(32, count)(order))
            distance *= 2
        words += rows
    return words


def _mixed(
    e: Emitter, a: Value, b: Value, c: Value, d: Value, x: Value, y: Value
) -> tuple[Value, Value, Value, Value]:
    """Emit the function G of BLAKE2b: mix two words of the message into four of the state."""
    builder = e.builder
    for word, rotations in ((x, (32, 24)), (y, (16, 63))):
        a = builder.add(a, builder.add(b, word))
        d = e.rotated(builder.xor(d, a), rotations[0])
        c = builder.add(c, d)
        b = e.rotated(builder.xor(b, c), rotations[1])
    return a, b, c, d


@kernel("in uint8[], in int64[], int64, in uint64[], out uint64[], out uint8[]", variant="stream")
def _digest_leaves(data, starts, length, last, state, target):
    # starts.size == last.size is the number of lanes, and state.size 8 times that; the `length`
    # bytes from each start on, a multiple of BLOCK_NBYTES, exist. target.size is 0 or data.size.
    copies = target.size > 0
    _compress(data, starts, length, last, state, target, copies)
    if copies:
        fence()
