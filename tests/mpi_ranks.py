"""One rank of the test of the MPI communicator: mpiexec runs it, and rank 0 prints the result."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from gcodec.errors import ParameterError
from gcodec.mpi import MPICommunicator
from gcodec.training.communicator import Communicator


def main() -> None:
    try:
        MPICommunicator(3)
    except ParameterError as error:
        assert str(error) == "comm=3: must be a Comm"
    communicator: Communicator = MPICommunicator()
    own, size = communicator.rank, communicator.size

    def all_to_all(messages: list[bytes]) -> list[bytes]:
        return communicator.all_to_all(messages * size)

    messages = [bytes([rank]) * (1000 * rank) for rank in range(size)]
    assert communicator.all_gather(messages[own]) == messages
    assert communicator.all_gather(b"") == [b""] * size
    words = np.arange(3, dtype=np.float32)  # whose elements have more than one byte
    assert communicator.all_gather(memoryview(words)) == [words.tobytes()] * size
    assert communicator.all_to_all([memoryview(words)] * size) == [words.tobytes()] * size
    assert communicator.exchange(own, memoryview(words)) == words.tobytes()
    assert communicator.broadcast(memoryview(words)) == words.tobytes()
    sent = [bytes([own, rank]) * (5 * rank + own) for rank in range(size)]
    expected = [bytes([rank, own]) * (5 * own + rank) for rank in range(size)]
    assert communicator.all_to_all(sent) == expected
    try:
        communicator.all_to_all(sent[1:])
    except ParameterError as error:
        assert str(error).startswith("messages=")
    values = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)) + np.float32(own / 3)
    communicator.all_reduce(values)
    assert np.allclose(values, size * np.arange(6).reshape(2, 3) + sum(range(size)) / 3)
    bits = communicator.all_gather(values.tobytes())
    assert bits == [bits[0]] * size
    scalar = np.array(own, np.float32)
    communicator.all_reduce(scalar)
    assert scalar == sum(range(size))
    unaligned = np.zeros(13, np.uint8)[1:].view(np.float32)
    unaligned[:] = own
    communicator.all_reduce(unaligned)
    assert (unaligned == sum(range(size))).all()
    for partner in {own, own ^ 1 if (own ^ 1) < size else own}:
        assert communicator.exchange(partner, messages[own]) == messages[partner]
    for root in range(size):
        assert communicator.broadcast(messages[own], root) == messages[root]
    # MPI_PROC_NULL is negative: without a check, an exchange with it returns uninitialized bytes.
    for rank in (-1, MPI.PROC_NULL, size):
        with pytest.raises(ParameterError, match=f"^to={rank}: must be a rank below {size}$"):
            communicator.exchange(rank, b"message")
        with pytest.raises(ParameterError, match=f"^root={rank}: must be a rank below {size}$"):
            communicator.broadcast(b"message", rank)
    for wrong in ("text", None):
        for call in (communicator.all_gather, communicator.broadcast, lambda m: all_to_all([m])):
            with pytest.raises(
                ParameterError, match=f"^message={wrong!r}: must be bytes-like, not "
            ):
                call(wrong)
    for strided in (memoryview(b"message")[::2], np.ones((2, 3)).T):
        for call in (communicator.all_gather, communicator.broadcast, lambda m: all_to_all([m])):
            with pytest.raises(ParameterError, match=r"^message=.*: must be bytes in one block"):
                call(strided)
    with pytest.raises(ParameterError, match=r"^values=\[1\.0\]: must be a ndarray$"):
        communicator.all_reduce([1.0])
    lines = communicator.all_gather(b"rank %d of %d is fine\n" % (own, size))
    if own == 0:
        print(b"".join(lines).decode(), end="")


if __name__ == "__main__":
    main()
