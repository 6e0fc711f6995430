"""Means over workers of gradients that travel as frames.

Each returns the same bits on every rank, since all of them decode the same bytes in the same
order. Sums are float32; a mean is the sum divided by the number of workers, also where only some
of them sent an element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from gcodec.arrays.large_bytes import joined
from gcodec.codecs.powersgd import low_rank
from gcodec.codecs.topk import TopK, TopKSymbols
from gcodec.entropy import values as value_coding
from gcodec.errors import Corrupt, FormatError, ParameterError
from gcodec.feedback import Feedback, Transaction
from gcodec.frame import Frame
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.limits import Limits
from gcodec.training.communicator import Communicator
from gcodec.training.state import taken

_REFUSED = b"!"  # begins a message that has a reason in place of frames
_T = TypeVar("_T")
_NO_LIMITS = Limits(1 << 62, 1 << 62)  # shapes are compared before there is memory for them

Sparse = tuple[np.ndarray, np.ndarray]
"""Positions, rising, and values; as of `gcodec.decode_sparse`."""


def all_gather_mean(communicator: Communicator, frames: Sequence[bytes]) -> list[np.ndarray]:
    """Send frames to all, and average those of all.

    All frames of a rank are one message. What each rank receives grows with their number: this
    pays where frames are smaller than 2/P of the dense gradient.

    Parameters
    ----------
    communicator : Communicator
        Of P ranks.
    frames : sequence of bytes
        Of this rank's tensors, in the same order and of the same shapes on every rank; the
        codecs may differ.

    Returns
    -------
    list of float32 array
        The means, in the shapes of the tensors.

    Raises
    ------
    FormatError
        If what a rank sent is wrong; on every rank.
    """
    gathered = _alike(communicator.all_gather(joined(frames)), communicator.rank)
    means = [np.zeros(frame.shape, np.float32) for frame in gathered[communicator.rank]]
    for of_rank in gathered:
        for frame, mean in zip(of_rank, means, strict=True):
            frame.decode_add(mean)
    for mean in means:
        mean /= np.float32(communicator.size)
    return means


def two_phase_mean(
    communicator: Communicator,
    gradients: Mapping[str, Any],
    worker: Feedback,
    server: Feedback,
) -> dict[str, np.ndarray]:
    """Send each rank its share of every gradient; it sends the mean of that to all.

    Each rank sends two frames of a gradient, in parts, however many ranks there are: one of its
    own, and one that is added up of means. Shares are of whole rows, where there are as many rows
    as ranks, else of elements.

    Parameters
    ----------
    communicator : Communicator
        Of P ranks.
    gradients : mapping of str to array
        With the same names, shapes and order on every rank.
    worker : Feedback
        Of this rank's gradients; share i of NAME has the name ``"i/NAME"`` there, also for a
        policy.
    server : Feedback
        Of the means that this rank makes, under their NAME.

    Returns
    -------
    dict of str to float32 array
        The means, in the shapes of the gradients.

    Raises
    ------
    ParameterError
        On all ranks, if `Feedback.compress` refuses what one of them has to send.
    FormatError
        If what a rank sent is wrong.

    Whatever is raised, `worker` and `server` are as they were before; as where a mean holds NaN or
    Inf, which only feedback that lets these pass returns.
    """
    arrays = taken(gradients, {})
    own, shares = Transaction(worker), Transaction(server)
    try:
        means = _two_phase_mean(communicator, arrays, own, shares)
    except BaseException:
        own.rollback()
        shares.rollback()
        raise
    counts = all(all_finite(mean.reshape(-1)) for mean in means.values())
    for steps in (own, shares):
        steps.commit() if counts else steps.rollback()
    return means


def _two_phase_mean(
    communicator: Communicator,
    arrays: Mapping[str, np.ndarray],
    worker: Transaction,
    server: Transaction,
) -> dict[str, np.ndarray]:
    messages, refusal = [], b""
    try:
        for share in range(communicator.size):
            parts = {
                name: _share(array, share, communicator.size) for name, array in arrays.items()
            }
            frames = [worker.compress(f"{share}/{name}", part) for name, part in parts.items()]
            messages.append(joined(frames))
    except ParameterError as error:
        refusal = _refusal(error)
    # A rank that refuses its gradients says so in place of them, as others wait for it.
    gathered = communicator.all_to_all([refusal] * communicator.size if refusal else messages)
    _check_refusals(gathered)
    served = _alike(gathered, communicator.rank)
    answers, refusal = [], b""
    try:
        for at, name in enumerate(arrays):
            total = np.zeros(served[communicator.rank][at].shape, np.float32)
            for of_rank in served:
                of_rank[at].decode_add(total)
            total /= np.float32(communicator.size)
            answers.append(server.compress(name, total))
    except ParameterError as error:
        refusal = _refusal(error)
    found = communicator.all_gather(refusal or joined(answers))
    _check_refusals(found)
    means = {name: np.empty(array.shape, np.float32) for name, array in arrays.items()}
    for share, message in enumerate(found):
        rooms = [_share(mean, share, communicator.size) for mean in means.values()]
        frames_of_share = _frames(message, share)
        shapes = [room.shape for room in rooms]
        _check_alike(frames_of_share, shapes, share, communicator.rank)
        for frame, room in zip(frames_of_share, rooms, strict=True):
            frame.decode(out=room)
    return means


def tree_mean(communicator: Communicator, frames: Sequence[bytes]) -> list[Sparse]:
    """Average sparse frames by adding them up in a binary tree.

    A sum has the elements that either part has: of P ranks with k elements each it may have P·k
    of them at the root, which sends the mean to all. Where ranks send different elements, that is
    more than what `all_gather_mean` sends; where they send the same ones, it is less.

    Parameters
    ----------
    communicator : Communicator
        Of P ranks.
    frames : sequence of bytes
        That `gcodec.decode_sparse` takes; see `all_gather_mean`.

    Returns
    -------
    list of (positions, values)
        As of `gcodec.decode_sparse`: (j,) int64 array, rising, and (j,) float32 array. All other
        elements of the mean are 0.

    Raises
    ------
    ParameterError
        If a frame sends all elements.
    FormatError
        If what a rank sent is wrong.
    """
    own = _frames(joined(frames), communicator.rank)
    sums = [_sparse(frame) for frame in own]
    shapes = [frame.shape for frame in own]
    step = 1
    while step < communicator.size:
        if communicator.rank % (2 * step):
            communicator.exchange(communicator.rank - step, _message(shapes, sums))
            break
        source = communicator.rank + step
        if source < communicator.size:
            others = _frames(communicator.exchange(source, b""), source)
            _check_alike(others, shapes, source, communicator.rank)
            pairs = zip(sums, map(_sparse, others), strict=True)
            sums = [_added(*pair) for pair in pairs]
        step *= 2
    count = np.float32(communicator.size)
    means = [(positions, values / count) for positions, values in sums]
    message = communicator.broadcast(_message(shapes, means) if communicator.rank == 0 else b"")
    found = _frames(message, 0)
    _check_alike(found, shapes, 0, communicator.rank)
    return [_sparse(frame) for frame in found]


def dense_mean(communicator: Communicator, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Average float32 arrays as they are, all in one all-reduce.

    Returns
    -------
    list of float32 array
        In their shapes.
    """
    flat = np.concatenate([array.reshape(-1) for array in arrays] or [np.empty(0, np.float32)])
    with np.errstate(over="ignore", invalid="ignore"):
        communicator.all_reduce(flat)
    flat /= np.float32(communicator.size)
    ends = np.cumsum([array.size for array in arrays])
    parts = np.split(flat, ends[:-1])
    return [part.reshape(array.shape) for part, array in zip(parts, arrays, strict=False)]


