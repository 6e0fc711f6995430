"""Communicator for MPI, through mpi4py.

This module needs the extra ``mpi`` and an MPI library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    from mpi4py import MPI
except ImportError as error:  # mpi4py also raises this without an MPI library
    raise ImportError(f"gcodec.mpi needs mpi4py: pip install 'gcodec[mpi]' ({error})") from error

import numpy as np

from gcodec.arrays.large_bytes import joined
from gcodec.errors import ParameterError
from gcodec.wire.kinds import check_integer, check_type


class MPICommunicator:
    """MPI communicator with the methods of `gcodec.training.communicator.Communicator`.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, optional
        Communicator to duplicate; the duplicate keeps gcodec's messages apart from others.
        Default: ``COMM_WORLD``.

    Attributes
    ----------
    rank : int
        Rank of this process.
    size : int
        Number of processes.

    Examples
    --------
    >>> import gcodec.mpi
    >>> gcodec.mpi.MPICommunicator().all_gather(b"message")  # of one process
    [b'message']
    """

    def __init__(self, comm: Any = None) -> None:
        comm = MPI.COMM_WORLD if comm is None else comm
        check_type("comm", comm, MPI.Comm)
        self.comm = comm.Dup()
        self.rank: int = self.comm.Get_rank()
        self.size: int = self.comm.Get_size()

    def all_gather(self, message: bytes) -> list[bytes]:
        """Send a message to all ranks; return the messages of all ranks, in order."""
        sizes = np.empty(self.size, np.int64)
        self.comm.Allgather(np.array([_nbytes(message)], np.int64), sizes)
        received = np.empty(int(sizes.sum()), np.uint8)
        self.comm.Allgatherv(
            [message, _nbytes(message), MPI.BYTE], [received, sizes, _starts(sizes), MPI.BYTE]
        )
        return _split(received, sizes)

    def all_to_all(self, messages: Sequence[bytes]) -> list[bytes]:
        """Send message i to rank i; return the messages to this rank, in the order of ranks."""
        if len(messages) != self.size:
            raise ParameterError.of("messages", len(messages), f"{self.size}, one for each rank")
        sizes = np.array([_nbytes(message) for message in messages], np.int64)
        received_sizes = np.empty_like(sizes)
        self.comm.Alltoall(sizes, received_sizes)
        received = np.empty(int(received_sizes.sum()), np.uint8)
        self.comm.Alltoallv(
            [joined(messages), sizes, _starts(sizes), MPI.BYTE],
            [received, received_sizes, _starts(received_sizes), MPI.BYTE],
        )
        return _split(received, received_sizes)

    def all_reduce(self, values: np.ndarray) -> None:
        """Replace a float32 array by the sum over all ranks, with the same bits on every rank.

        The arrays of all ranks must have the same size: MPI ends or blocks the ranks otherwise.
        """
        check_type("values", values, np.ndarray)
        if values.dtype != np.float32 or not values.flags.writeable:
            raise ParameterError("values: must be a float32 array that can be written to")
        # The MPI standard recommends, but does not require, that all ranks get the same bits from
        # Allreduce.
        total = np.require(values, requirements=["C", "A"])
        if self.rank == 0:
            self.comm.Reduce(MPI.IN_PLACE, total)
        else:
            self.comm.Reduce(total, None)
        self.comm.Bcast(total)
        values[...] = total

    def exchange(self, to: int, message: bytes) -> bytes:
        """Send a message to rank `to`, which calls this method too, and return its message."""
        to = self._member("to", to)
        size = np.empty(1, np.int64)
        self.comm.Sendrecv(np.array([_nbytes(message)], np.int64), to, recvbuf=size, source=to)
        received = np.empty(int(size[0]), np.uint8)
        self.comm.Sendrecv([message, MPI.BYTE], to, recvbuf=[received, MPI.BYTE], source=to)
        return received.tobytes()

    def broadcast(self, message: bytes, root: int = 0) -> bytes:
        """Return the message of rank `root`; the messages of other ranks are ignored."""
        root = self._member("root", root)
        size = np.array([_nbytes(message)], np.int64)
        self.comm.Bcast(size, root)
        if self.rank == root:
            received = np.frombuffer(message, np.uint8).copy()
        else:
            received = np.empty(int(size[0]), np.uint8)
        self.comm.Bcast([received, MPI.BYTE], root)
        return received.tobytes()

    def _member(self, name: str, rank: int) -> int:
        """Return the rank of a member; MPI takes a negative one for no process at all."""
        return check_integer(name, rank, 0, self.size - 1, f"a rank below {self.size}")


def _nbytes(message: bytes) -> int:
    """Return the size of a message; refuse what MPI could not send before anything is sent."""
    try:
        view = memoryview(message)  # len counts the elements of an array or a memoryview
    except (TypeError, ValueError):
        allowed = f"bytes-like, not {type(message).__name__}"
        raise ParameterError.of("message", message, allowed) from None
    if not view.c_contiguous:
        raise ParameterError.of("message", message, "bytes in one block, in C order")
    return view.nbytes


def _starts(sizes: np.ndarray) -> np.ndarray:
    return np.cumsum(sizes) - sizes


def _split(received: np.ndarray, sizes: np.ndarray) -> list[bytes]:
    return [part.tobytes() for part in np.split(received, np.cumsum(sizes)[:-1])]
