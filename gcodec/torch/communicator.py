"""The wires of torch.distributed: messages of any length over a process group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from gcodec.arrays.large_bytes import joined
from gcodec.errors import ParameterError

_LENGTH_NBYTES = 8


class TorchCommunicator:
    """A process group as a `gcodec.training.communicator.Communicator`.

    Messages travel in tensors on the host, or, with NCCL, on the current CUDA device. What a dead
    member leaves waiting ends in the error of the group, after its timeout at the latest.

    Parameters
    ----------
    group : ProcessGroup, optional
        Default: the one of all processes.

    Attributes
    ----------
    rank, size : int
        In the group.

    Raises
    ------
    ParameterError
        If torch.distributed is not initialised, or this process is not of the group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not dist.is_initialized():
            raise ParameterError("group: call torch.distributed.init_process_group first")
        self.group = dist.group.WORLD if group is None else group
        self.rank: int = dist.get_rank(self.group)
        self.size: int = dist.get_world_size(self.group)
        if self.rank < 0:
            raise ParameterError("group: this process is none of its members")
        on_device = dist.get_backend(self.group) == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_device else "cpu"

    def all_gather(self, message: bytes, room: int = 0) -> list[bytes]:
        """Send one message to all; return those of all in the order of ranks.

        Parameters
        ----------
        message : bytes
        room : int
            Bytes of each message that travel along with its length, the same on all ranks: where
            it suffices, one collective does instead of two.
        """
        values = np.frombuffer(message, np.uint8)
        own = np.empty(_LENGTH_NBYTES + room, np.uint8)
        own[:_LENGTH_NBYTES].view(np.uint64)[0] = len(message)
        _fill(own[_LENGTH_NBYTES:], values[:room])
        rows = self._gather(own)
        lengths = [int(row[:_LENGTH_NBYTES].view(np.uint64)[0]) for row in rows]
        heads = [
            row[_LENGTH_NBYTES:][:length].tobytes()
            for row, length in zip(rows, lengths, strict=True)
        ]
        most = max(lengths) - room
        if most <= 0:
            return heads
        rest = np.empty(most, np.uint8)
        _fill(rest, values[room:])
        tails = self._gather(rest)
        return [
            head + tail[: max(length - room, 0)].tobytes()
            for head, tail, length in zip(heads, tails, lengths, strict=True)
        ]

    def all_to_all(self, messages: Sequence[bytes]) -> list[bytes]:
        """Send message i to rank i; return what all sent to this one, in the order of ranks."""
        if len(messages) != self.size:
            raise ParameterError.of("messages", len(messages), f"{self.size}, one for each rank")
        lengths = [len(message) for message in messages]
        sent = torch.tensor(lengths, device=self._device)
        coming = torch.empty_like(sent)
        dist.all_to_all_single(coming, sent, group=self.group)
        counts = coming.tolist()
        received = torch.empty(sum(counts), dtype=torch.uint8, device=self._device)
        payload = self._to_device(np.frombuffer(joined(messages), np.uint8))
        dist.all_to_all_single(received, payload, counts, lengths, group=self.group)
        return [part.numpy().tobytes() for part in received.cpu().split(counts)]

    def all_reduce(self, values: np.ndarray) -> None:
        """Replace a float32 array by the sum of those of all: the same bits on every rank."""
        if values.dtype != np.float32 or not values.flags.writeable:
            raise ParameterError("values: must be a float32 array that can be written to")
        total = self._to_device(np.ascontiguousarray(values).reshape(-1))
        dist.all_reduce(total, group=self.group)
        values[...] = total.cpu().numpy().reshape(values.shape)

    def exchange(self, to: int, message: bytes) -> bytes:
        """Send a message to one member, which calls this as well; return the message of it."""
        if to == self.rank:
            return message
        length = torch.tensor([len(message)], device=self._device)
        coming = torch.empty_like(length)
        self._swap(to, length, coming)
        received = torch.empty(int(coming), dtype=torch.uint8, device=self._device)
        self._swap(to, self._to_device(np.frombuffer(message, np.uint8)), received)
        return bytes(received.cpu().numpy())

    def broadcast(self, message: bytes, root: int = 0) -> bytes:
        """Return the message of `root`; that of the others is not looked at."""
        source = dist.get_global_rank(self.group, root)
        length = torch.tensor([len(message)], device=self._device)
        dist.broadcast(length, source, group=self.group)
        if self.rank == root:
            payload = self._to_device(np.frombuffer(message, np.uint8))
        else:
            payload = torch.empty(int(length), dtype=torch.uint8, device=self._device)
        if payload.numel():
            dist.broadcast(payload, source, group=self.group)
        return bytes(payload.cpu().numpy())

    def _gather(self, row: np.ndarray) -> list[np.ndarray]:
        """Gather arrays of the same size."""
        rows = torch.empty((self.size, row.size), dtype=torch.uint8, device=self._device)
        dist.all_gather(list(rows), self._to_device(row), group=self.group)
        return list(rows.cpu().numpy())

    def _swap(self, to: int, sent: torch.Tensor, received: torch.Tensor) -> None:
        partner = dist.get_global_rank(self.group, to)
        operations = [
            dist.P2POp(call, tensor, partner, self.group)
            for call, tensor in ((dist.isend, sent), (dist.irecv, received))
            if tensor.numel()
        ]
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        # A copy where the bytes are read-only, which torch would warn of.
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self._device)


def _fill(array: np.ndarray, values: np.ndarray) -> None:
    """Write values, then zeros: what memory held before is nobody's business."""
    array[: values.size] = values
    array[values.size :] = 0