def check_finite(communicator: Communicator, gradients: Mapping[str, np.ndarray]) -> None:
    """Raise `ParameterError` on all ranks, if a gradient of one holds NaN or Inf.

    It takes an all-gather of empty messages. Without it, only that rank would raise, and the
    others would wait for it; and a step that all must leave out, such as one of a loss that was
    scaled too far, would have changed what they keep.
    """
    prepared(communicator, gradients, lambda: None)


def prepared(
    communicator: Communicator, gradients: Mapping[str, np.ndarray], prepare: Callable[[], _T]
) -> _T:
    """Return what a function makes of finite gradients, on all ranks or on none.

    Parameters
    ----------
    communicator : Communicator
    gradients : mapping of str to float32 array
    prepare : callable
        Changes nothing; may raise `ParameterError`.

    Raises
    ------
    ParameterError
        On all ranks, if a gradient of one holds NaN or Inf, or its function raises one.
    """
    refusal, made = b"", None
    wrong = [name for name, x in gradients.items() if not all_finite(x.reshape(-1))]
    if wrong:
        message = f"gradients: {wrong[0]!r} of rank {communicator.rank} holds NaN or Inf"
        refusal = _refusal(ParameterError(message))
    else:
        try:
            made = prepare()
        except ParameterError as error:
            refusal = _refusal(error)
    _check_refusals(communicator.all_gather(refusal))
    return cast(_T, made)


def check_means(means: Iterable[np.ndarray]) -> None:
    """Raise `ParameterError` unless means are finite: on every rank, or on none."""
    if not all(all_finite(mean.reshape(-1)) for mean in means):
        raise ParameterError("gradients: their mean must not pass float32")


def _refusal(error: ParameterError) -> bytes:
    return _REFUSED + str(error).encode()


def _check_refusals(messages: Sequence[bytes]) -> None:
    """Raise the first refusal among the messages of all ranks."""
    for rank, message in enumerate(messages):
        if message.startswith(_REFUSED):
            reason = message.removeprefix(_REFUSED).decode()
            raise ParameterError(reason if " of rank " in reason else f"{reason} (on rank {rank})")


