"""Messages of any length over a process group of torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from gcodec.arrays.large_bytes import joined
from gcodec.errors import ParameterError
from gcodec.wire.kinds import check_between

_LENGTH_NBYTES = 8


class TorchCommunicator:
    """A process group as a `gcodec.training.communicator.Communicator`.

    Messages travel in tensors on the host or, with NCCL, on the current CUDA device. If a member
    dies, the waiting members raise the error of the group, after its timeout at the latest.

    Parameters
    ----------
    group : ProcessGroup, optional
        Process group of the members. Default: the group of all processes.

    Attributes
    ----------
    rank, size : int
        Rank of this process in the group, and number of members.

    Raises
    ------
    ParameterError
        If torch.distributed is not initialized, or this process is not a member of the group.

    Examples
    --------
    >>> import torch.distributed as dist
    >>> import gcodec.torch
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> gcodec.torch.TorchCommunicator().all_gather(b"message")
    [b'message']
    >>> dist.destroy_process_group()
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not dist.is_initialized():
            raise ParameterError("group: call torch.distributed.init_process_group first")
        self.group = dist.group.WORLD if group is None else group
        self.rank: int = dist.get_rank(self.group)
        self.size: int = dist.get_world_size(self.group)
        if self.rank < 0:
            raise ParameterError("group: this process is not a member of it")
        on_device = dist.get_backend(self.group) == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_device else "cpu"

    @classmethod
    def apart(
        cls, group: dist.ProcessGroup | None = None, timeout: float | None = None
    ) -> TorchCommunicator:
        """Make a gloo group with the members of another one, and return its communicator.

        All members must call this method together. Their messages do not mingle with those of
        the other group, so another thread may send them.

        Parameters
        ----------
        group : ProcessGroup, optional
            Process group of the members. Default: the group of all processes.
        timeout : float, optional
            Number of seconds after which a waiting member fails. Default: that of
            torch.distributed.
        """
        if not dist.is_initialized():
            raise ParameterError("group: call torch.distributed.init_process_group first")
        if timeout is not None:
            check_between("timeout", timeout, 1e-3, 1e9, "seconds, from 0.001 to 1e9")
        apart = dist.new_group(
            None if group is None else dist.get_process_group_ranks(group),
            timeout=None if timeout is None else timedelta(seconds=timeout),
            backend="gloo",
            use_local_synchronization=group is not None,
        )
        return cls(apart)

    def all_gather(self, message: bytes, head_nbytes: int = 0) -> list[bytes]:
        """Send one message to all members; return the messages of all members by rank.

        Parameters
        ----------
        message : bytes
            Bytes to send; the lengths of the ranks may differ.
        head_nbytes : int
            Number of bytes of each message that travel together with its length; equal on all
            ranks. If no message is longer, one collective suffices instead of two.
        """
        data = np.frombuffer(message, np.uint8)
        head = np.zeros(_LENGTH_NBYTES + head_nbytes, np.uint8)
        head[:_LENGTH_NBYTES].view(np.uint64)[0] = data.size
        head[_LENGTH_NBYTES:][: data.size] = data[:head_nbytes]
        heads = self._gather(head)
        lengths = [int(head[:_LENGTH_NBYTES].view(np.uint64)[0]) for head in heads]
        tail = np.zeros(max(0, max(lengths) - head_nbytes), np.uint8)
        tail[: max(0, data.size - head_nbytes)] = data[head_nbytes:]
        tails = self._gather(tail) if tail.size else [tail] * self.size
        return [
            head[_LENGTH_NBYTES:][:length].tobytes()
            + tail[: max(length - head_nbytes, 0)].tobytes()
            for head, tail, length in zip(heads, tails, lengths, strict=True)
        ]

    def all_to_all(self, messages: Sequence[bytes]) -> list[bytes]:
        """Send message i to rank i; return the messages sent to this member, by rank."""
        if len(messages) != self.size:
            raise ParameterError.of("messages", len(messages), f"{self.size}, one for each rank")
        lengths = [len(message) for message in messages]
        sent_lengths = torch.tensor(lengths, device=self._device)
        received_lengths = torch.empty_like(sent_lengths)
        dist.all_to_all_single(received_lengths, sent_lengths, group=self.group)
        counts = received_lengths.tolist()
        received = self._empty(sum(counts))
        payload = self._to_device(joined(messages))
        dist.all_to_all_single(received, payload, counts, lengths, group=self.group)
        return [part.numpy().tobytes() for part in received.cpu().split(counts)]

    def all_reduce(self, values: np.ndarray) -> None:
        """Replace a float32 array by its sum over all members, with the same bits on each."""
        if values.dtype != np.float32 or not values.flags.writeable:
            raise ParameterError("values: must be a writable float32 array")
        total = torch.from_numpy(np.ascontiguousarray(values).reshape(-1)).to(self._device)
        dist.all_reduce(total, group=self.group)
        values[...] = total.cpu().numpy().reshape(values.shape)

    def exchange(self, to: int, message: bytes) -> bytes:
        """Swap messages with one member, which must call this method too."""
        if to == self.rank:
            return message
        length = torch.tensor([len(message)], device=self._device)
        received_length = torch.empty_like(length)
        self._swap(to, length, received_length)
        received = self._empty(int(received_length))
        self._swap(to, self._to_device(message), received)
        return bytes(received.cpu().numpy())

    def broadcast(self, message: bytes, root: int = 0) -> bytes:
        """Return the message of rank `root`; the messages of all other ranks are ignored."""
        source = dist.get_global_rank(self.group, root)
        length = torch.tensor([len(message)], device=self._device)
        dist.broadcast(length, source, group=self.group)
        is_root = self.rank == root
        payload = self._to_device(message) if is_root else self._empty(int(length))
        if payload.numel():
            dist.broadcast(payload, source, group=self.group)
        return bytes(payload.cpu().numpy())

    def _gather(self, row: np.ndarray) -> list[np.ndarray]:
        """Gather uint8 arrays of equal size."""
        rows = torch.empty((self.size, row.size), dtype=torch.uint8, device=self._device)
        dist.all_gather(list(rows), torch.from_numpy(row).to(self._device), group=self.group)
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

    def _empty(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def _to_device(self, message: bytes) -> torch.Tensor:
        # A copy, because torch warns of read-only memory.
        return torch.from_numpy(np.frombuffer(message, np.uint8).copy()).to(self._device)
