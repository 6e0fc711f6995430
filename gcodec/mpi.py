"""The wires of MPI, through mpi4py.

Needs the extra ``mpi``, and an MPI library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    from mpi4py import MPI
except ImportError as error:  # also where there is no MPI library
    raise ImportError(f"gcodec.mpi needs mpi4py: pip install 'gcodec[mpi]' ({error})") from error

import numpy as np

from gcodec.arrays.large_bytes import joined
from gcodec.errors import ParameterError


class MPICommunicator:
    """A communicator of MPI as a `gcodec.training.communicator.Communicator`.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, optional
        It is duplicated, so that messages cannot meet those of others. Default: that of all.

    Attributes
    ----------
    rank, size : int
    """

    def __init__(self, comm: Any = None) -> None:
        self.comm = (MPI.COMM_WORLD if comm is None else comm).Dup()
        self.rank: int = self.comm.Get_rank()
        self.size: int = self.comm.Get_size()

    def all_gather(self, message: bytes) -> list[bytes]:
        """Send one message to all; return those of all in the order of ranks."""
        sizes = np.empty(self.size, np.int64)
        self.comm.Allgather(np.array([len(message)], np.int64), sizes)
        received = np.empty(int(sizes.sum()), np.uint8)
        self.comm.Allgatherv(
            [message, len(message), MPI.BYTE], [received, sizes, _starts(sizes), MPI.BYTE]
        )
        return _split(received, sizes)

    def all_to_all(self, messages: Sequence[bytes]) -> list[bytes]:
        """Send message i to rank i; return what all sent to this one, in the order of ranks."""
        if len(messages) != self.size:
            raise ParameterError.of("messages", len(messages), f"{self.size}, one for each rank")
        sizes = np.array([len(message) for message in messages], np.int64)
        coming = np.empty_like(sizes)
        self.comm.Alltoall(sizes, coming)
        received = np.empty(int(coming.sum()), np.uint8)
        self.comm.Alltoallv(
            [joined(messages), sizes, _starts(sizes), MPI.BYTE],
            [received, coming, _starts(coming), MPI.BYTE],
        )
        return _split(received, coming)

    def all_reduce(self, values: np.ndarray) -> None:
        """Replace a float32 array by the sum of those of all: the same bits on every rank."""
        if values.dtype != np.float32 or not values.flags.writeable:
            raise ParameterError("values: must be a float32 array that can be written to")
        # MPI advises, but does not promise, that Allreduce gives all ranks the same bits.
        total = np.require(values, requirements=["C"])
        if self.rank == 0:
            self.comm.Reduce(MPI.IN_PLACE, total)
        else:
            self.comm.Reduce(total, None)
        self.comm.Bcast(total)
        values[...] = total

    def exchange(self, to: int, message: bytes) -> bytes:
        """Send a message to one member, which calls this as well; return the message of it."""
        size = np.empty(1, np.int64)
        self.comm.Sendrecv(np.array([len(message)], np.int64), to, recvbuf=size, source=to)
        received = np.empty(int(size[0]), np.uint8)
        self.comm.Sendrecv([message, MPI.BYTE], to, recvbuf=[received, MPI.BYTE], source=to)
        return received.tobytes()

    def broadcast(self, message: bytes, root: int = 0) -> bytes:
        """Return the message of `root`; that of the others is not looked at."""
        size = np.array([len(message)], np.int64)
        self.comm.Bcast(size, root)
        if self.rank == root:
            received = np.frombuffer(message, np.uint8).copy()
        else:
            received = np.empty(int(size[0]), np.uint8)
        self.comm.Bcast([received, MPI.BYTE], root)
        return received.tobytes()


def _starts(sizes: np.ndarray) -> np.ndarray:
    starts: np.ndarray = np.cumsum(sizes) - sizes
    return starts


def _split(received: np.ndarray, sizes: np.ndarray) -> list[bytes]:
    return [part.tobytes() for part in np.split(received, np.cumsum(sizes)[:-1])]