class LowRank(NamedTuple):
    """What `low_rank_mean` makes of a matrix: the mean is about pᵀq.

    Attributes
    ----------
    p : (r, m) float32 array
        Orthonormal rows, the same on every rank.
    q : (r, k) float32 array
        The mean over ranks of p times their matrices.
    own : (r, k) float32 array
        p times the matrix of this rank.
    """

    p: np.ndarray
    q: np.ndarray
    own: np.ndarray


def low_rank_mean(
    communicator: Communicator,
    matrices: Sequence[np.ndarray],
    starts: Sequence[np.ndarray],
    arrays: Sequence[np.ndarray] = (),
) -> tuple[list[LowRank], list[np.ndarray]]:
    """Average matrices by one step of the power method, and arrays as they are.

    Both factors are linear in the matrices, the one given the other: so what is averaged are the
    factors, in two all-reduces, of which the first has the arrays as well.

    Parameters
    ----------
    communicator : Communicator
    matrices : sequence of (m, k) float32 arrays
    starts : sequence of (r, k) arrays
        The same on every rank, one for each matrix; such as q of the step before.
    arrays : sequence of float32 array

    Returns
    -------
    list of LowRank
    list of float32 array
        The means of `arrays`.

    Raises
    ------
    ParameterError
        If factors pass float32; on every rank.
    """
    lefts = [
        _as_float32(low_rank.times_transposed(matrix, low_rank.fixed(start.astype(np.float64))))
        for matrix, start in zip(matrices, starts, strict=True)
    ]
    found = dense_mean(communicator, [*lefts, *arrays])
    firsts, others = found[: len(lefts)], found[len(lefts) :]
    _check_factors(firsts)
    bases = [low_rank.fixed(low_rank.orthonormal(p.astype(np.float64))) for p in firsts]
    own = [
        _as_float32(low_rank.times(matrix, base))
        for matrix, base in zip(matrices, bases, strict=True)
    ]
    means = dense_mean(communicator, own)
    _check_factors(means)
    parts = zip(bases, means, own, strict=True)
    return [LowRank(_as_float32(p.values), q, mine) for p, q, mine in parts], others


def _check_factors(factors: Sequence[np.ndarray]) -> None:
    """Raise `ParameterError` unless means are finite: on every rank, or on none."""
    if not all(np.isfinite(factor).all() for factor in factors):
        raise ParameterError("matrices: factors must not pass float32")


def _as_float32(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _frames(message: bytes, rank: int) -> list[Frame]:
    """Read the frames of a rank's message."""
    found, at = [], 0
    while at < len(message):
        try:
            frame, at = Frame.read(message, at, _NO_LIMITS, None)
        except FormatError as error:
            raise type(error)(f"the message of rank {rank}: {error}") from error
        found.append(frame)
    return found


def _alike(messages: Sequence[bytes], own: int) -> list[list[Frame]]:
    """Read the messages of all ranks, which must be of tensors like those of rank `own`."""
    found = [_frames(message, rank) for rank, message in enumerate(messages)]
    for rank, frames in enumerate(found):
        _check_alike(frames, [frame.shape for frame in found[own]], rank, own)
    return found


def _check_alike(
    frames: Sequence[Frame], shapes: Sequence[tuple[int, ...]], rank: int, own: int
) -> None:
    if [frame.shape for frame in frames] != list(shapes):
        raise Corrupt(f"rank {rank} sent other tensors than rank {own}")


def _share(array: np.ndarray, share: int, size: int) -> np.ndarray:
    """Return the part of an array that is the share of one rank, as a view."""
    rows = array if array.ndim and len(array) >= size else array.reshape(-1)
    return rows[len(rows) * share // size : len(rows) * (share + 1) // size]


def _sparse(frame: Frame) -> Sparse:
    positions, values = frame.decode_sparse()
    return positions, values.astype(np.float32, copy=False)


def _added(a: Sparse, b: Sparse) -> Sparse:
    """Add sparse vectors: what either has."""
    positions = np.union1d(a[0], b[0])
    values = np.zeros(positions.size, np.float32)
    values[np.searchsorted(positions, a[0])] = a[1]
    values[np.searchsorted(positions, b[0])] += b[1]
    return positions, values


def _message(shapes: Sequence[tuple[int, ...]], sums: Sequence[Sparse]) -> bytes:
    """Write sparse vectors as frames of `topk`, with no element in between."""
    frames = []
    for shape, (positions, values) in zip(shapes, sums, strict=True):
        codec = TopK().replaced(k=positions.size)
        n = int(np.prod(shape, dtype=np.int64))
        symbols = TopKSymbols(n, positions, value_coding.quantize(values, "float32"))
        payload = codec.pack(symbols)
        frames.append(Frame(payload.codec, "float32", shape, payload).to_bytes())
    return joined(frames)
