"""Means over workers of gradients that travel as frames.

Each function returns the same bits on every rank, because all ranks decode the same bytes in the
same order. Sums are float32. A mean is the sum divided by the number of workers, even for an
element that only some of the workers sent.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar, cast

import numpy as np

from gcodec.api import iter_frames
from gcodec.arrays.large_bytes import joined
from gcodec.arrays.protocols import TensorLike
from gcodec.codecs import topk
from gcodec.codecs.sign import Sign
from gcodec.errors import Corrupt, FormatError, GcodecError, ParameterError
from gcodec.feedback import Feedback, Transaction
from gcodec.frame import Frame, FrameSum
from gcodec.kernels.numeric import low_rank
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.limits import NO_LIMITS
from gcodec.runtime.arithmetic import exact
from gcodec.runtime.reuse import result_beside
from gcodec.training.communicator import Communicator
from gcodec.training.state import as_float32
from gcodec.wire.kinds import check_flag, check_type
from gcodec.wire.primitives import UNCONVERTED

# First byte of a message that carries the text of an error in place of frames.
_REFUSALS: dict[bytes, type[GcodecError]] = {b"!": ParameterError, b"?": Corrupt}
_T = TypeVar("_T")

Sparse = tuple[np.ndarray, np.ndarray]
"""Ascending positions and their values, as `gcodec.decode_sparse` returns them."""


@exact
def all_gather_mean(communicator: Communicator, frames: Sequence[bytes]) -> list[np.ndarray]:
    """Send the frames of each rank to all ranks, and average them.

    Each rank sends its frames as one message. A rank receives one message from every other rank,
    so this collective pays only if the frames are smaller than 2/P of the dense gradients.

    Parameters
    ----------
    communicator : Communicator
        Group of P ranks.
    frames : sequence of bytes
        Frames of this rank's tensors, in the same order and with the same shapes on every rank;
        the codecs may differ.

    Returns
    -------
    list of float32 array
        Mean of each tensor, in its shape.

    Raises
    ------
    ParameterError
        If `frames` is a single frame.
    FormatError
        If the message of any rank is invalid; every rank raises.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> from gcodec.training import Simulator, all_gather_mean
    >>> def worker(communicator, gradient):
    ...     return all_gather_mean(communicator, [gcodec.encode(gradient, "sign")])[0]
    >>> Simulator(2).run(worker, [np.full(3, value, np.float32) for value in (1, -3)])
    [array([-1., -1., -1.], dtype=float32), array([-1., -1., -1.], dtype=float32)]
    """
    gathered = _matching_frames(communicator.all_gather(_message(frames)), communicator.rank)
    return [_mean_of(frames_of_all) for frames_of_all in zip(*gathered, strict=True)]


@exact
def two_phase_mean(
    communicator: Communicator,
    gradients: Mapping[str, TensorLike],
    worker: Feedback,
    server: Feedback,
    *,
    whole: bool = False,
) -> dict[str, np.ndarray]:
    """Average one share of each gradient on each rank, then gather the averaged shares.

    In the first phase each rank sends share i of its gradients to rank i; in the second phase
    rank i sends the mean of these shares to all ranks. A rank therefore sends about two frames
    for each gradient, however many ranks there are. A share consists of whole rows if there are
    at least as many rows as ranks, else of elements.

    Any exception leaves `worker` and `server` unchanged. So does a mean that contains NaN or Inf,
    which is returned only if the feedback lets such values pass.

    Parameters
    ----------
    communicator : Communicator
        Group of P ranks.
    gradients : mapping of str to array
        Gradients with the same names, shapes and order on every rank.
    worker : Feedback
        Feedback for this rank's gradients. It knows share i of NAME as ``"i/NAME"``, also when a
        policy picks the codec.
    server : Feedback
        Feedback for the means that this rank computes, by NAME.
    whole : bool
        Whether to encode each gradient as a whole, under its own name, and to cut the message
        into shares, which then have the same scale. Only for the codec ``sign``.

    Returns
    -------
    dict of str to float32 array
        Mean of each gradient, in its shape.

    Raises
    ------
    ParameterError
        If `worker` or `server` is no `Feedback`, or if `Feedback.compress` refuses a share or a
        mean on any rank; every rank raises.
    FormatError
        If a message is invalid: in the first phase every rank raises, in the second phase those
        that have received it.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> from gcodec.training import Simulator, two_phase_mean
    >>> def worker(communicator, gradient):
    ...     own, server = gcodec.Feedback("raw"), gcodec.Feedback("raw")
    ...     return two_phase_mean(communicator, {"w": gradient}, own, server)["w"]
    >>> Simulator(2).run(worker, [np.full(4, value, np.float32) for value in (1, -3)])
    [array([-1., -1., -1., -1.], dtype=float32), array([-1., -1., -1., -1.], dtype=float32)]
    """
    with two_phase(communicator, gradients, worker, server, whole=whole) as means:
        return means


@contextlib.contextmanager
def two_phase(
    communicator: Communicator,
    gradients: Mapping[str, TensorLike],
    worker: Feedback,
    server: Feedback,
    *,
    whole: bool = False,
) -> Iterator[dict[str, np.ndarray]]:
    """Yield what `two_phase_mean` returns; an exception in the body leaves feedback unchanged."""
    check_type("worker", worker, Feedback)
    check_type("server", server, Feedback)
    check_flag("whole", whole)
    arrays, rank, size = as_float32(gradients, {}), communicator.rank, communicator.size
    own, averaged = Transaction(worker), Transaction(server)

    def compress_shares() -> list[bytes]:
        if whole:
            cut = [_cut_signs(own.compress(name, x), size) for name, x in arrays.items()]
            return [joined([frames[i] for frames in cut]) for i in range(size)]
        return [
            joined(
                [own.compress(f"{i}/{name}", share_of(x, i, size)) for name, x in arrays.items()]
            )
            for i in range(size)
        ]

    def compress_means() -> bytes:
        contributions, frames = _matching_frames(received, rank), []
        for index, name in enumerate(arrays):
            mean = _mean_of([rank_frames[index] for rank_frames in contributions])
            frames.append(averaged.compress(name, mean))
        return joined(frames)

    with contextlib.ExitStack() as unless_finished:
        unless_finished.callback(own.rollback)
        unless_finished.callback(averaged.rollback)
        # A rank that refuses its gradients sends the reason, because the other ranks wait for it.
        messages, refusal = _attempt(communicator, compress_shares)
        received = communicator.all_to_all([refusal] * size if messages is None else messages)
        _check_refusals(received)
        message, refusal = _attempt(communicator, compress_means)
        gathered = communicator.all_gather(refusal if message is None else message)
        _check_refusals(gathered)
        means = {name: np.empty(array.shape, np.float32) for name, array in arrays.items()}
        for share, message in enumerate(gathered):
            targets = [share_of(mean, share, size) for mean in means.values()]
            frames = _frames(message, share)
            _check_shapes(frames, [target.shape for target in targets], share, rank)
            for frame, target in zip(frames, targets, strict=True):
                frame.decode(out=target)
        are_finite = all(all_finite(mean.reshape(-1)) for mean in means.values())
        yield means
        if are_finite:
            unless_finished.pop_all()
            own.commit()
            averaged.commit()


@exact
def tree_mean(communicator: Communicator, frames: Sequence[bytes]) -> list[Sparse]:
    """Average sparse frames by adding them in a binary tree.

    A sum contains the positions of both addends. With k elements on each of P ranks, the root may
    hold P·k elements, and it sends the mean to all ranks. If the ranks send different positions,
    this takes more bytes than `all_gather_mean`; if they send the same positions, fewer.

    Parameters
    ----------
    communicator : Communicator
        Group of P ranks.
    frames : sequence of bytes
        Frames that `gcodec.decode_sparse` accepts; see `all_gather_mean`.

    Returns
    -------
    list of (positions, values)
        Ascending (j,) int64 positions and (j,) float32 values of each tensor, as
        `gcodec.decode_sparse` returns them. All other elements of the mean are 0.

    Raises
    ------
    ParameterError
        If a frame of any rank contains all elements of its tensor, or a sum exceeds float32; every
        rank raises.
    FormatError
        If a message is invalid. Every rank raises, except if the mean is damaged on its way.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> from gcodec.training import Simulator, tree_mean
    >>> def worker(communicator, gradient):
    ...     return tree_mean(communicator, [gcodec.encode(gradient, "topk:k=1")])[0]
    >>> gradients = [np.array([0, 8, 1], np.float32), np.array([4, 0, 1], np.float32)]
    >>> Simulator(2).run(worker, gradients)[0]
    (array([0, 1]), array([2., 4.], dtype=float32))
    """
    rank, size = communicator.rank, communicator.size
    shapes: list[tuple[int, ...]] = []

    def own_vectors() -> list[Sparse]:
        own = _frames(_message(frames), rank)
        shapes.extend(frame.shape for frame in own)
        return [_sparse(frame) for frame in own]

    def plus(sums: Sequence[Sparse], message: bytes, source: int) -> list[Sparse]:
        received = _frames(message, source)
        _check_shapes(received, shapes, source, rank)
        with np.errstate(over="ignore"):
            added = [_add_sparse(a, _sparse(b)) for a, b in zip(sums, received, strict=True)]
        if not all(all_finite(values) for _, values in added):
            raise ParameterError("frames: their sum must not exceed float32")
        return added

    # A rank that has failed passes the reason on, because the other ranks wait for it.
    sums, refusal = _attempt(communicator, own_vectors)
    step = 1
    while step < size:
        if rank % (2 * step):
            message = _topk_frames(shapes, sums) if sums is not None else refusal
            communicator.exchange(rank - step, message)
            break
        source = rank + step
        if source < size:
            message = communicator.exchange(source, b"")
            if message[:1] in _REFUSALS:
                sums, refusal = None, refusal or message
            elif sums is not None:
                sums, refusal = _attempt(communicator, partial(plus, sums, message, source))
        step *= 2
    message = b""
    if not rank:
        means = [(positions, values / np.float32(size)) for positions, values in sums or []]
        message = _topk_frames(shapes, means) if sums is not None else refusal
    message = communicator.broadcast(message)
    _check_refusals([message])
    received = _frames(message, 0)
    _check_shapes(received, shapes, 0, rank)
    return [_sparse(frame) for frame in received]


@exact
def dense_mean(communicator: Communicator, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Average float32 arrays in one all-reduce, uncompressed, and return the means."""
    flat = np.concatenate([array.reshape(-1) for array in arrays] or [np.empty(0, np.float32)])
    with np.errstate(over="ignore", invalid="ignore"):
        communicator.all_reduce(flat)
    flat /= np.float32(communicator.size)
    ends = np.cumsum([array.size for array in arrays])
    parts = np.split(flat, ends[:-1])
    return [part.reshape(array.shape) for part, array in zip(parts, arrays, strict=False)]


