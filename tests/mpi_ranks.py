"""One rank of the test of the wires of MPI; run by mpiexec, prints a line."""

from __future__ import annotations

import numpy as np

from gcodec.errors import ParameterError
from gcodec.mpi import MPICommunicator
from gcodec.training.communicator import Communicator


def main() -> None:
    wires: Communicator = MPICommunicator()
    own, size = wires.rank, wires.size
    messages = [bytes([rank]) * (1000 * rank) for rank in range(size)]
    assert wires.all_gather(messages[own]) == messages
    assert wires.all_gather(b"") == [b""] * size
    sent = [bytes([own, rank]) * (5 * rank + own) for rank in range(size)]
    coming = [bytes([rank, own]) * (5 * own + rank) for rank in range(size)]
    assert wires.all_to_all(sent) == coming
    try:
        wires.all_to_all(sent[1:])
    except ParameterError as error:
        assert str(error).startswith("messages=")
    values = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)) + np.float32(own / 3)
    wires.all_reduce(values)
    assert np.allclose(values, size * np.arange(6).reshape(2, 3) + sum(range(size)) / 3)
    bits = wires.all_gather(values.tobytes())
    assert bits == [bits[0]] * size
    scalar = np.array(own, np.float32)
    wires.all_reduce(scalar)
    assert scalar == sum(range(size))
    for partner in {own, own ^ 1 if (own ^ 1) < size else own}:
        assert wires.exchange(partner, messages[own]) == messages[partner]
    for root in range(size):
        assert wires.broadcast(messages[own], root) == messages[root]
    lines = wires.all_gather(b"rank %d of %d is fine\n" % (own, size))
    if own == 0:
        print(b"".join(lines).decode(), end="")


if __name__ == "__main__":
    main()
