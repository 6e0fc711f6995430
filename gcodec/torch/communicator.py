"""Messages of any length over a process group of torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from gcodec.arrays.large_bytes import joined
from gcodec.arrays.source import byte_view
from gcodec.errors import ParameterError
from gcodec.torch.agreement import greatest_of
from gcodec.wire.kinds import check_between, check_integer

_LENGTH_NBYTES = 8
_MOST_CALLS = 1 << 32  # no process makes so many groups
_SPARE_NBYTES = 64  # head of a recurring message: 9/8 of the last longest one and these bytes


class TorchCommunicator:
    """A process group as a `gcodec.training.communicator.Communicator`.

    Messages travel in tensors on the host or, with NCCL, on the current CUDA device. If a member
    dies, the waiting members raise the error of the group, after its timeout at the latest.

    Parameters
    ----------
    group : ProcessGroup, optional
        Process group of the members; it may be one that torch.distributed did not make, such as
        the group that torchft's manager has configured. Default: the group of all processes.

    Attributes
    ----------
    group : ProcessGroup
        Process group of the members. Within a group of torchft, the one of the current quorum.
    rank, size : int
        Rank of this process in the group, and number of members.
    ranks : list of int
        Ranks of the members among all processes of torch.distributed; in the group itself if
        torch.distributed did not make it.
    name : str
        Name of the group, the same on all members.

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
        group = getattr(group, "parent", group)  # torchft's groups contain one for each quorum
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            check_group("group", group)
        self._is_foreign = _is_foreign(group)
        if not self._is_foreign:
            check_initialized("group")
        self.group = dist.group.WORLD if group is None else group
        self.size: int = dist.get_world_size(self.group)
        # Ranks and name outlive the group.
        if self._is_foreign:
            self.rank: int = self.group.rank()
            self.ranks: list[int] = list(range(self.size))
            backend = self.group.name()
        else:
            self.rank = dist.get_rank(self.group)
            if self.rank < 0:
                raise ParameterError("group: this process is not a member of it")
            self.ranks = dist.get_process_group_ranks(self.group)
            backend = dist.get_backend(self.group)
        self.name = str(self.group.group_name)
        on_device = backend == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_device else "cpu"
        self._head_nbytes: dict[str, int] = {}  # by slot

    @classmethod
    def apart(
        cls,
        group: dist.ProcessGroup | Sequence[int] | None = None,
        timeout: float | None = None,
        backend: str = "gloo",
    ) -> TorchCommunicator:
        """Make a group with the members of another one, and return its communicator.

        All members must call this method together. Their messages do not mingle with those of
        the other group, so another thread may send them.

        Parameters
        ----------
        group : ProcessGroup or sequence of int, optional
            Process group of the members, or their ranks. Default: the group of all processes.
        timeout : float, optional
            Number of seconds after which a waiting member fails. Default: that of
            torch.distributed.
        backend : str
            Backend of the new group.
        """
        check_initialized("group")
        if timeout is not None:
            timeout = check_between("timeout", timeout, 1e-3, 1e9, "seconds, from 0.001 to 1e9")
        if isinstance(group, dist.ProcessGroup):
            group = dist.get_process_group_ranks(group)
        if group is not None and not (isinstance(group, Sequence) and dist.get_rank() in [*group]):
            allowed = "a ProcessGroup or ranks, with this process as a member, or None"
            raise ParameterError.of("group", group, allowed)
        delay = None if timeout is None else timedelta(seconds=timeout)
        if group is not None:
            size = dist.get_world_size()
            if len({*group}) < len(group) or not {*group} <= {*range(size)}:
                allowed = f"different ranks from 0 to {size - 1}"  # others would never arrive
                raise ParameterError.of("group", group, allowed)
            return cls(_group_of(sorted(group), delay, backend))
        return cls(dist.new_group(timeout=delay, backend=backend))

    def all_gather(
        self, message: bytes, head_nbytes: int = 0, *, slot: str | None = None
    ) -> list[bytes]:
        """Send one message to all members; return the messages of all members by rank.

        Parameters
        ----------
        message : bytes
            Bytes to send; the lengths of the ranks may differ.
        head_nbytes : int
            Number of bytes of each message that travel together with its length; equal on all
            ranks. If no message is longer, one collective suffices instead of two, so pass a
            bound on the lengths if you know one.
        slot : str, optional
            Name of a recurring exchange; equal on all ranks. From the second exchange on,
            slightly more than the longest message of the preceding one takes the place of
            `head_nbytes`.
        """
        head_nbytes = self._head_of(slot, head_nbytes)
        data = _bytes_of(message)
        head = np.zeros(_LENGTH_NBYTES + head_nbytes, np.uint8)
        head[:_LENGTH_NBYTES].view(np.uint64)[0] = data.size
        head[_LENGTH_NBYTES:][: data.size] = data[:head_nbytes]
        heads = self._gather(head)
        lengths = [int(head[:_LENGTH_NBYTES].view(np.uint64)[0]) for head in heads]
        self._learn_head(slot, max(lengths))
        tail = np.zeros(max(0, max(lengths) - head_nbytes), np.uint8)
        tail[: max(0, data.size - head_nbytes)] = data[head_nbytes:]
        tails = self._gather(tail) if tail.size else [tail] * self.size
        return [
            head[_LENGTH_NBYTES:][:length].tobytes()
            + tail[: max(length - head_nbytes, 0)].tobytes()
            for head, tail, length in zip(heads, tails, lengths, strict=True)
        ]

    def all_to_all(
        self, messages: Sequence[bytes], head_nbytes: int = 0, *, slot: str | None = None
    ) -> list[bytes]:
        """Send message i to rank i; return the messages sent to this member, by rank.

        See `all_gather` for `head_nbytes` and `slot`.
        """
        if len(messages) != self.size:
            raise ParameterError.of("messages", len(messages), f"{self.size}, one for each rank")
        head_nbytes = self._head_of(slot, head_nbytes)
        sent = [_bytes_of(message) for message in messages]
        # Each head contains the length of its message and of the sender's longest message, so all
        # members know whether any message has a tail.
        start = 2 * _LENGTH_NBYTES
        heads = np.zeros((self.size, start + head_nbytes), np.uint8)
        numbers = heads[:, :start].view(np.uint64)
        numbers[:, 0] = [data.size for data in sent]
        numbers[:, 1] = max(data.size for data in sent)
        for head, data in zip(heads, sent, strict=True):
            head[start:][: data.size] = data[:head_nbytes]
        received = self.swap_rows(torch.from_numpy(heads)).numpy()
        numbers = received[:, :start].view(np.uint64)
        lengths, longest = numbers[:, 0].tolist(), int(numbers[:, 1].max())
        self._learn_head(slot, longest)
        tails = [b""] * self.size
        if longest > head_nbytes:
            counts = [max(0, length - head_nbytes) for length in lengths]
            own_counts = [max(0, data.size - head_nbytes) for data in sent]
            payload = self._to_device(_bytes_of(joined([data[head_nbytes:] for data in sent])))
            tail = self._empty(sum(counts))
            dist.all_to_all_single(tail, payload, counts, own_counts, group=self.group)
            tails = [part.numpy().tobytes() for part in tail.cpu().split(counts)]
        return [
            head[start:][:length].tobytes() + tail
            for head, length, tail in zip(received, lengths, tails, strict=True)
        ]

    def all_reduce(self, values: np.ndarray) -> None:
        """Replace a float32 array by its sum over all members, with the same bits on each."""
        if values.dtype != np.float32 or not values.flags.writeable:
            raise ParameterError("values: must be a writable float32 array")
        total = torch.from_numpy(np.ascontiguousarray(values).reshape(-1)).to(self._device)
        dist.all_reduce(total, group=self.group)
        values[...] = total.cpu().numpy().reshape(values.shape)

    def exchange(self, to: int, message: bytes) -> bytes:
        """Swap messages with one member, which must call this method too."""
        data = _bytes_of(message)
        if self._member("to", to) == self.rank:
            return data.tobytes()
        length = torch.tensor([data.size], device=self._device)
        received_length = torch.empty_like(length)
        self._swap(to, length, received_length)
        received = self._empty(int(received_length))
        self._swap(to, self._to_device(data), received)
        return bytes(received.cpu().numpy())

    def broadcast(self, message: bytes, root: int = 0) -> bytes:
        """Return the message of rank `root`; the messages of all other ranks are ignored."""
        self._member("root", root)
        data = _bytes_of(message)
        length = torch.tensor([data.size], device=self._device)
        self._broadcast(length, root)
        is_root = self.rank == root
        payload = self._to_device(data) if is_root else self._empty(int(length))
        if payload.numel():
            self._broadcast(payload, root)
        return bytes(payload.cpu().numpy())

    def swap_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Send row i to rank i; return the rows sent to this member, on the device of `rows`."""
        own = rows.to(self._device)
        received = torch.empty_like(own)
        dist.all_to_all_single(received, own, group=self.group)
        return received.to(rows.device)

    def gather_rows(self, row: torch.Tensor) -> torch.Tensor:
        """Return the rows of all members, one below the other, on the device of `row`."""
        own = row.to(self._device)
        rows = torch.empty((self.size, *own.shape), dtype=own.dtype, device=self._device)
        dist.all_gather(list(rows), own, group=self.group)
        return rows.to(row.device)

    def close(self) -> None:
        """Destroy the group, so that members that still wait fail now and not at the timeout.

        Its connections close with the last reference to it. A group that torch.distributed did
        not make is not destroyed. Closing twice does nothing.
        """
        if hasattr(self, "group"):
            if not self._is_foreign:
                dist.destroy_process_group(self.group)
            del self.group

    def knows(self, slot: str) -> bool:
        """Return whether an exchange of this slot has taken place, so that its length is known."""
        return slot in self._head_nbytes

    def _member(self, name: str, rank: int) -> int:
        """Return the rank of a member, or raise `ParameterError`; gloo crashes for other ranks."""
        return check_integer(name, rank, 0, self.size - 1, f"a rank below {self.size}")

    def _head_of(self, slot: str | None, head_nbytes: int) -> int:
        return head_nbytes if slot is None else self._head_nbytes.get(slot, head_nbytes)

    def _learn_head(self, slot: str | None, longest: int) -> None:
        if slot is not None:
            self._head_nbytes[slot] = longest * 9 // 8 + _SPARE_NBYTES

    def _gather(self, row: np.ndarray) -> list[np.ndarray]:
        """Gather uint8 arrays of equal size."""
        return list(self.gather_rows(torch.from_numpy(row)).numpy())

    def _broadcast(self, tensor: torch.Tensor, root: int) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = root
        self.group.broadcast([tensor], options).wait()

    def _swap(self, to: int, sent: torch.Tensor, received: torch.Tensor) -> None:
        if self._is_foreign:  # torch.distributed has no batches for it
            calls = [(self.group.send, sent), (self.group.recv, received)]
            for call, tensor in calls if self.rank < to else reversed(calls):
                if tensor.numel():
                    call([tensor], to, 0).wait()
            return
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

    def _to_device(self, data: np.ndarray) -> torch.Tensor:
        # A copy, because torch warns of read-only memory.
        return torch.from_numpy(data.copy()).to(self._device)


def _bytes_of(message: bytes) -> np.ndarray:
    """View a message as (n,) uint8; ``len`` counts the elements of an array or a memoryview."""
    return np.frombuffer(byte_view(message, "message"), np.uint8)


def check_initialized(caller: str) -> None:
    """Raise `ParameterError` unless torch.distributed is initialized."""
    if not dist.is_initialized():
        raise ParameterError(f"{caller}: call torch.distributed.init_process_group first")


def check_group(name: str, group: object) -> None:
    """Raise `ParameterError` unless an argument is a process group or None."""
    if group is not None and not isinstance(group, dist.ProcessGroup):
        allowed = "a ProcessGroup of which this process is a member, or None"
        raise ParameterError.of(name, group, allowed)


def check_communicator(communicator: object) -> None:
    """Raise `ParameterError` for an object, such as a process group, that lacks `all_gather`."""
    if not hasattr(communicator, "all_gather"):
        allowed = "a Communicator, such as TorchCommunicator(group)"
        raise ParameterError.of("communicator", communicator, allowed)


def _group_of(ranks: list[int], timeout: timedelta | None, backend: str) -> dist.ProcessGroup:
    """Make a group of the given ranks, which all call this.

    torch.distributed hashes a number of each process to the name of a group that only its members
    make: before PyTorch 2.14 the number of its groups, then the number of calls that made one.
    Members with other numbers would wait for each other in vain. So those that have fewer groups
    make groups of their own first, and the number of groups takes the place of that of calls.
    """
    world = dist.distributed_c10d._world
    calls, groups = world.group_count, len(world.pg_names)

    def new_group(ranks: list[int], backend: str) -> dist.ProcessGroup:
        world.group_count = _MOST_CALLS + len(world.pg_names)
        return dist.new_group(ranks, timeout, backend, use_local_synchronization=True)

    try:
        for _ in range(greatest_of(ranks, groups, timeout) - groups):
            new_group([dist.get_rank()], "gloo")
        return new_group(ranks, backend)
    finally:
        # The names of later groups that all processes make contain the number of calls, too.
        world.group_count = calls


def _is_foreign(group: object) -> bool:
    """Return whether a group is one that torch.distributed did not make.

    Subclasses, such as those of torchft, do not always know their rank.
    """
    if type(group) is not dist.ProcessGroup:
        return False
    try:
        dist.get_process_group_ranks(group)
    except KeyError:
        return True
    return False