@exact
def low_rank_mean(
    communicator: Communicator,
    matrices: Sequence[np.ndarray],
    starts: Sequence[np.ndarray],
    arrays: Sequence[np.ndarray],
) -> tuple[list[tuple[np.ndarray, np.ndarray, np.ndarray]], list[np.ndarray]]:
    """Average matrices by one step of the power method, and other arrays uncompressed.

    The mean of the matrices M of all ranks is approximately pᵀq. Each factor is linear in the
    matrices if the other factor is fixed. Averaging the factors therefore takes two all-reduces;
    the first one also carries `arrays`.

    Parameters
    ----------
    communicator : Communicator
    matrices : sequence of (m, k) float32 arrays
    starts : sequence of (r, k) arrays
        Starting factor for each matrix, such as q of the preceding step; the same on every rank.
    arrays : sequence of float32 array

    Returns
    -------
    list of (p, q, local_q)
        Factors for each matrix: p, (r, m) float32 orthonormal rows, equal on every rank; q, the
        (r, k) float32 mean of p·M over all ranks; and local_q, the p·M of this rank.
    list of float32 array
        Means of `arrays`.

    Raises
    ------
    ParameterError
        If a factor exceeds float32; every rank raises.
    """
    local_p = [
        _as_float32(low_rank.times_transposed(matrix, low_rank.fixed(start.astype(np.float64))))
        for matrix, start in zip(matrices, starts, strict=True)
    ]
    means = dense_mean(communicator, [*local_p, *arrays])
    mean_p, array_means = means[: len(local_p)], means[len(local_p) :]
    _check_factors(mean_p)
    bases = [low_rank.fixed(low_rank.orthonormal(p.astype(np.float64))) for p in mean_p]
    local_q = [
        _as_float32(low_rank.times(matrix, base))
        for matrix, base in zip(matrices, bases, strict=True)
    ]
    mean_q = dense_mean(communicator, local_q)
    _check_factors(mean_q)
    factors = zip(bases, mean_q, local_q, strict=True)
    return [(_as_float32(p.values), q, local) for p, q, local in factors], array_means


