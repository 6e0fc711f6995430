"""Agreement of a group: on arguments, on refusals to take part, and on who has failed."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import torch.distributed as dist

from gcodec.errors import FormatError, GcodecError, ParameterError
from gcodec.training.communicator import Communicator

# First byte of a sealed message. After `_LOADED`, the step of a state follows.
_MESSAGE, _LOADED, _REFUSAL = b"\0", b"\1", b"!"
_STEP_NBYTES = 8
_POLL_SECONDS = 0.05
_LATE_SECONDS = 1.0


def check_agreement(communicator: Communicator, caller: str, values: Mapping[str, object]) -> None:
    """Raise `ParameterError` on every rank unless the values of all ranks are equal.

    Parameters
    ----------
    communicator : Communicator
    caller : str
        Name of the public function, for the error.
    values : mapping
        JSON types by name of the argument. A name that a rank lacks has the value None there.
    """
    texts = communicator.all_gather(json.dumps(values).encode())
    gathered = [json.loads(text) for text in texts]
    names = dict.fromkeys(name for others in gathered for name in others)
    for rank, others in enumerate(gathered):
        for name in names:
            first, other = gathered[0].get(name), others.get(name)
            if other != first:
                raise ParameterError(
                    f"{caller}: the ranks differ: {name}={first!r} on rank 0, "
                    f"{other!r} on rank {rank}"
                )


class Refused(GcodecError):
    """A member cannot take part in an exchange; all members know the reason."""


def refusal(reason: str) -> bytes:
    """Return the message of a member that cannot take part."""
    return _REFUSAL + reason.encode()


def sealed(
    write: Callable[[], Sequence[bytes]], count: int, rank: int, loaded: int | None = None
) -> list[bytes]:
    """Return messages that `opened` reads.

    A member that cannot take part sends the reason, because the other members wait for it.

    Parameters
    ----------
    write : callable
        Function that returns the contents of `count` messages. If it raises `ParameterError` or
        `FormatError`, all of them are refusals.
    count : int
    rank : int
        Rank of this process, for the reason.
    loaded : int, optional
        Step of a state that the member has loaded since the last message.
    """
    head = _MESSAGE
    if loaded is not None:
        head = _LOADED + loaded.to_bytes(_STEP_NBYTES, "little")
    try:
        return [head + content for content in write()]
    except (ParameterError, FormatError) as error:
        return [refusal(f"{error}, on rank {rank}")] * count
    except Refused as error:  # of another member, in an earlier phase
        return [refusal(str(error))] * count


def opened(messages: Sequence[bytes]) -> list[bytes]:
    """Return the contents of sealed messages.

    Raises
    ------
    Refused
        If a message is a refusal: the first reason.
    FormatError
        If members have loaded states of different steps since the last message, or only some have.
        All members raise.
    """
    for message in messages:
        if message.startswith(_REFUSAL):
            raise Refused(message.removeprefix(_REFUSAL).decode(errors="replace"))
    end = 1 + _STEP_NBYTES
    heads = [message[:end] if message.startswith(_LOADED) else b"" for message in messages]
    if len({*heads}) > 1:
        steps = [int.from_bytes(head[1:], "little") if head else "none" for head in heads]
        raise FormatError(
            "all ranks must load states of the same step before the same exchange: these have "
            f"loaded {', '.join(map(str, steps))}"
        )
    start = len(heads[0] or _MESSAGE)
    return [message[start:] for message in messages]


def first_reason(communicator: Communicator, reason: str) -> str:
    """Return the first reason of any rank that is not empty; if there is none, an empty text."""
    reasons = communicator.all_gather(reason.encode())
    return next(filter(None, reasons), b"").decode(errors="replace")


def report_failure(group: str, reason: str) -> None:
    """Tell the other ranks of a group, which may wait for this one, why it has failed.

    The ranks meet in the key-value store of torch.distributed, which works without their group.
    """
    with contextlib.suppress(RuntimeError, ValueError):  # the store does not answer either
        _store().set(_failure_key(group, dist.get_rank()), reason)


def roll_call(group: str, ranks: Sequence[int], seconds: float) -> tuple[list[int], list[str]]:
    """Return the ranks of a failed group that have not reported, and the reasons of the others.

    Parameters
    ----------
    group : str
        Name of the group.
    ranks : sequence of int
        Its ranks, as torch.distributed counts them.
    seconds : float
        Time to wait for reports.

    Returns
    -------
    list of int
        Ranks that are dead or slow; if all have reported in the end and none with a reason, those
        that were late. Empty also if the store does not answer.
    list of str
        Reasons that are not empty.
    """
    keys = {rank: _failure_key(group, rank) for rank in ranks}
    try:
        store, start = _store(), time.monotonic()
        absent, late = list(ranks), None
        while absent and time.monotonic() < start + seconds:
            absent = [rank for rank in absent if not store.check([keys[rank]])]
            if late is None or time.monotonic() < start + _LATE_SECONDS:
                late = absent
            time.sleep(_POLL_SECONDS if absent else 0)
        reasons = [store.get(keys[rank]).decode() for rank in ranks if rank not in absent]
    except (RuntimeError, ValueError):
        return [], []
    reasons = [reason for reason in reasons if reason]
    return absent or ([] if reasons else late or []), reasons


def greatest_of(ranks: Sequence[int], number: int, timeout: timedelta | None) -> int:
    """Return the greatest of the numbers that the given ranks pass; all of them call this.

    The ranks meet in the key-value store of torch.distributed, and need no group yet. A rank waits
    for the others until the timeout, or that of the store.
    """
    place, store = f"gcodec/numbers/{'_'.join(map(str, ranks))}", _store()
    ticket = store.add(place, 1) - 1
    call, own = divmod(ticket, len(ranks))  # the next call begins after all have joined this one
    store.set(f"{place}/{call}/{own}", str(number))
    keys = [f"{place}/{call}/{index}" for index in range(len(ranks))]
    store.wait(keys, *([] if timeout is None else [timeout]))
    if call:  # all have read the numbers of the preceding call, or they had not joined this one
        with contextlib.suppress(RuntimeError):  # some stores delete nothing
            store.delete_key(f"{place}/{call - 1}/{own}")
    return max(int(store.get(key)) for key in keys)


def _store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()


def _failure_key(group: str, rank: int) -> str:
    return f"gcodec/failed/{group}/{rank}"