def on_all_ranks(
    communicator: Communicator,
    gradients: Mapping[str, np.ndarray],
    prepare: Callable[[], _T],
    digest: bytes,
    shared: bytes,
) -> _T:
    """Check the gradients and call `prepare`; if either fails on one rank, raise on all ranks.

    This takes one all-gather of messages that are empty unless a rank fails or there are digests
    to compare. Without it only the failing rank would raise, and the other ranks would wait for
    it; and a step that all ranks must skip, for example after loss scaling overflowed, would have
    changed their state.

    Parameters
    ----------
    communicator : Communicator
    gradients : mapping of str to float32 array
        Gradients of this rank, which must be finite.
    prepare : callable
        Function that changes no state. It may raise `ParameterError`.
    digest : bytes
        Hexadecimal digest of the state that all ranks must share, after it was loaded; else empty.
    shared : bytes
        Digest of the parameters and settings, see `gcodec.training.state.shared`, in the first
        step, after a state was loaded, and if there are other parameters than in the last step;
        else empty.

    Returns
    -------
    object
        Result of `prepare`.

    Raises
    ------
    ParameterError
        If a gradient of any rank contains NaN or Inf, `prepare` fails on any rank, or the states,
        the parameters or the settings differ.
    """

    def checked() -> _T:
        for name, gradient in gradients.items():
            if not all_finite(gradient.reshape(-1)):
                raise ParameterError(
                    f"gradients: {name!r} of rank {communicator.rank} contains NaN or Inf"
                )
        return prepare()

    result, refusal = _attempt(communicator, checked)
    own = digest + b"/" + shared if digest or shared else b""
    messages = communicator.all_gather(refusal or own)
    _check_refusals(messages)
    compared = [_Compared.of(message) for message in messages]
    first = compared[0]
    for rank, other in enumerate(compared):
        if other.state != first.state:
            raise ParameterError(
                f"load_state_dict: ranks 0 and {rank} have different states; all ranks must load "
                "the same checkpoint before the same step"
            )
        if other.parameters != first.parameters:
            raise ParameterError(
                f"parameters: ranks 0 and {rank} have different ones; start all ranks with the "
                "same seed or checkpoint, and freeze the same parameters on all ranks"
            )
        if other.settings != first.settings:
            raise ParameterError(
                f"the arguments of all ranks must be equal: they are {first.settings} on rank 0, "
                f"and {other.settings} on rank {rank}"
            )
    return cast(_T, result)


def check_means(means: Iterable[np.ndarray]) -> None:
    """Raise `ParameterError` unless all means, which are equal on all ranks, are finite."""
    if not all(all_finite(mean.reshape(-1)) for mean in means):
        raise ParameterError("gradients: their mean must not exceed float32")


def share_of(array: np.ndarray, share: int, size: int) -> np.ndarray:
    """Return a view of the share that one of `size` ranks averages: of rows, or of elements."""
    rows = array if array.ndim and len(array) >= size else array.reshape(-1)
    return rows[len(rows) * share // size : len(rows) * (share + 1) // size]


class _Compared(NamedTuple):
    """What a rank sends to `on_all_ranks` in one message, ``STATE/PARAMETERS/SETTINGS``.

    Attributes
    ----------
    state, parameters : bytes
        Digests; empty if there is nothing to compare.
    settings : str
        JSON.
    """

    state: bytes
    parameters: bytes
    settings: str

    @classmethod
    def of(cls, message: bytes) -> _Compared:
        """Read a message, which is empty if there is nothing to compare."""
        state, _, shared = message.partition(b"/")
        parameters, _, settings = shared.partition(b"/")
        return cls(state, parameters, settings.decode(errors="replace"))


def _attempt(communicator: Communicator, function: Callable[[], _T]) -> tuple[_T | None, bytes]:
    """Return the result of a function and b"", or None and the message of its error."""
    try:
        return function(), b""
    except (ParameterError, FormatError) as error:
        is_invalid, reason = isinstance(error, FormatError), str(error)
        # Errors about a gradient name the rank already.
        if is_invalid or " of rank " not in reason:
            reason += f" (on rank {communicator.rank})"
        return None, (b"?" if is_invalid else b"!") + reason.encode()


def _check_refusals(messages: Sequence[bytes]) -> None:
    """Raise the first refusal among the messages of all ranks."""
    for message in messages:
        if error := _REFUSALS.get(message[:1]):
            raise error(message[1:].decode(errors="replace"))  # it may be damaged


def _check_factors(factors: Sequence[np.ndarray]) -> None:
    """Raise `ParameterError` unless all mean factors, which all ranks share, are finite."""
    if not all(np.isfinite(factor).all() for factor in factors):
        raise ParameterError("matrices: factors must not exceed float32")


def _as_float32(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _message(frames: Sequence[bytes]) -> bytes:
    """Return frames as one message; refuse a single frame in place of a sequence."""
    if isinstance(frames, (bytes, bytearray, memoryview)):
        raise ParameterError("frames: must be a sequence of frames, not one frame")
    return joined(frames)


def _frames(message: bytes, rank: int) -> list[Frame]:
    """Read all frames in the message of a rank."""
    try:
        # Shapes are compared before any memory is allocated.
        return list(iter_frames(message, limits=NO_LIMITS))
    except FormatError as error:
        raise type(error)(f"the message of rank {rank}: {error}") from error


def _matching_frames(messages: Sequence[bytes], own_rank: int) -> list[list[Frame]]:
    """Read the messages of all ranks, whose tensors must have the shapes of this rank's."""
    gathered = [_frames(message, rank) for rank, message in enumerate(messages)]
    shapes = [frame.shape for frame in gathered[own_rank]]
    for rank, frames in enumerate(gathered):
        _check_shapes(frames, shapes, rank, own_rank)
    return gathered


def _check_shapes(
    frames: Sequence[Frame], shapes: Sequence[tuple[int, ...]], rank: int, own_rank: int
) -> None:
    if [frame.shape for frame in frames] != list(shapes):
        raise Corrupt(f"rank {rank} sent tensors of other shapes than rank {own_rank}")
    if rank != own_rank and any(frame.dtype in UNCONVERTED for frame in frames):
        raise Corrupt(f"rank {rank} sent integers, booleans or floats of 8 bits")


def _mean_of(frames: Sequence[Frame]) -> np.ndarray:
    """Return the mean of the frames of all ranks, added in the order of ranks."""
    total = result_beside(frames[0].size, np.float32, None).reshape(frames[0].shape)
    added = FrameSum(total, total.shape)
    for frame in frames:
        added.add(frame)
    added.finish()
    total /= np.float32(len(frames))
    return total


def _cut_signs(message: bytes, size: int) -> list[bytes]:
    """Return the shares of a frame of ``sign`` as frames with its scale."""
    frame = Frame.from_bytes(message, limits=NO_LIMITS)
    if not isinstance(frame.codec, Sign):
        raise ParameterError.of("worker.codec", str(frame.codec), "sign, with whole=True")
    bits = np.unpackbits(frame.payload.data, count=frame.size).reshape(frame.shape)
    frames = []
    for index in range(size):
        share = share_of(bits, index, size)
        payload = frame.payload._replace(data=np.packbits(share), nbits=share.size)
        frames.append(Frame(frame.codec, "float32", share.shape, payload).to_bytes())
    return frames


def _sparse(frame: Frame) -> Sparse:
    positions, values = frame.decode_sparse()
    return positions, values.astype(np.float32, copy=False)


def _add_sparse(a: Sparse, b: Sparse) -> Sparse:
    """Add two sparse vectors; the sum has the positions of both."""
    positions = np.union1d(a[0], b[0])
    values = np.zeros(positions.size, np.float32)
    values[np.searchsorted(positions, a[0])] = a[1]
    values[np.searchsorted(positions, b[0])] += b[1]
    return positions, values


def _topk_frames(shapes: Sequence[tuple[int, ...]], vectors: Sequence[Sparse]) -> bytes:
    """Write sparse vectors as consecutive ``topk`` frames."""
    frames = []
    for shape, (positions, values) in zip(shapes, vectors, strict=True):
        payload = topk.exact_payload(math.prod(shape), positions, values)
        frames.append(Frame(payload.codec, "float32", shape, payload).to_bytes())
    return joined(frames)
